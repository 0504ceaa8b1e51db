"""Translates an upstream's events into deltas.

Items that an upstream streams in parallel are emitted one after the other, as slipring's own wire requires.
What comes as deltas is emitted as it comes; what an upstream sends only in a ``done`` event is emitted then.
Items of tools that the upstream runs, and calls of the client's own tools, pass through as they are; nothing
waits for the end of such an item. Other events and items without a corresponding delta are skipped.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Raw, Struct

from slipring.base.errors import ApiError, ServerError
from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Finished,
    Job,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.engines.remote.streamed_answer import token_count
from slipring.engines.responses import reported_errors
from slipring.engines.responses.events import Event, EventLogprob, EventTokenLogprobs, OtherEvent
from slipring.engines.responses.request_body import without_id
from slipring.protocol import events, wire
from slipring.protocol.items import items
from slipring.protocol.items.items import Item
from slipring.protocol.responses import Logprob, TopLogprob
from slipring.protocol.tools.toolset import Kind

_Piece = Text | RefusalText | Thought | ThoughtSummary | CallArguments
_CALLS: dict[str, Kind] = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "tool_search_call": "tool_search",
}
_PIECES = {
    "response.output_text.delta": ("message", "output_text", "delta"),
    "response.output_text.done": ("message", "output_text", "text"),
    "response.refusal.delta": ("message", "refusal", "delta"),
    "response.refusal.done": ("message", "refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning", "reasoning_text", "delta"),
    "response.reasoning_text.done": ("reasoning", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "delta"),
    "response.reasoning_summary_text.done": ("reasoning", "summary", "text"),
}
"""Events with a piece of a part, or all of it: of which item, of which part, and the field with the text."""
_CLIENT_CALLS = frozenset({"apply_patch_call", "computer_call", "local_shell_call", "shell_call"})
"""Calls of the client's own tools. They pass through."""
_HOSTED = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
"""Items of tools that a server runs. They pass through if the upstream is to run these tools."""
_USED = frozenset({"message", "reasoning", *_CALLS, *_CLIENT_CALLS, *_HOSTED})
_PASSED = tuple(
    f"response.{item}"
    for item in ("mcp_", "web_search_", "file_search_", "code_interpreter_", "image_generation_")
)
_EVENTS: dict[str, type[events.CallEvent]] = {
    tag: kind
    for kind in events.CallEvent.__subclasses__()
    if (tag := str(kind.__struct_config__.tag)).startswith(_PASSED)
}
"""The events about items that pass through."""
_COMMON = frozenset(events.CallEvent.__struct_fields__)


class _Part(Struct, gc=False):
    # Some servers write every field that an object may have, with null where it has none.
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    logprobs: list[EventTokenLogprobs] | None = None
    annotations: list[Raw] | None = None


class _Item(Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    status: Any = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = ""
    input: str | None = None
    encrypted_content: str | None = None
    content: list[_Part] | str | None = None
    summary: list[_Part] | None = None

    @property
    def parts(self) -> list[_Part]:
        """The parts of the content; a plain text is one."""
        if isinstance(self.content, str):
            return [_Part("output_text", self.content)]
        return self.content or []


class _OtherItem(Struct, gc=False):
    """An item whose fields have other types than those above, of a type that is not used."""

    type: str = ""
    id: str | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    id: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: Any = None
    incomplete_details: _Incomplete | None = None


_item = msgspec.json.Decoder(_Item)
_other_item = msgspec.json.Decoder(_OtherItem)
_response = msgspec.json.Decoder(_Response)


class _OpenItem:
    """An item that the upstream has begun, and its deltas that have not been emitted yet."""

    __slots__ = (
        "begun",
        "call_id",
        "done",
        "key",
        "kind",
        "passes",
        "pending",
        "started",
        "streamed",
        "thought",
    )

    def __init__(self, kind: str, key: int | str, *, passes: bool) -> None:
        self.kind = kind
        self.key = key
        self.passes = passes
        """Whether the item passes through."""
        self.started = False
        """Whether it passes through and its first delta is made."""
        self.pending: list[Delta] = []
        self.streamed: set[tuple[str, int]] = set()
        """The parts that came as deltas: their ``done`` events add nothing."""
        self.call_id: str | None = None
        """Set once a call's name is known."""
        self.thought: bytes | None = None
        """The item itself, if it is encrypted reasoning."""
        self.begun = False
        self.done = False


class ResponsesAnswer:
    """The answer to one job: takes events, returns deltas, and collects what the next turn needs."""

    def __init__(self, job: Job) -> None:
        self._job = job
        runs_tools = job.model.hosted_tools == "upstream"
        self._passed_types = _CLIENT_CALLS | _HOSTED if runs_tools else _CLIENT_CALLS
        self._items: dict[int | str, _OpenItem] = {}
        """Open items by their output index, or by a key of ours, oldest first."""
        self._keys: dict[str, int | str] = {}
        """The keys of items by their ids."""
        self._count = 0
        self._ended: set[int | str] = set()
        """The keys and ids of items whose end has come."""
        self._ends = 0
        """How many that are: upstreams may have other ids and numbers in the final response."""
        self._kind = ""
        """The type of the item that was emitted last."""
        self._summaries = 0
        self._base = 0
        self.upstream_id = ""
        self.others = 0
        """How many items other than reasoning were emitted."""
        self.call_ids: list[str] = []
        self.thoughts: list[tuple[int, bytes]] = []
        """Encrypted reasoning items, each with the number of other items before it."""
        self.ended = False

    @property
    def may_have_called(self) -> bool:
        """Whether the upstream may have called a tool already, so that the request must not be repeated."""
        return bool(self.upstream_id) and self._job.upstream_tools is not None

    def take(self, event: Event) -> list[Delta]:
        """Return the deltas that an event makes. Raises the error that it reports."""
        if event.type == "error":
            raise reported_errors.from_error_event(event)
        reader = self._readers.get(event.type)
        if reader is None:
            kind = _EVENTS.get(event.type)
            return self._tell(event, kind) if kind is not None else []
        if type(event) is OtherEvent:  # an ``isinstance`` that fails takes ten times as long
            raise ServerError("The engine's answer cannot be read.")
        try:
            return reader(self, event)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ServerError("The engine's answer cannot be read.") from error

    # Items.

    def _added(self, event: Event) -> list[Delta]:
        opened = self._open_item(event, _read_item(event.item))
        if opened.passes and (whole := _read_passed(event.item)) is not None:
            self._start_passed(opened, whole)
        return self._emit()

    def _item_done(self, event: Event) -> list[Delta]:
        item = _read_item(event.item)
        opened = self._find(event, item.id)
        if opened is None:
            if self._is_repeated(event, item):
                return []
            opened = self._open_item(event, item)
        if opened.passes:
            self._end_passed(opened, event.item)
        else:
            self._complete(opened, item)
        if item.type == "reasoning" and item.encrypted_content:
            opened.thought = without_id(bytes(event.item))
        opened.done = True
        self._ends += 1
        self._ended.add(opened.key)
        if item.id is not None:
            self._ended.add(item.id)
        return self._emit()

    def _is_repeated(self, event: Event, item: _Item) -> bool:
        """Whether the end of an item comes once more: of the same id, at the same place, of the same call."""
        is_known = item.id in self._ended and event.output_index in self._ended
        return is_known and (not item.call_id or item.call_id in self.call_ids)

    def _open_item(self, event: Event, item: _Item) -> _OpenItem:
        passes = item.type in self._passed_types
        if item.type == "mcp_approval_request" and not passes:
            raise ServerError("The engine asks for an approval of a call that it was not allowed to make.")
        key: int | str = event.output_index if event.output_index is not None else f"#{self._count}"
        opened = _OpenItem(item.type, key, passes=passes)
        self._count += 1
        if item.id is not None:
            self._keys[item.id] = key
        self._items[key] = opened
        if item.name or item.type == "tool_search_call":
            self._start_call(opened, item)
        return opened

    def _start_passed(self, opened: _OpenItem, item: Item) -> None:
        opened.pending.append(UpstreamItemStarted(opened.key, item))
        opened.started = True

    def _end_passed(self, opened: _OpenItem, raw: Raw) -> None:
        item = _read_passed(raw)
        if item is None:
            raise ServerError("The engine's answer cannot be read.")
        if not opened.started:
            self._start_passed(opened, item)
        opened.pending.append(UpstreamItemEnded(opened.key, item))

    def _tell(self, event: Event, kind: type[events.CallEvent]) -> list[Delta]:
        """An event about an item that passes through."""
        opened = self._find(event, event.item_id)
        fields = {name: getattr(event, name) for name in kind.__struct_fields__ if name not in _COMMON}
        is_readable = not isinstance(event, OtherEvent) and isinstance(fields.get("code", ""), str)
        if opened is None or not opened.started or not is_readable:
            return []
        opened.pending.append(UpstreamItemEvent(opened.key, kind, fields))
        return self._emit()

    def _start_call(self, opened: _OpenItem, item: _Item) -> None:
        kind = _CALLS.get(item.type)
        if kind is None or (kind == "tool_search" and item.call_id is None):
            return  # a search without an id is the upstream's own
        opened.call_id = item.call_id or ""
        name = item.name or kind
        known = (*self._job.head.tools.callables, *self._job.offer.tools)
        is_offered = any((tool.name, tool.namespace) == (name, item.namespace) for tool in known)
        opened.pending.append(CallStarted(kind, name, item.namespace, is_offered))

    def _complete(self, opened: _OpenItem, item: _Item) -> None:
        """Add deltas for the parts of a finished item that were not streamed."""
        if opened.call_id is None:
            self._start_call(opened, item)
        elif item.call_id and item.call_id != opened.call_id:
            # The final id. If the call was emitted already it is the oldest open item: its id is the last.
            if opened.begun:
                self.call_ids[-1] = item.call_id
            opened.call_id = item.call_id
        if opened.call_id is not None:
            if not opened.streamed and (text := _arguments_of(item)):
                opened.pending.append(CallArguments(text))
            opened.pending.append(CallEnded(item.status != "incomplete"))
        self._add_rest(opened, item)

    def _add_rest(self, opened: _OpenItem, item: _Item) -> None:
        # Compared by number, not by index: some upstreams do not restart the index with each item.
        streamed = Counter(kind for kind, _ in opened.streamed)
        for index, summary in enumerate(item.summary or ()):
            if streamed["summary"] > 0:
                streamed["summary"] -= 1
            elif summary.text:
                opened.pending.append(ThoughtSummary(summary.text, index))
        for part in item.parts:
            if streamed[part.type] > 0:
                streamed[part.type] -= 1
            elif delta := _of_part(part):
                opened.pending.append(delta)
            for annotation in part.annotations or ():
                if streamed["annotation"] > 0:
                    streamed["annotation"] -= 1
                else:
                    opened.pending.append(Annotated(annotation.copy()))

    def _find(self, event: Event, item_id: str | None) -> _OpenItem | None:
        """The open item that an event is about: by its index, its id, or else the newest item."""
        if event.output_index is not None:
            return self._items.get(event.output_index)
        if item_id is not None and item_id in self._keys:
            return self._items.get(self._keys[item_id])
        return next(reversed(self._items.values()), None)

    def _emit(self) -> list[Delta]:
        """Take the deltas that can be emitted: of the oldest open item and, once it is done, of the next.
        Items that pass through keep no other waiting."""
        emitted: list[Delta] = []
        for key, opened in list(self._items.items()):
            if opened.pending:
                emitted += self._count_items(opened)
                opened.pending = []
            if opened.done:
                if opened.thought is not None:
                    self.thoughts.append((self.others, opened.thought))
                del self._items[key]
            elif not opened.started:
                break
        return emitted

    def _count_items(self, opened: _OpenItem) -> list[Delta]:
        """Return the pending deltas, and track the items that slipring's output makes of them."""
        kind, is_new = opened.kind, not opened.begun
        opened.begun = True
        if opened.passes:
            self.others += is_new
            if not is_new:
                return opened.pending
        elif kind == "reasoning":
            if is_new:
                # Reasoning that follows reasoning becomes one item: its parts are numbered on.
                self._base = self._summaries = self._summaries if self._kind == kind else 0
            for delta in opened.pending:
                if isinstance(delta, ThoughtSummary):
                    delta.index += self._base
                    self._summaries = max(self._summaries, delta.index + 1)
        elif is_new and opened.call_id is not None:
            self.call_ids.append(opened.call_id)
            self.others += 1
        elif kind != self._kind:
            self.others += 1
        elif is_new:
            # Joined to the message before it: reasoning in between is placed before both.
            self.thoughts = [(min(at, self.others - 1), raw) for at, raw in self.thoughts]
        self._kind = kind
        return opened.pending

    # Pieces of items.

    def _piece(self, event: Event) -> list[Delta]:
        item_kind, part_kind, field = _PIECES[event.type]
        delta = _piece_of(event, part_kind, getattr(event, field))
        if not delta.text and not event.logprobs:
            return []
        opened = self._find(event, event.item_id)
        if field != "delta" and (opened is None or any(kind == part_kind for kind, _ in opened.streamed)):
            return []  # parts that were not streamed are added when the item is done
        if opened is None:
            opened = self._open_item(event, _Item(type=item_kind, id=event.item_id))
        index = event.summary_index if part_kind == "summary" else event.content_index
        return self._append(opened, (part_kind, index), delta)

    def _append(self, opened: _OpenItem, part: tuple[str, int], delta: _Piece | Annotated) -> list[Delta]:
        opened.streamed.add(part)
        if self._is_current(opened):
            return [delta]
        opened.pending.append(delta)
        return self._emit()

    def _is_current(self, opened: _OpenItem) -> bool:
        """Whether the next piece of an item is emitted as it is, like most: nothing waits before it, and it
        changes nothing that is counted."""
        return (
            opened.begun
            and not opened.pending
            and opened.kind == self._kind != "reasoning"
            and next(iter(self._items.values())) is opened
        )

    def _annotation(self, event: Event) -> list[Delta]:
        opened = self._find(event, event.item_id)
        if opened is None:
            return []  # no item to annotate
        number = sum(kind == "annotation" for kind, _ in opened.streamed)
        return self._append(opened, ("annotation", number), Annotated(event.annotation.copy()))

    def _arguments(self, event: Event) -> list[Delta]:
        return self._call_piece(event, event.delta)

    def _arguments_done(self, event: Event) -> list[Delta]:
        return self._call_piece(event, event.arguments or event.input, done=True)

    def _call_piece(self, event: Event, text: str, *, done: bool = False) -> list[Delta]:
        opened = self._find(event, event.item_id)
        if not text or opened is None or opened.call_id is None or (done and opened.streamed):
            return []  # a call whose name is not known yet is emitted when it is done
        return self._append(opened, ("call", 0), CallArguments(text))

    # The end.

    def _created(self, event: Event) -> list[Delta]:
        self.upstream_id = _response.decode(event.response).id or ""
        return []

    def _failed(self, event: Event) -> list[Delta]:
        raise reported_errors.from_failed_response(bytes(event.response))

    def _finished(
        self, response: _Response, reason: Literal["stop", "max_output_tokens", "content_filter"]
    ) -> list[Delta]:
        self.upstream_id = response.id or ""
        self.ended = True
        deltas: list[Delta] = []
        for number, item in enumerate(response.output or ()):
            # Items that came in the last event alone, or whose end did.
            if self._ends < len(response.output or ()) and not self._has_ended(number, item):
                deltas += self._item_done(Event(output_index=number, item=item))
        for opened in self._items.values():
            if opened.call_id is not None and not opened.done:
                opened.pending.append(CallEnded(reason == "stop"))
            opened.done = True
        deltas += self._emit()
        usage = response.usage
        read, written = token_count(usage, "input_tokens"), token_count(usage, "output_tokens")
        cached = token_count(usage, "input_tokens_details", "cached_tokens")
        reasoning = token_count(usage, "output_tokens_details", "reasoning_tokens")
        if not self._job.generate:
            written = 0
        deltas.append(
            Finished(
                reason,
                input_tokens=read,
                cached_tokens=min(cached, read),
                output_tokens=written,
                reasoning_tokens=min(reasoning, written),
            )
        )
        return deltas

    def _has_ended(self, number: int, item: Raw) -> bool:
        """Whether the end of an item of the final response has come before: by its id, its place, or, from
        upstreams that send neither, its number."""
        unnumbered = sum(isinstance(key, str) and key.startswith("#") for key in self._ended)
        return _read_item(item).id in self._ended or number in self._ended or number < unnumbered

    def _completed(self, event: Event) -> list[Delta]:
        response = _response.decode(event.response)
        if response.status in ("failed", "cancelled"):
            return self._failed(event)
        if response.status == "incomplete":
            return self._incomplete(event)
        return self._finished(response, "stop")

    def _incomplete(self, event: Event) -> list[Delta]:
        response = _response.decode(event.response)
        details = response.incomplete_details
        filtered = details is not None and details.reason == "content_filter"
        return self._finished(response, "content_filter" if filtered else "max_output_tokens")

    _readers: ClassVar[dict[str, Callable[["ResponsesAnswer", Any], list[Delta]]]] = {
        **dict.fromkeys(_PIECES, _piece),
        "response.created": _created,
        "response.output_item.added": _added,
        "response.output_item.done": _item_done,
        "response.output_text.annotation.added": _annotation,
        "response.function_call_arguments.delta": _arguments,
        "response.function_call_arguments.done": _arguments_done,
        "response.custom_tool_call_input.delta": _arguments,
        "response.custom_tool_call_input.done": _arguments_done,
        "response.completed": _completed,
        "response.incomplete": _incomplete,
        "response.failed": _failed,
    }


def _read_item(raw: Raw) -> _Item:
    try:
        return _item.decode(raw)
    except msgspec.ValidationError:
        other = _other_item.decode(raw)
        if other.type in _USED:
            raise
        return _Item(other.type, other.id)


def _read_passed(raw: Raw) -> Item | None:
    """An item that passes through; None if it is not valid."""
    try:
        return items.read_item(bytes(raw), "item")
    except ApiError:
        return None


def _piece_of(event: Event, part_kind: str, text: str) -> _Piece:
    if part_kind == "output_text":
        return Text(text, _logprobs(event.logprobs))
    if part_kind == "summary":
        return ThoughtSummary(text, event.summary_index)
    return RefusalText(text) if part_kind == "refusal" else Thought(text)


def _of_part(part: _Part) -> Delta | None:
    if part.type == "refusal":
        return RefusalText(part.refusal) if part.refusal else None
    if part.type == "reasoning_text":
        return Thought(part.text) if part.text else None
    if part.type == "output_text":
        return Text(part.text, _logprobs(part.logprobs)) if part.text else None
    return None


def _arguments_of(item: _Item) -> str:
    """A call's arguments as text. Those of a search for tools come as JSON, not as a string."""
    arguments = item.arguments or item.input or ""
    return arguments if isinstance(arguments, str) else wire.encode(arguments).decode()


def _logprobs(sent: list[EventTokenLogprobs] | None) -> list[Logprob]:
    return [
        Logprob(
            *(token.token, token.logprob, _bytes_of(token)),
            [TopLogprob(top.token, top.logprob, _bytes_of(top)) for top in token.top_logprobs],
        )
        for token in sent or ()
    ]


def _bytes_of(logprob: EventLogprob) -> list[int]:
    # Deltas leave the bytes out. For a token that is part of a character they cannot be recovered.
    return logprob.bytes if logprob.bytes is not None else list(logprob.token.encode())
