"""The schedules of all replicas behind one address: each has a KV cache of its own.

A router chooses the replica of a chain, and answers name it. So the replica of a loop is known from its
first answer on. Before that, a loop is counted where most is free; the first answer moves it. A chain that
the router sends elsewhere later, because its replica has died or is drained, is counted there from then on,
without its context.

Pure, like ``LoopSchedule``.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from msgspec import structs

from slipring.engines.scheduling.loop_schedule import MOST_LISTED, Loop, LoopSchedule, Need, Rules, Turn
from slipring.observation import live_messages

_MOST_REPLICAS = 256
_MOST_ROUTES = 65_536
"""Chains whose replica is remembered; those that were used longest ago are forgotten first."""


class _Replica:
    """One replica."""

    __slots__ = ("has_left", "name", "schedule")

    def __init__(self, schedule: LoopSchedule) -> None:
        self.name = ""
        """What its answers call it; empty until then."""
        self.schedule = schedule
        self.has_left = False
        """Whether the router has sent a chain of its elsewhere, since its last answer."""


class ReplicaSchedules:
    """The loops of one engine, by replica."""

    def __init__(
        self, rules: Rules, on_demoted: Callable[[Loop], None] = lambda loop: None, count: int = 1
    ) -> None:
        """``rules``: of a replica that does not report the size of its cache. ``most_running`` is for all of
        them together. ``count``: how many there are, as far as that is known."""
        self._rules = rules
        self._on_demoted = on_demoted
        self._replicas = [self._new() for _ in range(min(count, _MOST_REPLICAS))]
        """The one whose turn has run last is the last one."""
        self._at: dict[Turn, _Replica] = {}
        """Where the turns are that wait or run."""
        self._routes: OrderedDict[str, str] = OrderedDict()
        """The names of the replicas that chains were answered by; the chain used longest ago first."""

    # What operators see

    def status(self, now: float) -> live_messages.Loops:
        """Who has what, who waits, and for what; on all replicas."""
        is_full = self._running >= self._rules.most_running
        parts = [(each, each.schedule.status(now, is_full)) for each in sorted(self._present(), key=_name_of)]
        listed = [[structs.replace(loop, replica=each.name) for loop in part.listed] for each, part in parts]
        return live_messages.Loops(
            capacity_tokens=sum(part.capacity_tokens for _, part in parts),
            held_tokens=sum(part.held_tokens for _, part in parts),
            running=sum(part.running for _, part in parts),
            paused=sum(part.paused for _, part in parts),
            waiting=sum(part.waiting for _, part in parts),
            listed=_most_telling(chain.from_iterable(listed)),
            replicas=[
                live_messages.Replica(each.name, part.capacity_tokens, part.held_tokens)
                for each, part in parts
            ],
        )

    def is_silent(self, loop: Loop, now: float) -> bool:
        """Whether a loop has probably ended, as far as its replica knows; as ``LoopSchedule.is_silent``."""
        return all(each.schedule.is_silent(loop, now) for each in self._replicas)

    # What is asked for

    def is_open_to(self, need: Need) -> bool:
        """Whether the next turn of a loop may run at once."""
        replica = self._holder(need) or self._probable(need.route)
        return self._running < self._rules.most_running and replica.schedule.is_open_to(need)

    def expect(self, need: Need, now: float) -> None:
        """A turn will ask soon: until then its loop keeps what it has; as ``LoopSchedule.expect``."""
        if (holder := self._holder(need)) is not None:
            holder.schedule.expect(need, now)

    def output_grew(self, key: str, now: float) -> None:
        """As ``LoopSchedule.output_grew``."""
        for replica in self._replicas:
            replica.schedule.output_grew(key, now)

    def was_steered(self, key: str) -> None:
        """As ``LoopSchedule.was_steered``."""
        for replica in self._replicas:
            replica.schedule.was_steered(key)

    def ask(self, tenant: str, need: Need, now: float) -> Turn:
        """A turn of a loop wants to run."""
        replica, holder = self._probable(need.route), self._holder(need)
        if holder is not None and holder is not replica:
            if holder.has_left or need.route in self._routes:
                # Another turn of its chain was answered by another replica since.
                if (loop := holder.schedule.give_away(need)) is not None:
                    replica.schedule.take_paused(loop)
                self._forget_if_gone(holder)
            else:
                replica = holder
        turn = replica.schedule.ask(tenant, need, now)
        self._at[turn] = replica
        return turn

    def next(self, now: float) -> Turn | None:
        """The turn that runs next, replicas in turn. None if none may run now."""
        if self._running >= self._rules.most_running:
            return None
        for at, replica in enumerate(self._replicas):
            if (turn := replica.schedule.next(now)) is not None:
                self._replicas.append(self._replicas.pop(at))
                return turn
        return None

    def placed(self, turn: Turn, name: str, capacity: int | None, now: float) -> None:
        """The replica with this name answers a running turn. ``capacity``: what its loops may have together,
        if it reports that."""
        before = self._at[turn]
        replica = self._named(name, capacity, before)
        replica.has_left = False
        if before is not replica:
            before.schedule.give_away_running(turn)
            replica.schedule.take_running(turn, now)
            self._at[turn] = replica
            if self._routes.get(turn.route) == before.name:
                self._leave(before)
            self._forget_if_gone(before)
        self._routes[turn.route] = name
        self._routes.move_to_end(turn.route)
        if len(self._routes) > _MOST_ROUTES:
            self._routes.popitem(last=False)

    def end(self, turn: Turn, tokens: int, tools: Iterable[str], now: float) -> None:
        """A running turn has ended with a context of so many tokens; the loop waits for these tools."""
        self._at.pop(turn).schedule.end(turn, tokens, tools, now)

    def withdraw(self, turn: Turn, now: float) -> None:
        """A turn does not want to run any more, or has failed."""
        self._at.pop(turn).schedule.withdraw(turn, now)

    def drop(self, key: str) -> None:
        """A loop has ended: it will not come back."""
        for replica in list(self._replicas):
            replica.schedule.drop(key)
            self._forget_if_gone(replica)

    def measured(self, turn: Turn, tokens: int, seconds: float) -> None:
        """So many tokens were prefilled for a turn in this time."""
        self._at[turn].schedule.measured(tokens, seconds)

    def replica_of(self, route: str) -> str:
        """The name of the replica that the next turn of a chain will probably reach."""
        return self._probable(route).name if self._routes else ""  # without routes, none has a name

    # Which replica

    @property
    def _running(self) -> int:
        return sum(replica.schedule.running for replica in self._replicas)

    def _new(self) -> _Replica:
        return _Replica(LoopSchedule(self._rules, self._on_demoted))

    def _present(self) -> Iterator[_Replica]:
        return (each for each in self._replicas if not each.has_left)

    def _holder(self, need: Need) -> _Replica | None:
        return next((each for each in self._replicas if each.schedule.has(need)), None)

    def _find(self, name: str) -> _Replica | None:
        return next((each for each in self._replicas if each.name == name), None)

    def _probable(self, route: str) -> _Replica:
        """The replica that the next turn of a chain will probably reach: the one that has answered it, or
        where most is free."""
        if (name := self._routes.get(route)) is not None:
            known = self._find(name)
            if known is not None and not known.has_left:
                return known
        return max(list(self._present()) or self._replicas, key=lambda each: each.schedule.free_tokens)

    def _named(self, name: str, capacity: int | None, at: _Replica | None = None) -> _Replica:
        """The replica with a name, which ``at`` may be if it has none."""
        replica = self._find(name)
        if replica is None:
            replica = at if at is not None and not at.name else self._find("")
            if replica is None:
                replica = self._new()
                self._forget_surplus()
                self._replicas.append(replica)
            replica.name = name
        if capacity is not None and capacity != replica.schedule.rules.capacity:
            replica.schedule.rules = structs.replace(replica.schedule.rules, capacity=capacity)
        return replica

    def _leave(self, replica: _Replica) -> None:
        """A replica does not answer its chains any more. What waits for room there goes elsewhere."""
        replica.has_left = True
        for turn in replica.schedule.give_away_waiting():
            other = self._probable("")
            other.schedule.take_waiting(turn)
            self._at[turn] = other

    def _forget_if_gone(self, replica: _Replica) -> None:
        if replica.has_left and replica.schedule.is_empty:
            self._replicas.remove(replica)

    def _forget_surplus(self) -> None:
        """Forget a replica without turns, with its loops, if there are too many; one that has left first."""
        if len(self._replicas) >= _MOST_REPLICAS:
            busy = {id(replica) for replica in self._at.values()}
            idle = [each for each in self._replicas if id(each) not in busy]
            if idle:
                self._replicas.remove(min(idle, key=lambda each: not each.has_left))


def _name_of(replica: _Replica) -> str:
    return replica.name


def _most_telling(loops: Iterable[live_messages.Loop]) -> list[live_messages.Loop]:
    """Those that wait, longest first, then those that have most; as many of each as of one replica."""
    waiting: list[live_messages.Loop] = []
    others: list[live_messages.Loop] = []
    for loop in loops:
        (waiting if loop.state == "waiting" else others).append(loop)
    waiting.sort(key=lambda loop: -loop.seconds)
    others.sort(key=lambda loop: -loop.tokens)
    return waiting[:MOST_LISTED] + others[:MOST_LISTED]
