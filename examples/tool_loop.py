"""An agent's tool loop over one WebSocket: each step sends only the outputs of its tools.

Start a server (`make run`), then: python examples/tool_loop.py
"""

import json
import os
from typing import Any

from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response

MODEL = os.environ.get("OPENAI_MODEL", "smollm2-135m-instruct")
MAX_STEPS = 8
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "any"),
)
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def get_weather(city: str) -> str:
    return f"Sunny in {city or 'town'}, 21 degrees."


def step(connection: ResponsesConnection, **fields: Any) -> Response:
    """Create a response and wait for its end."""
    connection.response.create(model=MODEL, tools=[TOOL], max_output_tokens=80, store=False, **fields)
    for event in connection:
        if event.type in ("response.completed", "response.incomplete"):  # incomplete: cut at the limit
            return event.response
        if event.type in ("error", "response.failed"):
            raise SystemExit(event.to_json())
    raise SystemExit("the server closed the connection")


with client, client.responses.connect() as connection:
    # The first call is required: a small model seldom calls a tool by itself.
    response = step(connection, input="What is the weather in Paris?", tool_choice="required")
    for _ in range(MAX_STEPS):
        done = [item for item in response.output if item.status == "completed"]  # not a call cut at the limit
        calls = [item for item in done if item.type == "function_call"]
        if not calls:
            break
        outputs = []
        for call in calls:
            arguments = json.loads(call.arguments)
            result = get_weather(**arguments)
            print(f"{call.name}({arguments}) -> {result}")
            outputs.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
        response = step(connection, input=outputs, previous_response_id=response.id)
    print(response.output_text)
