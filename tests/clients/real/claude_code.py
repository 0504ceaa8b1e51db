"""Claude Code, Anthropic's coding agent: the Messages API over SSE. It sends its whole history every time."""

import json
from pathlib import Path
from typing import Any

from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Stage, call, say
from tests.relay import Exchange, Relay

claude_code = Client("claude-code", "Claude Code")

_COMMAND = "echo slip-$((40 + 2))"
_PRINTED = "slip-42"
_FINAL = "Done."
_FLAGS = ("--dangerously-skip-permissions", "--output-format", "json")
_VARIABLES = {
    "ANTHROPIC_AUTH_TOKEN": "any",
    "ANTHROPIC_MODEL": "simulated",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "simulated",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "IS_SANDBOX": "1",
}


def _think(words: str) -> dict[str, Any]:
    return {"reasoning": words}


def _run(number: int = 0) -> Answer:
    """An answer with a thought, a word and a command."""
    return [_think("I run it."), say(f"Step {number}."), call("Bash", command=_COMMAND, description="Say it")]


_TURN = (_run(), [_think("It has run."), say(_FINAL)])


def _program(stage: Stage) -> Path:
    return stage.workshop.package("claude-code") / "claude"


async def _ask(stage: Stage, relay: Relay, *words: str) -> Ended:
    (stage.directory / "work").mkdir(exist_ok=True)
    url = relay.url.removesuffix("/v1")
    return await stage.run(
        _program(stage), *words, *_FLAGS, within_s=120, ANTHROPIC_BASE_URL=url, **_VARIABLES
    )


def _require(ended: Ended, said: str = _FINAL) -> None:
    result = ended.result
    assert (result["subtype"], result["is_error"], result["result"]) == ("success", False, said), ended


def _turns(relay: Relay) -> list[Exchange]:
    """The requests for an answer, all of which were answered."""
    found = [exchange for exchange in relay.exchanges if exchange.path.endswith("/messages")]
    assert all(exchange.status == 200 for exchange in found), [exchange.answer for exchange in found]
    return found


def _results(exchange: Exchange) -> list[str]:
    """The outputs of commands in a request."""
    blocks = [block for message in exchange.body["messages"] for block in _blocks(message)]
    return [json.dumps(block["content"]) for block in blocks if block["type"] == "tool_result"]


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []


@claude_code.check("SSE", "a turn with a command")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN) as relay:
        _require(await _ask(stage, relay, "-p", f"Run {_COMMAND}"))
    first, second = _turns(relay)
    assert relay.exchanges[0].method == "HEAD"
    assert len(first.body["tools"]) > 10
    assert _PRINTED in _results(second)[0]


@claude_code.check("SSE", "eight commands: each turn costs what is new in it")
async def _(stage: Stage) -> None:
    async with stage.serve(*map(_run, range(8)), [say(_FINAL)]) as relay:
        _require(await _ask(stage, relay, "-p", "Run it eight times"))
    turns = _turns(relay)
    assert len(turns) == 9
    usages = [turn.answer[-2]["usage"] for turn in turns]
    sizes = [usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in usages]
    for before, usage, size, after in zip(sizes, usages[1:], sizes[1:], turns[1:], strict=False):
        # The answer before and the output of its command, and nothing that was there before.
        assert usage["cache_read_input_tokens"] >= before, (before, usage)
        assert usage["input_tokens"] <= size - before, (before, usage)
        assert any(
            block["type"] == "thinking" for message in after.body["messages"] for block in _blocks(message)
        )


@claude_code.check("SSE", "a session is resumed")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN, [say("Still here.")]) as relay:
        _require(await _ask(stage, relay, "-p", f"Run {_COMMAND}"))
        _require(await _ask(stage, relay, "--continue", "-p", "Are you there?"), "Still here.")
    *_, before, last = _turns(relay)
    assert _PRINTED in _results(last)[0]
    usage, earlier = last.answer[-2]["usage"], before.answer[-2]["usage"]
    size = earlier["input_tokens"] + earlier["cache_read_input_tokens"]
    assert usage["cache_read_input_tokens"] >= size, usage


@claude_code.check("SSE", "a subagent, whose conversation does not push that of its parent out")
async def _(stage: Stage) -> None:
    task = {"description": "Look", "prompt": "Look at it", "subagent_type": "general-purpose"}
    agent = [say("I delegate."), call("Agent", **task)]
    async with stage.serve(agent, *_TURN, [say("All done.")]) as relay:
        _require(await _ask(stage, relay, "-p", "Have it looked at"), "All done.")
    turns = _turns(relay)
    assert len(turns) == 4
    first, last = turns[0].answer[-2]["usage"], turns[-1].answer[-2]["usage"]
    assert last["cache_read_input_tokens"] >= first["input_tokens"] + first["cache_read_input_tokens"]


@claude_code.check("SSE", "/compact")
async def _(stage: Stage) -> None:
    summary = [say("<summary>It ran a command.</summary>")]
    async with stage.serve(*_TURN, summary, [say("Compacted.")]) as relay:
        _require(await _ask(stage, relay, "-p", f"Run {_COMMAND}"))
        await _ask(stage, relay, "--continue", "-p", "/compact")
        _require(await _ask(stage, relay, "--continue", "-p", "Go on"), "Compacted.")
    assert "It ran a command." in json.dumps(_turns(relay)[-1].body["messages"])


@claude_code.check("SSE", "an engine that fails is asked again")
async def _(stage: Stage) -> None:
    failing = [{"error": {"message": "out of memory", "status": 500}}]
    async with stage.serve(failing, *_TURN) as relay:
        _require(await _ask(stage, relay, "-p", f"Run {_COMMAND}"))
    failed, *answered = _turns(relay)
    assert failed.answer[-1]["error"] == {"type": "api_error", "message": "out of memory"}
    assert len(answered) == 2


@claude_code.check("SSE", "a turn that a safety check blocks is sent once")
async def _(stage: Stage) -> None:
    flags = stage.blocking("xyzzy", before=True)
    async with stage.serve([say("Hi.")], flags=flags) as relay:
        ended = await _ask(stage, relay, "-p", "Say xyzzy")
    assert "safety check 'words'" in ended.stdout, ended
    assert [each.status for each in relay.exchanges if each.path.endswith("/messages")] == [400]


@claude_code.check("SSE", "slipring launch claude")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN) as relay:
        words = ("-p", f"Run {_COMMAND}", *_FLAGS)
        ended = await stage.launch("claude", _program(stage).parent, relay.url, *words, IS_SANDBOX="1")
    _require(ended)
    assert _PRINTED in _results(_turns(relay)[-1])[0]
