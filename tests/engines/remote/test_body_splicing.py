"""Bodies in pieces: the same bytes, however long they are."""

from typing import Any

import pytest
from aiohttp import web

from slipring.engines.remote.body_splicing import spliced
from slipring.engines.remote.upstream import Upstream, UpstreamOptions
from tests.engines.remote.test_upstream import serving


@pytest.mark.parametrize("count", [0, 1, 2, 20, 60, 200])
def test_pieces_hold_items_with_commas_between_them(count: int) -> None:
    items = [b'"%d%s"' % (number, b"x" * 10_000) for number in range(count)]
    pieces = spliced(b'{"a":[', items, b"]}")
    assert b"".join(pieces) == b'{"a":[' + b",".join(items) + b"]}"
    assert max(map(len, pieces)) < 120_000


@pytest.mark.parametrize("sizes", [(0,), (10, 20), (10, 200_000, 300_000, 5, 6), (150_000,)])
async def test_a_body_arrives_whole(sizes: tuple[int, ...]) -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.content_type, request.content_length, await request.read()))
        return web.Response(body=b"data: 1\n\ndata: [DONE]\n\n")

    pieces = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    async with serving(answer) as url:
        upstream = Upstream("chat", UpstreamOptions(url=url))
        await upstream.start()
        assert [batch async for batch in upstream.events("/x", pieces, {})] == [[b"1"]]
        await upstream.close()
    assert seen == [("application/json", sum(sizes), b"".join(pieces))]
