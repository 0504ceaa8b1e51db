"""openai-agents (Python): its tests of the ordinary suite, and a tool loop against `slipring serve`."""

import sys
from importlib.metadata import version
from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.disturbances import Cutting
from tests.clients.real.openai_python import run_suite
from tests.clients.real.stage import LOOKS, Ended, Stage, call, require_delta, say, shown_images
from tests.relay import Relay

openai_agents = Client("agents-python", "openai-agents (Python)", version=lambda: version("openai-agents"))

_DRIVER = Path(__file__).parent / "drivers" / "agents_loop.py"


async def _drive(stage: Stage, relay: Relay, *files: Path) -> Ended:
    return await stage.run(
        sys.executable,
        _DRIVER,
        *files,
        OPENAI_BASE_URL=relay.url,
        OPENAI_API_KEY="any",
        OPENAI_MODEL="simulated",
    )


@openai_agents.check("WebSocket, HTTP, SSE", "all tests of the SDK")
async def _(stage: Stage) -> None:
    await run_suite(stage, "test_openai_agents.py", "test_hosted_mcp_tool.py")


@openai_agents.check("WebSocket", "a tool loop by delta")
async def _(stage: Stage) -> None:
    asked = [call("get_weather", city="Paris")]
    async with stage.serve(asked, asked, [say("Sunny.")]) as relay:
        ended = await _drive(stage, relay)
    assert ended.result == {"text": "Sunny."}
    assert len(relay.socket.sent) == 3
    require_delta(relay.socket.sent, relay.socket.responses)


@openai_agents.check("WebSocket", "a connection that breaks in the middle of an answer is an error")
async def _(stage: Stage) -> None:
    broken = [say("These are words of an answer that breaks off.")]
    async with stage.serve(broken, disturbance=Cutting(3), abandoned=True) as relay:
        ended = await _drive(stage, relay)
    assert (ended.code, ended.lines) == (1, []), ended
    assert len(relay.socket.sent) == 1


@openai_agents.check("WebSocket", "an image in a message, and one that a tool returns")
async def _(stage: Stage) -> None:
    (sent, sent_url), (returned, returned_url) = stage.pictures(2)
    async with stage.serve_seeing(*LOOKS) as (relay, fake):
        ended = await _drive(stage, relay, sent, returned)
    assert ended.result == {"text": "They differ."}
    assert shown_images(fake) == [sent_url, returned_url]
    require_delta(relay.socket.sent, relay.socket.responses)
