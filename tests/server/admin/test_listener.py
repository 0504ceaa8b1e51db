"""The admin listener: who may read, what browsers are told, its limits."""

import asyncio
import os
import re
import signal
import socket
from pathlib import Path

import aiohttp
import msgspec
import pytest

from slipring.base.errors import StartupError
from slipring.config.settings import Config
from slipring.observation import live_messages
from slipring.server.admin import listener
from slipring.server.admin import listener as listener_module
from slipring.server.process.server import Server
from tests.harness import FAST, Running, serve
from tests.server.admin.watching import ANY_PORT, Stream, admin_url, watch
from tests.server.process.test_workers import until, workers

KEY = "the-admin-key"
DATA = ("health", "live", "live/connections/0/1")


async def status(server: Running, path: str, **headers: str) -> int:
    async with server.http.get(admin_url(server) + path, headers=headers) as answer:
        return answer.status


async def test_data_needs_the_key_and_the_page_does_not() -> None:
    async with serve(admin=ANY_PORT, admin_key=KEY) as server:
        for path in DATA:
            assert await status(server, path) == 401
            assert await status(server, path, Authorization="Bearer other") == 401
            assert await status(server, path, Authorization=f"Basic {KEY}") == 401
            assert await status(server, path, Authorization=f"Bearer {KEY}ü") == 401
        assert await status(server, "health", Authorization=f"Bearer {KEY}") == 200
        assert await status(server, "live", Authorization=f"Bearer {KEY}") == 200
        assert await status(server, "live/connections/0/1", Authorization=f"Bearer {KEY}") == 404
        assert await status(server, "") == 200
        # An API key is no admin key, and the other way around.
        async with server.http.get(server.url + "/models", headers={"Authorization": "Bearer x"}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:9464"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:1234"}, 200),
    ],
)
async def test_pages_of_other_origins_are_refused(headers: dict[str, str], expected: int) -> None:
    async with serve(admin=ANY_PORT) as server:
        assert await status(server, "health", **headers) == expected


async def test_the_pages_own_origin_is_accepted_and_with_a_key_any_host_name() -> None:
    async with serve(admin=ANY_PORT, admin_key=KEY) as server:
        own = admin_url(server).rstrip("/")
        key = {"Authorization": f"Bearer {KEY}"}
        assert await status(server, "health", Origin=own, **key) == 200
        assert await status(server, "health", Host="box.example", Origin="http://box.example", **key) == 200
        assert await status(server, "health", Host="box.example", Origin=own, **key) == 403


async def test_the_browser_may_load_nothing_from_elsewhere() -> None:
    async with serve(admin=ANY_PORT) as server, server.http.get(admin_url(server)) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"unsafe|data:|https?:|\*", policy)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.content_type == "text/html"


async def test_bad_requests_get_an_error_in_the_apis_shape() -> None:
    async with serve(admin=ANY_PORT) as server:
        url = admin_url(server)
        for method, path, expected in (
            ("GET", "nothing.js", 404),
            ("GET", "live/connections/9/1", 404),
            ("GET", "live/connections/x/1", 404),
            ("GET", "page/../../listener.py", 404),
            ("POST", "health", 405),
        ):
            async with server.http.request(method, url + path) as answer:
                assert answer.status == expected
                assert (await answer.json())["error"]["message"]


def test_other_machines_need_a_key() -> None:
    config = Config(engine=FAST, admin="0.0.0.0:0")
    with pytest.raises(StartupError, match="without a key: set --admin-key"):
        listener_module.AdminListener(config, object())  # type: ignore[arg-type]


async def test_a_taken_port_is_an_error_only_if_it_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(admin=ANY_PORT) as first:
        taken = int(admin_url(first).rstrip("/").rpartition(":")[2])
        other = Server(
            Config(port=0, engine=FAST, store="memory", admin=f"127.0.0.1:{taken}"), has_admin=True
        )
        with pytest.raises(StartupError, match="--admin: cannot listen on"):
            await other.start()
        monkeypatch.setattr(listener_module, "_AUTO", ("127.0.0.1", taken))
        async with serve(admin="auto") as second:
            assert await status(second, "health") == 200


async def test_without_the_setting_there_is_no_listener() -> None:
    async with serve(admin="off") as server:
        assert server.server.admin_url is None


async def test_watchers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_MOST_READERS", 1)
    async with serve(admin=ANY_PORT) as server:
        async with watch(admin_url(server), server.http):
            assert await status(server, "live") == 429
        async with asyncio.timeout(300):
            while await status(server, "live") != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_watcher_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = live_messages.encode
    # Lines that no buffer of the kernel holds, so that the first one is not read to its end.
    monkeypatch.setattr(live_messages, "encode", lambda message: bytes(2**24) + encode(message))
    monkeypatch.setattr("slipring.observation.live_messages.INTERVAL_S", 0.001)
    monkeypatch.setattr(listener, "_UNREAD_LINES", 2)
    async with serve(admin=ANY_PORT) as server:
        port = int(admin_url(server).rstrip("/").rpartition(":")[2])
        admin = server.server._admin
        assert admin is not None
        with socket.create_connection(("127.0.0.1", port)) as client:  # reads nothing
            client.sendall(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await until(lambda: len(admin._stream._readers) == 1)
            await until(lambda: not admin._stream._readers)


async def test_a_stream_ends_properly_when_the_server_stops() -> None:
    async with aiohttp.ClientSession() as http:
        async with serve(admin=ANY_PORT) as server:
            answer = await http.get(f"{admin_url(server)}live")
            assert await answer.content.readline()
        await answer.content.read()  # raises if the stream was cut


async def test_a_supervisor_shows_its_workers_and_those_that_replace_them(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:{tmp_path}/store.db")
    async with workers("--admin", ANY_PORT, *store) as process, aiohttp.ClientSession() as http:
        (url,) = [line.split()[-1] for line in process.output if "live page" in line]
        async with watch(url, http) as (greeting, stream):
            assert greeting.workers == 2
            first, second = await complete_updates(stream, {0, 1})
            assert first.pid != second.pid
            async with http.ws_connect(f"{process.url}/responses") as api:
                shown = await stream.update(lambda update: bool(update.connections))
                (connection,) = shown.connections
                place = f"live/connections/{shown.process}/{connection.number}"
                async with http.get(url + place) as answer:
                    detail = msgspec.json.decode(await answer.read(), type=live_messages.ConnectionDetail)
                    assert detail.connection.number == connection.number
                async with http.get(f"{url}live/connections/{1 - shown.process}/99") as answer:
                    assert answer.status == 404
                await api.close()
            assert greeting.departed == live_messages.Totals()
            async with http.post(f"{process.url}/responses", json={"input": "Hi"}) as answer:
                assert answer.status == 200
            killed = await stream.update(lambda update: bool(update.totals.turns))
            (living,) = {first.pid, second.pid} - {killed.pid}
            # Another watcher gets everything, and the first one goes on with changes.
            async with watch(url, http) as (_, other):
                await complete_updates(other, {0, 1})
                os.kill(killed.pid, signal.SIGKILL)
                for each in (stream, other):
                    while not isinstance(gone := await each.next(), live_messages.ProcessGone):
                        assert not (isinstance(gone, live_messages.Update) and gone.is_complete)
                    assert (gone.process, gone.departed) == (killed.process, killed.totals)
                    (replaced,) = await complete_updates(each, {killed.process})
                    assert replaced.pid != killed.pid
                    assert not replaced.totals.turns
            async with watch(url, http) as (later, _):
                assert later.departed == killed.totals
            async with http.get(f"{url}health") as answer:
                health = await answer.json()
            assert (health["status"], len(health["workers"])) == ("ok", 2)
            assert {worker["pid"] for worker in health["workers"]} == {living, replaced.pid}


async def complete_updates(stream: Stream, processes: set[int]) -> list[live_messages.Update]:
    """The complete updates of these processes, by number."""
    found: dict[int, live_messages.Update] = {}
    while found.keys() != processes:
        update = await stream.update(lambda update: update.is_complete)
        assert update.process not in found
        found[update.process] = update
    return [found[process] for process in sorted(found)]
