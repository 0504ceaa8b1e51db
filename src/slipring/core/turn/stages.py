"""Where a turn's time goes: a stopwatch for its stages. The clock is handed in: the core reads none."""

from collections.abc import Callable

from slipring.protocol.timing import Stage, StageName

Clock = Callable[[], float]


_MOST_LAPS = 400


class Stages:
    """A stopwatch that starts when a request arrives: each lap ends the stage that the last one began."""

    __slots__ = ("_arrived", "_clock", "_last", "laps", "send_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived = self._last = clock()
        self.laps: list[Stage] = []
        self.send_s = 0.0
        """Spent in waiting for the client to take what was written while the answer was made."""

    def lap(self, name: StageName) -> None:
        now, start = self._clock(), self._last
        self.laps.append(Stage(name, as_ms(start - self._arrived), as_ms(now - start)))
        self._last = now

    def fold(self) -> None:
        """Where there are many laps, those that are long over become one."""
        if len(self.laps) > _MOST_LAPS:
            folded = self.laps[: _MOST_LAPS // 2]
            end = self.laps[len(folded)].start_ms
            first = Stage("rollout", folded[0].start_ms, round(end - folded[0].start_ms, 3))
            self.laps[: len(folded)] = [first]

    @property
    def total_ms(self) -> float:
        return as_ms(self._last - self._arrived)


def as_ms(seconds: float) -> float:
    """Milliseconds with three digits after the point, in less than half the time that ``round`` takes."""
    return int(seconds * 1e6 + 0.5) / 1000
