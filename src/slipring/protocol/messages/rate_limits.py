"""The headers by which clients of the Messages API know how much of their quotas is left."""

from collections.abc import Iterable

from slipring.protocol.endpoints.rate_limits import RateLimit

_NAMES = {"requests": ("requests",), "tokens": ("tokens", "input-tokens", "output-tokens")}
"""The limits that the API has for a quota of ours. Tokens of prompts and of answers have one quota here: what
is left of it bounds both."""


def headers_of(limits: Iterable[RateLimit]) -> dict[str, str]:
    """The ``anthropic-ratelimit-*`` headers."""
    return {
        f"anthropic-ratelimit-{name}-{field}": value
        for limit in limits
        for name in _NAMES[limit.unit]
        for field, value in (
            ("limit", str(limit.limit)),
            ("remaining", str(limit.remaining)),
            ("reset", limit.resets_at),
        )
    }
