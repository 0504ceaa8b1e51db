"""Delivers the spans of turns to a collector, from a thread of its own.

The event loop only appends a turn to a bounded queue. A collector that cannot be reached costs the turns that
are dropped, which are counted, and one line in the log until it can be reached again.
"""

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from slipring.protocol.endpoints.reply_bodies import TraceCounts
from slipring.server.tracing.turn_spans import TracedTurn, spans_of

log = logging.getLogger("slipring")

_GATHER_S = 1.0
"""Time for which turns are collected, so that one request has the spans of many."""
_MOST_SPANS = 20_000
"""That wait in the queue, about 5 MB."""
_MOST_CONTENT_BYTES = 16 * 1024 * 1024
"""Of the content that waits in the queue."""
_SPANS_PER_REQUEST = 512
_STOP_S = 2.0
"""Time that a stop of the server waits for the last spans to be delivered."""
_REASON_LENGTH = 300
_QUERY = re.compile(r"\?[^\s)]*")
"""Of a URL. It may hold a key."""


class SpanExport:
    """A queue of turns, and the thread that sends their spans."""

    def __init__(
        self, exporter: SpanExporter, resource: Resource, where: str, secrets: Iterable[str] = ()
    ) -> None:
        """``where``: the address of the collector, for the log. ``secrets``: what is sent to it and must not
        be in the log, although a collector may repeat it."""
        self.counts = TraceCounts()
        self._exporter = exporter
        self._resource = resource
        self._where = where
        self._secrets = sorted(secrets, key=len, reverse=True)  # a secret may contain another
        self._queue: deque[TracedTurn] = deque()
        self._spans = self._content_bytes = 0
        """Of the turns in the queue."""
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._lost: int | None = None
        """Turns that were lost since the collector could not be reached; None while it can."""
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        _failures.attach()
        self._thread.start()

    def offer(self, turn: TracedTurn) -> bool:
        """Queue a turn. Returns False, and counts it as dropped, if the queue is full."""
        spans, said_bytes = turn.span_count, _content_bytes(turn)
        with self._changed:
            fits = self._spans + spans <= _MOST_SPANS
            fits = fits and self._content_bytes + said_bytes <= _MOST_CONTENT_BYTES
            if not fits or self._stopping.is_set():
                self.counts.dropped += 1
                return False
            self._queue.append(turn)
            self._spans += spans
            self._content_bytes += said_bytes
            if len(self._queue) == 1:
                self._changed.notify()
        return True

    async def close(self) -> None:
        """Send what is queued, for at most two seconds. What is left after that counts as dropped."""
        if not self._thread.is_alive():
            return
        with self._changed:
            self._stopping.set()
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, _STOP_S)
        self._exporter.shutdown()  # ends the pauses between attempts; the thread does not outlive the process
        with self._changed:
            self.counts.dropped += len(self._queue)
            self._queue.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping.is_set())
            self._stopping.wait(_GATHER_S)
            while batch := self._take():
                self._send(batch)
            if self._stopping.is_set() and not self._queue:
                return

    def _take(self) -> list[TracedTurn]:
        """The oldest turns, up to the spans of one request."""
        batch: list[TracedTurn] = []
        spans = 0
        with self._changed:
            while self._queue and (not batch or spans + self._queue[0].span_count <= _SPANS_PER_REQUEST):
                turn = self._queue.popleft()
                batch.append(turn)
                spans += turn.span_count
                self._content_bytes -= _content_bytes(turn)
            self._spans -= spans
        return batch

    def _send(self, batch: list[TracedTurn]) -> None:
        _failures.first = ""
        try:
            spans = [span for turn in batch for span in spans_of(turn, self._resource)]
            delivered = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            log.exception("spans could not be exported")
            delivered = False
        if delivered:
            if self._lost is not None:
                log.warning("traces reach %s again; %d turns were lost", self._where, self._lost)
                self._lost = None
            self.counts.delivered += len(batch)
            return
        if self._lost is None:
            self._lost = 0
            log.warning(
                "traces cannot be delivered to %s, and are dropped until they can: %s",
                self._where,
                self._reason(),
            )
        self._lost += len(batch)
        with self._changed:
            self.counts.dropped += len(batch)

    def _reason(self) -> str:
        """Why the last request failed, without secrets."""
        text = str(_failures)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return _QUERY.sub("?…", text)[:_REASON_LENGTH]


def _content_bytes(turn: TracedTurn) -> int:
    return turn.said.size_bytes if turn.said is not None else 0


class _Failures(logging.Filter):
    """Keeps the exporter's messages out of the log, where each failed request would have several lines.
    Remembers the first of them, which says why a request failed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def __str__(self) -> str:
        return self.first or "unknown reason"

    def attach(self) -> None:
        logging.getLogger(trace_exporter.__name__).addFilter(self)  # does nothing the second time
        # Its debug messages contain the query of the URL, which may hold a key.
        logging.getLogger("urllib3").setLevel(logging.INFO)

    def filter(self, record: logging.LogRecord) -> bool:
        self.first = self.first or record.getMessage()
        return False


_failures = _Failures()
