"""Which loops keep their context in the engine's KV cache, and which turn runs next.

When the contexts of all loops do not fit the cache, an engine evicts the one that was used longest ago. Among
agents that take turns, that is the one that comes back next, so every turn prefills its whole history. This
schedule lets only as many loops take part as fit together. Those are *resident*: their next turn runs at once
and finds its context. The turns of others wait until a resident loop ends, or until giving up the context of
one that pauses costs less than their waiting.

Pure: the caller passes the time and does what is returned.
"""

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from msgspec import Struct

from slipring.engines.scheduling.pause_lengths import Kind, PauseLengths, kind_of
from slipring.observation import live_messages

REVIEW_S = 0.25
"""How long a decision about a paused loop stands before it is made again."""
_MOST_REVIEWED = 32
"""Paused loops about which is decided at once, those first about which nothing was decided for longest. It
takes 10 to 30 µs for each, on the event loop."""
_MOST_LOOPS = 16_384
"""Loops that are remembered. Past it, those without a resident context are forgotten, oldest first."""
_MOST_RESIDENT = 1024
"""Paused loops that are resident, however small their contexts are: all of them are weighed against a turn
that waits."""
_SLICE_PREFILLS = 20.0
"""A loop keeps its place at least for so many times as long as its context takes to be prefilled again."""
_FIRST_RATE = 10_000.0
"""Tokens prefilled per second, before any was measured."""
_LEAST_MEASURED = 1024
"""Prefills of fewer tokens say nothing about the rate."""
MOST_LISTED = 20
_EXPECTED_S = 2.0
"""How long a request takes at most to ask for its turn, once it has come: it is rendered meanwhile."""
_OVERDUE = 2.0
"""A turn of a tenant that has less than its share waits for no more than so many times as long as is patient,
even if all that others hold belongs to turns that run. The engine then has more than it can hold."""
_RATE_MEMORY = 0.02
_GROWTH_MEMORY = 0.02
_GROWTH_TURNS = 2.0
"""A loop becomes resident only if there is room for so many further turns of all that are."""


class Rules(Struct, frozen=True):
    """What the schedule may give away, and how patient it is."""

    capacity: int
    """Tokens that the contexts of resident loops may have together."""
    most_running: int
    """Turns that run at once."""
    patience_s: float = 60.0
    """A turn that has waited longer takes the place of a loop that had its time."""
    slice_s: float = 20.0
    """How long a loop keeps its place at least, once it has it, against those that have waited long."""


class Need(Struct, frozen=True):
    """What a turn needs of the cache, and which loop it belongs to."""

    key: str
    """Names its loop from now on."""
    tokens: int
    """Of its prompt and its expected answer."""
    after: str = ""
    """What its loop was named before: the key of the turn that this one continues. A loop goes on from a turn
    once; a second turn that continues the same one begins a loop of its own."""
    branch: str = ""
    """Names the loops that have the beginning of their context in common."""
    source: str = ""
    """The branch to which the context belongs that this turn continues, if it begins a loop of its own."""
    shared: int = 0
    """The tokens of that context. A loop of the source that is resident has them in the cache already."""
    replaces: bool = False
    """Whether the loop of the branch goes on with it, whichever turn of that it continues: a client has
    changed its history."""
    route: str = ""
    """Turns with the same one reach the same replica."""


@dataclass(slots=True, eq=False)
class Loop:
    """What is known of one loop: a branch of a chain, with one turn at a time."""

    key: str
    branch: str
    tenant: str
    shared: int
    """Tokens at the beginning of its context that belong to another loop."""
    began_at: float
    former: str
    """Its key before the turn that waits or runs; empty if what the turn continues is gone."""
    turns: int = 0
    charged: int = 0
    """Tokens of the cache that are kept for its context; 0 if the loop is not resident."""
    tokens: int = 0
    """Of its context after its last turn."""
    resident_since: float = 0.0
    paused_at: float | None = None
    """When its last turn ended; None while a turn waits or runs."""
    kind: Kind = ("", "")
    """What it waits for while it pauses."""
    heard_at: float = -math.inf
    """When the output of its tools was last known to grow, in this pause."""
    was_expected: bool = False
    """Whether a request for its next turn has come in this pause."""
    is_steered: bool = False
    """Whether another turn follows at once the one that has its key."""
    kept_until: float = -math.inf
    """Until when it keeps its context in any case, in this pause: its next turn is about to ask."""
    hold_until: float = math.inf
    """Until when it pays to hold its context while others wait; decided at ``reviewed_at``."""
    reviewed_at: float = -math.inf

    @property
    def is_resident(self) -> bool:
        return self.charged > 0


@dataclass(slots=True, eq=False)
class Turn:
    """One turn of a loop, which waits, runs and ends."""

    loop: Loop
    context_tokens: int
    route: str
    asked_at: float
    tokens: int = 0
    """What it adds to the cache if its context is not there."""


class LoopSchedule:
    """The loops of one engine."""

    def __init__(self, rules: Rules, on_demoted: Callable[[Loop], None] = lambda loop: None) -> None:
        """``on_demoted`` is called with a loop whose context need not be kept any longer."""
        self.rules = rules
        self.pauses = PauseLengths()
        self._on_demoted = on_demoted
        self._loops: OrderedDict[str, Loop] = OrderedDict()
        """By key; the one that was used longest ago first."""
        self._branches: dict[str, dict[Loop, None]] = {}
        """The same loops by branch; the one that was used longest ago first."""
        self._waiting: dict[Turn, None] = {}
        self._waiting_tokens = 0
        self._running: set[Turn] = set()
        self._paused: dict[Loop, None] = {}
        """The resident loops that pause."""
        self._held: dict[str, int] = {}
        """Tokens of resident loops, by tenant that has any."""
        self._held_tokens = 0
        self._prefill_rate = _FIRST_RATE
        self._growth = 0.0

    # What operators see

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def resident_tokens(self) -> int:
        return self._held_tokens

    def status(self, now: float, is_full: bool = False) -> live_messages.Loops:
        """Who has what, who waits, and for what. ``is_full``: as many turns run as may, on all replicas."""
        is_full = is_full or len(self._running) >= self.rules.most_running
        waiting = [
            live_messages.Loop(
                *(turn.loop.tenant, "waiting", now - turn.asked_at, turn.tokens, turn.loop.turns),
                why="as many turns run as may" if is_full else self._why(turn),
            )
            for turn in islice(self._waiting, MOST_LISTED)
        ]
        resident = [turn.loop for turn in self._running]
        resident = heapq.nlargest(MOST_LISTED, [*resident, *self._paused], key=lambda loop: loop.charged)
        return live_messages.Loops(
            capacity_tokens=self.rules.capacity,
            held_tokens=self._held_tokens,
            running=len(self._running),
            paused=len(self._paused),
            waiting=len(self._waiting),
            listed=waiting + [self._described(loop, now) for loop in resident],
        )

    def _why(self, turn: Turn) -> str:
        """Why a turn waits although another could run, for operators."""
        room = max(int(self._room()), 0)
        if turn.tokens <= room:
            return "another turn goes first"
        why = f"{room:,} tokens are free (running: {len(self._running)}, paused: {len(self._paused)})"
        if self._held.keys() - {turn.loop.tenant}:
            most = max(self._held, key=self._held.__getitem__)
            why += f", {most} holds most ({self._held[most]:,})"
            if not self._is_poor(turn):
                why += f", {turn.loop.tenant} would exceed its share"
        return why

    def _described(self, loop: Loop, now: float) -> live_messages.Loop:
        if loop.paused_at is None:
            return live_messages.Loop(loop.tenant, "running", 0.0, loop.charged, loop.turns)
        usually_s = self.pauses.of(loop.kind).median_s
        return live_messages.Loop(
            *(loop.tenant, "paused", now - loop.paused_at, loop.charged, loop.turns, loop.kind[1], usually_s)
        )

    @property
    def free_tokens(self) -> float:
        """What would be left of the cache if all turns that wait had their room."""
        return self._room() - self._waiting_tokens

    @property
    def is_empty(self) -> bool:
        """Whether there is no loop."""
        return not (self._loops or self._waiting or self._running)

    def has(self, need: Need) -> bool:
        """Whether a turn that needs this continues a loop."""
        return self._continued(need) is not None

    def is_open_to(self, need: Need) -> bool:
        """Whether the next turn of a loop may run at once."""
        loop = self._continued(need)
        has_place = loop is not None and loop.is_resident
        return len(self._running) < self.rules.most_running and (has_place or not self._waiting)

    def is_silent(self, loop: Loop, now: float) -> bool:
        """Whether a loop has probably ended: it pauses, and is not known here any more or was not heard of
        for longer than its kind of pause lasts. Many clients never say that a loop has ended."""
        if loop.paused_at is None:
            return False
        if self._loops.get(loop.key) is not loop:
            return True
        return now - max(loop.paused_at, loop.heard_at) >= self.pauses.of(loop.kind).silence_s

    # What happens

    def ask(self, tenant: str, need: Need, now: float) -> Turn:
        """A turn of a loop wants to run."""
        loop = self._continued(need)
        if loop is None:
            # A loop has one turn at a time: a second one with its key is taken for a loop that ends with it.
            loop = Loop(need.key, need.branch or need.key, tenant, self._shared(need), now, need.key)
            loop.kind = tenant, ""
            if need.key not in self._loops:
                self._enter(loop)
                self._forget_oldest()
        else:
            assert loop.paused_at is not None
            self.pauses.of(loop.kind).end(loop, now - loop.paused_at)
            loop.paused_at = None
            self._paused.pop(loop, None)
            if need.key != loop.key:
                loop.is_steered = False
            loop.former = loop.key
            self._rename(loop, need.key)
        turn = Turn(loop, need.tokens, need.route, now)
        self._wait(turn)
        return turn

    def expect(self, need: Need, now: float) -> None:
        """A turn will ask soon: until then its loop keeps what it has. Once in a pause, because a request may
        fail before it asks, and so may the next one."""
        if (loop := self._continued(need)) is not None and not loop.was_expected:
            loop.was_expected = True
            loop.kept_until = now + _EXPECTED_S

    def output_grew(self, key: str, now: float) -> None:
        """The output of the tools grows for which the loop with this key waits."""
        if (loop := self._loops.get(key)) is not None and loop.paused_at is not None:
            loop.heard_at = now
            self.pauses.of(loop.kind).hear(loop, now)

    def was_steered(self, key: str) -> None:
        """A turn follows the one with this key at once, unless that calls tools of its client."""
        if (loop := self._loops.get(key)) is not None:
            loop.is_steered = True

    def _continued(self, need: Need) -> Loop | None:
        """The paused loop that goes on with a turn."""
        for key in (need.key, need.after):
            if (loop := self._loops.get(key)) is not None:
                return loop if loop.paused_at is not None else None
        if need.replaces:
            loops = reversed(self._branches.get(need.branch, {}))
            return next((loop for loop in loops if loop.paused_at is not None), None)
        return None

    def _shared(self, need: Need) -> int:
        """What a new loop need not have for itself."""
        is_there = any(loop.is_resident for loop in self._branches.get(need.source, ()))
        return need.shared if is_there else 0

    def _wait(self, turn: Turn) -> None:
        turn.tokens = self._size(turn.loop, turn.context_tokens)
        self._waiting[turn] = None
        self._waiting_tokens += turn.tokens

    def next(self, now: float) -> Turn | None:
        """The turn that runs next; it counts as running from now on. None if none may run now."""
        if not self._waiting or len(self._running) >= self.rules.most_running:
            return None
        turn = self._first_resident() or self._first_admitted(now)
        if turn is None:
            return None
        del self._waiting[turn]
        self._waiting_tokens -= turn.tokens
        self._running.add(turn)
        if not turn.loop.is_resident:
            turn.loop.resident_since = now
        self._charge(turn.loop, max(turn.tokens, turn.loop.charged))
        self._shed()
        return turn

    def end(self, turn: Turn, tokens: int, tools: Iterable[str], now: float) -> None:
        """A running turn has ended with a context of so many tokens; the loop waits for these tools."""
        self._running.remove(turn)
        loop = turn.loop
        loop.turns += 1
        if loop.turns > 1:
            self._growth += _GROWTH_MEMORY * (max(tokens - loop.tokens, 0) - self._growth)
        loop.tokens = tokens
        loop.kind = kind_of(loop.tenant, tools)
        self._charge(loop, self._size(loop, tokens))
        self._pause(loop, now)
        if loop.is_steered and not loop.kind[1]:
            loop.kept_until = now + _EXPECTED_S
        self._shed()

    def withdraw(self, turn: Turn, now: float) -> None:
        """A turn does not want to run any more, or has failed."""
        if self._waiting.pop(turn, turn) is None:
            self._waiting_tokens -= turn.tokens
            self._resume_pause(turn.loop, now)
        elif turn in self._running:
            self._running.remove(turn)
            self._resume_pause(turn.loop, now)

    def _resume_pause(self, loop: Loop, now: float) -> None:
        """A turn has brought nothing. Its loop is what it was before, if it has a context that a later turn
        could continue, and whose end would be noticed."""
        if loop.is_resident:
            self._charge(loop, self._size(loop, loop.tokens))
        if self._loops.get(loop.key) is loop:
            self._remove(loop)
            if loop.turns and loop.former and loop.former not in self._loops:
                loop.key = loop.former
                self._enter(loop)
        self._pause(loop, now)

    def _enter(self, loop: Loop) -> None:
        self._loops[loop.key] = loop
        self._branches.setdefault(loop.branch, {})[loop] = None

    def _remove(self, loop: Loop) -> None:
        del self._loops[loop.key]
        loops = self._branches[loop.branch]
        del loops[loop]
        if not loops:
            del self._branches[loop.branch]

    def _rename(self, loop: Loop, key: str) -> None:
        """Name a loop anew; it was used now."""
        self._remove(loop)
        loop.key = key
        self._enter(loop)

    def drop(self, key: str) -> None:
        """A loop has ended: it will not come back. One whose next turn waits or runs ends if that brings
        nothing."""
        loop = self._loops.get(key)
        if loop is not None:
            self._remove(loop)
            if loop.paused_at is not None:
                self.pauses.of(loop.kind).observe_end(loop)
                self._demote(loop)
        for turn in (*self._waiting, *self._running):
            if turn.loop.former == key:
                turn.loop.former = ""

    # Loops that move to another replica

    def give_away(self, need: Need) -> Loop | None:
        """Forget the paused loop that goes on with a turn, which will run elsewhere."""
        loop = self._continued(need)
        if loop is not None:
            self._remove(loop)
            self.pauses.of(loop.kind).forget(loop)
            self._demote(loop)
        return loop

    def give_away_waiting(self) -> list[Turn]:
        """Forget all turns that wait, and their loops: they will run elsewhere."""
        turns = list(self._waiting)
        for turn in turns:
            self._part_with(turn)
        self._waiting.clear()
        self._waiting_tokens = 0
        return turns

    def give_away_running(self, turn: Turn) -> None:
        """Forget a running turn and its loop: it runs elsewhere."""
        self._running.remove(turn)
        self._part_with(turn)

    def _part_with(self, turn: Turn) -> None:
        self._charge(turn.loop, 0)
        if self._loops.get(turn.loop.key) is turn.loop:
            self._remove(turn.loop)

    def take_paused(self, loop: Loop) -> None:
        """A paused loop goes on here, without its context."""
        loop.shared = 0
        if loop.key not in self._loops:
            self._enter(loop)
            self._forget_oldest()

    def take_waiting(self, turn: Turn) -> None:
        """A turn waits here, without its context."""
        self.take_paused(turn.loop)
        self._wait(turn)

    def take_running(self, turn: Turn, now: float) -> None:
        """A turn runs here."""
        self.take_paused(turn.loop)
        turn.tokens = self._size(turn.loop, turn.context_tokens)
        turn.loop.resident_since = now
        self._running.add(turn)
        self._charge(turn.loop, turn.tokens)
        self._shed()

    def measured(self, tokens: int, seconds: float) -> None:
        """So many tokens were prefilled in this time, perhaps beside others, so the fastest tells most."""
        if tokens >= _LEAST_MEASURED and seconds > 0.0:
            rate = tokens / seconds
            slower = self._prefill_rate + _RATE_MEMORY * (rate - self._prefill_rate)
            self._prefill_rate = max(rate, slower)

    def prefill_s(self, tokens: int) -> float:
        """How long so many tokens take to be prefilled, without other work."""
        return tokens / self._prefill_rate

    # Who is next

    def _first_resident(self) -> Turn | None:
        for turn in self._waiting:  # in the order of arrival
            if turn.loop.is_resident:
                return turn
        return None

    def _first_admitted(self, now: float) -> Turn | None:
        """The waiting turn whose loop becomes resident; paused loops make room for it if they may."""
        order = sorted(
            self._waiting,
            key=lambda turn: (
                self._held.get(turn.loop.tenant, 0),
                not self._is_late(turn, now),
                turn.loop.turns == 0,
                turn.loop.began_at,
            ),
        )
        first = order[0]
        if self._make_room(first, now):
            return first
        if self._is_late(first, now):
            # What becomes free is kept for it. Turns of others that never end must not keep it out for ever.
            is_overdue = now - first.asked_at >= _OVERDUE * self.rules.patience_s
            return first if is_overdue and self._is_poor(first) else None
        room = self._room()
        return next((turn for turn in order if turn.tokens <= room), None)

    def _make_room(self, turn: Turn, now: float) -> bool:
        """Demote paused loops until a turn fits. If it would not fit even then, none is demoted, unless the
        turn has waited for too long: then room gathers for it."""
        if turn.tokens <= self._room():
            return True
        victims = self._victims(turn, now)
        freed = sum(loop.charged for loop in victims) + self._reserve * len(victims)
        if turn.tokens > self._room() + freed and not self._is_late(turn, now):
            return False
        while victims and turn.tokens > self._room():
            self._demote(victims.pop())
        return turn.tokens <= self._room()

    def _room(self) -> float:
        """What a loop may take that becomes resident: the others go on growing for some turns."""
        residents = len(self._paused) + len(self._running)
        return self.rules.capacity - self._held_tokens - self._reserve * residents

    @property
    def _reserve(self) -> float:
        """For the next turns of one loop."""
        return _GROWTH_TURNS * self._growth

    def _victims(self, turn: Turn, now: float) -> list[Loop]:
        """Paused loops that have to make room for a turn, the one last that goes first."""
        self._review(now)
        share = self._share()
        is_poor = self._is_poor(turn)
        is_late = self._is_late(turn, now)
        ranked: list[tuple[int, float, Loop]] = []
        for loop in self._paused:
            if is_poor and self._held[loop.tenant] > share:
                ranked.append((2, loop.began_at, loop))
            elif (until := max(loop.hold_until, loop.kept_until)) <= now:
                ranked.append((1, -until, loop))
            elif not is_poor and loop.tenant != turn.loop.tenant and self._held[loop.tenant] <= share:
                continue  # a tenant that has its share takes nothing from those that have less
            elif is_late and now - loop.resident_since >= self._slice_s(loop):
                ranked.append((0, -loop.resident_since, loop))
        ranked.sort(key=lambda entry: entry[:2])
        return [loop for _, _, loop in ranked]

    def _is_poor(self, turn: Turn) -> bool:
        """Whether a tenant has no more than its share if it gets this turn."""
        return self._held.get(turn.loop.tenant, 0) + turn.tokens <= self._share()

    def _is_late(self, turn: Turn, now: float) -> bool:
        return now - turn.asked_at >= self.rules.patience_s

    def _share(self) -> float:
        """The tokens that one tenant may have while others want theirs."""
        tenants = self._held.keys() | {turn.loop.tenant for turn in self._waiting}
        return self.rules.capacity / len(tenants)

    def _slice_s(self, loop: Loop) -> float:
        return max(self.rules.slice_s, _SLICE_PREFILLS * self.prefill_s(loop.charged))

    def _review(self, now: float) -> None:
        """Decide until when it pays to hold the contexts of paused loops, while others wait."""
        due = [loop for loop in self._paused if now - loop.reviewed_at >= REVIEW_S]
        if len(due) > _MOST_REVIEWED:
            due = heapq.nsmallest(_MOST_REVIEWED, due, key=lambda loop: loop.reviewed_at)
        mean = sum(each.tokens for each in self._waiting) / len(self._waiting)
        for loop in due:
            assert loop.paused_at is not None
            loop.reviewed_at = now
            # Its prefill would delay its own turn and all that run or wait.
            gain_s = self.prefill_s(loop.charged) * (1 + len(self._running) + len(self._waiting))
            # Each second for which it is held, so many turns wait that could run in its place.
            cost_rate = min(len(self._waiting), loop.charged / mean)
            pause = self.pauses.of(loop.kind)
            pause.review(now)
            is_heard = now - loop.heard_at < pause.silence_s
            held_s = pause.hold_s(now - loop.paused_at, gain_s, cost_rate, returns=is_heard)
            loop.hold_until = now + held_s

    # Who keeps its context

    def _size(self, loop: Loop, tokens: int) -> int:
        """What a context takes of the cache beside what it shares."""
        return max(min(tokens - loop.shared, self.rules.capacity), 1)

    def _pause(self, loop: Loop, now: float) -> None:
        loop.paused_at = now
        loop.reviewed_at = loop.heard_at = loop.kept_until = -math.inf
        loop.hold_until = math.inf
        loop.was_expected = False
        if loop.is_resident:
            self._paused[loop] = None
            if len(self._paused) > _MOST_RESIDENT:
                self._demote_surplus()
        if self._loops.get(loop.key) is not loop:  # it has ended
            self._demote(loop)
        elif loop.turns:
            self.pauses.of(loop.kind).begin(loop, now)

    def _charge(self, loop: Loop, tokens: int) -> None:
        """Keep so many tokens of the cache for a loop."""
        change = tokens - loop.charged
        loop.charged = tokens
        self._held_tokens += change
        if not (held := self._held.pop(loop.tenant, 0) + change):
            return
        self._held[loop.tenant] = held

    def _shed(self) -> None:
        """Demote paused loops while resident contexts have grown beyond the cache: the latest loop of the
        tenant that holds most. Turns that run stay, even if there is no room for all."""
        if self._held_tokens <= self.rules.capacity:
            return
        by_tenant: dict[str, list[Loop]] = {}
        for loop in self._paused:
            by_tenant.setdefault(loop.tenant, []).append(loop)
        for loops in by_tenant.values():
            loops.sort(key=lambda loop: loop.began_at)
        while by_tenant and self._held_tokens > self.rules.capacity:
            most = max(by_tenant, key=self._held.__getitem__)
            self._demote(by_tenant[most].pop())
            if not by_tenant[most]:
                del by_tenant[most]

    def _demote_surplus(self) -> None:
        """Demote the loop that has paused longest of the tenant that has most."""
        counts = Counter(loop.tenant for loop in self._paused)
        most = max(counts, key=counts.__getitem__)
        self._demote(next(loop for loop in self._paused if loop.tenant == most))

    def _demote(self, loop: Loop) -> None:
        """Keep the context of a paused loop no longer."""
        if self._paused.pop(loop, loop) is None:
            self._charge(loop, 0)
            self._on_demoted(loop)

    def _forget_oldest(self) -> None:
        """Forget paused loops beyond the bound, the one that was used longest ago first."""
        while len(self._loops) > _MOST_LOOPS:
            oldest = next((loop for loop in self._loops.values() if loop.paused_at is not None), None)
            if oldest is None:
                return
            self._remove(oldest)
            self.pauses.of(oldest.kind).forget(oldest)
            self._demote(oldest)
