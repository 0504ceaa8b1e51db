"""The output of one response: turns an engine's deltas into numbered events and finished items.

Opens and closes items and their parts in the order that the API requires. One item is open at a time:
``CallEnded`` or a delta of another kind closes it. ``NumberedItems`` numbers them and keeps what is finished.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET, Raw, UnsetType

from slipring.core.chain import hosted_items_in_context, input_items
from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.core.ports import Mint
from slipring.core.turn.output.call_items import Call, WholeCall, open_call
from slipring.core.turn.output.hosted_calls import HostedCalls, OpenApproval, OpenHostedCall, OpenMcpCall
from slipring.core.turn.output.numbered_items import CLIENT_CALLS, NumberedItems
from slipring.core.turn.output.rejected_calls import RefusedCall, RejectedCall
from slipring.core.turn.output.upstream_items import UpstreamItems
from slipring.protocol import events, wire
from slipring.protocol.events import Event
from slipring.protocol.items import item_listing
from slipring.protocol.items.items import Item
from slipring.protocol.responses import (
    CompactionItem,
    ItemStatus,
    Logprob,
    McpApprovalRequestItem,
    OutputMessage,
    OutputTextPart,
    ReasoningItem,
    ReasoningTextPart,
    RefusalPart,
    Response,
    SummaryTextPart,
)
from slipring.protocol.turn_report import TurnReport

Conceal = Callable[[tuple[Item, ...]], str]
"""Encrypts items for ``encrypted_content``."""
Sign = Callable[[McpApprovalRequestItem], str]
"""Returns the text that ends the id of an approval request and proves that this server made it."""
_STREAMED_CALLS = (Call, OpenMcpCall)
"""Calls whose arguments have events of their own."""
_HostedCall = OpenHostedCall | OpenApproval | RefusedCall | RejectedCall
_AnyCall = Call | WholeCall | _HostedCall
_ANSWERED_HERE = (OpenHostedCall, RefusedCall, RejectedCall)
"""Calls whose results the model reads in the same response."""
_LAST_PIECES = 4
_NO_LOGPROBS: list[events.EventLogprob] = []


def _event_logprobs(logprobs: list[Logprob]) -> list[events.EventLogprob]:
    return [events.EventLogprob.of(logprob) for logprob in logprobs]


class Output(NumberedItems):
    """Output items and events of one response."""

    __slots__ = (
        *("_awaits_output", "_compaction_id", "_open", "_text_part", "_upstream_items"),
        *("asks_approval", "conceal", "hosted", "sign", "since"),
    )

    def __init__(self, mint: Mint, stream_id: str | UnsetType) -> None:
        super().__init__(mint, stream_id)
        self.hosted: HostedCalls | None = None
        """Set if the response may call hosted tools; as ``sign`` and ``conceal``, by ``begin``."""
        self.sign: Sign | None = None
        """Set with ``hosted``."""
        self.asks_approval = False
        """Whether the model has made a call that the client must approve."""
        self.since = 0
        """Number of items that were finished when the client last appended one."""
        self.conceal: Conceal | None = None
        """Set if reasoning items are to include ``encrypted_content``."""
        self._awaits_output = False  # a call since the client's last append is complete
        self._upstream_items: UpstreamItems | None = None
        """Set with the first item that the engine's server makes."""
        self._compaction_id = ""
        self._open: _Message | _Reasoning | _AnyCall | None = None
        self._text_part: _Part | None = None

    def begin(
        self, response_id: str, hosted: HostedCalls | None, sign: Sign | None, conceal: Conceal | None
    ) -> None:
        """The output belongs to this response."""
        self.response_id, self.hosted, self.sign, self.conceal = response_id, hosted, sign, conceal

    def announce(self, kind: type[events.ResponseEvent], response: Response) -> Event:
        """The next lifecycle event."""
        return kind(sequence_number=self.number(), stream_id=self.stream_id, response=response)

    def timing_event(self, report: TurnReport) -> Event:
        return events.Timing(sequence_number=self.number(), stream_id=self.stream_id, timing=report)

    def feed(self, deltas: list[Delta]) -> list[Event]:
        """Process deltas of the engine; returns the events that they cause."""
        for delta in deltas:
            if type(delta) is not Text:
                self._feeders[type(delta)](self, delta)
                continue
            # Hot path, once per token of every answer: not a call of its own.
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
        emitted, self._events = self._events, []  # not a call: hot path
        return emitted

    def finish(self, status: ItemStatus) -> list[Event]:
        """Close the open item, if any, with this status: ``incomplete`` if it was cut off."""
        self._close(status)
        if self._upstream_items is not None:
            self._upstream_items.break_off(self)
        return self.take_events()

    @property
    def began(self) -> int:
        """Number of items that have begun."""
        return self._index + 1

    @property
    def latest(self) -> tuple[Item, ...]:
        """Finished items since the client's last append."""
        return tuple(self.finished[self.since :])

    @property
    def calls(self) -> bool:
        """Whether the client has to answer a tool call since its last append, finished or open. A call that
        the model broke off needs no answer."""
        return self._awaits_output or isinstance(self._open, Call | WholeCall)

    @property
    def asks_client(self) -> bool:
        """Whether the client has to answer a tool call, or to decide about one, finished or open."""
        return self.calls or self.asks_approval or isinstance(self._open, OpenApproval)

    @property
    def calls_hosted(self) -> bool:
        """Whether the model has called hosted tools whose results no step has processed."""
        hosted = self.hosted
        return hosted is not None and (hosted.has_calls or isinstance(self._open, _ANSWERED_HERE))

    @property
    def last_words(self) -> str | None:
        """The last pieces of the open message part; None if no part of a message is open."""
        part = self._open.part if isinstance(self._open, _Message) else None
        return "".join(part.text[-_LAST_PIECES:]) if part is not None else None

    @property
    def written_chars(self) -> int:
        """Roughly what the model has written since the last ``end_step``: finished items and the open one."""
        written = sum(len(item.raw) for item in self.generated)
        return written if self._open is None else written + sum(map(len, _texts(self._open)))

    def append(self, items: tuple[Item, ...]) -> list[Event]:
        """Add items that the client sent. No item may be open."""
        for item in items:
            item_id = self.name_item(item.type)
            raw = item_listing.present(item, item_id, "response")
            self._index += 1
            self.emit(events.OutputItemAdded, item=raw)
            self.add(Item(type=item.type, raw=bytes(raw), id=item_id, call_id=item.call_id))
            self.emit(events.OutputItemDone, item=raw)
        self.since = len(self.finished)
        self._awaits_output = False
        return self.take_events()

    def withdraw(self, count: int) -> None:
        """Remove the last ``count`` items, which the client has appended: no state contains them."""
        self.items = self.items[: len(self.items) - count]
        self.finished = self.finished[: len(self.finished) - count]
        self.since = len(self.finished)

    def open_compaction(self) -> list[Event]:
        """Begin the compaction item. If the compaction fails, no further event mentions the item."""
        item_id = self._compaction_id = self.name_item("compaction")
        self.start_item(CompactionItem(id=item_id, encrypted_content=""))
        self.emit(events.CompactionCompacting, item_id=item_id)
        return self.take_events()

    def close_compaction(self, content: tuple[Item, ...], blob: str) -> None:
        """Finish the compaction item: it replaces the context by ``content``, encrypted in ``blob``."""
        self.keep(CompactionItem(id=self._compaction_id, encrypted_content=blob), content)

    def end_step(self) -> tuple[Item, ...]:
        """The model has ended a step, and another one may follow: returns what it wrote. No item may be
        open."""
        generated = tuple(self.generated)
        self.generated.clear()
        self._follows_call = False
        return generated

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

    def _refused(self, delta: RefusalText) -> None:
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
        hosted = self.hosted.open(self, delta) if self.hosted is not None else None
        self._open = open_call(self, delta) if hosted is None else hosted
        # The others have no item yet, and may never have one.
        has_item = self.hosted is not None and not isinstance(hosted, OpenApproval | RejectedCall)
        self._follows_call = self._follows_call or has_item

    def _call_arguments(self, delta: CallArguments) -> None:
        # Hot path: runs once per token of every call.
        call = self._open
        if not isinstance(call, _STREAMED_CALLS):
            if not isinstance(call, _AnyCall):
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
        if not isinstance(self._open, _AnyCall):
            raise TypeError("an engine ended a call outside a call")
        self._close("completed" if delta.is_complete else "incomplete")

    def _upstream_item_started(self, delta: UpstreamItemStarted) -> None:
        self._close("completed")
        if self._upstream_items is None:
            self._upstream_items = UpstreamItems()
        self._upstream_items.start(self, delta)

    def _upstream_item_event(self, delta: UpstreamItemEvent) -> None:
        assert self._upstream_items is not None
        self._upstream_items.tell(self, delta)

    def _upstream_item_ended(self, delta: UpstreamItemEnded) -> None:
        assert self._upstream_items is not None
        self._upstream_items.end(self, delta)
        if input_items.is_call(delta.item):
            self._awaits_output = True
        elif delta.item.type == "mcp_approval_request":
            self.asks_approval = True

    _feeders: ClassVar[dict[type[Delta], Callable[["Output", Any], None]]] = {
        Annotated: _annotated,
        RefusalText: _refused,
        Thought: _thought,
        ThoughtSummary: _thought_summary,
        CallStarted: _call_started,
        CallArguments: _call_arguments,
        CallEnded: _call_ended,
        UpstreamItemStarted: _upstream_item_started,
        UpstreamItemEvent: _upstream_item_event,
        UpstreamItemEnded: _upstream_item_ended,
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

    def abandon(self) -> None:
        """Forget the item that is open, which refers to this. For a turn that ends here, without its last
        events."""
        self._open = self._text_part = None

    def _close(self, status: ItemStatus) -> None:
        self._text_part = None
        opened = self._open
        if opened is None:
            return
        if isinstance(opened, _HostedCall):
            self._close_hosted(opened, status)
            self._open = None
            return
        item = opened.close(status)
        if isinstance(item, CLIENT_CALLS) and item.status == "completed":
            self._awaits_output = True
        content: tuple[Item, ...] | None = None
        if isinstance(item, ReasoningItem) and self.conceal is not None:
            content = (Item(type="reasoning", raw=wire.encode(item), id=item.id),)
            item.encrypted_content = self.conceal(content)
        kept = self.keep(item, content)
        self.generated += (kept,) if content is None else content
        self._open = None

    def _close_hosted(self, call: _HostedCall, status: ItemStatus) -> None:
        """End the arguments of a hosted call. A complete one runs from now on, or asks for approval."""
        assert self.hosted is not None
        if isinstance(call, OpenHostedCall):
            if status == "completed":
                running = call.run()
                self.hosted.start(running)
                self.generated.append(running.as_generated())
            else:
                broken_off = call.break_off()
                if broken_off is not None:
                    self.generated.append(broken_off)
                else:
                    self.hosted.drop()
        elif isinstance(call, RefusedCall | RejectedCall):
            if isinstance(call, RefusedCall):
                self.keep(call.close(), ())
            self._reject(call, status)
        elif status != "completed":
            self.hosted.drop()
        else:
            assert self.sign is not None
            unnamed = call.item("")
            item = call.item(self.name_item("mcp_approval_request", self.sign(unnamed)))
            self.start_item(item)
            self.keep(item)
            self.asks_approval = self._follows_call = True
            self.generated.append(
                hosted_items_in_context.call_item(item.id, item.server_label, item.name, item.arguments)
            )

    def _reject(self, call: RefusedCall | RejectedCall, status: ItemStatus) -> None:
        """End a call that is not made. The model reads why if it has written the whole call."""
        assert self.hosted is not None
        if status != "completed":
            self.hosted.drop()
        elif (written := self.hosted.reject(call, self._mint("call"))) is not None:
            self.generated.append(written)


def _texts(item: "_Message | _Reasoning | _AnyCall") -> list[str]:
    """What an open item consists of so far."""
    return item.texts if isinstance(item, _Message | _Reasoning) else item.pieces


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

    @property
    def texts(self) -> list[str]:
        """The texts so far."""
        closed = [part.text if isinstance(part, OutputTextPart) else part.refusal for part in self._parts]
        return closed + (self.part.text if self.part is not None else [])

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
        output.start_item(ReasoningItem(id=self.id, summary=[]))

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
        return ReasoningItem(id=self.id, summary=self._summary, content=self._content or UNSET)

    @property
    def texts(self) -> list[str]:
        """The texts so far."""
        closed = [part.text for part in self._summary] + [part.text for part in self._content]
        return closed + (self._open_summary or []) + (self._open_text or [])

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
