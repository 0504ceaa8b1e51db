"""langchain-anthropic: LangChain's chat model for the Messages API."""

from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.stage import LLAMA, LLAMA_MODEL, Answer, Ended, Stage, call, say, tool_results
from tests.relay import Relay

langchain_anthropic = Client("langchain-anthropic", "langchain-anthropic")

_DRIVER = Path(__file__).parent / "drivers" / "langchain_messages.py"
_CALL = call("get_weather", city="Paris")
_LOOP: list[Answer] = [
    [{"reasoning": "A look first."}, say("A moment."), _CALL, _CALL],
    [{"reasoning": "It is there."}, say("Sunny.")],
    [say("Rain.")],
]


async def _drive(stage: Stage, relay: Relay, scenario: str, model: str = "simulated") -> Ended:
    return await stage.run(
        *(stage.workshop.python("langchain-anthropic"), _DRIVER, scenario),
        ANTHROPIC_BASE_URL=relay.url.removesuffix("/v1"),
        ANTHROPIC_API_KEY="any",
        ANTHROPIC_MODEL=model,
    )


async def _run_loop(stage: Stage, scenario: str) -> Relay:
    async with stage.serve(*_LOOP) as relay:
        ended = await _drive(stage, relay, scenario)
    assert (ended.result["texts"], ended.result["calls"]) == (["Sunny.", "Rain."], 2)
    assert [exchange.path for exchange in relay.exchanges] == ["/v1/messages"] * 3
    assert [len(tool_results(exchange.body)) for exchange in relay.exchanges] == [0, 2, 2]
    thoughts = [
        block
        for message in relay.exchanges[-1].body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "thinking"
    ]
    assert [block["thinking"] for block in thoughts] == ["A look first.", "It is there."]
    first, *later = ended.result["cached"]
    assert first == 0
    assert all(later), ended
    return relay


@langchain_anthropic.check("Messages", "a tool loop with thoughts, and a question after it")
async def _(stage: Stage) -> None:
    relay = await _run_loop(stage, "plain")
    assert not any(exchange.body.get("stream") for exchange in relay.exchanges)


@langchain_anthropic.check("Messages", "the same, streamed")
async def _(stage: Stage) -> None:
    relay = await _run_loop(stage, "streamed")
    assert all(exchange.body["stream"] for exchange in relay.exchanges)


@langchain_anthropic.check("Messages", "an answer of a schema, by a tool and by a format")
async def _(stage: Stage) -> None:
    for scenario, field in (("by tool", "tool_choice"), ("by format", "output_config")):
        async with stage.serve(engine="simulated:tokens_per_s=0") as relay:
            ended = await _drive(stage, relay, scenario)
        assert ended.result["city"]
        assert field in relay.exchanges[0].body


@langchain_anthropic.check("Messages", "an answer of the embedded model, and its tokens counted before")
async def _(stage: Stage) -> None:
    async with stage.serve(engine=LLAMA) as relay:
        ended = await _drive(stage, relay, "talk", LLAMA_MODEL)
    assert ended.result["text"]
    assert ended.result["usage"]["output_tokens"] == 12
    assert ended.result["usage"]["input_tokens"] == ended.result["counted"] > 0
    assert relay.exchanges[-1].path == "/v1/messages/count_tokens"
