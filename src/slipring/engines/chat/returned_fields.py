"""Fields of an answer that its server wants back with the next request, and that clients never see.

Gemini refuses the second step of a tool loop without the signatures of its calls (`extra_content`).
OpenRouter loses a model's thoughts without `reasoning_details`. LiteLLM has `provider_specific_fields`. They
are kept with the response as long as its messages are, and are sent to the server that wrote them and to no
other.
"""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

_MOST_BYTES = 256 * 2**10
"""Of one answer. An answer that has more is sent back without them."""
_GROWING = ("text", "summary", "data")
"""The fields of a detail that come in pieces."""


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


def merge_details(details: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Append pieces of `reasoning_details` to those that came before: pieces of one detail are joined."""
    for piece in pieces:
        last = details[-1] if details else {}
        if not details or any(last.get(name) != piece.get(name) for name in ("type", "index")):
            details.append(dict(piece))
            continue
        for name, value in piece.items():
            grows = name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str)
            last[name] = last[name] + value if grows else value if value is not None else last.get(name)
