"""Servers that announce changes of their tools: slipring listens, listens again when a stream has ended, and
counts as a change what it could not hear."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from slipring.mcp.credentials import Credential
from slipring.mcp.limits import McpLimits
from slipring.mcp.pool import Pool
from slipring.mcp.transports import connection
from slipring.mcp.transports.http_transports import StreamableHttpConnection
from tests.mcp.fakes import ADD, Exchange, FakeServer, FakeSseServer, Reply, at, error, event, result

CHANGED = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
TWO_TOOLS = [ADD, {**ADD, "name": "second"}]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LISTEN_RETRY_S", (0.0, 0.0))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not holds():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)


class Announcer:
    """Makes a fake announce changes, and counts the streams on which it can."""

    def __init__(self, fake: FakeServer) -> None:
        fake.capabilities = {"tools": {"listChanged": True}}
        self.fake = fake
        self.opened = 0
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.end = asyncio.Event()
        fake.on["subscriptions/listen"] = self._listen
        fake._announce = self._announce  # type: ignore[method-assign]

    async def _listen(self, exchange: Exchange) -> Reply:
        await self.may_open.wait()
        response = await exchange.stream()
        await response.write(event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"}))
        await self._announce(response)
        await response.write(event(result(exchange.id, {"resultType": "complete"})))
        return response

    async def _announce(self, response: web.StreamResponse) -> web.StreamResponse:
        self.opened += 1
        await self.end.wait()
        return response

    def end_streams(self) -> None:
        self.end.set()
        self.end = asyncio.Event()


async def test_a_change_after_a_stream_ended_is_noticed(pool: Pool, fake: FakeServer) -> None:
    announcer = Announcer(fake)
    await pool.tools(at(fake))
    await until(lambda: announcer.opened == 1)
    fake.tools = TWO_TOOLS
    announcer.end_streams()
    await until(lambda: announcer.opened == 2)
    assert len((await pool.tools(at(fake))).tools) == 2


async def test_a_change_while_nobody_listens_is_noticed_once_the_stream_stands_again(
    pool: Pool, modern: FakeServer
) -> None:
    announcer = Announcer(modern)
    await pool.tools(at(modern))
    await until(lambda: announcer.opened == 1)
    announcer.may_open.clear()
    announcer.end_streams()
    await until(lambda: modern.count("subscriptions/listen") == 2)
    assert len((await pool.tools(at(modern))).tools) == 1
    modern.tools = TWO_TOOLS
    assert len((await pool.tools(at(modern))).tools) == 1, "nothing was announced"
    announcer.may_open.set()
    async with asyncio.timeout(300):
        while len((await pool.tools(at(modern))).tools) == 1:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
    assert modern.count("tools/list") == 3


def refuse_to_announce(fake: FakeServer, status: int, code: int | None, times: float = 2) -> None:
    """Refuse the next streams, with this HTTP status and the code of a JSON-RPC error."""
    answers = times

    def refusal(request_id: object) -> web.Response | None:
        nonlocal answers
        answers -= 1
        if answers < 0:
            return None
        if code is None:
            return web.Response(status=status)
        return web.json_response(error(request_id, code, "not now"), status=status)

    if fake.modern:
        listen = fake.on["subscriptions/listen"]

        async def refused(exchange: Exchange) -> Reply:
            return refusal(exchange.id) or await listen(exchange)

        fake.on["subscriptions/listen"] = refused
    else:
        refuse = fake._refusal
        fake._refusal = lambda request, method: (  # type: ignore[method-assign]
            refuse(request, method) or (refusal(None) if request.method == "GET" else None)
        )


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 521, 530])
async def test_a_server_that_cannot_be_listened_to_for_now_is_asked_again(
    pool: Pool, fake: FakeServer, status: int
) -> None:
    announcer = Announcer(fake)
    refuse_to_announce(fake, status, None)
    await pool.tools(at(fake))
    await until(lambda: announcer.opened == 1)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_server_with_too_many_subscriptions_is_asked_again(
    pool: Pool, modern: FakeServer, status: int
) -> None:
    announcer = Announcer(modern)
    refuse_to_announce(modern, status, -32603)
    await pool.tools(at(modern))
    await until(lambda: announcer.opened == 1)


@pytest.mark.parametrize(("status", "code"), [(404, -32601), (200, -32601), (403, None), (501, None)])
async def test_a_server_that_declines_to_announce_is_not_asked_again(
    pool: Pool, modern: FakeServer, status: int, code: int | None
) -> None:
    announcer = Announcer(modern)
    refuse_to_announce(modern, status, code)
    await pool.tools(at(modern))
    (found,) = (entry.connection for entry in pool._entries.values())
    assert isinstance(found, StreamableHttpConnection)
    assert found._listening is not None
    await found._listening
    assert modern.count("subscriptions/listen") == 1
    assert not announcer.opened
    await pool.tools(at(modern))
    assert modern.count("tools/list") == 1


def listens(fake: FakeServer) -> int:
    return fake.count("subscriptions/listen") or sum(seen.verb == "GET" for seen in fake.seen)


@pytest.mark.parametrize(("status", "code"), [(429, None), (503, None), (500, -32603)])
async def test_the_list_of_a_server_that_can_never_be_listened_to_is_fetched_once(
    pool: Pool, fake: FakeServer, status: int, code: int | None
) -> None:
    Announcer(fake)
    refuse_to_announce(fake, status, code, times=float("inf"))
    for count in range(1, 5):
        await pool.tools(at(fake))
        await until(lambda count=count: listens(fake) > 3 * count)  # type: ignore[misc]
    assert fake.count("tools/list") == 1


async def test_a_change_before_the_first_stream_stands_is_noticed(pool: Pool, fake: FakeServer) -> None:
    announcer = Announcer(fake)
    refuse_to_announce(fake, 503, None, times=3)
    announcer.may_open.clear()
    await pool.tools(at(fake))
    await until(lambda: listens(fake) >= 2)
    fake.tools = TWO_TOOLS
    announcer.may_open.set()
    await until(lambda: announcer.opened == 1)
    async with asyncio.timeout(300):
        while len((await pool.tools(at(fake))).tools) == 1:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)


async def test_a_change_while_a_server_forgets_its_sessions_is_noticed(
    pool: Pool, legacy: FakeServer
) -> None:
    announcer = Announcer(legacy)
    await pool.tools(at(legacy))
    await until(lambda: announcer.opened == 1)
    refuse_to_announce(legacy, 503, None, times=float("inf"))
    (entry,) = pool._entries.values()
    announcer.end_streams()
    await until(lambda: entry.list.fresh() is None)
    assert len((await pool.tools(at(legacy))).tools) == 1
    legacy.sessions.clear()  # it starts again, with another list
    legacy.tools = TWO_TOOLS
    assert isinstance(entry.connection, StreamableHttpConnection)
    assert entry.connection._listening is not None
    await entry.connection._listening
    assert len((await pool.tools(at(legacy))).tools) == 2


async def test_a_change_that_comes_with_the_end_of_a_session_is_noticed(
    pool: Pool, legacy: FakeServer
) -> None:
    await pool.tools(at(legacy))
    announcer = Announcer(legacy)
    legacy.sessions.clear()
    await pool.call(at(legacy), "add", {"a": 1, "b": 2})
    await until(lambda: announcer.opened == 1)
    assert legacy.count("tools/list") == 1
    legacy.sessions.clear()
    legacy.tools = TWO_TOOLS
    await pool.call(at(legacy), "add", {"a": 1, "b": 2})
    assert len((await pool.tools(at(legacy))).tools) == 2


async def test_a_change_that_is_announced_to_one_while_another_fetches_the_list_of_all_is_noticed(
    pool: Pool, modern: FakeServer
) -> None:
    announcer = Announcer(modern)
    modern.list_hints = {"ttlMs": 60_000, "cacheScope": "public"}
    await pool.tools(at(modern), Credential("one"))
    await until(lambda: announcer.opened == 1)
    (first,) = pool._entries.values()
    pool._changed(first)
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(exchange: Exchange) -> Reply:
        tools = modern.tools
        asked.set()
        await go.wait()
        return {"tools": tools, **modern.list_hints}

    modern.on["tools/list"] = slow
    listing = asyncio.ensure_future(pool.tools(at(modern), Credential("two")))
    await asked.wait()
    modern.tools = TWO_TOOLS
    pool._changed(first)
    go.set()
    assert len((await listing).tools) == 1
    assert len((await pool.tools(at(modern), Credential("three"))).tools) == 2


async def test_a_shared_list_stays_while_others_listen(pool: Pool, modern: FakeServer) -> None:
    announcer = Announcer(modern)
    modern.list_hints = {"ttlMs": 60_000, "cacheScope": "public"}
    for name in ("one", "two"):
        entry = pool._enter(at(modern), Credential(name), "")
        await pool._connection(entry)
        await pool.tools(at(modern), Credential(name))
    await until(lambda: announcer.opened == 2)
    first, second = (entry.connection for entry in pool._entries.values())
    assert first is not None
    assert second is not None
    await until(lambda: first.is_listening and second.is_listening)
    first._hears = False  # its stream has ended
    first._on_unheard()
    await pool.tools(at(modern), Credential("one"))
    await pool.tools(at(modern), Credential("two"))
    assert modern.count("tools/list") == 1
    second._hears = False
    second._on_unheard()
    await pool.tools(at(modern), Credential("one"))
    assert modern.count("tools/list") == 2


async def test_a_connection_that_ends_counts_as_a_change(pool: Pool, old: FakeSseServer) -> None:
    old.capabilities = {"tools": {"listChanged": True}}
    await pool.tools(at(old))
    await pool.tools(at(old))
    assert old.count("tools/list") == 1
    old.tools = TWO_TOOLS
    old.end_stream.set()
    (found,) = (entry.connection for entry in pool._entries.values())
    assert found is not None
    await until(lambda: not found.is_usable)
    old.end_stream.clear()
    assert len((await pool.tools(at(old))).tools) == 2


async def test_a_shared_list_is_kept_only_while_somebody_listens(modern: FakeServer) -> None:
    Announcer(modern)
    modern.list_hints = {"ttlMs": 60_000, "cacheScope": "public"}
    async with Pool(McpLimits(max_connections=2)) as pool:
        await pool.tools(at(modern), Credential("one"))
        await pool.tools(at(modern), Credential("two"))
        assert modern.count("tools/list") == 1
        # The only connection makes room, and with it the only stream.
        await pool.tools(at(modern), Credential("three"))
        assert modern.count("tools/list") == 2
        # That of the second credential, which had none, makes room: somebody still listens.
        await pool.tools(at(modern), Credential("four"))
        assert modern.count("tools/list") == 2
