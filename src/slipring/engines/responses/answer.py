"""From an upstream's events to deltas.

Items that grow side by side are told one after the other, as our own wire does. What came as deltas is told
as it comes; what an upstream says only in a ``done`` is told then. Events and items that have no delta of
ours are passed over, but for calls that the client would have to answer.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Raw, Struct

from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallStarted,
    Delta,
    Finished,
    Job,
    Refused,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.engines.responses import faults
from slipring.engines.responses.context import without_id
from slipring.errors import ServerError
from slipring.protocol import wire
from slipring.protocol.responses import Logprob, TopLogprob
from slipring.protocol.tools import Kind

_Piece = Text | Refused | Thought | ThoughtSummary | CallArguments
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_CALLS: dict[str, Kind] = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "tool_search_call": "tool_search",
}
_FOR_THE_CLIENT = frozenset(
    {"apply_patch_call", "computer_call", "local_shell_call", "mcp_approval_request", "shell_call"}
)
"""Items that ask the client for something in words that our deltas do not have."""


class _Likely(Struct, gc=False):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None

    def told(self) -> TopLogprob:
        return TopLogprob(self.token, self.logprob, _bytes_of(self))


class _Spoken(_Likely, gc=False):
    top_logprobs: list[_Likely] = []


def _bytes_of(likely: _Likely) -> list[int]:
    # Deltas leave the bytes out; where a token is a piece of a character nobody can know them.
    return likely.bytes if likely.bytes is not None else list(likely.token.encode())


class _Event(Struct, gc=False):
    """The fields of all events that are read."""

    output_index: int | None = None
    item_id: str | None = None
    content_index: int = 0
    summary_index: int = 0
    delta: str = ""
    text: str = ""
    refusal: str = ""
    arguments: str = ""
    input: str = ""
    logprobs: list[_Spoken] | None = None
    annotation: Raw = Raw(b"{}")
    item: Raw = Raw(b"{}")
    response: Raw = Raw(b"{}")


class _Part(Struct, gc=False):
    type: str = ""
    text: str = ""
    refusal: str = ""
    logprobs: list[_Spoken] | None = None
    annotations: list[Raw] | None = None


class _Item(Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str = ""
    namespace: str | None = None
    arguments: Any = ""
    input: str = ""
    encrypted_content: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _InputDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    id: str = ""
    output: list[Raw] | None = None
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None


_event = msgspec.json.Decoder(_Event)
_item = msgspec.json.Decoder(_Item)
_response = msgspec.json.Decoder(_Response)


class _Open:
    """An item of the upstream's that has begun, and what of it has not been told yet."""

    __slots__ = ("begun", "call_id", "done", "kind", "said", "thought", "untold")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.untold: list[Delta] = []
        self.said: set[tuple[str, int]] = set()
        """The parts that came as deltas: their ``done`` says nothing new."""
        self.call_id: str | None = None
        """Set once a call's name is known."""
        self.thought: bytes | None = None
        """Reasoning that only the upstream can read."""
        self.begun = False
        self.done = False


class Answer:
    """One answer as it comes in."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._items: dict[int | str, _Open] = {}
        self._names: dict[str, int | str] = {}
        self._count = 0
        self._kind = ""
        self._others = 0
        self._summaries = 0
        self._base = 0
        self.upstream_id = ""
        self.call_ids: list[str] = []
        self.thoughts: list[tuple[int, bytes]] = []
        self.ended = False

    def take(self, kind: str, payload: bytes | str) -> list[Delta]:
        """The deltas that an event makes; raises what it tells of a failure."""
        reader = self._readers.get(kind)
        try:
            if kind == "error":
                raise faults.of_error_event(payload)
            return reader(self, _event.decode(payload)) if reader is not None else []
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ServerError("The engine's answer cannot be read.") from error

    # Items.

    def _added(self, event: _Event) -> list[Delta]:
        item = _item.decode(event.item)
        self._open_item(event, item)
        return self._tell()

    def _item_done(self, event: _Event) -> list[Delta]:
        item = _item.decode(event.item)
        place = self._place(event, item.id)
        opened = self._items.get(place) if place is not None else None
        if opened is None:
            opened = self._open_item(event, item)
        self._complete(opened, item)
        if item.type == "reasoning" and item.encrypted_content:
            opened.thought = without_id(bytes(event.item))
        opened.done = True
        return self._tell()

    def _open_item(self, event: _Event, item: _Item) -> _Open:
        if item.type in _FOR_THE_CLIENT:
            raise ServerError(f"The engine made a {item.type}, which this server cannot pass on.")
        opened = _Open(item.type)
        place: int | str = event.output_index if event.output_index is not None else f"#{self._count}"
        self._count += 1
        if item.id is not None:
            self._names[item.id] = place
        self._items[place] = opened
        if item.name or item.type == "tool_search_call":
            self._start_call(opened, item)
        return opened

    def _start_call(self, opened: _Open, item: _Item) -> None:
        kind = _CALLS.get(item.type)
        if kind is None or (kind == "tool_search" and item.call_id is None):
            return  # a search without an id is the upstream's own
        opened.call_id = item.call_id or ""
        opened.untold.append(CallStarted(kind, item.name or kind, item.namespace))

    def _complete(self, opened: _Open, item: _Item) -> None:
        """Say what a finished item holds and no delta has said."""
        if opened.call_id is None:
            self._start_call(opened, item)
        elif item.call_id and item.call_id != opened.call_id:
            # The last word on it. What was told already is of the oldest open item: its id is the last one.
            if opened.begun:
                self.call_ids[-1] = item.call_id
            opened.call_id = item.call_id
        if opened.call_id is not None and not opened.said and (text := _written(item)):
            opened.untold.append(CallArguments(text))
        self._tell_the_rest(opened, item)

    def _tell_the_rest(self, opened: _Open, item: _Item) -> None:
        # By their number, not by their indexes: some upstreams count those on from item to item.
        told = Counter(kind for kind, _ in opened.said)
        for index, summary in enumerate(item.summary or ()):
            if told["summary"] > 0:
                told["summary"] -= 1
            elif summary.text:
                opened.untold.append(ThoughtSummary(summary.text, index))
        for part in item.content or ():
            if told[part.type] > 0:
                told[part.type] -= 1
            elif delta := _of_part(part):
                opened.untold.append(delta)
            for annotation in part.annotations or ():
                if told["annotation"] > 0:
                    told["annotation"] -= 1
                else:
                    opened.untold.append(Annotated(annotation.copy()))

    def _place(self, event: _Event, item_id: str | None) -> int | str | None:
        """Which item an event is about: by its index, its id, or because it is the newest."""
        if event.output_index is not None:
            return event.output_index
        if item_id is not None and item_id in self._names:
            return self._names[item_id]
        return next(reversed(self._items), None)

    def _tell(self) -> list[Delta]:
        """What can be told now: all of the oldest open item, and of the next ones once it is done."""
        told: list[Delta] = []
        while self._items:
            place, opened = next(iter(self._items.items()))
            if opened.untold:
                told += self._in_order(opened)
                opened.untold = []
            if not opened.done:
                break
            if opened.thought is not None:
                self.thoughts.append((self._others, opened.thought))
            del self._items[place]
        return told

    def _in_order(self, opened: _Open) -> list[Delta]:
        """Take note of the items that our own output makes of these deltas."""
        kind, is_new = opened.kind, not opened.begun
        opened.begun = True
        if kind == "reasoning":
            if is_new:
                # Reasoning right behind reasoning goes on with its parts.
                self._base = self._summaries = self._summaries if self._kind == kind else 0
            for delta in opened.untold:
                if isinstance(delta, ThoughtSummary):
                    delta.index += self._base
                    self._summaries = max(self._summaries, delta.index + 1)
        elif is_new and opened.call_id is not None:
            self.call_ids.append(opened.call_id)
            self._others += 1
        elif kind != self._kind:
            self._others += 1
        elif is_new:
            # It goes on with the message before it: what was thought in between stands before both.
            self.thoughts = [(min(place, self._others - 1), raw) for place, raw in self.thoughts]
        self._kind = kind
        return opened.untold

    # Pieces of items.

    def _piece(self, event: _Event, item_kind: str, part: tuple[str, int], delta: _Piece) -> list[Delta]:
        if not delta.text and not event.logprobs:
            return []
        place = self._place(event, event.item_id)
        opened = self._items.get(place) if place is not None else None
        if opened is None:
            opened = self._open_item(event, _Item(type=item_kind, id=event.item_id))
        return self._say(opened, part, delta)

    def _say(self, opened: _Open, part: tuple[str, int], delta: _Piece | Annotated) -> list[Delta]:
        opened.said.add(part)
        opened.untold.append(delta)
        return self._tell()

    def _piece_done(self, event: _Event, item_kind: str, part: tuple[str, int], delta: _Piece) -> list[Delta]:
        place = self._place(event, event.item_id)
        opened = self._items.get(place) if place is not None else None
        if opened is None or any(kind == part[0] for kind, _ in opened.said):
            return []  # what has not been told yet is told when the item is done
        return self._piece(event, item_kind, part, delta)

    def _text(self, event: _Event) -> list[Delta]:
        part = ("output_text", event.content_index)
        return self._piece(event, "message", part, Text(event.delta, _told(event.logprobs)))

    def _text_done(self, event: _Event) -> list[Delta]:
        part = ("output_text", event.content_index)
        return self._piece_done(event, "message", part, Text(event.text, _told(event.logprobs)))

    def _annotation(self, event: _Event) -> list[Delta]:
        place = self._place(event, event.item_id)
        opened = self._items.get(place) if place is not None else None
        if opened is None:
            return []  # there is nothing that it could be about
        number = sum(kind == "annotation" for kind, _ in opened.said)
        return self._say(opened, ("annotation", number), Annotated(event.annotation.copy()))

    def _refusal(self, event: _Event) -> list[Delta]:
        return self._piece(event, "message", ("refusal", event.content_index), Refused(event.delta))

    def _refusal_done(self, event: _Event) -> list[Delta]:
        return self._piece_done(event, "message", ("refusal", event.content_index), Refused(event.refusal))

    def _thought(self, event: _Event) -> list[Delta]:
        return self._piece(event, "reasoning", ("reasoning_text", event.content_index), Thought(event.delta))

    def _thought_done(self, event: _Event) -> list[Delta]:
        part = ("reasoning_text", event.content_index)
        return self._piece_done(event, "reasoning", part, Thought(event.text))

    def _summary(self, event: _Event) -> list[Delta]:
        index = event.summary_index
        return self._piece(event, "reasoning", ("summary", index), ThoughtSummary(event.delta, index))

    def _summary_done(self, event: _Event) -> list[Delta]:
        index = event.summary_index
        return self._piece_done(event, "reasoning", ("summary", index), ThoughtSummary(event.text, index))

    def _arguments(self, event: _Event) -> list[Delta]:
        return self._call_piece(event, event.delta)

    def _arguments_done(self, event: _Event) -> list[Delta]:
        return self._call_piece(event, event.arguments or event.input, done=True)

    def _call_piece(self, event: _Event, text: str, *, done: bool = False) -> list[Delta]:
        place = self._place(event, event.item_id)
        opened = self._items.get(place) if place is not None else None
        if not text or opened is None or opened.call_id is None or (done and opened.said):
            return []  # a call whose name is not known yet is told when it is done
        return self._say(opened, ("call", 0), CallArguments(text))

    # The end.

    def _created(self, event: _Event) -> list[Delta]:
        self.upstream_id = _response.decode(event.response).id
        return []

    def _failed(self, event: _Event) -> list[Delta]:
        raise faults.of_failed_response(bytes(event.response))

    def _finished(
        self, event: _Event, reason: Literal["stop", "max_output_tokens", "content_filter"]
    ) -> list[Delta]:
        response = _response.decode(event.response)
        self.upstream_id = response.id
        self.ended = True
        told: list[Delta] = []
        if not self._count:
            # An upstream that says everything at once.
            for number, item in enumerate(response.output or ()):
                told += self._item_done(_Event(output_index=number, item=item))
        for opened in self._items.values():
            opened.done = True
        told += self._tell()
        usage = response.usage or _Usage()
        cached = usage.input_tokens_details and usage.input_tokens_details.cached_tokens
        reasoning = usage.output_tokens_details and usage.output_tokens_details.reasoning_tokens
        written = usage.output_tokens if self._job.generate else 0
        told.append(
            Finished(
                reason,
                input_tokens=usage.input_tokens,
                cached_tokens=min(cached or 0, usage.input_tokens),
                output_tokens=written,
                reasoning_tokens=min(reasoning or 0, written),
            )
        )
        return told

    def _completed(self, event: _Event) -> list[Delta]:
        return self._finished(event, "stop")

    def _incomplete(self, event: _Event) -> list[Delta]:
        details = _response.decode(event.response).incomplete_details
        filtered = details is not None and details.reason == "content_filter"
        return self._finished(event, "content_filter" if filtered else "max_output_tokens")

    _readers: ClassVar[dict[str, Callable[["Answer", Any], list[Delta]]]] = {
        "response.created": _created,
        "response.output_item.added": _added,
        "response.output_item.done": _item_done,
        "response.output_text.delta": _text,
        "response.output_text.done": _text_done,
        "response.output_text.annotation.added": _annotation,
        "response.refusal.delta": _refusal,
        "response.refusal.done": _refusal_done,
        "response.reasoning_text.delta": _thought,
        "response.reasoning_text.done": _thought_done,
        "response.reasoning_summary_text.delta": _summary,
        "response.reasoning_summary_text.done": _summary_done,
        "response.function_call_arguments.delta": _arguments,
        "response.function_call_arguments.done": _arguments_done,
        "response.custom_tool_call_input.delta": _arguments,
        "response.custom_tool_call_input.done": _arguments_done,
        "response.completed": _completed,
        "response.incomplete": _incomplete,
        "response.failed": _failed,
    }


def _of_part(part: _Part) -> Delta | None:
    if part.type == "refusal":
        return Refused(part.refusal) if part.refusal else None
    if part.type == "reasoning_text":
        return Thought(part.text) if part.text else None
    if part.type == "output_text":
        return Text(part.text, _told(part.logprobs)) if part.text else None
    return None


def _written(item: _Item) -> str:
    """What a call carries; a search for tools as JSON, not as a text that holds it."""
    arguments = item.arguments or item.input
    return arguments if isinstance(arguments, str) else wire.encode(arguments).decode()


def _told(logprobs: list[_Spoken] | None) -> list[Logprob]:
    return [
        Logprob(one.token, one.logprob, _bytes_of(one), [likely.told() for likely in one.top_logprobs])
        for one in logprobs or ()
    ]
