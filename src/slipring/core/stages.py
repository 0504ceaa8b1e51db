"""Where a turn's time goes: a stopwatch for its stages. The clock is handed in: the core reads none."""

from collections.abc import Callable

from slipring.protocol.timing import Stage, StageName

Clock = Callable[[], float]


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

    @property
    def total_ms(self) -> float:
        return as_ms(self._last - self._arrived)


def as_ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
