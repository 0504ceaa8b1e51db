"""The recorder: takes ended turns from the event loop and writes them in a thread.

Handing a turn over costs the event loop a few references. If the thread does not keep up, or a file or the
directory is full, turns are dropped and counted; no turn waits for a recording.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from slipring import __version__
from slipring.config.settings import Config, split_api_key
from slipring.server.observation.ended_turns import EndedTurn, RecordingCounts, TurnContent
from slipring.server.recording.recorded_loops import CapturedTurn, RecordedLoops
from slipring.server.recording.recording_file import NotRecorded, RecordingDirectory
from slipring.server.recording.secret_removal import SecretRemoval

log = logging.getLogger("slipring")

_CLOSE_S = 10.0
"""How long a stopping server waits until what was handed over has been written."""


class Recorder:
    """Records the turns of chosen tenants. Owns the thread that writes."""

    def __init__(self, config: Config, engines: list[str], secrets: Iterable[str] = ()) -> None:
        """``secrets`` are removed from what is recorded, as API keys are."""
        limits = config.limits
        self._tenants: Collection[str] = frozenset(config.record_tenant)
        self._directory = RecordingDirectory(
            Path(config.record), max_files=limits.record_files, max_file_bytes=limits.record_file_bytes
        )
        self._removal = SecretRemoval([*(split_api_key(entry)[1] for entry in config.api_key), *secrets])
        self._engines = engines
        self._max_queued_bytes = limits.record_queue_bytes
        self._loops: dict[str, RecordedLoops] = {}
        self._turns: queue.SimpleQueue[CapturedTurn | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="slipring-recorder", daemon=True)
        self._has_failed = self._has_warned = self._is_closed = False
        self.counts = RecordingCounts()

    def start(self) -> None:
        """Raises ``StartupError`` if the directory cannot be used."""
        self._directory.prepare()
        self._thread.start()

    def observe(self, ended: EndedTurn, content: TurnContent | None) -> None:
        """Take a turn that has ended, if it is to be recorded."""
        if content is None or (self._tenants and ended.caller.tenant not in self._tenants):
            return
        captured = CapturedTurn(ended, content)
        with self._lock:
            has_room = self._queued_bytes + captured.size_bytes <= self._max_queued_bytes
            if has_room and not self._is_closed:
                self._queued_bytes += captured.size_bytes
                self._turns.put(captured)
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
        if self.counts.dropped:
            log.warning("%d turns were not recorded, %d were", self.counts.dropped, self.counts.written)

    def _run(self) -> None:
        while (captured := self._turns.get()) is not None:
            self._write(captured)
            with self._lock:
                self._queued_bytes -= captured.size_bytes

    def _write(self, captured: CapturedTurn) -> None:
        if self._has_failed:
            self._drop("an earlier one could not be written")
            return
        try:
            self._loops_of(captured.ended.caller.tenant).write(captured)
        except NotRecorded as refusal:
            self._drop(str(refusal))
        except OSError as error:
            self._has_failed = True
            self._drop(f"{self._directory.path}: {error.strerror or error}")
        except Exception:
            log.exception("a turn could not be recorded")
            self._drop("of the error above")
        else:
            self.counts.written += 1

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
            self.counts.dropped += 1
            warns, self._has_warned = not self._has_warned, True
        if warns:
            log.warning("a turn is not recorded, because %s; further ones are only counted", reason)
