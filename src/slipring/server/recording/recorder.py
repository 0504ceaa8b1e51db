"""The recorder: takes ended turns from the event loop and writes them in a thread.

Handing a turn over costs the event loop a few references. If the thread does not keep up, or a file or the
directory is full, turns are dropped and counted; no turn waits for a recording.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Collection
from pathlib import Path
from weakref import WeakKeyDictionary

from slipring import __version__
from slipring.config import Config, split_api_key
from slipring.core.turn.turn import Turn
from slipring.protocol.timing import TurnReport
from slipring.recording import Transport
from slipring.server.clock import now
from slipring.server.recording.recorded_loops import EndedTurn, RecordedLoops
from slipring.server.recording.recording_file import NotRecorded, RecordingDirectory
from slipring.server.recording.secret_removal import SecretRemoval

log = logging.getLogger("slipring")

_CLOSE_S = 10.0
"""How long a stopping server waits until what was handed over has been written."""


class Recorder:
    """Records the turns of chosen tenants. Owns the thread that writes."""

    def __init__(self, config: Config, engines: list[str]) -> None:
        limits = config.limits
        self._tenants: Collection[str] = frozenset(config.record_tenant)
        self._directory = RecordingDirectory(
            Path(config.record), max_files=limits.record_files, max_file_bytes=limits.record_file_bytes
        )
        self._removal = SecretRemoval(split_api_key(entry)[1] for entry in config.api_key)
        self._engines = engines
        self._max_queued_bytes = limits.record_queue_bytes
        self._loops: dict[str, RecordedLoops] = {}
        self._turns: queue.SimpleQueue[EndedTurn | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="slipring-recorder", daemon=True)
        self._has_failed = self._has_warned = self._is_closed = False
        self._connections: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._last_connection = -1
        self.written = 0
        """Turns in files."""
        self.dropped = 0
        """Turns that were not recorded although they should have been."""

    def start(self) -> None:
        """Raises ``StartupError`` if the directory cannot be used."""
        self._directory.prepare()
        self._thread.start()

    def add(
        self, turn: Turn, report: TurnReport, *, tenant: str, transport: Transport, connection: object
    ) -> None:
        """Take a turn that has ended. ``connection``: the same object for all turns of a connection."""
        if self._tenants and tenant not in self._tenants:
            return
        ended = EndedTurn(
            tenant=tenant,
            connection=self._number_of(connection),
            transport=transport,
            lane=turn.lane,
            request=turn.request,
            input=turn.input,
            output=tuple(turn.output.items),
            response=turn.response,
            report=report,
            ended_at=now(),
        )
        with self._lock:
            has_room = self._queued_bytes + ended.size_bytes <= self._max_queued_bytes
            if has_room and not self._is_closed:
                self._queued_bytes += ended.size_bytes
                self._turns.put(ended)
                return
        self._drop("it cannot be written fast enough" if not has_room else "the recorder was stopped")

    async def close(self) -> None:
        """Write what has been handed over, within a time limit, and stop."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._turns.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _CLOSE_S)
        if self.dropped:
            log.warning("%d turns were not recorded, %d were", self.dropped, self.written)

    def _number_of(self, connection: object) -> int:
        number = self._connections.get(connection)
        if number is None:
            self._last_connection = number = self._last_connection + 1
            self._connections[connection] = number
        return number

    def _run(self) -> None:
        while (ended := self._turns.get()) is not None:
            self._write(ended)
            with self._lock:
                self._queued_bytes -= ended.size_bytes

    def _write(self, ended: EndedTurn) -> None:
        if self._has_failed:
            self._drop("an earlier one could not be written")
            return
        try:
            self._loops_of(ended.tenant).write(ended)
        except NotRecorded as refusal:
            self._drop(str(refusal))
        except OSError as error:
            self._has_failed = True
            self._drop(f"{self._directory.path}: {error.strerror or error}")
        except Exception:
            log.exception("a turn could not be recorded")
            self._drop("of the error above")
        else:
            self.written += 1

    def _loops_of(self, tenant: str) -> RecordedLoops:
        loops = self._loops.get(tenant)
        if loops is None:
            loops = self._loops[tenant] = RecordedLoops(
                tenant,
                self._directory,
                self._removal,
                server=f"slipring {__version__}",
                engines=self._engines,
            )
        return loops

    def _drop(self, reason: str) -> None:
        """Count a turn that is not recorded; the first time, say why."""
        with self._lock:
            self.dropped += 1
            warns, self._has_warned = not self._has_warned, True
        if warns:
            log.warning("a turn is not recorded, because %s; further ones are only counted", reason)
