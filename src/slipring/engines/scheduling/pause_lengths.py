"""How long loops pause between two turns, learnt while they run.

A loop pauses while its client runs the tools that the model has called. Lengths of such pauses are about
log-normal and differ by tool, so each set of tools of each tenant has a distribution of its own, with a share
of loops that never came back.
"""

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import TypeVar

_MOST_KINDS = 64
"""Kinds of pauses that are remembered of a tenant; the one that was used longest ago is forgotten first."""
_MOST_TENANTS = 1024
_MOST_NAMES = 4
_NAME_CHARS = 64
_MEMORY = 50.0
"""Observations after which older ones count little."""
_PRIOR_WEIGHT = 2.0
_PRIOR_MEAN = math.log(2.0)
_PRIOR_VARIANCE = 2.25
_LEAST_S = 0.01
_SHORTEST_SIGMA = 0.1
_MOST_SILENT = 256
_SILENCE_SIGMAS = 3.0
"""By how many standard deviations a pause is longer than the mean before it counts as one without an end."""
_GRID = [-3.0 + 0.25 * step for step in range(29)]
"""Deviations from the mean, in standard deviations, at which a pause may be given up."""
_PHI = [0.5 * (1.0 + math.erf(z / math.sqrt(2.0))) for z in _GRID]

Kind = tuple[str, str]
"""A tenant, and what its loops wait for."""


def kind_of(tenant: str, tools: Iterable[str]) -> Kind:
    """The kind of a pause in which these tools run; without any, the loop waits for its user."""
    names = sorted({name[:_NAME_CHARS] for name in tools})
    return tenant, "+".join(names[:_MOST_NAMES])


class PauseLength:
    """The distribution of one kind of pause."""

    __slots__ = ("_drawn", "_grid_s", "_mean", "_open", "_returned", "_silent", "_square", "_weight")

    def __init__(self) -> None:
        self._weight = _PRIOR_WEIGHT
        self._mean = _PRIOR_MEAN
        self._square = _PRIOR_VARIANCE
        """The mean of squared deviations."""
        self._drawn = 0.0, 0.0
        """The mean and the standard deviation to which the grid below belongs."""
        self._grid_s: list[float] = []
        self._returned = 1.0
        """The share of pauses that ended with another turn."""
        self._open: dict[Hashable, float] = {}
        """When the pauses began that may still end with another turn, or their loops were last heard of, by
        these loops; the longest ago first."""
        self._silent: OrderedDict[Hashable, float] = OrderedDict()
        """Loops whose pauses have lasted too long, the latest of them, and by how much less likely that has
        made it that a loop comes back."""

    def begin(self, loop: Hashable, now: float) -> None:
        """A loop pauses."""
        self._open[loop] = now

    def end(self, loop: Hashable, seconds: float) -> None:
        """A pause has ended with another turn of its loop."""
        self._open.pop(loop, None)
        self._recall(loop)
        self.observe(seconds)

    def hear(self, loop: Hashable, now: float) -> None:
        """What a pausing loop waits for is known to run still."""
        self._recall(loop)
        self._open.pop(loop, None)
        self._open[loop] = now

    def _recall(self, loop: Hashable) -> None:
        """A loop that was taken for one that has ended goes on."""
        self._returned = min(self._returned + self._silent.pop(loop, 0.0), 1.0)

    def forget(self, loop: Hashable) -> None:
        """Nothing will be known of the end of a pause."""
        self._open.pop(loop, None)
        self._silent.pop(loop, None)

    def review(self, now: float) -> None:
        """Count pauses that have lasted for too long as pauses without an end: many clients never say that a
        loop has ended."""
        silence_s = self.silence_s
        while self._open:
            loop, began_at = next(iter(self._open.items()))
            if now - began_at < silence_s:
                return
            before = self._returned
            self.observe_end(loop)
            self._silent[loop] = before - self._returned
            if len(self._silent) > _MOST_SILENT:
                self._silent.popitem(last=False)

    def observe(self, seconds: float) -> None:
        """Learn from the length of a pause."""
        value = math.log(max(seconds, _LEAST_S))
        self._weight = min(self._weight + 1.0, _MEMORY)
        part = 1.0 / self._weight
        deviation = value - self._mean
        self._mean += part * deviation
        self._square += part * (deviation * (value - self._mean) - self._square)
        self._returned += part * (1.0 - self._returned)

    def observe_end(self, loop: Hashable) -> None:
        """A pause has no end: its loop has ended."""
        self._silent.pop(loop, None)
        if self._open.pop(loop, None) is None:  # which is known already
            return
        self._weight = min(self._weight + 1.0, _MEMORY)
        self._returned -= self._returned / self._weight

    @property
    def _sigma(self) -> float:
        return max(math.sqrt(self._square), _SHORTEST_SIGMA)

    @property
    def median_s(self) -> float:
        return math.exp(self._mean)

    @property
    def silence_s(self) -> float:
        """A pause that lasts longer has probably no end."""
        return math.exp(self._mean + _SILENCE_SIGMAS * self._sigma)

    def hold_s(self, age_s: float, gain_s: float, cost_rate: float, *, returns: bool = False) -> float:
        """How much longer it pays to hold the context of a loop that has paused for ``age_s``.

        ``gain_s`` is saved if the loop comes back while its context is held, and each second of holding costs
        ``cost_rate`` seconds. ``returns``: it is known to come back. Returns the time for which the expected
        gain exceeds the expected cost by most; 0 if it never does.
        """
        sigma, returned = self._sigma, 1.0 if returns else self._returned
        reached = returned * self._share_before(age_s, sigma)
        left = 1.0 - reached
        if left <= 0.0:
            return 0.0
        best, hold, cost, before, share_before = 0.0, 0.0, 0.0, age_s, reached
        times = self._times(sigma)
        for at, phi in islice(zip(times, _PHI, strict=True), bisect_right(times, age_s), None):
            share = returned * phi
            if gain_s * (returned - reached) / left - cost <= best:
                break  # what is left to gain is less than what was found
            cost += cost_rate * (at - before) * (1.0 - (share_before + share) / 2.0) / left
            value = gain_s * (share - reached) / left - cost
            if value > best:
                best, hold = value, at - age_s
            before, share_before = at, share
        return hold

    def _times(self, sigma: float) -> list[float]:
        """The times of the grid."""
        if (drawn := (self._mean, sigma)) != self._drawn:
            self._drawn, self._grid_s = drawn, [math.exp(self._mean + sigma * z) for z in _GRID]
        return self._grid_s

    def _share_before(self, age_s: float, sigma: float) -> float:
        """The share that has ended by this age, of pauses that end with another turn."""
        if age_s <= 0.0:
            return 0.0
        z = (math.log(age_s) - self._mean) / sigma
        return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


class PauseLengths:
    """The distributions of all kinds of pauses, a bounded number of them. What one tenant does changes
    nothing for another."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[str, PauseLength]] = OrderedDict()

    def of(self, kind: Kind) -> PauseLength:
        """The distribution of a kind. One that is not known begins with a guess."""
        tenant, tools = kind
        kinds = _entry(self._tenants, tenant, OrderedDict, _MOST_TENANTS)
        return _entry(kinds, tools, PauseLength, _MOST_KINDS)


_T = TypeVar("_T")


def _entry(entries: OrderedDict[str, _T], key: str, make: Callable[[], _T], most: int) -> _T:
    """The entry with a key, made if there is none. Past ``most`` the one used longest ago is dropped."""
    if key not in entries:
        entries[key] = make()
        if len(entries) > most:
            entries.popitem(last=False)
    entries.move_to_end(key)
    return entries[key]
