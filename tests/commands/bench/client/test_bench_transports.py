"""The connections of the bench's users: what they leave behind."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipring.commands.bench.client.transports import Access, LanesTransport, SocketTransport, Transport


@pytest.mark.parametrize("kind", [SocketTransport, LanesTransport])
async def test_a_user_who_is_stopped_while_it_closes_leaves_nothing_open(
    kind: type[SocketTransport | LanesTransport],
) -> None:
    closing, is_over = asyncio.Event(), asyncio.Event()
    transports: list[Transport] = []

    async def answer_no_close(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await is_over.wait()
        return socket

    async def use(url: str) -> None:
        async with kind(Access(url, "", timeout_s=60, asks_timing=False)) as transport:
            transports.append(transport)
            await transport.open()
            closing.set()

    app = web.Application()
    app.router.add_get("/responses", answer_no_close)
    async with TestServer(app) as server:
        user = asyncio.create_task(use(str(server.make_url("/"))))
        await asyncio.wait_for(closing.wait(), 300)  # the user now waits for the server's close frame
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
        assert transports[0]._http.closed
        is_over.set()
