"""The OpenAI Agents SDK, driven over its WebSocket: python agents_loop.py [MESSAGE.png OUTPUT.png]. Prints
one line of JSON. With files, one is in the message, and the tool returns the other."""

import asyncio
import base64
import json
import os
import sys
from contextlib import aclosing
from pathlib import Path

from agents import (
    Agent,
    OpenAIProvider,
    RunConfig,
    Runner,
    ToolOutputImage,
    TResponseInputItem,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseInputImageParam, ResponseInputTextParam


@function_tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


def data_url(path: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(Path(path).read_bytes()).decode()}"


@function_tool
def look() -> ToolOutputImage:
    """Look once more."""
    return ToolOutputImage(image_url=data_url(sys.argv[2]))


def asked() -> str | list[TResponseInputItem]:
    if len(sys.argv) == 1:
        return "weather in Paris?"
    text: ResponseInputTextParam = {"type": "input_text", "text": "Is it the same?"}
    image: ResponseInputImageParam = {
        "type": "input_image",
        "image_url": data_url(sys.argv[1]),
        "detail": "auto",
    }
    return [{"role": "user", "content": [text, image]}]


async def run() -> str:
    provider = OpenAIProvider(
        base_url=os.environ["OPENAI_BASE_URL"], api_key="any", use_responses_websocket=True
    )
    agent = Agent(name="weather", model=os.environ["OPENAI_MODEL"], tools=[get_weather, look])
    async with aclosing(provider):
        result = await Runner.run(
            agent,
            asked(),
            run_config=RunConfig(model_provider=provider),
            auto_previous_response_id=True,
        )
    return str(result.final_output)


set_tracing_disabled(True)  # otherwise it tries to send traces to OpenAI
print(json.dumps({"text": asyncio.run(run())}))
