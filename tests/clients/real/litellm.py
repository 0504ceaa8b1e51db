"""LiteLLM as a client: its `openai/` models, by Chat Completions."""

from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Stage, call, say
from tests.relay import Relay

litellm = Client("litellm", "LiteLLM")

_DRIVER = Path(__file__).parent / "drivers" / "litellm_chat.py"
_CALL = call("get_weather", city="Paris")


async def _drive(stage: Stage, relay: Relay, scenario: str) -> Ended:
    return await stage.run(
        *(stage.workshop.python("litellm"), _DRIVER, scenario),
        within_s=120,
        OPENAI_BASE_URL=relay.url,
        OPENAI_API_KEY="any",
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


@litellm.check("Chat Completions", "an error of the server")
async def _(stage: Stage) -> None:
    async with stage.serve([say("never")]) as relay:
        ended = await _drive(stage, relay, "refused")
    assert "'logit_bias': this model does not take it" in ended.result["error"]
