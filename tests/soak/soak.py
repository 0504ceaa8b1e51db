"""Runs random clients against servers for some time, and watches the servers meanwhile.

The seed determines what clients do. How their requests meet each other depends on the machine, so two soaks
with the same seed are similar but not identical.
"""

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import aiohttp

from slipring.server.process.process_metrics import resident_bytes
from tests.soak.chains import Wrong
from tests.soak.clients import Visitor
from tests.soak.deployments import PARKED_S, BadServer, Server
from tests.soak.judging import MIB, Rest, Trend, Window, is_long_enough, left_behind, trends
from tests.soak.probe import Probe, echoing

CLIENTS = 32
WINDOWS = 40
_WEIGHTS = {"old-socket": 0.07, "slow-socket": 0.3, "slow-stream": 0.3, "bad-frames": 0.5, "bad-http": 0.5}
"""How often a behaviour is chosen; 1 if it is not listed."""
_LONGEST_PAUSE_S = 0.5
_SAMPLED_S = 1.0
_SETTLE_S = 45.0 + 2 * PARKED_S
"""How long clients may take to leave, and servers to forget them: longer than every deadline."""
_IN_USE = (
    *("slipring_in_flight", "slipring_queued", "slipring_lanes", "slipring_parked_sessions"),
    *("slipring_connections:websocket", "slipring_memory_bytes:requests", "slipring_memory_bytes:unread"),
    *("slipring_memory_bytes:parked", "slipring_memory_bytes:states", "slipring_engine_jobs"),
)
"""Metrics that are 0 when no client is left."""


_DROPPED = "slipring_connections_dropped_total:"


@dataclass
class Outcome:
    """What a soak has found."""

    windows: list[Window] = field(default_factory=list)
    trends: list[Trend] = field(default_factory=list)
    turns: Counter[str] = field(default_factory=Counter)
    visits: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rest: tuple[Rest, Rest] | None = None
    """Before the first client, and after the last."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Connections that servers closed because of their clients, by reason, as far as known."""
    seconds: float = 0.0


class Soak:
    """One soak of one deployment."""

    def __init__(self, servers: list[Server], seed: int, say: Callable[[str], None]) -> None:
        self.outcome = Outcome()
        self._servers = servers
        self._seed = seed
        self._say = say
        self._probe = Probe()
        self._ended = asyncio.Event()

    async def run(self, seconds: float, clients: int = CLIENTS) -> None:
        """Run to the end, or to the first broken promise, which is then in the outcome."""
        began = time.monotonic()
        async with aiohttp.ClientSession() as self._http, echoing() as echo_url:
            before = await self._rest()
            running = [
                asyncio.create_task(self._client(Random(f"{self._seed}-{number}")))
                for number in range(clients)
            ]
            urls = [server.url for server in self._servers]
            probing = asyncio.create_task(self._probe.run(urls, echo_url))
            watching = asyncio.create_task(self._watch(seconds / WINDOWS))
            # Only the watch ends by itself; any other task that ends has found a fault.
            await asyncio.wait((*running, probing, watching), return_when=asyncio.FIRST_COMPLETED)
            self._ended.set()
            probing.cancel()
            await asyncio.wait((*running, watching), timeout=_SETTLE_S)
            for task in (*running, probing, watching):
                task.cancel()
            await asyncio.wait((*running, probing, watching))
            self.outcome.faults += [
                fault for task in (*running, probing, watching) if (fault := _fault_of(task))
            ]
            if not self.outcome.faults:
                await self._settle(before)
            await self._count_dropped()
        self._judge()
        self.outcome.seconds = time.monotonic() - began

    async def _client(self, random: Random) -> None:
        """One client after the other."""
        visitor = Visitor([server.url for server in self._servers], random, self.outcome.turns)
        kinds = list(visitor.behaviours)
        weights = [_WEIGHTS.get(kind, 1.0) for kind in kinds]
        while not self._ended.is_set():
            (kind,) = random.choices(kinds, weights)
            await visitor.visit(kind)
            self.outcome.visits[kind] += 1
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_S))

    async def _watch(self, window_s: float) -> None:
        started = time.monotonic()
        for number in range(1, WINDOWS + 1):
            began, before, cpu_ms = time.monotonic(), self.outcome.turns.total(), self._cpu_ms()
            waited_ms = self._waited_ms()
            samples: list[tuple[float, float, float]] = []
            while not samples or time.monotonic() < started + number * window_s:
                await asyncio.sleep(min(_SAMPLED_S, window_s))
                samples.append(await self._sample())
                if self._ended.is_set():
                    return
            resident, descriptors, tasks = map(statistics.median, zip(*samples, strict=True))
            turn_ms, echo_ms = self._probe.cut()
            turns, own = self.outcome.turns.total() - before, (resident_bytes() or 0) / MIB
            latency = turn_ms / echo_ms
            cpu_ms = (self._cpu_ms() - cpu_ms) / max(turns, 1)
            waiting = max(self._waited_ms() - waited_ms, 0.0) / 1e3 / (time.monotonic() - began)
            self.outcome.windows.append(
                Window(resident, descriptors, tasks, latency, cpu_ms, turns, turn_ms, echo_ms, own, waiting)
            )
            self._say(
                f"{number}/{WINDOWS}: {turns} answers ({turns / (time.monotonic() - began):.1f}/s),"
                f" {resident:.1f} MiB, {descriptors:.0f} descriptors, {tasks:.0f} tasks,"
                f" a turn {turn_ms:.2f} ms = {latency:.1f} × an echo, {cpu_ms:.1f} ms of CPU per answer,"
                f" {waiting:.2f} s waiting for a CPU per second"
            )

    def _cpu_ms(self) -> float:
        return sum(server.cpu_ms() for server in self._servers)

    def _waited_ms(self) -> float:
        return sum(server.waited_ms() for server in self._servers)

    async def _sample(self) -> tuple[float, float, float]:
        """Memory in MiB, descriptors and tasks of all servers. Raises ``BadServer``."""
        resident = descriptors = tasks = 0.0
        for server in self._servers:
            server.check_log()
            resident += server.resident_mib()
            descriptors += server.descriptors()
            tasks += (await server.metrics(self._http))["slipring_tasks"]
        return resident, descriptors, tasks

    async def _rest(self) -> Rest:
        in_use: Counter[str] = Counter()
        descriptors = tasks = processes = 0.0
        for server in self._servers:
            found = await server.metrics(self._http)
            descriptors += server.descriptors()
            tasks += found["slipring_tasks"]
            processes += found["slipring_processes"]
            in_use.update({name: found[name] for name in _IN_USE})
        return Rest(descriptors, tasks, dict(in_use), processes)

    async def _settle(self, before: Rest) -> None:
        """Wait until the servers have forgotten their clients."""
        end = time.monotonic() + _SETTLE_S
        while True:
            after = await self._rest()
            self.outcome.rest = before, after
            faults = left_behind(before, after)
            if not faults or time.monotonic() > end:
                self.outcome.faults += faults
                return
            await asyncio.sleep(_SAMPLED_S)

    async def _count_dropped(self) -> None:
        for server in self._servers:
            with contextlib.suppress(aiohttp.ClientError):
                found = await server.metrics(self._http)
                for name, value in found.items():
                    if name.startswith(_DROPPED) and value:
                        self.outcome.dropped[name.removeprefix(_DROPPED)] += int(value)

    def _judge(self) -> None:
        windows = self.outcome.windows
        if len(windows) == WINDOWS and is_long_enough(windows):
            self.outcome.trends = trends(windows)
            self.outcome.faults += [str(trend) for trend in self.outcome.trends if trend.has_grown]


def _fault_of(task: "asyncio.Task[None]") -> str | None:
    """What a task has found, or why it did not end."""
    if task.cancelled():
        return None
    error = task.exception()
    if isinstance(error, Wrong | BadServer):
        return str(error)
    return f"{type(error).__name__} {error}"[:2000] if error is not None else None
