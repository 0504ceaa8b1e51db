"""The recorder of ``serve --record``: takes the turns that have ended, decides which recording each belongs
to, and writes the files, which can be replayed, within limits on their size and number.

Handing a turn over costs the event loop a few references; a thread does the rest. If the thread does not keep
up, or a file or the directory is full, turns are dropped and counted; no turn waits for a recording.

A file holds one loop: a conversation with its forks, and what else came over the same connections or with the
same ``prompt_cache_key``. A client that sends its whole history is recorded like one that sends a
``previous_response_id``: the history is recognised by its content, and only what is new is written. Files are
readable by their owner only.
"""

import asyncio
import logging
import os
import queue
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct

from slipring import __version__
from slipring.base.errors import StartupError
from slipring.base.recording_format import Answer, Header, RecordedTurn
from slipring.config.settings import Config, split_api_key
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.server.observation.ended_turns import EndedTurn, RecordingCounts, TurnContent
from slipring.server.observation.recorded_secrets import SecretRemoval

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger("slipring")

_SUFFIX = ".jsonl"
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_MOST_KNOWN = 20_000
"""Turns, and files by connection and key, that are remembered. What continues an older one is detached."""
_RECORDED_FIELDS = (
    *("instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "reasoning", "text"),
    *("include", "store", "context_management", "truncation", "max_output_tokens", "temperature", "top_p"),
    *("top_logprobs", "presence_penalty", "frequency_penalty", "seed", "top_k", "stop", "service_tier"),
    *("generate", "rollout"),
)
"""Fields of a request that are recorded: those that a replay can send again. All others may identify a
user, or belong to the client alone."""
_CONTINUABLE = ("completed", "incomplete")
_CLOSE_S = 10.0
"""How long a stopping server waits until what was handed over has been written."""


class CapturedTurn(Struct, frozen=True):
    """A turn that has ended, with its content."""

    ended: EndedTurn
    content: TurnContent

    @property
    def size_bytes(self) -> int:
        """About the memory that it keeps alive."""
        return self.ended.report.request_bytes + sum([len(item.raw) for item in self.content.output])


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

    def _loops_of(self, tenant: str) -> "RecordedLoops":
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


class NotRecorded(Exception):
    """A turn has no place in a recording. The text says why."""


class RecordingDirectory:
    """The directory that the files are created in. Several processes may share it."""

    def __init__(self, path: Path, *, max_files: int, max_file_bytes: int) -> None:
        self.path = path
        self._max_files = max_files
        self._max_file_bytes = max_file_bytes
        self._created = 0

    def prepare(self) -> None:
        """Create the directory. Raises ``StartupError`` if it cannot be used or others can read it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
            usable = os.access(self.path, os.R_OK | os.W_OK | os.X_OK)
        except OSError as error:
            raise StartupError(f"--record {self.path}: {error.strerror or error}") from None
        if not usable:
            raise StartupError(f"--record {self.path}: files cannot be created there")
        if os.name == "posix" and mode & _OTHER_USERS:
            raise StartupError(
                f"--record {self.path}: recordings hold content, and other users have access to this"
                f" directory (chmod 700 {self.path})"
            )

    def create(self, begun_at: float) -> "RecordingFile":
        """Create a file. Raises ``NotRecorded`` and ``OSError``."""
        if sum(name.endswith(_SUFFIX) for name in os.listdir(self.path)) >= self._max_files:
            raise NotRecorded("there are record_files recordings already")
        when = datetime.fromtimestamp(begun_at, UTC).strftime("%Y%m%dT%H%M%SZ")
        self._created += 1
        path = self.path / f"{when}-{os.getpid()}-{self._created}{_SUFFIX}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600))
        return RecordingFile(path, begun_at, self._max_file_bytes)


class RecordingFile:
    """One file. It is opened for each line, so that any number of files can be written to."""

    def __init__(self, path: Path, begun_at: float, max_bytes: int) -> None:
        self.path = path
        self.begun_at = begun_at
        """Unix time of the arrival of its first turn."""
        self.turns = 0
        self.is_full = False
        self._max_bytes = max_bytes
        self._bytes = 0

    def append(self, line: bytes) -> None:
        """Write a line. Raises ``NotRecorded`` if it does not fit any more, and ``OSError``."""
        line += b"\n"
        if self.is_full or self._bytes + len(line) > self._max_bytes:
            self.is_full = True
            raise NotRecorded("its recording has record_file_bytes already")
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | _NO_FOLLOW), "ab") as file:
            file.write(line)
        self._bytes += len(line)


class _Place(Struct, frozen=True):
    file: RecordingFile
    turn: int
    ended_at: float
    fields: dict[str, Any]
    """The recorded fields of its request."""
    context: bytes | None
    """Digest of its whole context, the answer included; None if that is unknown."""


class _Recent(OrderedDict[K, V], Generic[K, V]):
    """The latest entries of a mapping."""

    def put(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > _MOST_KNOWN:
            self.popitem(last=False)


class RecordedLoops:
    """The recordings of one tenant. Not safe for use by several threads at once."""

    def __init__(
        self,
        tenant: str,
        directory: RecordingDirectory,
        removal: SecretRemoval,
        *,
        server: str,
        engines: list[str],
    ) -> None:
        self._tenant = tenant
        self._directory = directory
        self._removal = removal
        self._server = server
        self._engines = engines
        self._by_response: _Recent[str, _Place] = _Recent()
        self._by_context: _Recent[bytes, _Place] = _Recent()
        self._by_client: _Recent[int | str, RecordingFile] = _Recent()
        """Files by connection and by ``prompt_cache_key``."""

    def write(self, captured: CapturedTurn) -> None:
        """Record a turn. Raises ``NotRecorded`` and ``OSError``."""
        previous = captured.content.request.previous_response_id
        before, known = self._continued(previous, captured.content.input)
        ended = captured.ended
        arrived_at = ended.started_at
        file = before.file if before is not None else self._file_of(captured, arrived_at)
        fields = self._fields(captured.content.request)
        new = captured.content.input[known:]
        turn = RecordedTurn(
            turn=file.turns,
            continues=before.turn if before is not None else None,
            is_detached=before is None and previous is not None,
            sends_history=before is not None and previous is None,
            at_ms=_ms(arrived_at - file.begun_at),
            waited_ms=_ms(max(0.0, arrived_at - before.ended_at)) if before is not None else None,
            connection=ended.origin.connection,
            transport=ended.origin.transport,
            api=ended.origin.api,
            lane=ended.lane,
            model=captured.content.response.model
            if captured.content.response is not None
            else captured.content.request.model,
            request=fields if before is None else _changed(before.fields, fields),
            input=[self._removal.item(item.type, item.raw) for item in _opened(new)],
            answer=self._answer(captured),
            timing=ended.report,
        )
        file.append(msgspec.json.encode(turn))
        file.turns += 1
        self._remember(captured, before, new, _Place(file, turn.turn, ended.ended_at, fields, None))

    def _continued(self, previous: str | None, items: tuple[Item, ...]) -> tuple[_Place | None, int]:
        """The turn that a request continues, and how many of its items repeat that turn's context."""
        if previous is not None:
            return self._by_response.get(previous), 0
        found: tuple[_Place | None, int] = None, 0
        context = b""
        for number, item in enumerate(items, start=1):
            context = _extended(context, (item,))
            if (place := self._by_context.get(context)) is not None:
                found = place, number
        return found

    def _file_of(self, captured: CapturedTurn, arrived_at: float) -> RecordingFile:
        """The file of a turn that continues none of a file: that of its connection or key, else a new one if
        it begins a conversation. Raises ``NotRecorded``."""
        for key in _clients(captured):
            file = self._by_client.get(key)
            if file is not None and not file.is_full:
                return file
        if captured.content.request.previous_response_id is not None:
            raise NotRecorded("the response that it continues is not recorded")
        file = self._directory.create(arrived_at)
        header = Header(
            begun_at=_utc_text(arrived_at), server=self._server, engines=self._engines, tenant=self._tenant
        )
        file.append(msgspec.json.encode(header))
        return file

    def _remember(
        self, captured: CapturedTurn, before: _Place | None, new: tuple[Item, ...], place: _Place
    ) -> None:
        for key in _clients(captured):
            self._by_client.put(key, place.file)
        response = captured.content.response
        if response is None or captured.ended.report.status not in _CONTINUABLE:
            return
        start = before.context if before is not None else None
        if before is None and captured.content.request.previous_response_id is None:
            start = b""
        if start is not None:
            context = _extended(_extended(start, new), captured.content.output)
            place = msgspec.structs.replace(place, context=context)
            self._by_context.put(context, place)
        self._by_response.put(response.id, place)

    def _fields(self, request: CreateRequest) -> dict[str, Any]:
        given = {name: getattr(request, name) for name in _RECORDED_FIELDS}
        decoded = msgspec.json.decode(msgspec.json.encode(_given(given)))
        return {name: self._removal.value(_given(value)) for name, value in decoded.items()}

    def _answer(self, captured: CapturedTurn) -> Answer:
        report, response = captured.ended.report, captured.content.response
        output = [self._removal.item(item.type, item.raw) for item in _opened(captured.content.output)]
        failure = response.error if response is not None else None
        error = {"code": report.error_code} if report.error_code is not UNSET else None
        if failure is not None:
            error = {"code": failure.code, "message": self._removal.text(failure.message)}
        usage = response.usage if response is not None else None
        return Answer(
            status=report.status,
            total_ms=report.total_ms,
            first_token_ms=report.first_token_ms if not captured.content.request.warms_up else None,
            output=output,
            output_bytes=sum(len(raw) for raw in output),
            usage=msgspec.to_builtins(usage) if usage is not None else UNSET,
            error=error if error is not None else UNSET,
        )


def _clients(captured: CapturedTurn) -> Iterator[int | str]:
    """What turns of one client have in common."""
    if captured.ended.origin.connection:
        yield captured.ended.origin.connection
    if captured.content.request.prompt_cache_key:
        yield captured.content.request.prompt_cache_key


def _opened(items: Iterable[Item]) -> Iterator[Item]:
    """Items with the content of sealed ones, which no other server could open."""
    for item in items:
        yield from item.opened or (item,)


def _extended(context: bytes, items: Iterable[Item]) -> bytes:
    """The digest of a context with these items added. Reasoning is left out, as clients may do."""
    for item in _opened(items):
        if item.type != "reasoning":
            context = sha256(context + content_digest(item)).digest()
    return context


def _given(value: Any) -> Any:
    """A JSON object without fields that are null or missing."""
    if not isinstance(value, dict):
        return value
    return {name: _given(each) for name, each in value.items() if each is not None and each is not UNSET}


def _changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The fields that differ, with null for those that are gone."""
    gone = {name: None for name in before if name not in after}
    return {name: value for name, value in after.items() if before.get(name) != value} | gone


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _utc_text(seconds: float) -> str:
    """A Unix time as in 2026-11-15T12:00:00.000Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}Z"
