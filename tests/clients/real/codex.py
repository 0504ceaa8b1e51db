"""Codex CLI: `codex exec` over its WebSocket transport, with slipring as a provider in `config.toml`."""

import json
import re
import tomllib
from collections.abc import Sequence
from functools import partial

import aiohttp

from slipring.prompts.parsing.answer_writer import Call
from tests.clients.family_server import ASKED_TO_THINK, MOVING, family_server, require_appended
from tests.clients.real.client import Client
from tests.clients.real.disturbances import Cutting, Forgetting, Refusing
from tests.clients.real.stage import (
    Answer,
    Ended,
    Stage,
    call,
    require_delta,
    say,
    shown_images,
    tool_outputs,
)
from tests.engines.fakes.families import Answer as FamilyAnswer
from tests.engines.fakes.server import Call as ChatCall
from tests.engines.fakes.server import Say, Stop
from tests.guides.page import blocks
from tests.prompts.templates.family_templates import NAMES
from tests.relay import Relay, RelayedSocket

codex = Client("codex", "Codex CLI")

CONFIG = """\
model = "simulated"
model_provider = "slipring"
model_catalog_json = "slipring.json"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[features]
plugins = false

[model_providers.slipring]
name = "slipring"
base_url = "http://127.0.0.1:8000/v1"
env_key = "SLIPRING_KEY"
wire_api = "responses"
supports_websockets = true
"""
"""As shown in `docs/clients.md`."""
ASKING = """\
[model_providers.slipring.auth]
command = "printenv"
args = ["SLIPRING_KEY"]
"""
"""As shown in `docs/clients.md`, in place of the lines with `env_key` and `model_catalog_json`."""
_CATALOG = 'model_catalog_json = "slipring.json"\n'
_WITHOUT_CATALOG = CONFIG.replace(_CATALOG, "")
_ASKING = _WITHOUT_CATALOG.replace('env_key = "SLIPRING_KEY"\n', "") + ASKING

_COMMAND = "echo slip-$((40 + 2))"
_PRINTED = "slip-42"
_TURN: list[Answer] = [[call("exec_command", cmd=_COMMAND)], [say("It printed what it should.")]]
_FINAL = "It printed what it should."
# Tool types that Codex sends and the SDK's types do not have; the server echoes them.
_FOREIGN = frozenset({"namespace", "web_search"})


async def _exec(stage: Stage, relay: Relay, *arguments: str, config: str = CONFIG) -> Ended:
    home = stage.directory / "codex"
    home.mkdir(exist_ok=True)
    # Past the relay: this is not a request of the client.
    async with aiohttp.request("GET", f"{relay.server_url}/models?client_version=1") as catalog:
        (home / "slipring.json").write_bytes(await catalog.read())
    (home / "config.toml").write_text(re.sub(r"http://127\.0\.0\.1:\d+/v1", relay.url, config))
    return await stage.run(
        stage.workshop.node,
        stage.workshop.package("codex") / "bin" / "codex.js",
        *("exec", "--skip-git-repo-check", "--json", *arguments),
        CODEX_HOME=str(home),
        SLIPRING_KEY="any",
    )


def _require_turn(ended: Ended, final: str = _FINAL, commands: int = 1) -> None:
    """Require that the commands were run, their outputs were sent, and the turn ended with the answer."""
    ended.require_success()
    done = [event["item"] for event in ended.lines if event["type"] == "item.completed"]
    assert not any("metadata" in item.get("message", "") for item in done), ended
    assert "refresh available models" not in ended.stderr, ended
    ran = [item for item in done if item["type"] == "command_execution"]
    assert [item["exit_code"] for item in ran] == [0] * commands, ended
    assert all(_PRINTED in item["aggregated_output"] for item in ran), ended
    assert [item["text"] for item in done if item["type"] == "agent_message"][-1] == final, ended
    assert ended.lines[-1]["type"] == "turn.completed", ended


def _require_healthy(socket: RelayedSocket) -> None:
    """Require a warmup, then frames with only new items: no item is sent twice, and every frame has a
    parent."""
    warmup, *turns = socket.sent
    assert warmup["generate"] is False
    assert not any("generate" in frame for frame in turns)
    require_delta(socket.sent, socket.responses)
    ids = [item["id"] for frame in socket.sent for item in frame["input"]]
    assert len(ids) == len(set(ids)), "items were sent again"
    assert socket.order.errors == []


async def _run_turn(
    stage: Stage, flags: Sequence[str] = (), first: Answer = _TURN[0], *, config: str = CONFIG
) -> RelayedSocket:
    """Run a turn with one command and without failures."""
    async with stage.serve(first, _TURN[1], flags=flags, foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}", config=config)
    _require_turn(ended)
    assert relay.exchanges == []
    assert relay.refusals == 0
    _require_healthy(relay.socket)
    assert len(relay.socket.sent) == 3
    (output,) = relay.socket.sent[2]["input"]
    assert _PRINTED in str(output["output"])
    return relay.socket


@codex.check("WebSocket", "a tool turn is warmed up, then sent by delta")
async def _(stage: Stage) -> None:
    socket = await _run_turn(stage)
    warmup = socket.responses[0]
    assert warmup["output"] == []


@codex.check("WebSocket", "Codex knows the model from the catalog: it sends the instructions that are there")
async def _(stage: Stage) -> None:
    socket = await _run_turn(stage)
    catalog = json.loads((stage.directory / "codex" / "slipring.json").read_text())
    (message,) = socket.sent[0]["input"]
    assert message["content"][0]["text"] == catalog["models"][0]["base_instructions"]


@codex.check("WebSocket", "Codex asks for the catalog by itself, if a command gives it the key")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN, foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}", config=_ASKING)
    _require_turn(ended)
    asked = relay.exchanges[0]
    assert (asked.method, asked.path, asked.status) == ("GET", "/v1/models", 200)
    assert asked.query["client_version"]
    assert relay.exchanges == [each for each in relay.exchanges if each.path == asked.path]


@codex.check("WebSocket", "slipring launch codex")
async def _(stage: Stage) -> None:
    flags = ("--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox")
    programs = stage.workshop.root / "codex" / "node_modules" / ".bin"
    async with stage.serve(*_TURN, foreign_tool_types=_FOREIGN) as relay:
        ended = await stage.launch("codex", programs, relay.url, "exec", *flags, f"Run {_COMMAND}")
    _require_turn(ended)
    _require_healthy(relay.socket)
    assert not (stage.directory / ".codex" / "config.toml").exists()


@codex.check("WebSocket", "the same, compressed")
async def _(stage: Stage) -> None:
    socket = await _run_turn(stage, ["--compression"])
    assert socket.deflate


@codex.check("WebSocket", "the configuration of the guide for vLLM")
async def _(stage: Stage) -> None:
    (shown,) = [block.text for block in blocks("guides/codex-on-vllm.md") if block.language == "toml"]
    unattended = CONFIG[CONFIG.index("approval_policy") : CONFIG.index("[model_providers")]
    head, table = shown.split("[model_providers", 1)
    model = tomllib.loads(shown)["model"]
    async with stage.serve(*_TURN, flags=["--model", model], foreign_tool_types=_FOREIGN) as relay:
        config = f"{head}{unattended}[model_providers{table}"
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}", config=config)
    _require_turn(ended)
    _require_healthy(relay.socket)


@codex.check("WebSocket", "the same with a model of Codex' own catalog")
async def _(stage: Stage) -> None:
    socket = await _run_turn(
        stage, ["--model", "gpt-5.5"], config=_WITHOUT_CATALOG.replace("simulated", "gpt-5.5")
    )
    assert socket.sent[0]["reasoning"] == {"effort": "medium"}


@codex.check("WebSocket", "code mode: tools come as items, and a command is a program")
async def _(stage: Stage) -> None:
    program = f"text(JSON.stringify(await tools.exec_command({{cmd: '{_COMMAND}'}})))"
    first: Answer = [{"custom_tool_call": {"name": "exec", "namespace": "functions", "input": program}}]
    config = _WITHOUT_CATALOG.replace("simulated", "gpt-6-sol")
    socket = await _run_turn(stage, ["--model", "gpt-6-sol"], first, config=config)
    assert socket.sent[1]["input"][0]["type"] == "additional_tools"
    assert socket.sent[2]["input"][0]["type"] == "custom_tool_call_output"


@codex.check("WebSocket", "eight tool steps on one socket, no history sent again")
async def _(stage: Stage) -> None:
    step = [call("exec_command", cmd=_COMMAND)]
    async with stage.serve(*[step] * 8, [say(_FINAL)], foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", "Run it eight times")
    _require_turn(ended, commands=8)
    _require_healthy(relay.socket)
    assert len(relay.socket.sent) == 10
    assert all(len(frame["input"]) == 1 for frame in relay.socket.sent[2:])


@codex.check("WebSocket", "an image that Codex views arrives at a model that sees")
async def _(stage: Stage) -> None:
    ((path, url),) = stage.pictures(1)
    answers = (
        (ChatCall("view_image", json.dumps({"path": str(path)})), Stop("tool_calls")),
        (Say(("It", " is grey.")), Stop()),
    )
    async with stage.serve_seeing(*answers, foreign_tool_types=_FOREIGN) as (relay, fake):
        ended = await _exec(stage, relay, "--ephemeral", "What is on it?")
    _require_turn(ended, "It is grey.", commands=0)
    _require_healthy(relay.socket)
    (output,) = relay.socket.sent[-1]["input"]
    assert [part["type"] for part in output["output"]] == ["input_image"], output
    assert shown_images(fake) == [url]


@codex.check("WebSocket", "a session is resumed on a new socket")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN, [say("Still here.")], foreign_tool_types=_FOREIGN) as relay:
        _require_turn(await _exec(stage, relay, f"Run {_COMMAND}"))
        ended = await _exec(stage, relay, "resume", "--last", "Are you there?")
    _require_turn(ended, "Still here.", commands=0)
    first, second = relay.sockets
    _require_healthy(first)
    assert second.sent[0]["generate"] is False
    assert second.sent[1]["previous_response_id"] == second.responses[0]["id"]
    (output,) = tool_outputs(second.sent[1])
    assert _PRINTED in output


@codex.check("WebSocket", "a forgotten parent: everything is sent again on a new socket")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN, disturbance=Forgetting(3), foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}")
    _require_turn(ended)
    first, second = relay.sockets
    (error,) = first.order.errors
    assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
    _require_resent(second)


@codex.check("WebSocket", "a connection that breaks in the middle of an answer")
async def _(stage: Stage) -> None:
    broken = [say("These are words of an answer that breaks off.")]
    async with stage.serve(
        _TURN[0], broken, _TURN[1], disturbance=Cutting(3), abandoned=True, foreign_tool_types=_FOREIGN
    ) as relay:
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}")
    _require_turn(ended)
    first, second = relay.sockets
    assert [event["type"] for event in first.received[-3:]] == ["response.output_text.delta"] * 3
    _require_resent(second)


@codex.check("WebSocket", "an engine that fails in the middle of an answer is asked again")
async def _(stage: Stage) -> None:
    failing = [say("Well,"), {"error": {"message": "out of memory", "status": 500}}]
    async with stage.serve(_TURN[0], failing, _TURN[1], foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}")
    _require_turn(ended)
    first, second = relay.sockets
    assert first.responses[-1]["status"] == "failed"
    _require_resent(second)


@codex.check("WebSocket", "a turn that a safety check blocks, for its input or its answer, is sent once")
async def _(stage: Stage) -> None:
    for asked, said in (("Say xyzzy", "Hi."), ("Say something", "Here it is: xyzzy. That was it.")):
        flags = stage.blocking("xyzzy")
        async with stage.serve([say(said)], [say(said)], flags=flags, foreign_tool_types=_FOREIGN) as relay:
            ended = await _exec(stage, relay, "--ephemeral", asked)
        assert ended.lines[-1]["type"] == "turn.failed", ended
        assert "safety check 'words'" in ended.lines[-1]["error"]["message"], ended
        warmup, *turns = relay.socket.sent
        assert (warmup["generate"], len(turns)) == (False, 1)
        assert relay.exchanges == []


@codex.check("WebSocket", "a turn that a safety check blocks before the engine sees it is sent once")
async def _(stage: Stage) -> None:
    flags = stage.blocking("xyzzy", before=True)
    async with stage.serve([say("Hi.")], flags=flags, foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", "Say xyzzy")
    assert "safety check 'words'" in ended.lines[-1]["error"]["message"], ended
    (error,) = relay.socket.order.errors
    assert (error["status"], error["error"]["code"]) == (400, "invalid_prompt")
    assert [frame.get("generate") for frame in relay.socket.sent] == [False, None]
    assert relay.exchanges == []


@codex.check("WebSocket", "an answer that a safety check cuts, and ends as a refusal, is asked for once")
async def _(stage: Stage) -> None:
    flags = stage.blocking("xyzzy", action="cut", ending="refusal")
    said = [say("Here it is: xyzzy. That was it.")]
    async with stage.serve(said, said, flags=flags, foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", "Say something")
    assert ended.lines[-1]["type"] == "turn.completed", ended
    assert [frame.get("generate") for frame in relay.socket.sent] == [False, None]
    assert relay.exchanges == []


@codex.check("SSE", "an answer that a safety check cuts, and ends as a refusal, is asked for once")
async def _(stage: Stage) -> None:
    flags = stage.blocking("xyzzy", action="cut", ending="refusal")
    said = [say("Here it is: xyzzy. That was it.")]
    async with stage.serve(
        said, said, flags=flags, disturbance=Refusing(426), foreign_tool_types=_FOREIGN
    ) as relay:
        ended = await _exec(stage, relay, "--ephemeral", "Say something")
    assert ended.lines[-1]["type"] == "turn.completed", ended
    assert len(relay.exchanges) == 1


_SECRET_COMMAND = "echo xyz''zy"
"""Prints a word that a safety check refuses, and does not contain it."""


@codex.check(
    "WebSocket", "a session goes on after a blocked message, and after a blocked output of a command"
)
async def _(stage: Stage) -> None:
    runs: list[Answer] = [[call("exec_command", cmd=_SECRET_COMMAND)]]
    for asked, script in (("Say xyzzy", []), ("Run it", runs)):
        flags = stage.blocking("xyzzy", before=True, subjects=["message", "tool_output"])
        async with stage.serve(*script, [say("Hi.")], flags=flags, foreign_tool_types=_FOREIGN) as relay:
            blocked = await _exec(stage, relay, asked)
            ended = await _exec(stage, relay, "resume", "--last", "Say hello")
        assert blocked.lines[-1]["type"] == "turn.failed", blocked
        _require_turn(ended, "Hi.", commands=0)
        warmup, *turns = relay.sockets[-1].sent
        assert (warmup["generate"], len(turns)) == (False, 1)
        assert "xyzzy" in json.dumps(turns[0]["input"]), "Codex has not sent it again"
        found = relay.sockets[-1].responses[-1]["moderation"]["input"]
        assert found["categories"]["withheld"] is True, found


@codex.check("SSE", "a session goes on after a blocked message")
async def _(stage: Stage) -> None:
    flags = stage.blocking("xyzzy", before=True)
    async with stage.serve(
        [say("Hi.")], flags=flags, disturbance=Refusing(426), foreign_tool_types=_FOREIGN
    ) as relay:
        await _exec(stage, relay, "Say xyzzy")
        ended = await _exec(stage, relay, "resume", "--last", "Say hello")
    _require_turn(ended, "Hi.", commands=0)
    blocked, answered = relay.exchanges
    assert (blocked.status, answered.status) == (400, 200)
    assert "xyzzy" in json.dumps(answered.body["input"]), "Codex has not sent it again"


@codex.check("SSE", "a turn that a safety check blocks is sent once")
async def _(stage: Stage) -> None:
    for asked, before in (("Say xyzzy", False), ("Say xyzzy", True), ("Say something", False)):
        flags = stage.blocking("xyzzy", before=before)
        said = [say("Here it is: xyzzy. That was it.")]
        async with stage.serve(
            said, said, flags=flags, disturbance=Refusing(426), foreign_tool_types=_FOREIGN
        ) as relay:
            ended = await _exec(stage, relay, "--ephemeral", asked)
        assert "safety check 'words'" in ended.lines[-1]["error"]["message"], ended
        assert len(relay.exchanges) == 1


@codex.check("WebSocket", "a connection that reaches its age limit while a command runs")
async def _(stage: Stage) -> None:
    # The command runs longer than the connection may live; the server checks ages once a second.
    slow = [call("exec_command", cmd=f"sleep 6; {_COMMAND}")]
    async with stage.serve(
        slow, _TURN[1], flags=["--max-age-s", "3", "--age-grace-s", "0"], foreign_tool_types=_FOREIGN
    ) as relay:
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}")
    _require_turn(ended)
    first, second = relay.sockets
    (error,) = first.order.errors
    assert error["error"]["code"] == "websocket_connection_limit_reached"
    _require_resent(second)


def _require_resent(socket: RelayedSocket) -> None:
    """Require that the history was sent once more, as the beginning of a new chain, which got the last
    answer."""
    (frame,) = socket.sent
    assert "previous_response_id" not in frame
    assert "generate" not in frame
    (output,) = tool_outputs(frame)
    assert _PRINTED in output
    assert [response["status"] for response in socket.responses] == ["completed"]


@codex.check("SSE", "a refused upgrade (426): the session goes on over HTTP")
async def _(stage: Stage) -> None:
    async with stage.serve(*_TURN, disturbance=Refusing(426), foreign_tool_types=_FOREIGN) as relay:
        ended = await _exec(stage, relay, "--ephemeral", f"Run {_COMMAND}")
    _require_turn(ended)
    assert relay.refusals == 1
    assert relay.sockets == []
    first, second = relay.exchanges
    assert (first.path, first.status, second.path, second.status) == ("/v1/responses", 200) * 2
    assert _PRINTED in tool_outputs(second.body)[0]


# Models of all families, with which slipring exchanges token ids.
_OF_FAMILIES = (
    FamilyAnswer(thoughts="I run it.", calls=(Call("exec_command", {"cmd": _COMMAND}),)),
    FamilyAnswer(thoughts="Once more.", calls=(Call("exec_command", {"cmd": _COMMAND}, index=1),)),
    FamilyAnswer(thoughts="Done.", text=_FINAL),
)
_CONTEXT = 1_000_000
"""The vocabulary of these models has little more than bytes, and Codex sends long instructions."""


async def _run_family(stage: Stage, family: str) -> None:
    async with family_server(stage.directory, family, *_OF_FAMILIES) as fake:
        engine = (
            f"vllm:{fake.url},tokenizer={fake.directory},model={fake.model_name},context={_CONTEXT},"
            "structural_tags=false,retries=0"
        )
        config = CONFIG.replace("simulated", fake.model_name)
        if asked := ASKED_TO_THINK.get(family):
            config = f'model_reasoning_effort = "{asked["effort"]}"\n{config}'
        async with stage.serve(engine=engine, foreign_tool_types=_FOREIGN) as relay:
            ended = await _exec(stage, relay, "--ephemeral", "Run it twice", config=config)
        _require_turn(ended, commands=2)
        _require_healthy(relay.socket)
        assert len(fake.prompts) == len(_OF_FAMILIES)
        if family not in MOVING:
            require_appended(fake)


for _family in NAMES:
    codex.check("WebSocket", f"two commands with a model of the family {_family}, by token ids")(
        partial(_run_family, family=_family)
    )
