"""Token counts that servers send, in whatever form: as numbers, null, or something else."""

from typing import Any

_MOST_TOKENS = 2**53


def token_count(usage: Any, *path: str) -> int:
    """The count at a path of a usage object; 0 if there is none, or it is no sensible number."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    is_number = isinstance(usage, int | float) and 0 <= usage < _MOST_TOKENS
    return int(usage) if is_number else 0
