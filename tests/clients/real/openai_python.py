"""openai-python: its tests of the ordinary suite, and its own lanes against `slipring serve`."""

import sys
from importlib.metadata import version
from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.stage import LLAMA, LLAMA_MODEL, LOOKS, Ended, Stage, require_forks, say, shown_images
from tests.relay import Relay

openai_python = Client("openai-python", "openai-python", version=lambda: version("openai"))

_ROOT = Path(__file__).parents[3]
_DRIVER = Path(__file__).parent / "drivers" / "openai_lanes.py"
_PICTURES = _DRIVER.with_name("openai_pictures.py")
_STORY = [[say("Once upon a time.")], [say("The end.")], [say("The end.")]]


async def run_suite(stage: Stage, *files: str) -> None:
    """Run tests of the ordinary suite with this client, in another process."""
    paths = [str(_ROOT / "tests" / "clients" / file) for file in files]
    ended = await stage.run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(_ROOT)),
        *("-c", str(_ROOT / "pyproject.toml"), *paths),
        within_s=300,
        PYTHONPATH=f"{_ROOT}:{_ROOT / 'src'}",
    )
    ended.require_success()


async def _run_lanes(stage: Stage, relay: Relay, how: str, model: str = "simulated") -> Ended:
    return await stage.run(
        *(sys.executable, _DRIVER, how), OPENAI_BASE_URL=relay.url, OPENAI_API_KEY="any", OPENAI_MODEL=model
    )


@openai_python.check("WebSocket, HTTP, SSE", "all tests of the SDK")
async def _(stage: Stage) -> None:
    await run_suite(stage, "test_openai_python.py", "test_openai_http.py", "test_examples.py")


@openai_python.check("WebSocket", "the SDK's lanes, sync: two forks of one parent")
async def _(stage: Stage) -> None:
    async with stage.serve(*_STORY) as relay:
        ended = await _run_lanes(stage, relay, "sync")
    require_forks(ended.result, relay.socket, "The end.")


@openai_python.check("WebSocket", "the SDK's lanes, async: two forks of one parent")
async def _(stage: Stage) -> None:
    async with stage.serve(*_STORY) as relay:
        ended = await _run_lanes(stage, relay, "async")
    require_forks(ended.result, relay.socket, "The end.")


@openai_python.check("WebSocket", "the same on the embedded model")
async def _(stage: Stage) -> None:
    async with stage.serve(engine=LLAMA) as relay:
        ended = await _run_lanes(stage, relay, "async", LLAMA_MODEL)
    require_forks(ended.result, relay.socket)


async def _show(stage: Stage, how: str) -> None:
    (sent, sent_url), (returned, returned_url) = stage.pictures(2)
    async with stage.serve_seeing(*LOOKS) as (relay, fake):
        ended = await stage.run(
            *(sys.executable, _PICTURES, how, sent, returned),
            OPENAI_BASE_URL=relay.url,
            OPENAI_API_KEY="any",
            OPENAI_MODEL="simulated",
        )
    assert ended.result == {"text": "They differ."}
    assert shown_images(fake) == [sent_url, returned_url]


@openai_python.check("HTTP", "an image in a message, and one in the output of a function")
async def _(stage: Stage) -> None:
    await _show(stage, "responses")


@openai_python.check("HTTP", "images by Chat Completions")
async def _(stage: Stage) -> None:
    await _show(stage, "chat")
