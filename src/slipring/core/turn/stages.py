"""The stages of a turn: a stopwatch with an injected clock, and the progress of the engine's job, which ends
some of them."""

from collections.abc import Awaitable

from slipring.core.generation import Accepted, Begun, Delta, Prefilled
from slipring.core.ports import Clock
from slipring.protocol.timing import Stage, StageName

_MOST_LAPS = 400


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

    def fold(self) -> None:
        """Bound the list: above 400 stages, replace the oldest 200 by one named ``rollout``."""
        if len(self.laps) > _MOST_LAPS:
            folded = self.laps[: _MOST_LAPS // 2]
            end = self.laps[len(folded)].start_ms
            first = Stage("rollout", folded[0].start_ms, round(end - folded[0].start_ms, 3))
            self.laps[: len(folded)] = [first]

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


class JobProgress:
    """How far the engine is with the current job of a turn, up to its first output.

    Each report ends a stage of the turn.
    """

    __slots__ = ("_stages", "accepted", "is_begun", "is_prefilled", "is_rendered")

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self.accepted: Accepted | None = None
        """The sum of the engine's `Accepted` deltas so far; None before the response is created."""
        self.is_rendered = self.is_begun = self.is_prefilled = False

    def read(self, deltas: list[Delta], *, has_ended: bool) -> list[Delta]:
        """Take the reports out of a job's first deltas; returns the others. ``has_ended``: these are the
        last."""
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
        if rest or has_ended or Prefilled in kinds:
            self.is_begun = self.is_prefilled = True
            self._stages.lap("prefill")
        return rest

    def open(self) -> None:
        """The response is created, before or with the first report."""
        self.accepted = Accepted()

    def end_job(self) -> None:
        """The next job begins anew."""
        self.is_rendered = self.is_begun = self.is_prefilled = False
