"""The output of one response: turns an engine's deltas into numbered events and finished items.

Assigns sequence numbers and output indexes, and opens and closes items and their parts in the order that the
API requires. One item is open at a time: ``CallEnded`` or a delta of another kind closes it. Each finished
item is encoded once; ``output_item.done``, the terminal event and the stored state share those bytes.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET, Raw, UnsetType

from slipring.core.chain import item_ids
from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Refused,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.core.ports import Mint
from slipring.core.turn.call_events import Call, Search, open_call
from slipring.protocol import events, item_listing, wire
from slipring.protocol.events import Event
from slipring.protocol.items import Item
from slipring.protocol.responses import (
    CompactionItem,
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    Logprob,
    OutputItem,
    OutputMessage,
    OutputTextPart,
    ReasoningItem,
    ReasoningTextPart,
    RefusalPart,
    Response,
    SummaryTextPart,
    ToolSearchCallItem,
)
from slipring.protocol.timing import TurnReport

Conceal = Callable[[tuple[Item, ...]], str]
"""Encrypts items for ``encrypted_content``."""
_CALLS = (FunctionCallItem, CustomToolCallItem, ToolSearchCallItem)
_LAST_PIECES = 4
_NO_LOGPROBS: list[events.EventLogprob] = []


def _event_logprobs(logprobs: list[Logprob]) -> list[events.EventLogprob]:
    return [events.EventLogprob.of(logprob) for logprob in logprobs]


class Output:
    """Output items and events of one response."""

    __slots__ = (
        "_awaits_output",
        "_compaction_id",
        "_events",
        "_index",
        "_mint",
        "_open",
        "_sequence",
        "_text_part",
        "conceal",
        "items",
        "response_id",
        "since",
        "stream_id",
    )

    def __init__(self, mint: Mint, stream_id: str | UnsetType) -> None:
        self.stream_id = stream_id
        self.response_id = ""
        """Set when the response begins; item ids are derived from it."""
        self.items: list[Item] = []
        """Finished items."""
        self.since = 0
        """Index of the first item after the client's last append."""
        self.conceal: Conceal | None = None
        """Set if reasoning items are to include ``encrypted_content``."""
        self._awaits_output = False  # a call since the client's last append is complete
        self._compaction_id = ""
        self._mint = mint
        self._open: _Message | _Reasoning | Call | Search | None = None
        self._text_part: _Part | None = None
        self._index = -1
        self._sequence = -1
        self._events: list[Event] = []

    def announce(self, kind: type[events.ResponseEvent], response: Response) -> Event:
        """The next lifecycle event."""
        return kind(sequence_number=self.number(), stream_id=self.stream_id, response=response)

    def timing_event(self, report: TurnReport) -> Event:
        return events.Timing(sequence_number=self.number(), stream_id=self.stream_id, timing=report)

    def feed(self, deltas: list[Delta]) -> list[Event]:
        """Process deltas of the engine; returns the events that they cause."""
        feeders = self._feeders
        for delta in deltas:
            feeders[type(delta)](self, delta)
        emitted = self._events
        self._events = []
        return emitted

    def finish(self, status: ItemStatus) -> list[Event]:
        """Close the open item, if any, with this status: ``incomplete`` if it was cut off."""
        self._close(status)
        return self._take_events()

    @property
    def latest(self) -> tuple[Item, ...]:
        """Finished items since the client's last append."""
        return tuple(self.items[self.since :])

    @property
    def calls(self) -> bool:
        """Whether the client has to answer a tool call since its last append, finished or open. A call that
        the model broke off needs no answer."""
        return self._awaits_output or isinstance(self._open, Call | Search)

    @property
    def last_words(self) -> str | None:
        """The last pieces of the open message part; None if no part of a message is open."""
        part = self._open.part if isinstance(self._open, _Message) else None
        return "".join(part.text[-_LAST_PIECES:]) if part is not None else None

    def append(self, items: tuple[Item, ...]) -> list[Event]:
        """Add items that the client sent. No item may be open."""
        for item in items:
            item_id = self.name_item(item.type)
            raw = item_listing.present(item, item_id, "response")
            self._index += 1
            self.emit(events.OutputItemAdded, item=raw)
            self.items.append(Item(type=item.type, raw=bytes(raw), id=item_id, call_id=item.call_id))
            self.emit(events.OutputItemDone, item=raw)
        self.since = len(self.items)
        self._awaits_output = False
        return self._take_events()

    def open_compaction(self) -> list[Event]:
        """Begin the compaction item. If the compaction fails, no further event mentions the item."""
        item_id = self._compaction_id = self.name_item("compaction")
        self.start_item(CompactionItem(id=item_id, encrypted_content=""))
        self.emit(events.CompactionCompacting, item_id=item_id)
        return self._take_events()

    def close_compaction(self, content: tuple[Item, ...], blob: str) -> list[Event]:
        """Finish the compaction item: it replaces the context by ``content``, encrypted in ``blob``."""
        self._keep(CompactionItem(id=self._compaction_id, encrypted_content=blob), content)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        emitted = self._events
        self._events = []
        return emitted

    def raw_items(self) -> list[Raw]:
        return [Raw(item.raw) for item in self.items]

    def number(self) -> int:
        """The next sequence number."""
        self._sequence += 1
        return self._sequence

    def _text(self, delta: Text) -> None:
        # Hot path: runs once per token of every answer.
        part = self._text_part
        if part is None:
            part = self._text_part = self._message_part(OutputTextPart)
        part.text.append(delta.text)
        logprobs = _NO_LOGPROBS
        if delta.logprobs:
            part.logprobs.extend(delta.logprobs)
            logprobs = _event_logprobs(delta.logprobs)
        self._sequence += 1
        self._events.append(
            events.OutputTextDelta(
                sequence_number=self._sequence,
                stream_id=self.stream_id,
                output_index=self._index,
                item_id=part.item_id,
                content_index=part.index,
                delta=delta.text,
                logprobs=logprobs,
            )
        )

    def _annotated(self, delta: Annotated) -> None:
        part = self._message_part(OutputTextPart)
        self.emit(
            events.OutputTextAnnotationAdded,
            item_id=part.item_id,
            content_index=part.index,
            annotation_index=len(part.annotations),
            annotation=delta.annotation,
        )
        part.annotations.append(delta.annotation)

    def _refused(self, delta: Refused) -> None:
        self._text_part = None
        part = self._message_part(RefusalPart)
        part.text.append(delta.text)
        self._events.append(
            events.RefusalDelta(
                sequence_number=self.number(),
                stream_id=self.stream_id,
                output_index=self._index,
                item_id=part.item_id,
                content_index=part.index,
                delta=delta.text,
            )
        )

    def _thought(self, delta: Thought) -> None:
        self._reasoning().think(delta)

    def _thought_summary(self, delta: ThoughtSummary) -> None:
        self._reasoning().summarise(delta)

    def _call_started(self, delta: CallStarted) -> None:
        self._close("completed")
        self._open = open_call(self, delta)

    def _call_arguments(self, delta: CallArguments) -> None:
        # Hot path: runs once per token of every call.
        call = self._open
        if not isinstance(call, Call):
            if not isinstance(call, Search):
                raise TypeError("an engine sent call arguments outside a call")
            call.pieces.append(delta.text)
            return
        call.pieces.append(delta.text)
        self._sequence += 1
        self._events.append(
            call.delta_kind(
                sequence_number=self._sequence,
                stream_id=self.stream_id,
                output_index=self._index,
                item_id=call.id,
                delta=delta.text,
            )
        )

    def _call_ended(self, delta: CallEnded) -> None:
        if not isinstance(self._open, Call | Search):
            raise TypeError("an engine ended a call outside a call")
        self._close("completed" if delta.is_complete else "incomplete")

    _feeders: ClassVar[dict[type[Delta], Callable[["Output", Any], None]]] = {
        Text: _text,
        Annotated: _annotated,
        Refused: _refused,
        Thought: _thought,
        ThoughtSummary: _thought_summary,
        CallStarted: _call_started,
        CallArguments: _call_arguments,
        CallEnded: _call_ended,
    }

    def _message_part(self, kind: type[OutputTextPart | RefusalPart]) -> "_Part":
        """The open part of this kind. Opens the message and the part if needed."""
        message = self._open
        if not isinstance(message, _Message):
            self._close("completed")
            self._open = message = _Message(self)
        part = message.part
        if part is None or part.kind is not kind:
            part = message.open_part(kind)
        return part

    def _reasoning(self) -> "_Reasoning":
        if not isinstance(self._open, _Reasoning):
            self._close("completed")
            self._open = _Reasoning(self)
        return self._open

    def _close(self, status: ItemStatus) -> None:
        self._text_part = None
        if self._open is None:
            return
        item = self._open.close(status)
        if status == "completed" and isinstance(item, _CALLS):
            self._awaits_output = True
        content: tuple[Item, ...] | None = None
        if isinstance(item, ReasoningItem) and self.conceal is not None:
            content = (Item(type="reasoning", raw=wire.encode(item), id=item.id),)
            item.encrypted_content = self.conceal(content)
        self._keep(item, content)
        self._open = None

    def _keep(self, item: OutputItem, content: tuple[Item, ...] | None) -> None:
        """Add a finished item; ``content`` is what a sealed item contains."""
        raw = wire.encode(item)
        call_id = item.call_id if isinstance(item, _CALLS) else None
        kind = type(item).__struct_config__.tag
        assert isinstance(kind, str)
        self.items.append(Item(type=kind, raw=raw, id=item.id, call_id=call_id, opened=content))
        self.emit(events.OutputItemDone, item=Raw(raw))

    def start_item(self, item: OutputItem) -> None:
        self._index += 1
        self.emit(events.OutputItemAdded, item=item)

    def emit(self, kind: type[events.ItemEvent], **fields: object) -> None:
        """Add an event about the open item."""
        self._events.append(
            kind(
                sequence_number=self.number(),
                stream_id=self.stream_id,
                output_index=self._index,
                **fields,
            )
        )

    def name_item(self, kind: str) -> str:
        """The id of the next item."""
        return item_ids.output_id(kind, self.response_id, self._index + 1)

    def mint_call(self) -> str:
        return self._mint("call")


class _Part:
    """An open part of a message."""

    __slots__ = ("annotations", "index", "item_id", "kind", "logprobs", "text")

    def __init__(self, kind: type[OutputTextPart | RefusalPart], item_id: str, index: int) -> None:
        self.kind = kind
        self.item_id = item_id
        self.index = index
        self.text: list[str] = []
        self.logprobs: list[Logprob] = []
        self.annotations: list[Raw] = []


class _Message:
    """An open ``message`` item."""

    __slots__ = ("_output", "_parts", "id", "part")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._parts: list[OutputTextPart | RefusalPart] = []
        self.id = output.name_item("message")
        self.part: _Part | None = None
        output.start_item(OutputMessage(id=self.id, status="in_progress", content=[]))

    def open_part(self, kind: type[OutputTextPart | RefusalPart]) -> _Part:
        self._close_part()
        self.part = _Part(kind, self.id, len(self._parts))
        self._emit(events.ContentPartAdded, part=kind())
        return self.part

    def close(self, status: ItemStatus) -> OutputMessage:
        self._close_part()
        return OutputMessage(id=self.id, status=status, content=self._parts)

    def _close_part(self) -> None:
        if self.part is None:
            return
        text, logprobs = "".join(self.part.text), self.part.logprobs
        part: OutputTextPart | RefusalPart
        if self.part.kind is OutputTextPart:
            part = OutputTextPart(text=text, annotations=self.part.annotations, logprobs=logprobs)
            self._emit(events.OutputTextDone, text=text, logprobs=_event_logprobs(logprobs))
        else:
            part = RefusalPart(refusal=text)
            self._emit(events.RefusalDone, refusal=text)
        self._emit(events.ContentPartDone, part=part)
        self._parts.append(part)
        self.part = None

    def _emit(self, kind: type[events.PartEvent], **fields: object) -> None:
        assert self.part is not None
        self._output.emit(kind, item_id=self.id, content_index=self.part.index, **fields)


class _Reasoning:
    """An open ``reasoning`` item with summary parts, raw text parts, or both. One part is open at a time."""

    __slots__ = ("_content", "_open_summary", "_open_text", "_output", "_summary", "id")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._summary: list[SummaryTextPart] = []
        self._content: list[ReasoningTextPart] = []
        self._open_summary: list[str] | None = None
        self._open_text: list[str] | None = None
        self.id = output.name_item("reasoning")
        output.start_item(ReasoningItem(id=self.id, summary=[], status="in_progress"))

    def think(self, delta: Thought) -> None:
        self._close_summary()
        if self._open_text is None:
            self._open_text = []
            self._emit_content(events.ContentPartAdded, part=ReasoningTextPart())
        self._open_text.append(delta.text)
        self._emit_content(events.ReasoningTextDelta, delta=delta.text)

    def summarise(self, delta: ThoughtSummary) -> None:
        self._close_text()
        if self._open_summary is not None and delta.index > len(self._summary):
            self._close_summary()
        if self._open_summary is None:
            self._open_summary = []
            self._emit_summary(events.ReasoningSummaryPartAdded, part=SummaryTextPart())
        self._open_summary.append(delta.text)
        self._emit_summary(events.ReasoningSummaryTextDelta, delta=delta.text)

    def close(self, status: ItemStatus) -> ReasoningItem:
        self._close_summary()
        self._close_text()
        return ReasoningItem(id=self.id, summary=self._summary, status=status, content=self._content or UNSET)

    def _close_summary(self) -> None:
        if self._open_summary is None:
            return
        text = "".join(self._open_summary)
        self._emit_summary(events.ReasoningSummaryTextDone, text=text)
        self._emit_summary(events.ReasoningSummaryPartDone, part=SummaryTextPart(text=text))
        self._summary.append(SummaryTextPart(text=text))
        self._open_summary = None

    def _close_text(self) -> None:
        if self._open_text is None:
            return
        text = "".join(self._open_text)
        self._emit_content(events.ReasoningTextDone, text=text)
        self._emit_content(events.ContentPartDone, part=ReasoningTextPart(text=text))
        self._content.append(ReasoningTextPart(text=text))
        self._open_text = None

    def _emit_content(self, kind: type[events.PartEvent], **fields: object) -> None:
        self._output.emit(kind, item_id=self.id, content_index=len(self._content), **fields)

    def _emit_summary(self, kind: type[events.SummaryEvent], **fields: object) -> None:
        self._output.emit(kind, item_id=self.id, summary_index=len(self._summary), **fields)
