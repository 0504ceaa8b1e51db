"""langchain-openai: HTTP only, by Responses and by Chat Completions.

By Responses, with only new items per request if `use_previous_response_id` is set.
"""

from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.stage import LLAMA, LLAMA_MODEL, Ended, Stage, call, require_delta, say
from tests.relay import Relay

langchain = Client("langchain", "langchain-openai")

_DRIVER = Path(__file__).parent / "drivers" / "langchain_chat.py"


async def _drive(stage: Stage, relay: Relay, scenario: str, model: str = "simulated") -> Ended:
    return await stage.run(
        *(stage.workshop.python("langchain"), _DRIVER, scenario),
        OPENAI_BASE_URL=relay.url,
        OPENAI_API_KEY="any",
        OPENAI_MODEL=model,
    )


async def _run_loop(stage: Stage, scenario: str) -> Relay:
    asked = [call("get_weather", city="Paris")]
    async with stage.serve(asked, asked, [say("Sunny.")]) as relay:
        ended = await _drive(stage, relay, scenario)
    assert ended.result == {"text": "Sunny.", "calls": 2}
    assert len(relay.exchanges) == 3
    return relay


@langchain.check("HTTP", "a tool loop by delta")
async def _(stage: Stage) -> None:
    relay = await _run_loop(stage, "plain")
    require_delta([each.body for each in relay.exchanges], [each.answer for each in relay.exchanges])


@langchain.check("SSE", "a tool loop by delta, streamed")
async def _(stage: Stage) -> None:
    relay = await _run_loop(stage, "streamed")
    answers = [exchange.answer[-1]["response"] for exchange in relay.exchanges]
    require_delta([exchange.body for exchange in relay.exchanges], answers)


@langchain.check("HTTP", "an answer of the embedded model")
async def _(stage: Stage) -> None:
    async with stage.serve(engine=LLAMA) as relay:
        ended = await _drive(stage, relay, "talk", LLAMA_MODEL)
    assert ended.result["text"]
    assert ended.result["usage"]["output_tokens"] > 0


@langchain.check("Chat Completions", "a tool loop")
async def _(stage: Stage) -> None:
    relay = await _run_loop(stage, "chat")
    assert {exchange.path for exchange in relay.exchanges} == {"/v1/chat/completions"}


@langchain.check("Chat Completions", "a tool loop, streamed")
async def _(stage: Stage) -> None:
    relay = await _run_loop(stage, "chat streamed")
    assert all(exchange.body["stream"] for exchange in relay.exchanges)


@langchain.check("Chat Completions", "an answer of a schema")
async def _(stage: Stage) -> None:
    async with stage.serve([say('{"city": "Paris"}')]) as relay:
        ended = await _drive(stage, relay, "parsed")
    assert ended.result == {"city": "Paris"}
    assert relay.exchanges[0].body["response_format"]["type"] == "json_schema"
