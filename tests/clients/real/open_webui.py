"""Open WebUI, a site for chats: its server asks by Chat Completions, and is driven by its own API."""

import sys
from pathlib import Path

from tests.clients.real.client import Client
from tests.clients.real.stage import Answer, Ended, Stage, call, say
from tests.relay import Relay

open_webui = Client("open-webui", "Open WebUI")

SETUP = """\
OPENAI_API_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=any ENABLE_OLLAMA_API=False open-webui serve
"""
"""As shown in `docs/clients.md`."""

_DRIVER = Path(__file__).parent / "drivers" / "open_webui_chats.py"
# It would fetch a model for searching in documents, and ask for newer versions.
_OFFLINE = {
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "ANONYMIZED_TELEMETRY": "False",
    "WEBUI_SECRET_KEY": "any",
}


async def _drive(stage: Stage, relay: Relay) -> Ended:
    set_up = dict(pair.split("=", 1) for pair in SETUP.split() if "=" in pair)
    program = stage.workshop.python("open-webui").with_name("open-webui")
    return await stage.run(
        *(sys.executable, _DRIVER, program),
        within_s=360,
        OPENAI_MODEL="simulated",
        DATA_DIR=str(stage.directory / "data"),
        **{**_OFFLINE, **set_up, "OPENAI_API_BASE_URL": relay.url},
    )


# In one check, because its server takes long to start.
@open_webui.check(
    "Chat Completions",
    "a failure, answers by its API, and a chat with a tool that it runs, thoughts and a title",
)
async def _(stage: Stage) -> None:
    asked = [call("get_weather", city="Paris"), call("get_weather", city="Rome")]
    answers: list[Answer] = [
        [{"error": {"message": "out of memory", "status": 500}}],
        [say("Hello, you.")],
        [say("Hello again.")],
        [{"reasoning": "A look first."}, *asked],
        [say("Sunny.")],
        [say('{"title": "The weather"}')],
    ]
    async with stage.serve(*answers, patience_s=400) as relay:
        ended = await _drive(stage, relay)
    result = ended.result
    assert "out of memory" in str(result["failed"]["error"])
    assert (result["models"], result["plain"], result["streamed"]) == (
        ["simulated"],
        "Hello, you.",
        "Hello again.",
    )
    answer = result["answer"]
    assert (answer["content"], result["title"]) == ("Sunny.", "The weather")
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
    *_, first, second, titled = [each for each in relay.exchanges if each.path == "/v1/chat/completions"]
    assert (first.body["stream"], titled.body.get("stream", False)) == (True, False)
    results = [str(each["content"]) for each in second.body["messages"] if each["role"] == "tool"]
    assert ["Paris" in results[0], "Rome" in results[1]] == [True, True]
    # All that was there before is recognised.
    sizes = [exchange.answer[-1]["usage"] for exchange in (first, second)]
    assert sizes[1]["prompt_tokens_details"]["cached_tokens"] >= sizes[0]["prompt_tokens"]
