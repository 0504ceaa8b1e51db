"""Continue's command line (`cn`): plain HTTP, with slipring as a model in `config.yaml`."""

from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Json, Stage, call, say, tool_outputs
from tests.relay import Relay

continue_cli = Client("continue", "Continue CLI")

CONFIG = """\
name: slipring
version: 1.0.0
schema: v1
models:
  - name: slipring
    provider: openai
    model: simulated
    apiBase: http://127.0.0.1:8000/v1
    apiKey: any
    roles: [chat]
    capabilities: [tool_use]
"""
"""As shown in `docs/clients.md`."""

_FLAGS = ("--model", "gpt-5.4")
_COMMAND = call("Bash", command="echo slip-$((40 + 2))")


async def _ask(stage: Stage, relay: Relay, *arguments: str, model: str = "simulated") -> Ended:
    config = stage.directory / "config.yaml"
    config.write_text(CONFIG.replace("http://127.0.0.1:8000/v1", relay.url).replace("simulated", model))
    return await stage.run(
        *(stage.workshop.node, stage.workshop.package("continue") / "dist" / "cn.js"),
        *("--config", str(config), "--auto", "--print", *arguments),
        within_s=120,
        CONTINUE_TELEMETRY_ENABLED="0",
    )


@continue_cli.check("SSE", "two turns of one session, with commands in each")
async def _(stage: Stage) -> None:
    answers: list[Answer] = [[_COMMAND], [_COMMAND], [say("Done.")], [_COMMAND], [say("Done again.")]]
    async with stage.serve(*answers, flags=_FLAGS) as relay:
        first = await _ask(stage, relay, "Run it twice", model="gpt-5.4")
        second = await _ask(stage, relay, "--resume", "Run it again", model="gpt-5.4")
    first.require_success()
    second.require_success()
    assert first.stdout.strip() == "Done."
    assert "Done again." in second.stdout
    assert [exchange.path for exchange in relay.exchanges] == ["/v1/responses"] * 5
    outputs = [tool_outputs(exchange.body) for exchange in relay.exchanges]
    assert [len(output) for output in outputs] == [0, 1, 2, 2, 3]
    assert all("slip-42" in output for output in outputs[4])
    assert relay.sockets == []


@continue_cli.check("Chat Completions", "two turns of one session with a model of any name, and commands")
async def _(stage: Stage) -> None:
    thought: Answer = [{"reasoning": "A look first."}, _COMMAND, _COMMAND]
    async with stage.serve(thought, [say("Done.")], [_COMMAND], [say("Done again.")]) as relay:
        first = await _ask(stage, relay, "Run it twice")
        second = await _ask(stage, relay, "--resume", "Run it again")
    first.require_success()
    assert first.stdout.strip() == "Done."
    second.require_success()
    assert "Done again." in second.stdout
    assert [exchange.path for exchange in relay.exchanges] == ["/v1/chat/completions"] * 4
    results = [_results(exchange.body) for exchange in relay.exchanges]
    assert [len(each) for each in results] == [0, 2, 2, 3]
    assert all("slip-42" in output for output in results[3])


def _results(body: Json) -> list[str]:
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


@continue_cli.check("Chat Completions", "slipring launch continue")
async def _(stage: Stage) -> None:
    programs = stage.workshop.root / "continue" / "node_modules" / ".bin"
    async with stage.serve([_COMMAND], [say("Done.")]) as relay:
        ended = await stage.launch("continue", programs, relay.url, "--auto", "--print", "Run it")
    ended.require_success()
    assert "slip-42" in _results(relay.exchanges[-1].body)[0]
