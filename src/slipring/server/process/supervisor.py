"""Runs several worker processes that serve one port: starts, replaces and stops them.

The supervisor serves no clients. It reserves the port, and runs the engines that should exist once per
machine; workers borrow shares of them. When the supervisor ends for any reason, workers and engines end too.
"""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from slipring.base.errors import StartupError
from slipring.config.settings import ADMIN_OFF, Config
from slipring.engines.catalog import open_owner
from slipring.engines.engine_hosts import Owner
from slipring.observation.bounded_labels import BoundedLabels
from slipring.server.admin.workers_source import WorkersSource
from slipring.server.process.listening_sockets import base_url, reserve
from slipring.server.process.shutdown import StopRequest, print_wait, run_until
from slipring.server.process.worker_messages import (
    Assignment,
    Command,
    Described,
    Draining,
    EngineMoved,
    EngineSuspected,
    Failed,
    Loan,
    Measured,
    Serving,
    Stop,
    StopNow,
    decode_report,
    encode,
    is_update,
)

if TYPE_CHECKING:
    from slipring.server.admin.listener import AdminListener

log = logging.getLogger("slipring")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LONGEST_LINE = 64 * 2**20
"""Bytes of a line that a worker reports; a complete live update of 10,000 connections has 10 MB."""
_STEADY_S = 60.0
"""The pause starts over after a worker that ran this long: its start was not the cause of its death."""
_OVERTIME_S = 10.0
"""Time after its deadline at which a worker is killed."""
_DRAIN_REPORT_S = 1.0
"""Time that workers get to report how many responses they wait for."""


class Supervisor:
    """The workers of one machine, and the engines that they share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.port = config.port
        self._stop_request = StopRequest()
        self._owners: dict[str, Owner] = {}
        self._slots: list[WorkerSlot] = []
        self._reserved: socket.socket | None = None
        self._admin: AdminListener | None = None

    @property
    def admin_url(self) -> str | None:
        """URL of the live page; None if it is not served."""
        return self._admin.url if self._admin is not None else None

    @property
    def base_url(self) -> str:
        return base_url(self.config.host, self.port)

    async def serve(self, on_ready: Callable[["Supervisor", Serving], None]) -> None:
        """Run workers until a signal stops the process. Calls ``on_ready`` when all workers serve.

        Raises ``StartupError`` if a worker or an engine cannot start.
        """
        self._stop_request.install_signal_handlers()
        try:
            if await run_until(self._stop_request.requested, self._start()):
                on_ready(self, self._slots[0].serving.result())
                await self._stop_request.requested.wait()
                timeout_s = self.config.limits.drain_timeout_s + _OVERTIME_S
                await run_until(self._stop_request.immediate, self._drain(), timeout_s=timeout_s)
        finally:
            await self._release()

    async def _start(self) -> None:
        self._reserved = reserve(self.config.host, self.config.port)
        self.port = self._reserved.getsockname()[1]
        for name in engine_names(self.config):
            owner = open_owner(name, self.config.workers)
            if owner is not None:
                self._owners[name] = owner
                await owner.start(partial(self._announce_move, name))
        bounds = BoundedLabels(self.config.metrics_tenants, self.config.metrics_safety_ids)
        observer = WorkersSource(self._slots, self.base_url, bounds)
        if self.config.admin != ADMIN_OFF:
            await self._open_admin(observer)
        for number in range(self.config.workers):
            self._slots.append(WorkerSlot(number, partial(self._assignment, number), self._suspect, observer))
            self._slots[-1].start()
        await asyncio.gather(*(slot.serving for slot in self._slots))

    async def _open_admin(self, source: WorkersSource) -> None:
        # Only here: the HTTP library takes memory that a supervisor needs for nothing else.
        from slipring.server.admin.listener import AdminListener

        admin = AdminListener(self.config, source)
        await admin.start()
        self._admin = admin

    def _assignment(self, number: int) -> Assignment:
        loans = {
            name: Loan(owner.share(number), owner.key, owner.address) for name, owner in self._owners.items()
        }
        return Assignment(dataclasses.replace(self.config, port=self.port), loans, number)

    def _announce_move(self, name: str) -> None:
        for slot in self._slots:
            slot.send(EngineMoved(name, self._owners[name].address))

    def _suspect(self, suspicion: EngineSuspected) -> None:
        self._owners[suspicion.engine].suspect(suspicion.url)

    async def _drain(self) -> None:
        """Stop all workers, print what they wait for, and wait for them."""
        for slot in self._slots:
            slot.dismiss(Stop())
        await asyncio.wait([slot.draining for slot in self._slots], timeout=_DRAIN_REPORT_S)
        responses = sum(slot.draining.result() for slot in self._slots if slot.draining.done())
        print_wait(self._stop_request, responses, self.config.limits.drain_timeout_s)
        await asyncio.wait([slot.ended for slot in self._slots])

    async def _release(self) -> None:
        """End workers, then engines, which running responses need, then release the port."""
        running = [slot.ended for slot in self._slots if not slot.ended.done()]
        if running:
            for slot in self._slots:
                slot.dismiss(StopNow())
            await asyncio.wait(running, timeout=_OVERTIME_S)
        for slot in self._slots:
            slot.kill()
            await slot.ended
        if self._admin is not None:
            await self._admin.close()
        for owner in self._owners.values():
            await owner.close()
        if self._reserved is not None:
            self._reserved.close()


def engine_names(config: Config) -> list[str]:
    """The engines of a configuration, each once, as it is named there."""
    return list(dict.fromkeys(model.engine for model in config.models)) or [config.engine]


class WorkerSlot:
    """Keeps one worker process running, from ``start`` until ``ended`` is done: starts another one, with
    back-off, when it dies."""

    def __init__(
        self,
        number: int,
        assign: Callable[[], Assignment],
        on_suspicion: Callable[[EngineSuspected], None],
        observer: WorkersSource,
    ) -> None:
        """``assign`` is called for each worker that starts."""
        self._number = number
        self._assign = assign
        self._on_suspicion = on_suspicion
        self._observer = observer
        self.is_serving = False
        self._process: asyncio.subprocess.Process | None = None
        self._failure = ""
        self._dismissed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None while none runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.serving: asyncio.Future[Serving] = loop.create_future()
        """The first worker's report that it serves, or the ``StartupError`` that prevented it."""
        self.draining: asyncio.Future[int] = loop.create_future()
        """How many responses the dismissed worker waits for."""
        self.ended = asyncio.create_task(self._keep_running())
        self.ended.add_done_callback(lambda _: self._drains(0))

    def send(self, command: Command) -> None:
        """Send a command to the worker, if it runs."""
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.write(encode(command))

    def dismiss(self, command: Stop | StopNow) -> None:
        """Stop the worker and do not replace it. ``ended`` is done when it has exited."""
        self._dismissed.set()
        self.send(command)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _keep_running(self) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        while not self._dismissed.is_set():
            started_at = clock()
            code = await self._run_worker()
            if self._dismissed.is_set():
                return
            if not self.serving.done():
                reason = self._failure or f"a worker exited with code {code} before it served"
                self.serving.set_exception(StartupError(reason))
                return
            log.error("a worker ended (%s); starting another one", self._failure or f"exit code {code}")
            if clock() - started_at > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dismissed.wait(), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _run_worker(self) -> int:
        """Start a worker and wait for its exit code.

        A worker is a new interpreter and not a fork: it may have to be replaced while this process runs an
        event loop with child processes and signal handlers, which a forked copy could not use.
        """
        self._failure = ""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slipring.server.process.worker_start"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C goes to the supervisor alone, which then stops the worker
            )
        except OSError as error:
            self._failure = f"cannot start a worker: {error.strerror}"
            return 1
        self.send(self._assign())
        if self._dismissed.is_set():  # while it was being started
            self.kill()
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._receive(line)
            return await process.wait()
        finally:
            self.is_serving = False
            self._observer.ended(self._number)

    def _receive(self, line: bytes) -> None:
        if is_update(line):
            self._observer.updated(line)
            return
        report = decode_report(line)
        if isinstance(report, Measured):
            self._observer.measured(self._number, report.snapshot)
        elif isinstance(report, Described):
            self._observer.described(report)
        elif isinstance(report, EngineSuspected):
            self._on_suspicion(report)
        elif isinstance(report, Failed):
            self._failure = report.reason
        elif isinstance(report, Draining):
            # A worker that drains because it alone was signalled will be replaced.
            if self._dismissed.is_set():
                self._drains(report.responses)
        else:
            self.is_serving = True
            self._observer.began(self._number)
            if not self.serving.done():
                self.serving.set_result(report)

    def _drains(self, responses: int) -> None:
        if not self.draining.done():
            self.draining.set_result(responses)
