"""Generates load: users and idle connections, in this process or shared by several.

    python -m slipring.commands.bench.load.generator

is one of several processes. It reads a ``Job`` and then commands from its standard input, a line of JSON
each, and answers each command with a line. It ends when its input does. The key is in the job, because other
users of the machine can see flags.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from slipring.commands.bench.client.exchange import Fields
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.load.idle_sockets import IdleSockets
from slipring.commands.bench.load.users import TurnTally, Users
from slipring.commands.bench.measure.modes import MODES
from slipring.commands.bench.workloads.catalogue import short

_LINE_BYTES = 2**30
_STOP_S = 20.0


class Job(Struct, frozen=True, kw_only=True):
    """What the users of a load do, and where."""

    url: str
    key: str
    timeout_s: float
    mode: str
    head: Fields
    think_ms: float
    limit_ms: float
    """Limit of the time to the first token."""
    tokens_per_s: float | None = None
    """Simulated decoding speed; None if it is not known."""
    has_digests: bool = False
    is_checked: bool = True
    """Whether answers are checked."""
    first: int = 0
    """Number of the first user."""


class Tally(Struct, kw_only=True):
    """What users have seen since the tally began."""

    first_token_ms: list[float] = []
    gap_ms: list[float] = []
    lag_ms: list[float] = []
    due_ms: float = 0.0
    late_ms: float = 0.0
    errors: dict[str, int] = {}
    turns: int = 0
    waiting: int = 0
    waiting_late: int = 0
    stalled: int = 0
    open_connections: int = 0
    idle_connections: int = 0
    last_late_ns: int = 0
    """When the last turn that violated the service level got its first token or failed; 0: none did."""
    cpu_s: float = 0.0
    """CPU time of the generating processes."""


class Generator(Protocol):
    """Generates load."""

    async def grow(self, users: int, idle: int, within_s: float) -> None:
        """Open idle connections, then add users evenly over this time, up to these numbers."""

    async def begin(self) -> None:
        """Begin a new tally."""

    async def end(self) -> Tally:
        """The tally since it began."""

    async def stop(self) -> None:
        """End all users and connections."""


class LocalGenerator:
    """Users and idle connections of this process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        access = Access(job.url, job.key, timeout_s=job.timeout_s, asks_timing=False)
        self._users = Users(
            access,
            MODES[job.mode],
            job.head,
            short(),
            job.think_ms,
            has_digests=job.has_digests,
            is_checked=job.is_checked,
            first=job.first,
        )
        self._idle = IdleSockets(access)
        self._cpu_s = 0.0

    async def grow(self, users: int, idle: int, within_s: float) -> None:
        await self._idle.grow(idle)
        await self._users.grow(users, within_s)

    async def begin(self) -> None:
        self._users.tally = TurnTally(self._job.tokens_per_s, self._job.limit_ms)
        self._cpu_s = time.process_time()

    async def end(self) -> Tally:
        tally = self._users.tally
        tally.add_unfinished(self._users.pending, self._job.limit_ms)
        return Tally(
            first_token_ms=tally.first_token_ms.tolist(),
            gap_ms=tally.gap_ms.tolist(),
            lag_ms=tally.lag_ms.tolist(),
            due_ms=tally.due_ms,
            late_ms=tally.late_ms,
            errors=dict(tally.errors),
            turns=tally.turns,
            waiting=tally.waiting,
            waiting_late=tally.waiting_late,
            stalled=tally.stalled,
            open_connections=self._users.open_connections,
            idle_connections=self._idle.open_connections,
            last_late_ns=tally.last_late_ns,
            cpu_s=time.process_time() - self._cpu_s,
        )

    async def stop(self) -> None:
        self._idle.close()
        await self._users.stop()


class _Command(Struct):
    do: Literal["grow", "begin", "end", "stop"]
    users: int = 0
    idle: int = 0
    within_s: float = 0.0


class ProcessGenerator:
    """A generator that shares the load among several processes."""

    def __init__(self, job: Job, processes: int) -> None:
        self._job = job
        self._count = processes
        self._processes: list[asyncio.subprocess.Process] = []

    async def grow(self, users: int, idle: int, within_s: float) -> None:
        if not self._processes:
            await self._start()
        shares = zip(_shared(users, self._count), _shared(idle, self._count), strict=True)
        await self._ask_each([_Command("grow", each, quiet, within_s) for each, quiet in shares])

    async def begin(self) -> None:
        await self._ask_all(_Command("begin"))

    async def end(self) -> Tally:
        return merged(
            [msgspec.json.decode(line, type=Tally) for line in await self._ask_all(_Command("end"))]
        )

    async def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._processes = []

    async def _start(self) -> None:
        for number in range(self._count):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slipring.commands.bench.load.generator"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES,
                start_new_session=True,  # Ctrl-C goes to the bench alone
            )
            self._processes.append(process)
            assert process.stdin is not None
            process.stdin.write(
                msgspec.json.encode(msgspec.structs.replace(self._job, first=number * 100_000)) + b"\n"
            )

    async def _ask_all(self, command: _Command) -> list[bytes]:
        return await self._ask_each([command] * self._count)

    async def _ask_each(self, commands: list[_Command]) -> list[bytes]:
        return await asyncio.gather(*map(_ask, self._processes, commands))


async def _ask(process: asyncio.subprocess.Process, command: _Command) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(command) + b"\n")
    if not (line := await process.stdout.readline()):
        raise RuntimeError(f"a generating process ended with {await process.wait()}")
    return line


def merged(tallies: list[Tally]) -> Tally:
    """The tally of several processes."""
    total = Tally()
    errors: Counter[str] = Counter()
    for each in tallies:
        errors.update(each.errors)
        for name in Tally.__struct_fields__:
            if name == "last_late_ns":
                total.last_late_ns = max(total.last_late_ns, each.last_late_ns)
            elif name != "errors":
                setattr(total, name, getattr(total, name) + getattr(each, name))
    total.errors = dict(errors)
    return total


def _shared(count: int, processes: int) -> list[int]:
    """``count`` in as many parts, of almost the same size."""
    return [(count + place) // processes for place in range(processes)]


async def _serve() -> None:
    """Obey the commands of the bench until its input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    generator = LocalGenerator(msgspec.json.decode(await reader.readline(), type=Job))
    while line := await reader.readline():
        command = msgspec.json.decode(line, type=_Command)
        answer = b"{}"
        if command.do == "grow":
            await generator.grow(command.users, command.idle, command.within_s)
        elif command.do == "begin":
            await generator.begin()
        else:
            answer = msgspec.json.encode(await generator.end())
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()
    os._exit(0)  # the connections need not be closed in order


if __name__ == "__main__":
    import gc

    from slipring.commands.bench.command import loop_factory
    from slipring.commands.bench.load.file_limit import raise_as_far_as_allowed

    raise_as_far_as_allowed()
    gc.disable()  # a collection would count as time of the server, and answers leave no garbage
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve())
