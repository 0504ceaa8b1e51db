"""The OpenAI Agents SDK, driven over its WebSocket: python agents_loop.py. Prints one line of JSON."""

import asyncio
import json
import os
from contextlib import aclosing

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool, set_tracing_disabled


@function_tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


async def run() -> str:
    provider = OpenAIProvider(
        base_url=os.environ["OPENAI_BASE_URL"], api_key="any", use_responses_websocket=True
    )
    agent = Agent(name="weather", model=os.environ["OPENAI_MODEL"], tools=[get_weather])
    async with aclosing(provider):
        result = await Runner.run(
            agent,
            "weather in Paris?",
            run_config=RunConfig(model_provider=provider),
            auto_previous_response_id=True,
        )
    return str(result.final_output)


set_tracing_disabled(True)  # otherwise it tries to send traces to OpenAI
print(json.dumps({"text": asyncio.run(run())}))
