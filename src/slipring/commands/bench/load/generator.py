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
from functools import partial
from typing import Literal

import msgspec
from msgspec import Struct

from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.load.idle_sockets import IdleSockets
from slipring.commands.bench.load.users import Job, Tally, Users

_LINE_BYTES = 2**30
_STOP_S = 20.0


class LocalGenerator:
    """Users and idle connections of this process."""

    def __init__(self, job: Job) -> None:
        access = partial(Access, job.url, job.key, timeout_s=job.timeout_s, asks_timing=False)
        self._users = Users(access(api=job.api), job)
        self._idle = IdleSockets(access())
        self._cpu_s = 0.0

    async def grow(self, users: int, idle: int, within_s: float) -> None:
        """Open idle connections, then add users evenly over this time, up to these numbers."""
        await self._idle.grow(idle)
        await self._users.grow(users, within_s)

    async def begin(self) -> None:
        """Begin a new tally."""
        self._users.tally = Tally()
        self._cpu_s = time.process_time()

    async def end(self) -> Tally:
        """The tally since it began."""
        tally = self._users.finished_tally()
        tally.idle_connections = self._idle.open_connections
        tally.cpu_s = time.process_time() - self._cpu_s
        return tally

    async def stop(self) -> None:
        """End all users and connections."""
        self._idle.close()
        await self._users.stop()


class _Command(Struct):
    do: Literal["grow", "begin", "end", "stop"]
    users: int = 0
    idle: int = 0
    within_s: float = 0.0


class ProcessGenerator:
    """The same, with the load shared among several processes."""

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


Generator = LocalGenerator | ProcessGenerator


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
    from slipring.commands.bench.subject.machine import raise_file_limit

    raise_file_limit()
    gc.disable()  # a collection would count as time of the server, and answers leave no garbage
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve())
