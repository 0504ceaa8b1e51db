"""The digest of a context, which answers carry so that lost history is noticed.

It covers instructions, messages, function calls and their outputs, each as its kind, its text and the digests
of its pictures. Ids, reasoning and everything else are left out, so that a client can compute it from what it
sent and received.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice

from msgspec import Struct

from slipring.core.generation import Job
from slipring.protocol.items.item_pictures import pictures
from slipring.protocol.items.items import (
    CallOutput,
    FunctionCall,
    InputText,
    Item,
    Message,
    OutputText,
    Part,
    kept_tools,
)


class Trace(Struct, frozen=True):
    """The digest of a context, which further items can be added to."""

    instructions: str | None
    left_out: int
    """Items at the beginning that were dropped, because the context was truncated."""
    state: bytes = b""

    @property
    def mark(self) -> str:
        """The text that an answer carries."""
        return f"digest={self.state.hex()[:16]}"

    def then(self, items: Iterable[Item]) -> "Trace":
        return Trace(self.instructions, self.left_out, _extended(self.state, _entries(items)))


def trace_job(job: Job, before: Trace | None, dropped_items: int = 0) -> Trace:
    """Trace a job's context: from its parent's trace if there is one, else from the start.

    ``before``: the trace of the parent's context without the parent's answer.
    """
    instructions = job.head.instructions
    if before is not None and job.parent is not None and not dropped_items:
        if before.instructions == instructions:
            return before.then(job.parent.answer).then(job.input)
        return _start(instructions, before.left_out, job.context())
    items = tuple(job.context())
    return _start(instructions, _cut(items, dropped_items), items)


def _start(instructions: str | None, left_out: int, items: Iterable[Item]) -> Trace:
    head = [("system", instructions)] if instructions else []
    return Trace(instructions, left_out, _extended(b"", head)).then(islice(items, left_out, None))


def _cut(items: tuple[Item, ...], dropped_items: int) -> int:
    """How many items precede the cut. Items that add tools are not dropped, so they are not counted in
    ``dropped_items``."""
    cut = dropped = 0
    while dropped < dropped_items:
        dropped += kept_tools(items[cut]) is None
        cut += 1
    return cut


def _extended(state: bytes, entries: Iterable[tuple[str, str]]) -> bytes:
    for kind, text in entries:
        state = sha256(b"%b%b\0%b\0" % (state, kind.encode(), text.encode())).digest()
    return state


def _entries(items: Iterable[Item]) -> Iterator[tuple[str, str]]:
    for item in items:
        if item.type not in ("message", "function_call", "function_call_output"):
            continue
        body = item.body()
        if isinstance(body, Message):
            yield body.role, _text(body.content) + _digests(item)
        elif isinstance(body, FunctionCall):
            yield "call", body.name + body.arguments
        elif isinstance(body, CallOutput):
            yield "output", _text(body.output) + _digests(item)


def _digests(item: Item) -> str:
    return "".join(picture.digest for picture in pictures(item))


def _text(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, InputText | OutputText))
