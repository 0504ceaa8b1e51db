"""Rounds of load, faults, `kill -9`, restart and inspection, on one site.

The seed determines what clients request and when something breaks. How far the servers have come by then
depends on the machine, so two storms with the same seed are similar but not identical.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random

from tests.crash.checks import Findings, Inspector
from tests.crash.clients import Crowd
from tests.crash.ledger import Json, Ledger, Turn
from tests.crash.servers import Server, Unexpected
from tests.crash.sites import Site

_LONGEST_ROUND_S = 60.0
_RECOVERY_S = 180.0
_WITHIN_ANSWER, _DURING_FAULT = 0.5, 0.3
"""Shares of the rounds in which servers are killed after any event and not after the last one of an answer,
and in which they are killed while something else is broken."""
_EVENTS_PER_ANSWER = 10
"""Of all clients; those that do not stream receive none."""


class Storm:
    """Several rounds on one site."""

    def __init__(self, site: Site, seed: int, report: Callable[[str], None]) -> None:
        self.findings = Findings()
        self._answers = 0
        self.runs_cut_off = 0
        self.rounds = 0
        self.seconds = 0.0
        self._site = site
        self._random = Random(seed)
        self._report = report
        self._ledger = Ledger(site.wording)
        self._since = 0

    async def run_rounds(self, rounds: int, most_answers: int = 60) -> None:
        """Run until a fault is found, or for this many rounds, and then inspect everything."""
        began = time.monotonic()
        site = self._site
        async with AsyncExitStack() as whole:
            await site.open(whole)
            while self.rounds < rounds and not self.findings:
                async with AsyncExitStack() as stack:
                    servers = await site.start(stack, self._random)
                    await self._inspect(servers[0])
                    if self.findings:
                        break
                    how = Round(site, self._ledger, self._random, servers, stack)
                    await how.run(most_answers)
                await site.end_round(self._random)
                self.rounds += 1
                new = self._ledger.turns[self._since :]
                self._answers += sum(turn.is_complete and turn.is_stored for turn in new)
                self.runs_cut_off += len(self._ledger.open_runs())
                self._report(f"{site.name} round {self.rounds}/{rounds}: {how}; {self.figures}")
            stored = await site.stored_ids()
            async with AsyncExitStack() as stack:
                servers = await site.start(stack, self._random)
                await self._inspect(servers[0], everything=True, stored=stored)
        self.seconds = time.monotonic() - began

    @property
    def acknowledged(self) -> int:
        """Stored responses that were acknowledged to clients, without those of inspections."""
        return self._answers + self._site.acknowledged

    @property
    def figures(self) -> str:
        return (
            f"{self.acknowledged} stored responses acknowledged, {len(self.findings.lost)} lost,"
            f" {len(self.findings.half)} half-written, {len(self.findings.twice)} calls run twice"
            f" ({self.findings.whole} complete but not acknowledged, {self.runs_cut_off} runs cut off)"
        )

    async def _inspect(
        self, server: Server, *, everything: bool = False, stored: list[str] | None = None
    ) -> None:
        inspector = Inspector(server.url, self._ledger, self.findings, self._random, self._site.counts)
        await inspector.inspect(self._since, everything=everything, stored=stored or ())
        await self._site.inspect(server.url, self.findings, inspector.strangers)
        self._since = len(self._ledger.turns)


class Round:
    """Load on the servers of a site until they are killed, one after the other. Meanwhile something else of
    the site may break."""

    def __init__(
        self, site: Site, ledger: Ledger, random: Random, servers: list[Server], stack: AsyncExitStack
    ) -> None:
        self.answers = 0
        self.random = random
        self.stack = stack
        """Ends the servers that a fault adds."""
        self.servers = {server.url: server for server in servers}
        self._site = site
        self.crowd = Crowd(list(self.servers), ledger, random, self._answered, site.counts)
        site.add_clients(self.crowd)
        self._kills: list[int] = []
        self._fault_at = sys.maxsize
        self._fault: asyncio.Task[str] | None = None
        self._is_recovering = False
        self._end: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        also = f"{self._fault.result()}, " if self._fault is not None else ""
        which = f"{len(self.servers)} servers" if len(self.servers) > 1 else "server"
        return f"{also}{which} killed after {self.answers} answers"

    async def run(self, most_answers: int) -> None:
        random = self.random
        self._kills = sorted(random.randint(1, most_answers) for _ in self.servers)
        if random.random() < self._site.fault_share:
            self._fault_at = self._kills[0]
            if random.random() < _DURING_FAULT:
                self._kills = [count + random.choice([0, 1, 50]) for count in self._kills]
            else:
                self._kills = []
        elif random.random() < _WITHIN_ANSWER:
            self._events_left = random.randint(1, most_answers * _EVENTS_PER_ANSWER)
            self.crowd.on_event = self._received
        self._limit(_LONGEST_ROUND_S, self._kill_all)
        await self.crowd.run()
        if self._fault is not None:
            await self._fault
            if self._is_recovering:
                raise Unexpected(f"no answer within {_RECOVERY_S:.0f} s after: {self._fault.result()}")
        if self._end is not None:
            self._end.cancel()

    def take_out(self, url: str) -> Server:
        """Remove a server from those that clients use. Whoever calls this kills it."""
        self.crowd.urls.remove(url)
        return self.servers[url]

    def add(self, server: Server) -> None:
        """Add a server that a fault has started."""
        self.servers[server.url] = server
        self.crowd.urls.append(server.url)

    def _limit(self, seconds: float, act: Callable[[], None]) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(seconds, act)

    def _received(self, turn: Turn, event: Json) -> None:
        """Called when a client has received an event."""
        self._events_left -= 1
        if self._events_left == 0:
            self._kill_all()

    def _answered(self) -> None:
        """Called when a client has received the acknowledgement of a stored response."""
        self.answers += 1
        self._is_recovering = False
        if self.answers == self._fault_at:
            self._limit(2 * _RECOVERY_S, self._kill_all)
            self._fault = asyncio.create_task(self._site.break_something(self))
            self._fault.add_done_callback(self._fault_ended)
        while self._kills and self.answers >= self._kills[0]:
            del self._kills[0]
            self._kill()

    def _fault_ended(self, fault: "asyncio.Task[str]") -> None:
        """What broke works again: clients have to be answered, and then the servers are killed."""
        if fault.cancelled() or fault.exception() is not None:
            self._kill_all()
        elif not self._kills and self.crowd.urls:
            self._is_recovering = True
            self._limit(_RECOVERY_S, self._kill_all)
            self._kills = [
                self.answers + count for count in sorted(self.random.randint(1, 20) for _ in self.crowd.urls)
            ]

    def _kill(self) -> None:
        """Kill one of the running servers."""
        if self.crowd.urls:
            self.take_out(self.random.choice(self.crowd.urls)).kill()

    def _kill_all(self) -> None:
        while self.crowd.urls:
            self._kill()
