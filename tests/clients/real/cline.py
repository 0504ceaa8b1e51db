"""Cline in the terminal, over HTTP: by Responses at OpenAI's own address, and by Chat Completions."""

import re
from itertools import pairwise

from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Stage, call, say, tool_outputs
from tests.relay import Relay

cline = Client("cline", "Cline")

SETUP = """\
cline auth -p openai-native -k any -m gpt-5.4
OPENAI_BASE_URL=http://127.0.0.1:8000/v1 cline "Run the tests"
"""
"""As shown in `docs/clients.md`."""

CHAT = """\
cline auth -p openai -k any -m simulated -b http://127.0.0.1:8000/v1
cline "Run the tests"
"""
"""As shown in `docs/clients.md`."""

_FLAGS = ("--model", "gpt-5.4")
_COMMAND = call("execute_command", command="echo slip-$((40 + 2))", requires_approval=False)
_DONE = call("attempt_completion", result="Done.")


# What it asks models for whose tools it does not know.
_WRITTEN = say(
    "I run it.\n\n<execute_command>\n<command>echo slip-$((40 + 2))</command>\n"
    "<requires_approval>false</requires_approval>\n</execute_command>"
)
_WRITTEN_END = say("<attempt_completion>\n<result>Done.</result>\n</attempt_completion>")


async def _cline(stage: Stage, relay: Relay, *arguments: str) -> Ended:
    return await stage.run(
        *(stage.workshop.node, stage.workshop.package("cline") / "dist" / "cli.mjs"),
        *arguments,
        within_s=120,
        OPENAI_BASE_URL=relay.url,
    )


async def _set_up(stage: Stage, relay: Relay) -> None:
    first, second = SETUP.splitlines()
    words = re.fullmatch(r"cline (auth .*)", first)
    assert words is not None
    assert second.startswith("OPENAI_BASE_URL=")
    (await _cline(stage, relay, *words[1].split())).require_success()


@cline.check("SSE", "a task of several turns, with a command in each")
async def _(stage: Stage) -> None:
    answers: list[Answer] = [[_COMMAND], [_COMMAND], [_COMMAND], [_DONE]]
    async with stage.serve(*answers, flags=_FLAGS) as relay:
        await _set_up(stage, relay)
        ended = await _cline(stage, relay, "--yolo", "--json", "Run it three times")
    ended.require_success()
    assert [line["text"] for line in ended.lines if line.get("say") == "completion_result"] == ["Done."]
    assert [exchange.path for exchange in relay.exchanges] == ["/v1/responses"] * 4
    outputs = [tool_outputs(exchange.body) for exchange in relay.exchanges]
    assert [len(output) for output in outputs] == [0, 1, 2, 3]
    assert all("slip-42" in output for output in outputs[3])
    assert relay.sockets == []


@cline.check("SSE", "thoughts of a model come back with its calls")
async def _(stage: Stage) -> None:
    thought = [{"reasoning_summary": "A look first."}, _COMMAND]
    async with stage.serve(thought, [say("Now done."), _DONE], flags=_FLAGS) as relay:
        await _set_up(stage, relay)
        ended = await _cline(stage, relay, "--yolo", "--json", "Run it")
    ended.require_success()
    assert "slip-42" in tool_outputs(relay.exchanges[1].body)[0]


@cline.check("Chat Completions", "a model of any name: a task of several turns, with a command in each")
async def _(stage: Stage) -> None:
    answers: list[Answer] = [[{"reasoning": "A look first."}, _WRITTEN], [_WRITTEN], [_WRITTEN_END]]
    async with stage.serve(*answers) as relay:
        words = CHAT.splitlines()[0].replace("http://127.0.0.1:8000/v1", relay.url).split()
        (await _cline(stage, relay, *words[1:])).require_success()
        ended = await _cline(stage, relay, "--yolo", "--json", "Run it twice")
    _require_written(ended, relay)
    usages = [exchange.answer[-1]["usage"] for exchange in relay.exchanges]
    for before, after in pairwise(usages):
        assert after["prompt_tokens_details"]["cached_tokens"] >= before["prompt_tokens"]


def _require_written(ended: Ended, relay: Relay) -> None:
    ended.require_success()
    assert [line["text"] for line in ended.lines if line.get("say") == "completion_result"] == ["Done."]
    assert [exchange.path for exchange in relay.exchanges] == ["/v1/chat/completions"] * 3
    outputs = [message for message in relay.exchanges[2].body["messages"] if "slip-42" in str(message)]
    assert [message["role"] for message in outputs] == ["user", "user"]


@cline.check("SSE", "slipring launch cline")
async def _(stage: Stage) -> None:
    programs = stage.workshop.root / "cline" / "node_modules" / ".bin"
    async with stage.serve([_COMMAND], [_DONE], flags=_FLAGS) as relay:
        ended = await stage.launch("cline", programs, relay.url, "--yolo", "--json", "Run it")
    ended.require_success()
    assert "slip-42" in tool_outputs(relay.exchanges[-1].body)[0]


@cline.check("Chat Completions", "slipring launch cline, with a model of any name")
async def _(stage: Stage) -> None:
    programs = stage.workshop.root / "cline" / "node_modules" / ".bin"
    async with stage.serve([_WRITTEN], [_WRITTEN], [_WRITTEN_END]) as relay:
        ended = await stage.launch("cline", programs, relay.url, "--yolo", "--json", "Run it twice")
    relay.exchanges.pop(0)  # `launch` asks for the models
    _require_written(ended, relay)
