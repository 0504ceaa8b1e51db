"""Fields of an answer that its server wants back with the next request, and that clients never see.

Gemini refuses the second step of a tool loop without the signatures of its calls (`extra_content`).
OpenRouter loses a model's thoughts without `reasoning_details`. LiteLLM has `provider_specific_fields`. They
are kept with the response as long as its messages are, and are sent to the server that wrote them and to no
other.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

_MOST_BYTES = 256 * 2**10
"""Of one answer. An answer that has more is sent back without them."""
_GROWING = ("text", "summary", "data")
"""The fields of a detail that come in pieces."""


def kept(raw: Raw | UnsetType) -> Raw | UnsetType:
    """A copy of a field, which refers to the whole chunk otherwise; nothing if it is too long."""
    return UNSET if raw is UNSET or len(bytes(raw)) > _MOST_BYTES else Raw(bytes(raw))


class ReturnedFields(Struct, frozen=True, gc=False):
    """The fields of one message or one call."""

    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET
    reasoning_details: Raw | UnsetType = UNSET

    @property
    def size_bytes(self) -> int:
        fields = (self.extra_content, self.provider_specific_fields, self.reasoning_details)
        return sum(len(bytes(raw)) for raw in fields if isinstance(raw, Raw))

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
