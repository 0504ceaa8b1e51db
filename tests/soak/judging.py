"""Judges whether a server stays as it is: compares late windows of a soak with early ones.

Pure: windows in, faults out. A figure is the median of its samples in a window, so that single moments do not
count. The first part of a soak is a warm-up, in which caches fill.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1024 * 1024

_WARM_UP = 0.45
"""Share of the windows that are not judged."""
_WARM_ANSWERS = 20_000
"""Answers after which caches are full and heaps have the size that they keep, with two nodes that share the
clients. A short soak ends before: its memory grows, whether or not something leaks."""
_APART = 0.75
"""Share of the pairs of an early and a late window in which a figure that has grown is larger."""
_WAITING_SLACK = 0.1
"""Seconds per second by which the servers may wait longer for a CPU at the end, for latency to be judged."""
_FEWEST = 3
"""Windows that each of the two compared periods needs."""


@dataclass(frozen=True)
class Window:
    """What was seen in one part of a soak."""

    resident_mib: float
    descriptors: float
    tasks: float
    latency: float
    """Time of a turn of the probe, as a multiple of the time of an echo in the same window."""
    cpu_ms: float
    """CPU time of the servers per answer. Other processes affect it less than latency; but the fewer answers
    a busy machine lets them give, the more each costs."""
    turns: int = 0
    turn_ms: float = 0.0
    echo_ms: float = 0.0
    client_mib: float = 0.0
    """Memory of the clients' own process."""
    waiting: float = 0.0
    """How long the servers' processes were ready to run and waited for a CPU, in seconds per second."""


@dataclass(frozen=True)
class Bound:
    """How much a figure may grow from the early windows to the late ones."""

    name: str
    unit: str
    share: float
    """Growth that is tolerated, as a share of the early figure."""
    slack: float
    """Growth that is tolerated in any case."""

    def allows(self, early: float, late: float) -> bool:
        return late <= early * (1 + self.share) + self.slack


BOUNDS = {
    "resident_mib": Bound("memory", "MiB", 0.04, 6.0),
    "descriptors": Bound("descriptors", "", 0.10, 8.0),
    "tasks": Bound("tasks", "", 0.10, 12.0),
    "latency": Bound("latency", "× an echo", 0.50, 1.0),
    "cpu_ms": Bound("CPU per answer", "ms", 0.40, 1.0),
}
"""By the name of the field of ``Window``. Memory has the most precise bound, because it is measured most
precisely; latency the least."""

_TURN = Bound("a turn", "ms", 0.50, 1.0)
_CACHES_MIB = 48.0
"""What the caches of two nodes add while they fill (`recognised_bytes` and `recent_bytes`), and what their
heaps need around it."""
_COLD_MEMORY = Bound("memory, while caches fill", "MiB", 0.04, 6.0 + _CACHES_MIB)
"""The bound on memory if the windows that are compared are those in which caches fill. A leak of 20 kB per
answer, which `--plant memory` makes, is found in three minutes nevertheless."""


@dataclass(frozen=True)
class Trend:
    """One figure: its medians over the early and over the late windows, and whether it has grown."""

    bound: Bound
    early: float
    late: float
    has_grown: bool
    is_judged: bool = True
    """False: the machine was so much busier at the end that nothing follows from the figure."""

    def __str__(self) -> str:
        unit = f" {self.bound.unit}" if self.bound.unit else ""
        verdict = "GROWS" if self.has_grown else "flat" if self.is_judged else "not judged on a busy machine"
        return f"{self.bound.name}: {self.early:.1f} → {self.late:.1f}{unit}, {verdict}"


def periods(windows: Sequence[Window]) -> tuple[Sequence[Window], Sequence[Window]]:
    """The early and the late windows: the first and the last third of what follows the warm-up. What grows
    evenly from the start has about doubled from one to the other."""
    judged = windows[int(len(windows) * _WARM_UP) :]
    third = len(judged) // 3
    return judged[:third], judged[len(judged) - third :]


def _is_warm(windows: Sequence[Window]) -> bool:
    """Whether enough answers were given before the first window that is judged."""
    return sum(window.turns for window in windows[: int(len(windows) * _WARM_UP)]) >= _WARM_ANSWERS


def is_long_enough(windows: Sequence[Window]) -> bool:
    return len(windows) > 0 and len(periods(windows)[0]) >= _FEWEST


def trends(windows: Sequence[Window]) -> list[Trend]:
    """Judge every figure. One has grown if the median of the late windows is beyond the bound, and if a late
    window is mostly above an early one, whichever two are compared: a figure that jumps up and down has not
    grown, and one that has is found also if it jumped in some of the early windows."""
    early, late = periods(windows)
    found = []
    for name, usual in BOUNDS.items():
        bound = usual
        if name == "latency":
            found.append(_latency(bound, early, late))
            continue
        if name == "resident_mib" and not _is_warm(windows):
            bound = _COLD_MEMORY
        before, after = ([getattr(window, name) for window in each] for each in (early, late))
        first, last = statistics.median(before), statistics.median(after)
        is_apart = _share_above(before, after) >= _APART
        found.append(Trend(bound, first, last, is_apart and not bound.allows(first, last)))
    return found


def _latency(bound: Bound, early: Sequence[Window], late: Sequence[Window]) -> Trend:
    """Judge the latency.

    Whatever else the machine does only adds to it, in single windows or in many, so the best of the calmest
    windows are compared. A busy machine can slow down the turns and not the echoes, or the other way round: a
    turn has to take longer by itself and as a multiple of an echo. If the servers waited much longer for a
    CPU at the end, that alone can be the reason. A server that itself needs more CPU is found by that.
    """
    before, after = _calmest(early), _calmest(late)
    first, last = (_lower([window.latency for window in each]) for each in (before, after))
    first_ms, last_ms = (_lower([window.turn_ms for window in each]) for each in (before, after))
    waited, waits = (statistics.median(window.waiting for window in each) for each in (before, after))
    is_judged = waits <= 2 * waited + _WAITING_SLACK
    has_grown = not bound.allows(first, last) and not _TURN.allows(first_ms, last_ms)
    return Trend(bound, first, last, is_judged and has_grown, is_judged)


def _calmest(windows: Sequence[Window]) -> Sequence[Window]:
    """The three quarters of the windows in which the servers waited least for a CPU."""
    return sorted(windows, key=lambda window: window.waiting)[: (3 * len(windows) + 3) // 4]


def _lower(values: Sequence[float]) -> float:
    """The lower quartile."""
    return sorted(values)[len(values) // 4]


def _share_above(before: Sequence[float], after: Sequence[float]) -> float:
    """Of all pairs of an early and a late value, the share in which the late one is above the other."""
    return sum(late > early for early in before for late in after) / (len(before) * len(after))


@dataclass(frozen=True)
class Rest:
    """What a server holds while it has no clients."""

    descriptors: float
    tasks: float
    in_use: dict[str, float]
    """Metrics that count what clients use."""
    processes: float = 1
    """Processes that serve clients."""


_REST_DESCRIPTORS = 48
"""Of one process: connections to the database, and processes for compiling and for tools, which the first
requests open. A leak by every hundredth client is more within minutes."""
_REST_TASKS = 8


def left_behind(before: Rest, after: Rest) -> list[str]:
    """What the clients of a soak have left behind."""
    faults = [
        f"{name} is {value:g} although no client is left" for name, value in after.in_use.items() if value
    ]
    if (more := after.descriptors - before.descriptors) > _REST_DESCRIPTORS * after.processes:
        faults.append(f"{more:g} more descriptors than before the first client")
    if (more := after.tasks - before.tasks) > _REST_TASKS * after.processes:
        faults.append(f"{more:g} more tasks than before the first client")
    return faults
