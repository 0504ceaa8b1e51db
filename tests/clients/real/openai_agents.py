"""openai-agents (Python): its part of the ordinary tests, and a tool loop against `slipring serve`."""

import sys
from importlib.metadata import version
from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.openai_python import run_suite
from tests.clients.real.stage import Stage, call, require_delta, say

openai_agents = Client("agents-python", "openai-agents (Python)", version=lambda: version("openai-agents"))

_DRIVER = Path(__file__).parent / "drivers" / "agents_loop.py"


@openai_agents.check("WebSocket, SSE", "all tests of the SDK")
async def _(stage: Stage) -> None:
    await run_suite(stage, "test_openai_agents.py")


@openai_agents.check("WebSocket", "a tool loop by delta")
async def _(stage: Stage) -> None:
    asked = [call("get_weather", city="Paris")]
    async with stage.serve(asked, asked, [say("Sunny.")]) as relay:
        ended = await stage.run(
            *(sys.executable, _DRIVER),
            OPENAI_BASE_URL=relay.url,
            OPENAI_API_KEY="any",
            OPENAI_MODEL="simulated",
        )
    assert ended.result == {"text": "Sunny."}
    assert len(relay.socket.sent) == 3
    require_delta(relay.socket.sent, relay.socket.responses)
