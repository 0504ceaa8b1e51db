"""Where a turn stands: what its program waits for, how long each stage took, and how far its engine is.

A wait is a value that the program awaits: the coroutine is suspended with it, and its caller resumes it with
the result, or throws an error into it. Nothing here knows an event loop. Each kind of wait has a name, the
``place`` of a turn, which reports and the live page show. ``Stages`` is a stopwatch with an injected clock;
``JobProgress``, what the engine has reported of its job, ends some of the stages.
"""

from collections.abc import Awaitable, Generator
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct, structs

from slipring.base.errors import ApiError
from slipring.core.generation import Accepted, Begun, Delta, Finished, FinishReason, Prefilled, Stop
from slipring.core.ports import Clock
from slipring.protocol.turn_report import Stage, StageName

Result = TypeVar("Result")


class Wait(Struct, Generic[Result], frozen=True, eq=False):
    """Awaited by the program of a turn; ``Result`` is what it is resumed with."""

    place: ClassVar[str]

    def __await__(self) -> Generator["Wait[Result]", Result, Result]:
        return (yield self)


class _Queued(Wait[None], frozen=True, eq=False):
    """The turn is in its lane's queue."""

    place = "waiting"


class _Ended(Wait[None], frozen=True, eq=False):
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


QUEUED, ENDED = _Queued(), _Ended()
VERDICTS_ON_INPUT = News("inspecting")
VERDICTS_ON_ANSWER = News("running")
CALLS = News("paused")
CLIENT = News("paused")


class Stages:
    """Starts when a request arrives. Each ``lap`` ends one stage and begins the next."""

    __slots__ = ("_clock", "_last", "arrived", "laps", "send_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.arrived = self._last = clock()
        """When the request arrived, by the clock."""
        self.laps: list[Stage] = []
        self.send_s = 0.0
        """Time in which generation waited for the client to read."""

    def lap(self, name: StageName) -> None:
        """End the current stage under this name."""
        now, start = self._clock(), self._last
        # ``as_ms``, twice: a turn ends nine stages, and two calls take as long as the rest of this.
        start_ms = int((start - self.arrived) * 1e6 + 0.5) / 1000
        self.laps.append(Stage(name, start_ms, int((now - start) * 1e6 + 0.5) / 1000))
        self._last = now

    async def while_client_reads(self, waiting: Awaitable[None]) -> None:
        """Wait until the client has read more, and count the time."""
        before = self._clock()
        await waiting
        self.send_s += self._clock() - before

    @property
    def elapsed_ms(self) -> float:
        """From the arrival of the request to now."""
        return as_ms(self._clock() - self.arrived)

    @property
    def total_ms(self) -> float:
        """From the arrival of the request to the last lap."""
        return as_ms(self._last - self.arrived)


def as_ms(seconds: float) -> float:
    """Milliseconds with three decimals; takes less than half the time of ``round``."""
    return int(seconds * 1e6 + 0.5) / 1000


_REPORTS = frozenset({Accepted, Begun, Prefilled})
"""Deltas that report progress before the first output."""
NO_TOKENS = Finished("broken_off", input_tokens=0, cached_tokens=0, output_tokens=0)
"""The end of a job that did not run to its end."""


class JobProgress:
    """How far the engine is with the current job of a turn: what it has reported up to its first output, and
    its end. Each report ends a stage of the turn."""

    __slots__ = (
        "_stages",
        "accepted",
        "finished",
        "has_begun",
        "is_begun",
        "is_prefilled",
        "is_rendered",
        "stop",
    )

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self.accepted: Accepted | None = None
        """The sum of the engine's `Accepted` deltas so far; None before the response is created."""
        self.has_begun = False
        """Whether the engine has accepted the first job of the turn."""
        self.is_rendered = self.is_begun = self.is_prefilled = False
        self.finished: Finished | None = None
        """The end of the current job, once it has ended."""
        self.stop = Stop()
        """Read by the engine."""

    def open(self) -> None:
        """The response is created, before or with the first report."""
        self.accepted = Accepted()

    def begin(self) -> None:
        """The engine has accepted the first job."""
        self.has_begun = True

    def read(self, deltas: list[Delta]) -> list[Delta]:
        """Take the reports out of a job's first deltas; returns the others."""
        if not self.is_rendered:
            self.is_rendered = True
            accepted = next((delta for delta in deltas if type(delta) is Accepted), Accepted())
            self.accepted = accepted if self.accepted is None else accepted.after(self.accepted)
            self._stages.lap("render")
        kinds = set(map(type, deltas))
        if Begun in kinds:
            self.is_begun = True
            self._stages.lap("engine_queue")
        rest = [delta for delta in deltas if type(delta) not in _REPORTS]
        if rest or self.finished is not None or Prefilled in kinds:
            self.is_begun = self.is_prefilled = True
            self._stages.lap("prefill")
        return rest

    def ask_to_stop(self, asked: bool) -> None:
        """Ask the engine to end the answer as soon as it may, or no longer."""
        self.stop.asked = asked

    def finish(self, finished: Finished | None) -> None:
        """The current job has ended; None: the next one begins."""
        self.finished = finished

    def finish_for(self, reason: FinishReason) -> None:
        """The current job ends for this reason, whatever its engine reports."""
        self.finished = structs.replace(self.finished or NO_TOKENS, reason=reason)

    def end_job(self) -> None:
        """The next job begins anew."""
        self.is_rendered = self.is_begun = self.is_prefilled = False
