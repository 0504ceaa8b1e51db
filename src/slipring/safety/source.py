"""The interface of the sources of verdicts: texts in, scores out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from msgspec import Struct

from slipring.base.errors import StartupError
from slipring.config.tables import CheckEntry
from slipring.core.checks.policies import Subject

MOST_LATE = 32
"""Calls of one source that may run beside those that share its ``at_once``, because they take long. So many
calls of other tenants do not keep a tenant waiting."""


class SourceFailed(Exception):
    """A source gave no answer. The message says why, for operators and clients: it contains nothing of the
    inspected texts and no secrets."""


class Findings(Struct, frozen=True):
    """What a source says about one subject."""

    scores: dict[str, float] = {}
    """From 0 to 1 by category."""
    flagged: tuple[str, ...] | None = None
    """The categories that the source itself flags. None: those with a score of 0.5 or more."""
    failed: str | None = None
    """Why the source has no answer about this subject, while it may have one about others. Like the message
    of ``SourceFailed``."""


class Source(Protocol):
    """Answers about texts. One source serves all tenants; every method is called on the event loop."""

    @property
    def version(self) -> str:
        """Identifies what the answers depend on, apart from the settings: a model's name, for example."""

    @property
    def longest_match(self) -> int:
        """Characters that a match can have at most; 0 if that is unknown or not applicable."""

    async def start(self) -> None:
        """Acquire what ``inspect`` needs. Raises ``StartupError``."""

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Findings]:
        """One answer for each subject, in their order, or ``SourceFailed`` for all of them.

        Nothing that is kept between calls may reveal one tenant's texts to another, and no call may wait
        for one of another tenant that takes long. The caller cancels calls that take too long.
        """

    async def close(self) -> None:
        """Release everything that ``start`` acquired."""


@contextmanager
def naming(entry: CheckEntry) -> Iterator[None]:
    """Add the name of a check to the message of a ``StartupError``."""
    try:
        yield
    except StartupError as error:
        raise StartupError(f"check {entry.name!r}: {error}") from None
