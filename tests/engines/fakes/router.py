"""A fake router: chains spread over the servers behind it, by the header that slipring sends, and stay there.

It relays any path, and the headers of answers, as vllm-router was seen to. A server that is out of rotation
gets nothing any more; its chains go to others.
"""

from collections.abc import Sequence

import aiohttp
from aiohttp import web

_RETRIED = frozenset({"/v1/completions", "/generate"})
"""Requests that are sent to another server if theirs does not answer."""
_STATELESS = frozenset({"/tokenize"})
_HOP = frozenset({"transfer-encoding", "content-length", "connection", "host"})


class FakeRouter:
    """``urls``: of the servers."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self.out: set[str] = set()
        """Servers that get nothing any more."""
        self.dead: set[str] = set()
        """Those of them that the router has not missed yet: requests that it does not repeat fail."""
        self.chains: dict[str, str] = {}
        """Where each chain is, by its key."""
        self.unrouted: list[str] = []
        """Paths of requests without a key, though a replica keeps something of them."""
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "FakeRouter":
        self._http = aiohttp.ClientSession()
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/workers", self._list)
        app.router.add_route("*", "/{path:.*}", self._relay)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._http is not None
        await self._runner.cleanup()
        await self._http.close()

    async def _list(self, request: web.Request) -> web.Response:
        workers = [{"url": url, "is_healthy": url not in self.out} for url in self.urls]
        return web.json_response({"workers": workers})

    def _at(self, request: web.Request) -> str | None:
        return self.chains.get(request.headers.get("x-session-id", ""))

    def _chosen(self, request: web.Request) -> str:
        there = [url for url in self.urls if url not in self.out]
        key = request.headers.get("x-session-id", "")
        if not key:
            if request.method == "POST" and request.path not in _STATELESS:
                self.unrouted.append(request.path)
            return there[0]
        if self.chains.get(key) not in there:
            counts = {url: sum(at == url for at in self.chains.values()) for url in there}
            self.chains[key] = min(there, key=counts.__getitem__)
        return self.chains[key]

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        assert self._http is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        if self._at(request) in self.dead and request.path not in _RETRIED:
            return web.Response(status=502, text="Backend request failed")
        url, body = self._chosen(request) + request.path_qs, await request.read()
        async with self._http.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            relayed = web.StreamResponse(status=answer.status, headers=kept)
            await relayed.prepare(request)
            async for piece in answer.content.iter_any():
                await relayed.write(piece)
            await relayed.write_eof()
            return relayed
