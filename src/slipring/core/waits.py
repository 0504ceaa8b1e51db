"""What the program of a turn waits for.

A wait is a value that the program awaits: the coroutine is suspended with it, and its caller resumes it with
the result, or throws an error into it. Nothing here knows an event loop. Each kind of wait has a name, the
``place`` of a turn, which reports and the live page show.
"""

from collections.abc import Generator
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from slipring.base.errors import ApiError

Result = TypeVar("Result")


class Wait(Struct, Generic[Result], frozen=True, eq=False):
    """Awaited by the program of a turn; ``Result`` is what it is resumed with."""

    place: ClassVar[str]

    def __await__(self) -> Generator["Wait[Result]", Result, Result]:
        return (yield self)


class Queued(Wait[None], frozen=True, eq=False):
    """The turn is in its lane's queue."""

    place = "waiting"


class Ended(Wait[None], frozen=True, eq=False):
    """The turn has ended."""

    place = "ended"


class News(Wait[None], frozen=True, eq=False):
    """Waits for whatever comes next from outside: verdicts, the end of a hosted call, an append. The program
    is resumed after each, and looks for itself whether it can go on."""

    about: Any
    """The turn's place meanwhile."""

    @property
    def place(self) -> str:  # type: ignore[override]
        return str(self.about)


class Interrupted(Exception):
    """Ends a wait: the server ends the turn, which fails with ``error``."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class Blocked(Interrupted):
    """Ends a wait: a safety check refuses what the turn got."""


class CutShort(Exception):
    """Ends a wait: the response ends now, with what it has."""


QUEUED, ENDED = Queued(), Ended()
VERDICTS_ON_INPUT = News("inspecting")
VERDICTS_ON_ANSWER = News("running")
CALLS = News("paused")
CLIENT = News("paused")
