"""The sites of crash storms: which servers run, on which store, and what of it breaks besides them."""

import socket
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.crash.checks import Findings
from tests.crash.clients import Counts, Crowd
from tests.crash.databases import ids_in_file, ids_in_postgres, kill_postgres
from tests.crash.ledger import Json, plain_wording
from tests.crash.servers import Server, children, command_of, gone, kill, serving, until
from tests.postgres import Postgres, running_postgres

if TYPE_CHECKING:
    from tests.crash.storm import Round

_TWO_SERVERS = 0.3
"""Share of the rounds in which two servers use a store that one would do for."""
_UNSYNCED = 0.5
"""Share of the rounds in which commits to an SQLite file are not synced."""


class Skipped(Exception):
    """This machine lacks what a site needs. The message says what."""


class Site:
    """Servers and their store. A storm opens it once, and starts its servers for every round."""

    name: str
    counts = Counts()
    wording = staticmethod(plain_wording)
    fault_share = 0.0
    """Share of the rounds in which something else than a server breaks."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Prepare what lasts for the whole storm."""

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        """Start the servers of a round; all of them serve."""
        raise NotImplementedError

    async def stored_ids(self) -> list[str]:
        """Return the ids of the visible responses, read directly from the database."""
        raise NotImplementedError

    def add_clients(self, crowd: Crowd) -> None:
        """Change the clients of a round."""

    async def break_something(self, storm_round: "Round") -> str:
        """Break something while clients send requests, and wait until it works again. Return what it was."""
        raise NotImplementedError

    async def end_round(self, random: Random) -> None:
        """Called when all servers of a round have been killed."""

    @property
    def acknowledged(self) -> int:
        """Stored responses that were acknowledged to clients, besides those in the ledger of the storm."""
        return 0

    async def inspect(self, url: str, findings: Findings, strangers: list[Json]) -> None:
        """Check what the ledger of the storm does not know. ``strangers``: stored responses of no turn."""
        findings.half += [f"no single turn matches {stranger}" for stranger in strangers]


class SqliteSite(Site):
    """One server on an SQLite file, or two."""

    name = "sqlite"

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory

    async def open(self, stack: AsyncExitStack) -> None:
        if self.directory is None:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    @property
    def path(self) -> Path:
        assert self.directory is not None
        return self.directory / "slipring.db"

    @property
    def spec(self) -> str:
        return f"sqlite:{self.path}"

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        count = 2 if random.random() < _TWO_SERVERS else 1
        # What is not synced survives servers that are killed, too: only the machine must not fail.
        settings = ("--store-unsynced",) if random.random() < _UNSYNCED else ()
        return [await stack.enter_async_context(serving(self.spec, *settings)) for _ in range(count)]

    async def stored_ids(self) -> list[str]:
        return ids_in_file(self.path)


class WorkersSite(SqliteSite):
    """Two workers behind one port. A worker is killed, and in the end the process that supervises them."""

    name = "workers"
    fault_share = 0.8

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        return [await stack.enter_async_context(serving(self.spec, "--workers", "2"))]

    async def break_something(self, storm_round: "Round") -> str:
        (server,) = storm_round.servers.values()
        victims = _workers_of(server)  # fewer than two if the server has been killed a moment ago
        storm_round.random.shuffle(victims)
        del victims[storm_round.random.choice([1, 1, 2]) :]
        storm_round.crowd.may_drop = True
        kill(*victims)
        await gone(victims)
        await until(
            lambda: len(_workers_of(server)) == 2 or not storm_round.crowd.urls,
            "a worker that was killed is not replaced",
        )
        return f"{len(victims)} of 2 workers killed"


def _workers_of(server: Server) -> list[int]:
    return [pid for pid in children(server.process.pid) if "process.worker" in command_of(pid)]


class PostgresSite(Site):
    """One server on PostgreSQL, or two; PostgreSQL is killed."""

    name = "postgresql"
    fault_share = 0.7
    postgres: Postgres

    async def open(self, stack: AsyncExitStack) -> None:
        self.postgres = stack.enter_context(running_postgres())

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        count = 2 if random.random() < _TWO_SERVERS else 1
        return [await stack.enter_async_context(serving(self.postgres.url)) for _ in range(count)]

    async def stored_ids(self) -> list[str]:
        return await ids_in_postgres(self.postgres.url)

    async def break_something(self, storm_round: "Round") -> str:
        storm_round.crowd.may_refuse = True
        return await kill_postgres(self.postgres, storm_round.random)


class NodesSite(PostgresSite):
    """Two nodes on PostgreSQL that know each other's address. One is killed and another one takes its place,
    while the other goes on."""

    name = "nodes"
    fault_share = 0.8

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        return [await self._start_node(stack) for _ in range(2)]

    async def break_something(self, storm_round: "Round") -> str:
        if not storm_round.crowd.urls:
            return "nothing else"
        victim = storm_round.take_out(storm_round.random.choice(storm_round.crowd.urls))
        victim.kill()
        if not storm_round.crowd.urls:
            return "a node killed"
        fresh = await self._start_node(storm_round.stack)
        if storm_round.crowd.urls:  # otherwise all clients have ended
            storm_round.add(fresh)
        return "a node killed and replaced"

    async def _start_node(self, stack: AsyncExitStack) -> Server:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        address = ("--node-url", f"http://127.0.0.1:{port}")
        return await stack.enter_async_context(serving(self.postgres.url, *address, port=port))
