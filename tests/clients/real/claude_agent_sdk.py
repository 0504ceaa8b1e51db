"""The Claude Agent SDK for Python: it runs the Claude Code that it brings, by the Messages API."""

from itertools import pairwise
from pathlib import Path

from tests.clients.real.claude_code import VARIABLES, usage_of
from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Stage, call, say, tool_results
from tests.relay import Relay

claude_agent_sdk = Client("claude-agent-sdk", "Claude Agent SDK (Python)")

_DRIVER = Path(__file__).parent / "drivers" / "agent_sdk.py"
_ADD = call("mcp__numbers__add", a=1, b=2)
_TURN: list[Answer] = [
    [{"reasoning": "I add."}, say("A moment."), _ADD],
    [{"reasoning": "That was it."}, say("It is 3.")],
]


async def _drive(stage: Stage, relay: Relay, scenario: str) -> Ended:
    return await stage.run(
        *(stage.workshop.python("claude-agent-sdk"), _DRIVER, scenario),
        within_s=120,
        ANTHROPIC_BASE_URL=relay.url.removesuffix("/v1"),
        **VARIABLES,
    )


@claude_agent_sdk.check("Messages", "a tool of the caller's process, and a second question of the session")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN, [say("Still "), _ADD], [say("3.")]) as relay:
        ended = await _drive(stage, relay, "session")
    first, second = ended.result["turns"]
    assert (first["result"], first["is_error"]) == ("It is 3.", False), ended
    assert first["thoughts"] == ["I add.", "That was it."]
    assert first["streamed"] == "A moment.It is 3."
    assert (second["result"], second["is_error"]) == ("3.", False), ended
    assert ended.result["called"] == [[1, 2], [1, 2]]
    turns = [exchange for exchange in relay.exchanges if exchange.path == "/v1/messages"]
    assert len(turns) == 4
    assert "the sum is 3" in tool_results(turns[1].body)[0]
    for before, after in pairwise(turns):
        read, size = usage_of(after)[0], sum(usage_of(before))
        assert read >= size, (before.answer[-2], after.answer[-2])


@claude_agent_sdk.check("Messages", "one question by query()")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN) as relay:
        ended = await _drive(stage, relay, "once")
    (turn,) = ended.result["turns"]
    assert (turn["result"], turn["is_error"], ended.result["called"]) == ("It is 3.", False, [[1, 2]])
    assert turn["usage"]["output_tokens"] > 0


@claude_agent_sdk.check("Messages", "an answer of a schema")
async def _(stage: Stage) -> None:
    weather = {"city": "Paris", "degrees": 21}
    async with stage.serve([call("StructuredOutput", **weather)], [say("Done.")]) as relay:
        ended = await _drive(stage, relay, "structured")
    (turn,) = ended.result["turns"]
    assert (turn["structured"], turn["is_error"]) == (weather, False), ended


@claude_agent_sdk.check("Messages", "a turn that a safety check blocks stays blocked")
async def _(stage: Stage) -> None:
    async with stage.serve([say("Hi.")], flags=stage.blocking("1 . 2", before=True)) as relay:
        ended = await _drive(stage, relay, "once")
    assert "safety check 'words'" in ended.stdout + ended.stderr, ended
    assert {each.status for each in relay.exchanges if each.path == "/v1/messages"} == {400}
