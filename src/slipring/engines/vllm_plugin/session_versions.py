"""With which versions of vLLM sessions are right, and in which each turn may have settings of its own."""

import re

MENDED = ((0, 26, 0),)
"""Versions whose scheduler ``mend`` makes right: those that it was tested with, on a GPU."""
RIGHT_SINCE = (0, 32, 0)
OWN_SETTINGS = ((0, 26, 0), (0, 32))
"""Versions, or all with these first numbers, in which ``mend`` gives each turn its own settings."""
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def fault_of(version: str) -> str | None:
    """Why sessions are not right with a version of vLLM, in a few words; None if they are."""
    if (numbers := numbers_of(version)) is not None and (numbers in MENDED or numbers >= RIGHT_SINCE):
        return None
    right, since = " and ".join(map(_spelled, MENDED)), _spelled(RIGHT_SINCE)
    return f"vLLM {version}, which loses track of sessions (it is {right}, or {since} and later, that do not)"


def missing_of(version: str) -> str | None:
    """Why turns cannot have settings of their own with a version of vLLM; None if they can."""
    if _is_named(version, OWN_SETTINGS):
        return None
    return f"vLLM {version} was not tested with them ({' and '.join(map(_spelled, OWN_SETTINGS))} were)"


def numbers_of(version: str) -> tuple[int, ...] | None:
    found = _NUMBERS.match(version)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _is_named(version: str, named: tuple[tuple[int, ...], ...]) -> bool:
    """Whether a version is one of those, or begins with the same numbers."""
    numbers = numbers_of(version)
    return numbers is not None and any(numbers[: len(each)] == each for each in named)


def _spelled(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
