"""opencode, a coding agent in the terminal: its experimental WebSocket transport, and HTTP."""

import json

from tests.clients.real.client import Client
from tests.clients.real.disturbances import Cutting
from tests.clients.real.stage import Ended, Json, Stage, call, say, tool_outputs
from tests.relay import Relay

opencode = Client("opencode", "opencode")

CONFIG = """\
{
  "model": "openai/gpt-5.4",
  "small_model": "openai/gpt-5.4",
  "autoupdate": false,
  "permission": { "bash": "allow" },
  "provider": { "openai": { "options": { "baseURL": "http://127.0.0.1:8000/v1" } } }
}
"""
"""As shown in `docs/clients.md`."""
AUTH = {"openai": {"type": "api", "key": "any"}}

_FLAGS = ("--model", "gpt-5.4")
_CALL = call("bash", command="echo slip-$((40 + 2))", description="prints something")


async def _ask(stage: Stage, relay: Relay, **variables: str) -> Ended:
    (stage.directory / "opencode.json").write_text(CONFIG.replace("http://127.0.0.1:8000/v1", relay.url))
    keys = stage.directory / ".local" / "share" / "opencode" / "auth.json"
    keys.parent.mkdir(parents=True)
    keys.write_text(json.dumps(AUTH))
    return await stage.run(
        *(stage.workshop.package("opencode") / "bin" / "opencode", "run"),
        *("--title", "t", "--format", "json", "Run it"),
        within_s=120,
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_AUTOUPDATE="1",
        **variables,
    )


def _require_turn(ended: Ended, requests: list[Json]) -> None:
    ended.require_success()
    assert '"Done."' in ended.stdout, ended
    (output,) = tool_outputs(requests[-1])
    assert "slip-42" in output


@opencode.check("WebSocket", "a tool turn")
async def _(stage: Stage) -> None:
    async with stage.serve([_CALL], [say("Done.")], flags=_FLAGS) as relay:
        ended = await _ask(stage, relay, OPENCODE_EXPERIMENTAL_WEBSOCKETS="1")
    _require_turn(ended, relay.socket.sent)
    assert relay.exchanges == []


@opencode.check("WebSocket", "a connection that breaks in the middle of an answer")
async def _(stage: Stage) -> None:
    broken = [say("These are words of an answer that breaks off.")]
    async with stage.serve(
        [_CALL], broken, [say("Done.")], flags=_FLAGS, disturbance=Cutting(3), abandoned=True
    ) as relay:
        ended = await _ask(stage, relay, OPENCODE_EXPERIMENTAL_WEBSOCKETS="1")
    assert len(relay.sockets) == 2
    _require_turn(ended, relay.sockets[1].sent)


@opencode.check("WebSocket", "a connection that reaches its age limit while a command runs")
async def _(stage: Stage) -> None:
    # The command runs longer than the connection may live; the server checks ages once a second.
    slow = call("bash", command="sleep 6; echo slip-$((40 + 2))", description="prints something, later")
    flags = (*_FLAGS, "--max-age-s", "3", "--age-grace-s", "0")
    async with stage.serve([slow], [say("Done.")], flags=flags) as relay:
        ended = await _ask(stage, relay, OPENCODE_EXPERIMENTAL_WEBSOCKETS="1")
    first, second = relay.sockets
    (error,) = first.order.errors
    assert error["error"]["code"] == "websocket_connection_limit_reached"
    _require_turn(ended, second.sent)


@opencode.check("SSE", "a tool turn")
async def _(stage: Stage) -> None:
    async with stage.serve([_CALL], [say("Done.")], flags=_FLAGS) as relay:
        ended = await _ask(stage, relay)
    _require_turn(ended, [exchange.body for exchange in relay.exchanges])
    assert relay.sockets == []


@opencode.check("WebSocket", "slipring launch opencode")
async def _(stage: Stage) -> None:
    programs = stage.workshop.package("opencode") / "bin"
    words = ("run", "--title", "t", "--format", "json", "Run it")
    async with stage.serve([_CALL], [say("Done.")]) as relay:
        ended = await stage.launch("opencode", programs, relay.url, *words, OPENCODE_DISABLE_MODELS_FETCH="1")
    _require_turn(ended, relay.socket.sent)
