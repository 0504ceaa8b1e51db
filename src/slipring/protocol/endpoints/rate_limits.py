"""How much of a quota is left, and the headers by which clients of each API know it."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct


class RateLimit(Struct, frozen=True):
    """A quota, as it stands."""

    unit: Literal["requests", "tokens", "images"]
    limit: int
    remaining: int
    resets_at: str
    """When all of it can be used again, in RFC 3339."""
    resets_in_s: int


def openai_headers(limits: Iterable[RateLimit]) -> dict[str, str]:
    """The ``x-ratelimit-*`` headers."""
    return {
        f"x-ratelimit-{field}-{limit.unit}": value
        for limit in limits
        for field, value in (
            ("limit", str(limit.limit)),
            ("remaining", str(limit.remaining)),
            ("reset", _duration(limit.resets_in_s)),
        )
    }


def _duration(seconds: int) -> str:
    """As the API writes it: ``45s``, ``6m0s``, ``1h0m0s``."""
    minutes, left = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"


_ANTHROPIC_NAMES = {
    "requests": ("requests",),
    "tokens": ("tokens", "input-tokens", "output-tokens"),
    "images": (),
}
"""The limits that the API has for a quota of ours: none for images. Tokens of prompts and of answers have one
quota here: what is left of it bounds both."""


def anthropic_headers(limits: Iterable[RateLimit]) -> dict[str, str]:
    """The ``anthropic-ratelimit-*`` headers."""
    return {
        f"anthropic-ratelimit-{name}-{field}": value
        for limit in limits
        for name in _ANTHROPIC_NAMES[limit.unit]
        for field, value in (
            ("limit", str(limit.limit)),
            ("remaining", str(limit.remaining)),
            ("reset", limit.resets_at),
        )
    }
