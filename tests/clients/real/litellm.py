"""LiteLLM as a client: its `openai/` models by Chat Completions, its `anthropic/` models by Messages."""

import json
from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Stage, call, say, tool_results
from tests.relay import Relay

litellm = Client("litellm", "LiteLLM")

_DRIVER = Path(__file__).parent / "drivers" / "litellm_chat.py"
_CALL = call("get_weather", city="Paris")


async def _drive(stage: Stage, relay: Relay, scenario: str, provider: str = "openai") -> Ended:
    return await stage.run(
        *(stage.workshop.python("litellm"), _DRIVER, scenario),
        within_s=120,
        OPENAI_BASE_URL=relay.url,
        OPENAI_API_KEY="any",
        ANTHROPIC_API_BASE=relay.url.removesuffix("/v1"),
        ANTHROPIC_API_KEY="any",
        LITELLM_MODEL=f"{provider}/simulated",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )


@litellm.check("Chat Completions", "a tool loop with thoughts, plain and streamed")
async def _(stage: Stage) -> None:
    answers: list[Answer] = [[{"reasoning": "A look first."}, _CALL, _CALL], [say("Sunny.")]]
    async with stage.serve(*answers, *answers) as relay:
        plain = await _drive(stage, relay, "plain")
        streamed = await _drive(stage, relay, "streamed")
    for ended in (plain, streamed):
        assert ended.result == {"text": "Sunny.", "calls": 2, "thought": "A look first."}
    assert {exchange.path for exchange in relay.exchanges} == {"/v1/chat/completions"}


@litellm.check("Messages", "a tool loop with thoughts, plain and streamed")
async def _(stage: Stage) -> None:
    answers: list[Answer] = [[{"reasoning": "A look first."}, _CALL, _CALL], [say("Sunny.")]]
    async with stage.serve(*answers, *answers) as relay:
        plain = await _drive(stage, relay, "plain", "anthropic")
        streamed = await _drive(stage, relay, "streamed", "anthropic")
    for ended in (plain, streamed):
        assert ended.result == {"text": "Sunny.", "calls": 2, "thought": "A look first."}
    assert [exchange.path for exchange in relay.exchanges] == ["/v1/messages"] * 4
    assert [len(tool_results(exchange.body)) for exchange in relay.exchanges] == [0, 2, 0, 2]
    for number in (1, 3):
        assert '"signature": "' in json.dumps(relay.exchanges[number].body["messages"])


@litellm.check("Chat Completions, Messages", "an error of the server")
async def _(stage: Stage) -> None:
    for provider, named in (("openai", "'temperature'"), ("anthropic", "temperature: ")):
        async with stage.serve([say("never")]) as relay:
            ended = await _drive(stage, relay, "refused", provider)
        assert named in ended.result["error"], ended
        assert [exchange.status for exchange in relay.exchanges] == [400]
