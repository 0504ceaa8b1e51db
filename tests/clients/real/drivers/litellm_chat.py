"""LiteLLM, driven: python litellm_chat.py SCENARIO, with the model LITELLM_MODEL. Prints one line of JSON."""

import json
import os
import sys
from typing import Any

import litellm

MODEL = os.environ["LITELLM_MODEL"]
THINKING = {"type": "enabled", "budget_tokens": 2048}
# It does not know that the model thinks.
SETTINGS: dict[str, Any] = {"thinking": THINKING, "allowed_openai_params": ["thinking"]}
if MODEL.startswith("openai/"):
    SETTINGS = {}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def answer(messages: list[Any], *, streams: bool) -> Any:
    """The message of a completion."""
    if not streams:
        return litellm.completion(MODEL, messages, tools=TOOLS, **SETTINGS).choices[0].message
    chunks = list(litellm.completion(MODEL, messages, tools=TOOLS, stream=True, **SETTINGS))
    return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message


def loop(*, streams: bool) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": "weather in Paris?"}]
    calls, thought = 0, ""
    while True:
        message = answer(messages, streams=streams)
        messages.append(message)
        thought += getattr(message, "reasoning_content", None) or ""
        if not message.tool_calls:
            return {"text": message.content, "calls": calls, "thought": thought}
        for call in message.tool_calls:
            calls += 1
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"sunny in {city}"})


def refused() -> dict[str, Any]:
    try:
        litellm.completion(MODEL, [{"role": "user", "content": "hello"}], temperature=3, num_retries=0)
    except litellm.BadRequestError as error:
        return {"error": str(error)}
    return {}


SCENARIOS = {
    "plain": lambda: loop(streams=False),
    "streamed": lambda: loop(streams=True),
    "refused": refused,
}
print(json.dumps(SCENARIOS[sys.argv[1]]()))
