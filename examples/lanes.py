"""Lanes: several responses at once on one WebSocket, and two of them forked from the same parent.

Start a server (`make run`), then: python examples/lanes.py
"""

import os

from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response

MODEL = os.environ.get("OPENAI_MODEL", "smollm2-135m-instruct")
LIMITS = {"max_output_tokens": 60, "store": False}
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "any"),
)


def read_lanes(connection: ResponsesConnection, *lanes: str) -> dict[str, Response]:
    """Read until each of these lanes has finished, and print a lane's initial for each piece of its text."""
    finished: dict[str, Response] = {}
    for event in connection:
        if event.type == "response.output_text.delta":
            print(event.stream_id[0], end="", flush=True)
        elif event.type in ("response.completed", "response.incomplete"):  # incomplete: cut at the limit
            finished[event.stream_id] = event.response
            if len(finished) == len(lanes):
                print()
                return finished
        elif event.type in ("error", "response.failed"):
            raise SystemExit(event.to_json())
    raise SystemExit("the server closed the connection")


with client, client.responses.connect() as connection:
    connection.response.create(model=MODEL, input="Begin a story.", stream_id="main", **LIMITS)
    parent = read_lanes(connection, "main")["main"]

    # Both continue the same parent, each on its own lane, at the same time.
    for lane, wish in (("happy", "End it well."), ("sad", "End it badly.")):
        connection.response.create(
            model=MODEL, input=wish, previous_response_id=parent.id, stream_id=lane, **LIMITS
        )
    endings = read_lanes(connection, "happy", "sad")

for lane in ("happy", "sad"):
    print(f"{lane}: {endings[lane].output_text}")
