"""Two turns over one WebSocket. The second sends only the new message; the server has the rest.

Start a server (`make run`), then: python examples/two_turns.py
"""

import os

from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response

MODEL = os.environ.get("OPENAI_MODEL", "smollm2-135m-instruct")
LIMITS = {"max_output_tokens": 80, "store": False}
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "any"),
)


def read_answer(connection: ResponsesConnection) -> Response:
    """Print the text as it arrives; return the finished response."""
    for event in connection:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        elif event.type in ("response.completed", "response.incomplete"):  # incomplete: cut at the limit
            print()
            return event.response
        elif event.type in ("error", "response.failed"):
            raise SystemExit(event.to_json())
    raise SystemExit("the server closed the connection")


with client, client.responses.connect() as connection:
    connection.response.create(model=MODEL, input="Tell me a story about a lighthouse.", **LIMITS)
    first = read_answer(connection)

    connection.response.create(model=MODEL, input="And then?", previous_response_id=first.id, **LIMITS)
    second = read_answer(connection)

usage = second.usage
print(f"read {usage.input_tokens} tokens, {usage.input_tokens_details.cached_tokens} of them from the cache")
