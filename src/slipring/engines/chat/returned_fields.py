"""Fields of an answer that its server wants back with the next request, and that clients never see.

Gemini refuses the second step of a tool loop without the signatures of its calls (`extra_content`).
OpenRouter loses a model's thoughts without `reasoning_details`. LiteLLM has `provider_specific_fields`. They
are kept with the response and are sent to the server that wrote them and to no other. Encoded messages
contain them. If the encoded messages are lost, by a restart or because another node continues the chain, the
context is encoded again, and the fields are found by the ids of its items.

For that, a position is stored as bytes that hold these fields and no messages. Bytes of another server, and
bytes that cannot be read, give None: the context is then sent without such fields.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import dropwhile, islice, takewhile
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, msgpack

from slipring.core.chain.instructions_and_tools import Head
from slipring.engines.chat.options import ChatOptions
from slipring.protocol.items.items import CustomToolCall, FunctionCall, Item

_MOST_BYTES = 256 * 2**10
"""Of one answer. An answer that has more is sent back without them."""
_MOST_KEPT_BYTES = 4 * 2**20
"""Of one chain. Where it has more, those of its older answers are forgotten."""
_GROWING = ("text", "summary", "data")
"""The fields of a detail that come in pieces."""
_VERSION = b"\x50"
"""The first byte. Different from those of other engines' positions, which are stored in the same place."""


def kept(raw: Raw | UnsetType) -> bytes:
    """A field as it is kept: nothing if it is too long."""
    field = b"" if raw is UNSET else bytes(raw)
    return field if len(field) <= _MOST_BYTES else b""


class ReturnedFields(Struct, frozen=True, array_like=True, gc=False):
    """The fields of one message or one call as JSON; empty where there is none."""

    extra_content: bytes = b""
    provider_specific_fields: bytes = b""
    reasoning_details: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.extra_content) + len(self.provider_specific_fields) + len(self.reasoning_details)

    def updated(self, later: "ReturnedFields") -> "ReturnedFields":
        """These fields, replaced by those that a later piece has."""
        return ReturnedFields(
            later.extra_content or self.extra_content,
            later.provider_specific_fields or self.provider_specific_fields,
            later.reasoning_details or self.reasoning_details,
        )


NONE = ReturnedFields()


class ReturnedAnswer(Struct, frozen=True):
    """The fields of an answer: of its message, and of its calls in order."""

    message: ReturnedFields = NONE
    calls: tuple[ReturnedFields, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.message.size_bytes + sum(fields.size_bytes for fields in self.calls)

    def bounded(self) -> "ReturnedAnswer":
        return self if self.size_bytes <= _MOST_BYTES else ReturnedAnswer()


class KeptFields(Struct, frozen=True, eq=False):
    """The fields of one answer, and a pointer to those of the answers before it."""

    before: "KeptFields | None"
    first: str
    """The id of the answer's first item; empty if it has none."""
    message: ReturnedFields
    calls: dict[str, ReturnedFields]
    """By our ids of the calls."""
    size_bytes: int
    """Of all."""
    item: Item | None = None
    """The first item itself, if this process has encoded it: a history that is sent again may have no ids."""

    def lineage(self) -> "Iterator[KeptFields]":
        """Those of all answers, the newest first."""
        node: KeptFields | None = self
        while node is not None:
            yield node
            node = node.before

    def shared_bytes(self, earlier: "KeptFields | None") -> int:
        """The memory of ``earlier`` if these continue it, else 0."""
        if earlier is None:
            return 0
        rest = dropwhile(lambda node: node.size_bytes > earlier.size_bytes, self.lineage())
        return earlier.size_bytes if next(rest, None) is earlier else 0


def linked(
    before: KeptFields | None,
    first: str,
    message: ReturnedFields,
    calls: dict[str, ReturnedFields],
    item: Item | None = None,
) -> KeptFields:
    """The fields of an answer after those of earlier ones."""
    own = message.size_bytes + sum(fields.size_bytes for fields in calls.values())
    if before is not None and before.size_bytes + own > _MOST_KEPT_BYTES:
        before = None
    size_bytes = own + (before.size_bytes if before is not None else 0)
    return KeptFields(before, first, message, calls, size_bytes, item)


def kept_with(
    before: KeptFields | None, answer: Sequence[Item], returned: ReturnedAnswer
) -> KeptFields | None:
    """The fields of a chain with those of one more answer."""
    if not returned.size_bytes or not answer:
        return before
    bodies = (item.body() for item in answer)
    ids = [body.call_id for body in bodies if isinstance(body, FunctionCall | CustomToolCall)]
    calls = dict(zip(ids, returned.calls, strict=False))
    return linked(before, answer[0].id or "", returned.message, calls, answer[0])


class FieldsOfContext(NamedTuple):
    """What the server wants back with the answers of a context."""

    messages: dict[str | int, ReturnedFields]
    """By the first item of the answer: its id, and its identity."""
    calls: dict[str, ReturnedFields]
    """By our ids of the calls."""

    @classmethod
    def of(cls, kept: KeptFields | None, most: int | None = None) -> "FieldsOfContext":
        """Those of the newest answers, at most so many; None: of all."""
        found = cls({}, {})
        nodes = islice(kept.lineage(), most) if kept is not None else ()
        for node in reversed(list(nodes)):
            found.messages[node.first] = found.messages[id(node.item)] = node.message
            found.calls.update(node.calls)
        return found

    def of_message(self, items: Sequence[Item]) -> ReturnedFields:
        """The fields of the message that these items are encoded as."""
        found = NONE
        for item in items if self.messages else ():
            for key in (item.id, id(item)):
                if key and key in self.messages:
                    found = found.updated(self.messages[key])
        return found


class StoredFields(Struct, frozen=True, eq=False):
    """The position of a response that another process has stored: fields without messages."""

    home: object
    """The writer of the engine that can use it."""
    kept: KeptFields | None
    returned: ReturnedAnswer
    """Those of the response's own last answer."""

    @property
    def stored(self) -> "StoredFields":
        """As of the positions of this process, which have messages beside it."""
        return self

    @property
    def size_bytes(self) -> int:
        return self.returned.size_bytes + (self.kept.size_bytes if self.kept is not None else 0)

    def unshared_bytes(self, earlier: object) -> int:
        """Memory of what it does not share with another position."""
        if self.kept is None or not isinstance(earlier, StoredFields):
            return self.size_bytes
        return self.size_bytes - self.kept.shared_bytes(earlier.kept)


def stored_fields(position: object, home: object) -> StoredFields | None:
    """What a position keeps for the server of the writer ``home``; None if it is of another."""
    stored = getattr(position, "stored", None)
    return stored if isinstance(stored, StoredFields) and stored.home is home else None


class Details:
    """The `reasoning_details` of one answer, joined from pieces."""

    __slots__ = ("_details", "_growing", "_size_chars")

    def __init__(self) -> None:
        self._details: list[dict[str, Any]] = []
        self._growing: dict[str, list[str]] = {}
        """The pieces of the last detail's texts: joined when it ends, which takes less than with each."""
        self._size_chars = 0

    def add(self, pieces: list[dict[str, Any]]) -> None:
        """Append pieces; those of one detail are joined. Too many are dropped, all together."""
        for piece in pieces:
            if self._size_chars > _MOST_BYTES:
                self._details, self._growing = [], {}
                return
            last = self._details[-1] if self._details else {}
            if not self._details or _begins_another(last, piece):
                self._end()
                last = {}
                self._details.append(last)
            for name, value in piece.items():
                self._size_chars += len(name) + len(
                    value if isinstance(value, str) else msgspec.json.encode(value)
                )
                if name in _GROWING and isinstance(value, str):
                    self._growing.setdefault(name, []).append(value)
                    last.setdefault(name, "")
                elif value is not None or name not in last:
                    last[name] = value

    def joined(self) -> list[dict[str, Any]]:
        self._end()
        return self._details

    def _end(self) -> None:
        """Join the texts of the last detail."""
        for name, texts in self._growing.items():
            self._details[-1][name] = (self._details[-1][name] or "") + "".join(texts)
        self._growing = {}


def _begins_another(last: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Whether a piece is of another detail than the last one. Encrypted ones have ids, and often one index
    for all."""
    ids = last.get("id"), piece.get("id")
    if None not in ids and ids[0] != ids[1]:
        return True
    return any(last.get(name) != piece.get(name) for name in ("type", "index"))


class _PackedAnswer(Struct, frozen=True, array_like=True):
    first: str
    message: ReturnedFields
    calls: dict[str, ReturnedFields]


class _Packed(Struct, frozen=True, array_like=True):
    continues: bool
    """Whether the parent's fields come before."""
    answers: list[_PackedAnswer]
    """Oldest first."""
    message: ReturnedFields
    calls: tuple[ReturnedFields, ...]


_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(_Packed)


class PositionCodec:
    """Encodes and decodes the positions of one engine."""

    def __init__(self, home: object, options: ChatOptions) -> None:
        self._home = home
        # Who can read the fields. Names of keys, and not the keys themselves.
        reader = (options.url, options.query, options.key_env, options.key_file)
        self._start = _VERSION + blake2b("\0".join(reader).encode(), digest_size=8).digest()

    def pack(self, position: object, parent: object) -> bytes | None:
        """Encode what a position keeps and its parent's does not; None if it keeps nothing, or is not of this
        engine."""
        own, earlier = stored_fields(position, self._home), stored_fields(parent, self._home)
        if own is None or not own.size_bytes:
            return None
        continues = own.kept is not None and earlier is not None and own.kept.shared_bytes(earlier.kept) > 0
        end = earlier.kept if earlier is not None and continues else None
        new = (
            list(takewhile(lambda node: node is not end, own.kept.lineage())) if own.kept is not None else []
        )
        answers = [_PackedAnswer(node.first, node.message, node.calls) for node in reversed(new)]
        packed = _Packed(continues, answers, own.returned.message, own.returned.calls)
        return self._start + _encoder.encode(packed)

    def unpack(self, data: bytes, parent: object, head: Head) -> StoredFields | None:
        """Decode a position."""
        if not data.startswith(self._start):
            return None
        try:
            packed = _decoder.decode(data[len(self._start) :])
        except DecodeError:
            return None
        earlier = stored_fields(parent, self._home)
        kept = earlier.kept if earlier is not None and packed.continues else None
        for each in packed.answers:
            kept = linked(kept, each.first, each.message, each.calls)
        return StoredFields(self._home, kept, ReturnedAnswer(packed.message, packed.calls).bounded())
