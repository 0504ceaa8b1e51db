"""Suggestions for misspelt names in error messages."""

from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``": did you mean NAME?"`` with the most similar known name; empty if none is similar."""
    import difflib  # needed for mistakes only, and every command imports this module

    similar = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {similar[0]}?" if similar and similar[0] != name else ""
