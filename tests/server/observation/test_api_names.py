"""Which API a turn came by: in the log, metrics, traces, recordings, the live stream and `slipring top`."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slipring.commands.top.screen import _asked
from tests.chat_api import Chat
from tests.commands.top.sample import ended
from tests.harness import PuppetEngine, Running, serve
from tests.messages_api import MessagesApi, Refused
from tests.server.admin.watching import ANY_PORT, admin_url, watch
from tests.server.observation.recordings import files
from tests.server.observation.test_metrics import samples
from tests.server.tracing.collector import collect

NAMES = ("responses", "chat_completions", "messages")


async def _ask_by_every_api(server: Running, **fields: Any) -> None:
    await server.post(input="hello", store=False)
    await Chat(server).complete(**fields)
    await Chat(server).stream(**fields)
    await MessagesApi(server).create("hello", **fields)
    await MessagesApi(server).stream("hello", **fields)


async def test_turns_are_counted_by_api() -> None:
    async with serve() as server:
        await _ask_by_every_api(server)
        with pytest.raises(Refused):
            await MessagesApi(server).create("hello", temperature=5)
        assert (await Chat(server).error(temperature=5))[0] == 400
        found = samples(server)["slipring_turns_total"]
        counted = {
            tuple(sample.labels[name] for name in ("api", "status", "transport")): sample.value
            for sample in found
            if sample.value
        }
        assert counted == {
            ("responses", "completed", "http"): 1,
            ("chat_completions", "completed", "http"): 1,
            ("chat_completions", "completed", "sse"): 1,
            ("chat_completions", "refused", "http"): 1,
            ("messages", "completed", "http"): 1,
            ("messages", "completed", "sse"): 1,
            ("messages", "refused", "http"): 1,
        }
        pairs = {(sample.labels["api"], sample.labels["transport"]) for sample in found}
        assert ("messages", "websocket") not in pairs, "what cannot be has no series"


async def test_the_log_names_the_api(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slipring.turns")
    async with serve() as server:
        await _ask_by_every_api(server)
    lines = [str(record.msg) for record in caplog.records if record.name == "slipring.turns"]
    assert ["api=" in line for line in lines] == [False, True, True, True, True]
    assert "api=chat_completions " in lines[1]
    assert "api=messages " in lines[4]


async def test_recordings_name_the_api(tmp_path: Path) -> None:
    directory = tmp_path / "recordings"
    async with serve(record=str(directory)) as server:
        await _ask_by_every_api(server)
    found = [turn.get("api", "responses") for turns in files(directory) for turn in turns]
    assert sorted(found) == sorted(["responses", *NAMES[1:], *NAMES[1:]])


async def test_traces_name_the_api() -> None:
    async with collect() as collector:
        async with serve(trace_endpoint=collector.url, trace_sample=1.0) as server:
            await _ask_by_every_api(server)
        named = [turn.attributes["slipring.api"] for turn in collector.turns]
        assert named == ["responses", *["chat_completions"] * 2, *["messages"] * 2]


@asynccontextmanager
async def _watched(server: Running) -> AsyncIterator[Any]:
    async with watch(admin_url(server), server.http) as (_, stream):
        yield stream


async def test_the_live_stream_names_the_api_of_turns_that_run_and_have_ended() -> None:
    engine = PuppetEngine()
    async with serve(engine, admin=ANY_PORT) as server, _watched(server) as stream:
        body = MessagesApi(server).body("hello", stream=True)
        async with server.http.post(f"{server.url}/messages", json=body) as answer:
            performance = await engine.next()
            update = await stream.update(lambda update: bool(update.http))
            assert [turn.api for turn in update.http] == ["messages"]
            assert [_asked(turn) for turn in update.http] == ["sse messages"]
            performance.say("hi")
            performance.finish()
            await answer.read()
        update = await stream.update(lambda update: bool(update.turns))
        assert [turn.api for turn in update.turns] == ["messages"]


@pytest.mark.parametrize(
    ("api", "shown"),
    [
        ("responses", "http"),
        ("chat_completions", "http chat"),
        ("messages", "http messages"),
        ("x", "http x"),
    ],
)
def test_top_names_the_api_beside_the_transport(api: str, shown: str) -> None:
    assert _asked(structs.replace(ended(1.0), api=api)) == shown
