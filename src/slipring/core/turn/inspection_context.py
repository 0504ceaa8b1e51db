"""What stands before an item in its context, as the checks of a policy read it.

Two items with the same text may get different verdicts: a check can read the texts before each one, its kind,
its role and the name of its tool. ``InspectionContext`` reads the items of a context in their order. It says
what the checks see of the next item, and gives this a key: verdicts about two items are interchangeable if
the keys are equal.

Instructions and definitions of tools apply to a whole conversation. They are read without the texts before
them, and are not among the texts that other items are read with.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from msgspec import structs

from slipring.core.chain.state import ResponseState
from slipring.core.checks.inspected_texts import called_names, remainder_of, subject_of, verdict_key
from slipring.core.checks.policies import KINDS, Policy
from slipring.core.checks.verdicts import Kind, Side, Subject
from slipring.core.turn.compaction import is_summary
from slipring.protocol.items.items import Item

Before = tuple[tuple[str, bytes], ...]
"""Texts of a context, oldest first, each with its digest."""


class InspectionContext:
    """The last texts of a context, as many as a check reads, and the names of the tools that it calls."""

    __slots__ = ("_before", "_callers", "_most", "_names")

    def __init__(self, policy: Policy) -> None:
        self._most: dict[Kind, int] = {
            kind: max((check.context for check in policy.on(kind)), default=0) for kind in KINDS
        }
        """How many texts a check reads with one of this kind."""
        self._before: deque[tuple[str, bytes]] = deque(maxlen=max(self._most.values()))
        self._callers: list[Iterable[Item]] = []
        """Items with calls whose names were not read yet."""
        self._names: dict[str, str] = {}
        """The names of called tools, by ``call_id``."""

    @property
    def is_read(self) -> bool:
        """Whether any check reads the texts before another one."""
        return bool(self._before.maxlen)

    @property
    def texts(self) -> tuple[str, ...]:
        """The last texts, oldest first."""
        return tuple(text for text, _ in self._before)

    @property
    def before(self) -> Before:
        """What stands before the next item: a later ``go_to`` returns here."""
        return tuple(self._before)

    def go_to(self, before: Before) -> None:
        """The next item stands behind these texts."""
        self._before.clear()
        self._before.extend(before)

    def call(self, items: Iterable[Item]) -> None:
        """Items, which may have calls: later outputs have the names of the tools that these call."""
        self._callers.append(items)

    def follow(self, parent: ResponseState) -> None:
        """The next item follows this response."""
        self.call(parent.output)
        most = self._before.maxlen or 0
        newest: list[str] = []
        for items in _newest_first(parent):
            if len(newest) >= most:
                break
            subjects = [subject_of(item, "input", _nameless) for item, _ in sealed_and_open(items)]
            texts = [each.text for each in subjects if each is not None and each.kind != "instructions"]
            newest += reversed(texts)
        self.go_to(tuple(map(_with_digest, reversed(newest[:most]))))

    def pass_over(self, items: Iterable[Item]) -> None:
        """Further items of the context, which are not inspected here."""
        self.call(items := tuple(items))
        if self.is_read:
            for item, is_sealed in sealed_and_open(items):
                self.read(item, "input", is_sealed=is_sealed)

    def key(self, item: Item, *, digest: bytes | None = None, is_sealed: bool) -> bytes:
        """Identifies what checks see of an item apart from the texts before it. ``digest``: of its content,
        if it is known. ``is_sealed``: the server has made it."""
        key = verdict_key(item, digest)
        if item.call_id is not None and (name := self.name_of(item)) is not None:
            key = _digest(b"output", key, name.encode(errors="surrogatepass"))
        return _digest(b"summary", key) if is_sealed and is_summary(item) else key

    def read(
        self, item: Item, side: Side, *, digest: bytes | None = None, is_sealed: bool
    ) -> tuple[Subject | None, bytes]:
        """What checks see of the next item, None if nothing, and the key of that. The item then stands before
        those that follow."""
        key = self.key(item, digest=digest, is_sealed=is_sealed)
        subject = subject_of(item, side, self._name_of)
        if subject is None:
            return None, key
        if is_sealed and is_summary(item):
            subject = Subject(side, "summary", subject.text)
        if not self.is_read or subject.kind == "instructions":
            return subject, key
        if most := self._most[subject.kind]:
            before = list(self._before)[-most:]
            key = _digest(b"behind", key, *(digest for _, digest in before))
            subject = structs.replace(subject, context=tuple(text for text, _ in before))
        self._before.append(_with_digest(subject.text))
        return subject, key

    def name_of(self, item: Item) -> str | None:
        """The name of the tool whose output an item is."""
        return self._name_of(item.call_id or "") if item.type.endswith("_output") else None

    def _name_of(self, call_id: str) -> str | None:
        """The name of the tool that was called by this id."""
        while self._callers:
            self._names.update(called_names(self._callers.pop(0)))
        return self._names.get(call_id)


def sealed_and_open(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """The items as a model sees them, and lists of tools, which it sees as part of the head; and whether an
    item was inside another one. What was inside a sealed one, no client can have written. An item that is
    opened because results of hosted calls stand behind it is among them itself. What else is written in an
    item that is opened is an item of its own."""
    for item in items:
        if item.opened is None or item.type == "mcp_list_tools":
            yield item, False
        else:
            yield from ((inner, inner.raw != item.raw) for inner in item.opened)
            if (others := remainder_of(item)) is not None:
                yield others, False


def _newest_first(parent: ResponseState) -> Iterator[tuple[Item, ...]]:
    """The items of a context that ends with this response, in pieces."""
    yield parent.unread
    for node in parent.chain():
        yield node.added


def _nameless(call_id: str) -> None:
    """The name of a called tool is not part of a text."""


def _with_digest(text: str) -> tuple[str, bytes]:
    return text, _digest(text.encode(errors="surrogatepass"))


def _digest(*parts: bytes) -> bytes:
    """The parts have fixed lengths, except for the first and the last."""
    digest = blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.digest()
