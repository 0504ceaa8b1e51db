"""A tenant that floods a server: connections without pauses."""

import asyncio
import time
from collections import Counter

import aiohttp
from aiohttp import ClientWebSocketResponse, WSMsgType

from slipring.commands.bench.client.exchange import TERMINAL, Fields, decode, encode
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.load.results import FloodTally, percentiles

_REPEATED_S = 0.1
"""After a refusal: ten times as often as servers ask for that say a second."""
_FAILED = "response.failed"


class Flood:
    """Connections of one tenant. Each sends a request as soon as the last one was answered."""

    def __init__(self, access: Access, head: Fields, connections: int) -> None:
        self._access = access
        self._create = encode({"type": "response.create", **head, "store": False, "input": "Go on."})
        self._connections = connections
        self._tasks: list[asyncio.Task[None]] = []
        self._tally = FloodTally(connections=connections)
        self._refused_ms: list[float] = []
        self.turns = 0
        self.refusals: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._begun_at = 0.0

    def start(self) -> None:
        self._begun_at = time.monotonic()
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._connections)]

    async def stop(self) -> FloodTally:
        """End all connections; return what they got."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        tally = self._tally
        tally.turns, tally.seconds = self.turns, time.monotonic() - self._begun_at
        tally.refusals, tally.failures = dict(self.refusals), dict(self._failures)
        tally.refused_ms = percentiles(self._refused_ms)
        return tally

    async def _run(self) -> None:
        while True:
            try:
                async with (
                    aiohttp.ClientSession() as http,
                    http.ws_connect(
                        self._access.url, headers=self._access.headers(), max_msg_size=0
                    ) as socket,
                ):
                    while True:
                        await self._turn(socket)
            except aiohttp.WSServerHandshakeError as error:
                self.refusals[f"{error.status} at the upgrade"] += 1
            except (aiohttp.ClientError, OSError) as error:
                self._failures[type(error).__name__] += 1
            await asyncio.sleep(_REPEATED_S)

    async def _turn(self, socket: ClientWebSocketResponse) -> None:
        begun_ns = time.perf_counter_ns()
        await socket.send_frame(self._create, WSMsgType.TEXT)
        while True:
            received = await socket.receive()
            if received.type is not WSMsgType.TEXT:
                raise aiohttp.ClientConnectionError
            event = decode(received.data)
            if event["type"] == "error":
                error = event["error"]
                self.refusals[f"{event.get('status')} {error.get('code')}"] += 1
                self._refused_ms.append((time.perf_counter_ns() - begun_ns) / 1e6)
                self._tally.with_retry_after += "retry-after" in (error.get("headers") or {})
                await asyncio.sleep(_REPEATED_S)
                return
            if event["type"] in TERMINAL:
                self.turns += event["type"] != _FAILED
                if event["type"] == _FAILED:
                    code = (event["response"].get("error") or {}).get("code")
                    self._failures[f"response.failed {code}"] += 1
                return
