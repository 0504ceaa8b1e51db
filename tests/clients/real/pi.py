"""pi, a coding agent in the terminal: plain HTTP, with slipring as a provider in `models.json`."""

from tests.clients.real.client import Client
from tests.clients.real.stage import Ended, Stage, call, say, tool_outputs
from tests.relay import Relay

pi = Client("pi", "pi")

MODELS = """\
{
  "providers": {
    "slipring": {
      "baseUrl": "http://127.0.0.1:8000/v1",
      "api": "openai-responses",
      "apiKey": "any",
      "models": [{ "id": "simulated" }]
    }
  }
}
"""
"""As shown in `docs/clients.md`."""


async def _ask(stage: Stage, relay: Relay, words: str) -> Ended:
    home = stage.directory / "pi"
    home.mkdir()
    (home / "models.json").write_text(MODELS.replace("http://127.0.0.1:8000/v1", relay.url))
    return await stage.run(
        *(stage.workshop.node, stage.workshop.package("pi") / "dist" / "cli.js"),
        *("--provider", "slipring", "--model", "simulated", "--mode", "json", "--no-session", "-p", words),
        PI_CODING_AGENT_DIR=str(home),
        PI_OFFLINE="1",
    )


@pi.check("SSE", "a tool turn")
async def _(stage: Stage) -> None:
    async with stage.serve([call("bash", command="echo slip-$((40 + 2))")], [say("Done.")]) as relay:
        ended = await _ask(stage, relay, "Run it")
    ended.require_success()
    assert ended.lines[-1]["type"] == "agent_end", ended
    assert '"Done."' in ended.stdout
    assert len(relay.exchanges) == 2
    (output,) = tool_outputs(relay.exchanges[1].body)
    assert "slip-42" in output


@pi.check("SSE", "slipring launch pi")
async def _(stage: Stage) -> None:
    programs = stage.workshop.root / "pi" / "node_modules" / ".bin"
    words = ("--mode", "json", "--no-session", "--offline", "-p", "Run it")
    async with stage.serve([call("bash", command="echo slip-$((40 + 2))")], [say("Done.")]) as relay:
        ended = await stage.launch("pi", programs, relay.url, *words)
    ended.require_success()
    assert "slip-42" in tool_outputs(relay.exchanges[-1].body)[0]
