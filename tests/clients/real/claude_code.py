"""Claude Code, Anthropic's coding agent: the Messages API over SSE. It sends its whole history every time."""

import base64
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipring.prompts.parsing.answer_writer import Call as WrittenCall
from tests.clients.family_server import MOVING, family_server, require_appended
from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Stage, call, say, shown_images, tool_results
from tests.engines.fakes.families import Answer as FamilyAnswer
from tests.engines.fakes.server import Call, Say, Stop
from tests.prompts.templates.family_templates import NAMES
from tests.relay import Exchange, Relay

claude_code = Client("claude-code", "Claude Code")

_COMMAND = "echo slip-$((40 + 2))"
_PRINTED = "slip-42"
_FINAL = "Done."
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
"""An image of one red dot."""
_FLAGS = ("--dangerously-skip-permissions", "--output-format", "json")
VARIABLES = {
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
        _program(stage), *words, *_FLAGS, within_s=120, ANTHROPIC_BASE_URL=url, **VARIABLES
    )


def _require(ended: Ended, said: str = _FINAL) -> None:
    result = ended.result
    assert (result["subtype"], result["is_error"], result["result"]) == ("success", False, said), ended


def _turns(relay: Relay) -> list[Exchange]:
    """The requests for an answer, all of which were answered."""
    found = [exchange for exchange in relay.exchanges if exchange.path.endswith("/messages")]
    assert all(exchange.status == 200 for exchange in found), [exchange.answer for exchange in found]
    return found


def usage_of(exchange: Exchange) -> tuple[int, int]:
    """The tokens of a streamed answer's prompt: those that were cached, and the others."""
    usage = exchange.answer[-2]["usage"]
    return usage["cache_read_input_tokens"], usage["input_tokens"]


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []


@claude_code.check("SSE", "a turn with a command")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN) as relay:
        _require(await _ask(stage, relay, "-p", f"Run {_COMMAND}"))
    first, second = _turns(relay)
    assert len(first.body["tools"]) > 10
    assert _PRINTED in tool_results(second.body)[0]


@claude_code.check("SSE", "eight commands: each turn costs what is new in it")
async def _(stage: Stage) -> None:
    async with stage.serve(*map(_run, range(8)), [say(_FINAL)]) as relay:
        _require(await _ask(stage, relay, "-p", "Run it eight times"))
    turns = _turns(relay)
    assert len(turns) == 9
    for before, after in pairwise(turns):
        # All that was there before: new are the answer and the output of its command.
        assert usage_of(after)[0] >= sum(usage_of(before)), (usage_of(before), usage_of(after))
        assert any(
            block["type"] == "thinking" for message in after.body["messages"] for block in _blocks(message)
        )


@claude_code.check("SSE", "a session is resumed")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN, [say("Still here.")]) as relay:
        _require(await _ask(stage, relay, "-p", f"Run {_COMMAND}"))
        _require(await _ask(stage, relay, "--continue", "-p", "Are you there?"), "Still here.")
    *_, before, last = _turns(relay)
    assert _PRINTED in tool_results(last.body)[0]
    assert usage_of(last)[0] >= sum(usage_of(before)), usage_of(last)


@claude_code.check("SSE", "a subagent, whose conversation does not push that of its parent out")
async def _(stage: Stage) -> None:
    task = {
        "description": "Look",
        "prompt": "Look at it",
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    agent = [say("I delegate."), call("Agent", **task)]
    async with stage.serve(agent, *_TURN, [say("All done.")]) as relay:
        _require(await _ask(stage, relay, "-p", "Have it looked at"), "All done.")
    turns = _turns(relay)
    assert len(turns) == 4
    assert usage_of(turns[-1])[0] >= sum(usage_of(turns[0]))


@claude_code.check("SSE", "a tool that it searches for is loaded, and costs its definition")
async def _(stage: Stage) -> None:
    search = call("ToolSearch", query="select:CronList", max_results=1)
    async with stage.serve([search], [call("CronList")], [say(_FINAL)]) as relay:
        _require(await _ask(stage, relay, "-p", "What is planned?"))
    turns = _turns(relay)
    assert len(turns) == 3
    deferred = [[tool["name"] for tool in turn.body["tools"] if tool.get("defer_loading")] for turn in turns]
    assert "CronList" not in deferred[0]
    assert "CronList" in deferred[1]
    assert '"tool_reference"' in tool_results(turns[1].body)[0]
    assert len(tool_results(turns[2].body)) == 2
    for before, after in pairwise(turns):
        assert usage_of(after)[0] >= sum(usage_of(before)), (usage_of(before), usage_of(after))


@claude_code.check("SSE", "an image that it reads arrives at a model that sees")
async def _(stage: Stage) -> None:
    (stage.directory / "dot.png").write_bytes(base64.b64decode(_PIXEL))
    read = Call("Read", json.dumps({"file_path": str(stage.directory / "dot.png")}))
    answers = ((read, Stop("tool_calls")), (Say(("It", " is red.")), Stop()))
    async with stage.serve_seeing(*answers) as (relay, fake):
        _require(await _ask(stage, relay, "-p", "What is on dot.png?"), "It is red.")
    (sent,) = [
        block["source"]["data"]
        for message in _turns(relay)[-1].body["messages"]
        for result in _blocks(message)
        if result["type"] == "tool_result"
        for block in result["content"]
        if block["type"] == "image"
    ]
    assert shown_images(fake) == [f"data:image/png;base64,{sent}"]


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
    assert "The input was blocked by the safety check 'words'" in ended.stdout, ended
    assert [each.status for each in relay.exchanges if each.path.endswith("/messages")] == [400]


@claude_code.check("SSE", "a turn whose answer a safety check blocks is sent once")
async def _(stage: Stage) -> None:
    flags = stage.blocking("xyzzy", subjects=["answer"])
    async with stage.serve([say("xyzzy")], [say("Hi.")], flags=flags) as relay:
        ended = await _ask(stage, relay, "-p", "Say it")
    assert "The answer was blocked by the safety check 'words'" in ended.stdout, ended
    (turn,) = _turns(relay)
    assert turn.answer[-1]["type"] == "error"


@claude_code.check("SSE", "slipring launch claude")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN) as relay:
        words = ("-p", f"Run {_COMMAND}", *_FLAGS)
        ended = await stage.launch("claude", _program(stage).parent, relay.url, *words, IS_SANDBOX="1")
    _require(ended)
    assert _PRINTED in tool_results(_turns(relay)[-1].body)[0]


# Models of all families, with which slipring exchanges token ids.
_BASH = {"command": _COMMAND, "description": "Say it"}
_OF_FAMILIES = (
    FamilyAnswer(thoughts="I run it.", calls=(WrittenCall("Bash", _BASH),)),
    FamilyAnswer(thoughts="Once more.", calls=(WrittenCall("Bash", _BASH, index=1),)),
    FamilyAnswer(thoughts="Done.", text=_FINAL),
)
_CONTEXT = 1_000_000
"""The vocabulary of these models has little more than bytes, and Claude Code sends long instructions."""


async def _run_family(stage: Stage, family: str) -> None:
    async with family_server(stage.directory, family, *_OF_FAMILIES) as fake:
        engine = (
            f"vllm:{fake.url},tokenizer={fake.directory},model={fake.model_name},context={_CONTEXT},"
            "structural_tags=false,retries=0"
        )
        async with stage.serve(engine=engine) as relay:
            words = ("-p", "Run it twice", *_FLAGS)
            ended = await stage.launch("claude", _program(stage).parent, relay.url, *words, IS_SANDBOX="1")
        _require(ended)
        assert len(tool_results(_turns(relay)[-1].body)) == 2
        assert len(fake.prompts) == len(_OF_FAMILIES)
        if family not in MOVING:
            require_appended(fake)


for _family in NAMES:
    claude_code.check("SSE", f"two commands with a model of the family {_family}, by token ids")(
        partial(_run_family, family=_family)
    )
