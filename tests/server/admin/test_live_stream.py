"""The live stream: what it shows of connections, turns, chains and memory, and what it never contains."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec import UNSET

from slipring.core.limits import Limits
from slipring.observation import live_messages
from tests.api import Api
from tests.harness import PuppetEngine, serve
from tests.mcp.fakes import Exchange, FakeServer, serving
from tests.server.admin.watching import ANY_PORT, admin_url, watch
from tests.server.hosted_tools.running import registered
from tests.server.hosted_tools.turns import call, scripted
from tests.server.hosted_tools.turns import server as hosted

SECRET = "the client said this"


async def test_a_watcher_sees_a_turn_wait_run_and_end() -> None:
    engine = PuppetEngine()
    async with serve(engine, admin=ANY_PORT) as server, server.connect() as socket:
        async with watch(admin_url(server), server.http) as (greeting, stream):
            assert greeting.api_url == server.url
            first = await stream.update()
            assert first.is_complete
            (connection,) = first.connections
            assert (connection.number, connection.recent, connection.running) == (1, [], [])

            await socket.create(input=SECRET, store=False, stream_id="a")
            await socket.create(input=SECRET, store=False, stream_id="a")
            performance = await engine.next()
            update = await stream.update(lambda update: update.in_flight == 1 and update.waiting == 1)
            (connection,) = update.connections
            running, waiting = connection.running
            assert (running.lane, running.report.status) == ("a", "running")
            assert [stage.name for stage in running.report.stages][:3] == ["decode", "queue", "resolve"]
            assert waiting.report.status == "waiting"

            performance.say(SECRET)
            performance.finish()
            (await engine.next()).finish()
            response_id = (await socket.until("response.completed", lane="a"))[-1]["response"]["id"]
            await socket.until("response.completed", lane="a")
            ended: list[live_messages.Turn] = []
            while len(ended) < 2:
                ended += (await stream.update()).turns
            assert ended[0].report.response_id == response_id
            assert {turn.report.status for turn in ended} == {"completed"}
            assert {(turn.connection, turn.lane, turn.transport) for turn in ended} == {(1, "a", "websocket")}
            assert ended[0].started_at <= ended[1].started_at
        last = (await stream_of_one(admin_url(server), server.http)).connections[0]
        assert last.recent is not UNSET
        assert last.recent[0].report.response_id == response_id
        assert SECRET.encode() not in stream.text


async def test_hosted_calls_are_shown_while_they_run_and_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATOR_KEY", "key-of-the-operator")
    fake, may_answer = FakeServer(modern=True), asyncio.Event()
    add = fake.calls["add"]

    async def add_later(exchange: Exchange) -> Any:
        await may_answer.wait()
        return await add(exchange)

    fake.calls["add"] = add_later
    engine = scripted(tmp_path, [call(a=1, b=2)], [{"text": "It is 3."}])
    async with (
        serving(fake),
        serve(engine, mcp=(registered(fake),), admin=ANY_PORT) as server,
        server.connect() as socket,
        watch(admin_url(server), server.http) as (_, stream),
    ):
        await socket.create(input="1 + 2?", tools=[hosted()])
        update = await stream.update(
            lambda update: any(
                turn.report.status == "calling" for each in update.connections for turn in each.running
            )
        )
        assert update.in_flight == 1
        may_answer.set()
        await socket.until("response.completed")
        (turn,) = (await stream.update(lambda update: bool(update.turns))).turns
        assert turn.report.hosted_calls == 1
        assert {stage.name for stage in turn.report.stages} >= {"list", "tools"}


async def stream_of_one(url: str, http: aiohttp.ClientSession) -> live_messages.Update:
    """A complete update."""
    async with watch(url, http) as (_, stream):
        return await stream.update()


async def test_every_transport_is_shown() -> None:
    async with serve(admin=ANY_PORT) as server:
        async with watch(admin_url(server), server.http) as (_, stream):
            await stream.update()
            await server.post(input=SECRET)
            await server.stream(input=SECRET)
            api = Api(server)
            await api.ended((await api.begin(input=SECRET))["id"])
            async with server.connect() as socket:
                await socket.response(input=SECRET)
            seen: list[live_messages.Turn] = []
            while len(seen) < 4:
                seen += (await stream.update()).turns
            assert {turn.transport for turn in seen} == {"http", "sse", "background", "websocket"}
            assert SECRET.encode() not in stream.text
        # Those of HTTP requests are shown also to whoever comes later.
        later = await stream_of_one(admin_url(server), server.http)
        assert {turn.transport for turn in later.turns} == {"http", "sse", "background"}
        assert later.totals.turns == {"completed": 4}


@pytest.mark.parametrize("keys", [(), ("acme:key",)])
async def test_a_stream_says_whether_clients_need_a_key(keys: tuple[str, ...]) -> None:
    async with serve(admin=ANY_PORT, api_key=keys) as server:
        update = await stream_of_one(admin_url(server), server.http)
        assert update.needs_key is bool(keys)


async def test_a_chain_is_shown_as_a_tree() -> None:
    async with serve(admin=ANY_PORT) as server, server.connect() as socket:
        root = await socket.response(input=SECRET, store=False)
        one = await socket.response(input=SECRET, store=False, previous_response_id=root["id"])
        fork = await socket.response(
            input=SECRET, store=False, previous_response_id=root["id"], stream_id="b"
        )
        warm = await socket.response(
            input=SECRET, store=False, previous_response_id=one["id"], generate=False
        )
        async with server.http.get(f"{admin_url(server)}live/connections/0/1") as answer:
            text = await answer.read()
            assert answer.status == 200
        assert SECRET.encode() not in text
        detail = msgspec.json.decode(text, type=live_messages.ConnectionDetail)
        assert detail.is_complete
        nodes = {node.id: node for node in detail.nodes}
        assert detail.nodes[0].id == root["id"], "parents come first"
        assert {node.id: node.parent for node in detail.nodes} == {
            root["id"]: None,
            one["id"]: root["id"],
            fork["id"]: root["id"],
            warm["id"]: one["id"],
        }
        assert nodes[fork["id"]].marks == ("fork",)
        assert nodes[warm["id"]].marks == ("warmup",)
        assert nodes[fork["id"]].lane == "b"
        assert nodes[warm["id"]].is_latest
        assert not nodes[one["id"]].is_latest
        assert nodes[one["id"]].context_bytes > nodes[root["id"]].context_bytes > 0
        reports = {turn.report.response_id: turn.report for turn in detail.connection.recent or ()}
        assert reports[one["id"]].history_bytes == nodes[root["id"]].context_bytes


async def test_memory_and_parked_sessions_are_shown_against_their_bounds() -> None:
    limits = Limits(parked_s=50.0, parked_bytes=10_000_000)
    async with serve(admin=ANY_PORT, limits=limits) as server:
        async with server.connect(key="test-key") as socket:
            await socket.response(input="x" * 1000, store=False)
            update = await stream_of_one(admin_url(server), server.http)
            (connection,) = update.connections
            assert 1000 < connection.cache.used_bytes == update.memory["states"].used_bytes
            assert connection.cache.limit_bytes == limits.connection_cache_bytes
            assert update.memory["parked"] == live_messages.Memory(0, 10_000_000)
            (tenant,) = update.tenants
            assert tenant == live_messages.TenantMemory(
                "default", connection.cache.used_bytes, limits.tenant_cache_bytes
            )
            transport = socket.ws._response.connection
            assert transport is not None
            assert transport.transport is not None
            transport.transport.abort()
            async with watch(admin_url(server), server.http) as (_, stream):
                parked = await stream.update(lambda update: bool(update.parked_sessions))
        assert (parked.sockets, parked.connections, parked.parked_sessions) == (0, [], 1)
        (session,) = parked.parked
        assert 0 < session.seconds_left <= 50
        assert session.responses == 1


async def test_a_closed_connection_is_announced_once() -> None:
    async with serve(admin=ANY_PORT) as server, watch(admin_url(server), server.http) as (_, stream):
        async with server.connect() as socket:
            await socket.response(input="x")
            await stream.update(lambda update: bool(update.connections))
        closed: list[int] = []
        while not closed:
            closed += (await stream.update()).closed
        assert closed == [1]
        assert (await stream.update()).closed == []


async def test_nothing_is_collected_while_nobody_watches() -> None:
    async with serve(admin=ANY_PORT) as server, server.connect() as socket:
        view = server.server.live
        await socket.response(input="x")
        assert view._ended == []
        await stream_of_one(admin_url(server), server.http)
        async with asyncio.timeout(300):
            while view._observe in server.service.turn_observers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await socket.response(input="x")
        assert view._ended == []
        assert view._sent == {}


async def test_an_idle_connection_is_sent_once() -> None:
    async with serve(admin=ANY_PORT) as server, server.connect() as socket:
        await socket.response(input="x")
        async with watch(admin_url(server), server.http) as (_, stream):
            assert len((await stream.update()).connections) == 1
            # What is sent first may still contain what changed before.
            await stream.update(lambda update: not update.connections)
            await socket.response(input="y")
            assert len((await stream.update(lambda update: bool(update.connections))).connections) == 1
