"""Sorts ended turns into recordings: which file a turn belongs to, and which turn it continues.

A file holds one loop: a conversation with its forks, and what else came over the same connections or with the
same ``prompt_cache_key``. A client that sends its whole history is recorded like one that sends a
``previous_response_id``: the history is recognised by its content, and only what is new is written.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct

from slipring.base.recording_format import Answer, Header, RecordedTurn
from slipring.protocol.item_digests import content_digest
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.server.observation.ended_turns import EndedTurn, TurnContent
from slipring.server.recording.recording_file import NotRecorded, RecordingDirectory, RecordingFile, utc_text
from slipring.server.recording.secret_removal import SecretRemoval

K = TypeVar("K")
V = TypeVar("V")

_MOST_KNOWN = 20_000
"""Turns, and files by connection and key, that are remembered. What continues an older one is detached."""
_FIELDS = (
    *("instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "reasoning", "text"),
    *("include", "store", "context_management", "truncation", "max_output_tokens", "temperature", "top_p"),
    *("top_logprobs", "presence_penalty", "frequency_penalty", "seed", "top_k", "stop", "service_tier"),
    *("generate", "rollout"),
)
"""Fields of a request that are recorded: those that a replay can send again. All others may identify a
user, or belong to the client alone."""
_CONTINUABLE = ("completed", "incomplete")


class CapturedTurn(Struct, frozen=True):
    """A turn that has ended, with its content."""

    ended: EndedTurn
    content: TurnContent

    @property
    def size_bytes(self) -> int:
        """About the memory that it keeps alive."""
        return self.ended.report.request_bytes + sum([len(item.raw) for item in self.content.output])


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
            begun_at=utc_text(arrived_at), server=self._server, engines=self._engines, tenant=self._tenant
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
        given = {name: getattr(request, name) for name in _FIELDS}
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
