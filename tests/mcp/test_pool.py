"""Lists that are kept, connections that are shared, and what is dropped when."""

import asyncio

import pytest
from aiohttp import web

from slipring.mcp.credentials import Credential
from slipring.mcp.failures import ConnectionLost, Malformed, Outcome, RequestRefused, TooLarge
from slipring.mcp.limits import McpLimits
from slipring.mcp.pool import Pool
from slipring.mcp.protocol.tools import TextContent
from tests.mcp.fakes import ADD, Exchange, FakeServer, Reply, at, event, text

CHANGED = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


async def test_a_list_is_fetched_once_for_all_who_ask(pool: Pool, fake: FakeServer) -> None:
    lists = await asyncio.gather(*(pool.tools(at(fake)) for _ in range(5)))
    assert all(found is lists[0] for found in lists)
    await pool.tools(at(fake))
    assert fake.count("tools/list") == 1
    assert fake.count("server/discover") == 1


async def test_lists_are_kept_for_as_long_as_the_server_says(pool: Pool, modern: FakeServer) -> None:
    modern.list_hints = {"ttlMs": 0, "cacheScope": "private"}
    for _ in range(3):
        await pool.tools(at(modern))
    assert modern.count("tools/list") == 3
    # A call needs the definition of its tool, not the newest one.
    await pool.call(at(modern), "add", {"a": 1, "b": 1})
    assert modern.count("tools/list") == 3


@pytest.mark.parametrize(("scope", "fetched"), [("private", 3), ("public", 1)])
async def test_lists_are_shared_between_credentials_only_if_they_are_public(
    pool: Pool, modern: FakeServer, scope: str, fetched: int
) -> None:
    modern.list_hints = {"ttlMs": 60_000, "cacheScope": scope}
    await pool.tools(at(modern), Credential("one"), tenant="a")
    await pool.tools(at(modern), Credential("two"), tenant="a")
    await pool.tools(at(modern), Credential("one"), tenant="b")
    assert modern.count("tools/list") == fetched
    # What a modern server says of itself is asked once.
    assert modern.count("server/discover") == 1


async def test_sessions_are_not_shared_between_tenants_or_credentials(pool: Pool, legacy: FakeServer) -> None:
    for tenant, token in (("a", "one"), ("a", "two"), ("b", "one"), ("b", "one")):
        await pool.call(at(legacy), "add", {"a": 1, "b": 1}, Credential(token), tenant=tenant)
    assert legacy.count("initialize") == 3
    sessions = {
        (s.headers["Mcp-Session-Id"], s.headers["Authorization"])
        for s in legacy.seen
        if s.method == "tools/call"
    }
    assert len(sessions) == 3


async def test_an_announced_change_is_noticed(pool: Pool, fake: FakeServer) -> None:
    fake.capabilities = {"tools": {"listChanged": True}}
    assert len((await pool.tools(at(fake))).tools) == 1
    fake.tools = [ADD, {**ADD, "name": "second"}]
    await fake.announcements.put(CHANGED)
    while len((await pool.tools(at(fake))).tools) == 1:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    assert fake.count("tools/list") == 2


async def test_a_change_during_the_listing_is_not_lost(pool: Pool, fake: FakeServer) -> None:
    async def listing(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        await response.write(CHANGED)
        await response.write(event({"jsonrpc": "2.0", "id": exchange.id, "result": {"tools": fake.tools}}))
        return response

    fake.on["tools/list"] = listing
    await pool.tools(at(fake))
    await pool.tools(at(fake))
    assert fake.count("tools/list") == 2


async def test_lists_are_paged_and_bounded(pool: Pool, fake: FakeServer) -> None:
    async def paged(exchange: Exchange) -> Reply:
        page = int(exchange.params.get("cursor", 0))
        return {"tools": [{**ADD, "name": f"tool{page}"}], "nextCursor": str(page + 1) if page < 9 else None}

    fake.on["tools/list"] = paged
    assert len((await pool.tools(at(fake))).tools) == 10


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({"max_pages": 5}, TooLarge),
        ({"max_tools": 5}, TooLarge),
        ({"max_list_bytes": 1000}, TooLarge),
        ({}, Malformed),
    ],
)
async def test_endless_lists_are_refused(
    pool: Pool, fake: FakeServer, limits: dict[str, int], kind: type
) -> None:
    async def endless(exchange: Exchange) -> Reply:
        page = int(exchange.params.get("cursor", 0))
        more = page + 1 if limits else 0
        return {"tools": [{**ADD, "name": f"tool{page}"}], "nextCursor": str(more)}

    fake.on["tools/list"] = endless
    with pytest.raises(kind):
        await pool.tools(at(fake, **limits))


async def test_tools_that_cannot_be_used_are_left_out(
    pool: Pool, fake: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    fake.tools = [
        {"name": "no schema"},
        {"name": "", "inputSchema": {}},
        {"name": "a\nb", "inputSchema": {}},
        {"name": "list", "inputSchema": []},
        {"name": "large", "inputSchema": {"description": "x" * 2000}},
        ADD,
        ADD,
        {**ADD, "name": "odd", "annotations": {"readOnlyHint": "perhaps"}},
        {**ADD, "name": "half", "annotations": {"readOnlyHint": True, "destructiveHint": "no"}},
    ]
    found = await pool.tools(at(fake, max_schema_bytes=1000))
    assert [tool.name for tool in found.tools] == ["add", "odd", "half"]
    assert [tool.annotations.read_only_hint for tool in found.tools[1:]] == [None, None]
    assert len(found.left_out) == 6
    assert "6 tools are left out" in caplog.text


@pytest.mark.parametrize(
    "arguments", [b"[]", b"", b"{", b"1", b'{"a":\xff}', b"{" * 100_000, b'{"a":"' + b"x" * 2000 + b'"}']
)
async def test_arguments_must_be_a_json_object_of_bounded_size(
    pool: Pool, modern: FakeServer, arguments: bytes
) -> None:
    with pytest.raises(RequestRefused) as caught:
        await pool.call(at(modern, max_arguments_bytes=1000), "add", arguments)
    assert caught.value.outcome is Outcome.NOT_SENT
    assert not modern.seen


async def test_the_connection_that_was_unused_for_longest_makes_room(legacy: FakeServer) -> None:
    async with Pool(McpLimits(max_connections=2)) as pool:
        for tenant in ("a", "b", "c"):
            await pool.tools(at(legacy), tenant=tenant)
        while len(legacy.sessions) > 2:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        await pool.tools(at(legacy), tenant="c")
        assert legacy.count("tools/list") == 3


async def test_idle_connections_are_closed(legacy: FakeServer) -> None:
    async with Pool(McpLimits(idle_s=0.05)) as pool:
        await pool.tools(at(legacy))
        while legacy.sessions:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        assert (await pool.tools(at(legacy))).tools


async def test_one_caller_that_leaves_does_not_cost_the_others_their_list(
    pool: Pool, fake: FakeServer
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(exchange: Exchange) -> Reply:
        began.set()
        await go_on.wait()
        return {"tools": [ADD]}

    fake.on["tools/list"] = slow
    first, second = (asyncio.create_task(pool.tools(at(fake))) for _ in range(2))
    await began.wait()
    first.cancel()
    go_on.set()
    assert (await second).tools
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_closing_the_pool_ends_calls_with_an_unknown_outcome(fake: FakeServer) -> None:
    began = asyncio.Event()

    async def hang(exchange: Exchange) -> Reply:
        began.set()
        await asyncio.Event().wait()
        return {}

    fake.calls["add"] = hang
    pool = Pool()
    call = asyncio.create_task(pool.call(at(fake), "add", {}))
    await began.wait()
    await pool.close()
    with pytest.raises(ConnectionLost) as caught:
        await call
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_list_is_asked_for_again_when_the_connection_broke(pool: Pool, modern: FakeServer) -> None:
    answers = iter([True, False])

    async def once(exchange: Exchange) -> Reply:
        if next(answers):
            assert exchange.request.transport is not None
            exchange.request.transport.abort()
        return {"tools": [ADD]}

    modern.on["tools/list"] = once
    assert (await pool.tools(at(modern))).tools
    assert modern.count("tools/list") == 2


async def test_a_server_that_became_older_is_asked_again(pool: Pool, modern: FakeServer) -> None:
    await pool.call(at(modern), "add", {"a": 1, "b": 1})

    async def unsupported(exchange: Exchange) -> Reply:
        failure = {"code": -32022, "message": "Unsupported", "data": {"supported": ["2025-11-25"]}}
        return web.json_response({"jsonrpc": "2.0", "id": exchange.id, "error": failure}, status=400)

    async def initialize(exchange: Exchange) -> Reply:
        return {"protocolVersion": "2025-11-25", "capabilities": {}}

    modern.on |= {"tools/call": unsupported, "server/discover": unsupported, "initialize": initialize}
    with pytest.raises(Exception, match="Unsupported"):
        await pool.call(at(modern), "add", {"a": 1, "b": 1})

    async def done(exchange: Exchange) -> Reply:
        return text("done")

    modern.on["tools/call"] = done
    assert (await pool.call(at(modern), "add", {})).content == (TextContent("done"),)
    assert modern.count("initialize") == 1
