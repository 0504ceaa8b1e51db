"""Rounds of load, `kill -9`, restart and inspection, on one store.

The seed determines what clients request and when servers are killed. How far the servers have come by then
depends on the machine, so two storms with the same seed are similar but not identical.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from tests.crash.checks import Findings, Inspector
from tests.crash.clients import Crowd
from tests.crash.databases import StormDatabase
from tests.crash.ledger import Ledger
from tests.test_cli import COMMAND, environment

_ENGINE = "simulated:tokens_per_s=2000,output_tokens=60"
_START_S = 60.0
_LONGEST_ROUND_S = 20.0
_LEASE_S = "0.6"
_TWO_SERVERS, _STORE_CRASHES, _BY_TIME = 0.3, 0.4, 0.5
"""Shares of the rounds of each kind."""
_ERROR_PATTERNS = ("unexpectedly", "never retrieved", "Traceback")
"""Log messages of unexpected errors. An unavailable store is not one."""


class Unexpected(Exception):
    """A server did not start, or logged an unexpected error."""


class Server:
    """A real server on a free port."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self._log = log
        self._is_killed = False

    def kill(self) -> None:
        if not self._is_killed:  # asyncio may not know yet that the process has ended
            self._is_killed = True
            self.process.kill()

    async def wait(self) -> None:
        await self.process.wait()
        lines = self._log.read_text().splitlines()
        for index, line in enumerate(lines):
            if any(sign in line for sign in _ERROR_PATTERNS):
                raise Unexpected("\n".join(lines[index : index + 40]))


@asynccontextmanager
async def serving(spec: str) -> AsyncIterator[Server]:
    """Run a server on a store until it is killed or the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        arguments = (
            "--engine",
            _ENGINE,
            "--store",
            spec,
            "--run-lease-s",
            _LEASE_S,
            "--log-level",
            "warning",
        )
        with log.open("wb") as errors:  # not a pipe, which would fill up unread
            process = await asyncio.create_subprocess_exec(
                *(*COMMAND, "serve", "--port", "0", *arguments),
                env=environment(),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        server = Server(process, "", log)
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), _START_S)
            server.url = line.decode().rpartition(" ")[2].strip()
            if not server.url:
                raise Unexpected(log.read_text())
            yield server
        finally:
            server.kill()
            await server.wait()


class Storm:
    """Several rounds on one store. With ``by_time``, servers are killed after random times as well as
    answers."""

    def __init__(
        self, database: StormDatabase, seed: int, report: Callable[[str], None], *, by_time: bool = True
    ) -> None:
        self.findings = Findings()
        self.acknowledged = 0
        self.runs_cut_off = 0
        self._database = database
        self._random = Random(seed)
        self._report = report
        self._by_time = by_time
        self._ledger = Ledger()
        self._since = 0

    async def run_rounds(self, rounds: int, most_answers: int = 400) -> None:
        for number in range(1, rounds + 1):
            async with AsyncExitStack() as stack:
                servers = [await stack.enter_async_context(serving(self._database.spec))]
                await self._inspect(servers[0])
                if self._random.random() < _TWO_SERVERS:
                    servers.append(await stack.enter_async_context(serving(self._database.spec)))
                how = _Round(self._database, self._ledger, self._random, servers)
                await how.run(most_answers, by_time=self._by_time)
            new = self._ledger.turns[self._since :]
            self.acknowledged += sum(turn.is_complete and turn.is_stored for turn in new)
            self.runs_cut_off += len(self._ledger.open_runs())
            self._report(f"{self._database.name} round {number}/{rounds}: {how}; {self.figures}")
        stored = await self._database.stored_ids()
        async with serving(self._database.spec) as server:
            await self._inspect(server, everything=True, stored=stored)

    @property
    def figures(self) -> str:
        return (
            f"{self.acknowledged} stored responses acknowledged, {len(self.findings.lost)} lost,"
            f" {len(self.findings.half)} half-written ({self.findings.whole} complete but not acknowledged,"
            f" {self.runs_cut_off} runs cut off)"
        )

    async def _inspect(
        self, server: Server, *, everything: bool = False, stored: list[str] | None = None
    ) -> None:
        inspector = Inspector(server.url, self._ledger, self.findings, self._random)
        await inspector.inspect(self._since, everything=everything, stored=stored or ())
        self._since = len(self._ledger.turns)


class _Round:
    """Load on one server or two until they are killed, one after the other."""

    def __init__(
        self, database: StormDatabase, ledger: Ledger, random: Random, servers: list[Server]
    ) -> None:
        self.answers = 0
        self._database = database
        self._random = random
        self._servers = {server.url: server for server in servers}
        self._crowd = Crowd(list(self._servers), ledger, random, self._answered)
        self._kills: list[int] = []
        self._crash_at = sys.maxsize
        self._crash: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        also = "store crashed, " if self._crash is not None else ""
        which = "both servers" if len(self._servers) > 1 else "server"
        return f"{also}{which} killed after {self.answers} answers"

    async def run(self, most_answers: int, *, by_time: bool) -> None:
        random = self._random
        self._kills = sorted(random.randint(1, most_answers) for _ in self._servers)
        longest = _LONGEST_ROUND_S
        if self._database.can_crash and random.random() < _STORE_CRASHES:
            self._crash_at = self._kills[0]
            self._kills = [count + random.choice([0, 1, 50]) for count in self._kills]
        elif by_time and random.random() < _BY_TIME:
            longest = random.uniform(0.05, 1.5)
        end = asyncio.get_running_loop().call_later(longest, self._kill_all)
        await self._crowd.run()
        end.cancel()
        if self._crash is not None:
            await self._crash

    def _answered(self) -> None:
        """Called when a client has received the acknowledgement of a stored response."""
        self.answers += 1
        if self.answers == self._crash_at:
            self._crowd.may_refuse = True
            self._crash = asyncio.create_task(self._database.crash(self._random))
        while self._kills and self.answers >= self._kills[0]:
            del self._kills[0]
            self._kill()

    def _kill(self) -> None:
        """Kill one of the running servers."""
        if self._crowd.urls:
            url = self._crowd.urls.pop(self._random.randrange(len(self._crowd.urls)))
            self._servers[url].kill()

    def _kill_all(self) -> None:
        while self._crowd.urls:
            self._kill()
