"""Slots: which context lies where in the engine, and who may use it next.

A slot holds the KV of one context. A continuation goes on in the slot that holds its parent. Where that
cannot be (a fork leaves the parent's slot alone, another chain has taken it) the KV is copied from the slot
or the saved context that has most of it, so that only what is new is prefilled. Those who find all slots at
work wait in order.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from slipring.engines.llama.shelf import LEAST_TOKENS, Saved, Shelf
from slipring.prompts.rendering import Rendered


class Wish(Struct, frozen=True):
    """What a job wants to find in its slot."""

    tenant: str
    prompt: Rendered
    parent: Rendered | None
    """The context that it continues. Without one, its prompt is compared token by token."""
    fork: bool

    def shared(self, held: Rendered) -> int:
        """How many tokens of what is held somewhere can be reused."""
        if self.parent is not None:
            return shared_tokens(self.parent, held)
        return common_tokens(self.prompt, held)

    def goes_on_from(self, held: Rendered, shared: int) -> bool:
        """Whether nothing that is worth keeping is lost when this job goes on where that is held."""
        if self.fork:
            return False
        # A client that sends its whole history again has no use for the end of what it sent before.
        return shared == held.total or (self.parent is None and 2 * shared > held.total)

    def sure_of(self, slot: "Slot") -> Rendered | None:
        """What will be in a slot however this job ends: a cancel leaves what was there, and more or less."""
        if self.parent is None or slot.held is None or slot.tenant != self.tenant:
            return None
        return self.parent if shared_tokens(self.parent, slot.held) == self.parent.total else None


class Slot:
    """A place for one context in the engine."""

    __slots__ = ("copied", "held", "number", "tenant")

    def __init__(self, number: int) -> None:
        self.number = number
        self.held: Rendered | None = None
        """The context whose KV lies here, as far as that is known. The engine itself compares tokens, so a
        wrong belief costs time and nothing else."""
        self.tenant: str | None = None
        """Whose it is. The engine reuses any common beginning, so nobody else's slot may be reused."""
        self.copied: asyncio.Event | None = None
        """While its context is being copied elsewhere: set when that is done."""

    def hold(self, context: Rendered | None, tenant: str | None) -> None:
        self.held, self.tenant = context, tenant


class Slots:
    """All slots of an engine."""

    def __init__(self, count: int, shelf: Shelf) -> None:
        self._all = [Slot(number) for number in range(count)]
        self._free = list(self._all)  # least recently used first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._shelf = shelf

    def forget(self) -> None:
        """The engine has lost everything."""
        for slot in self._all:
            slot.hold(None, None)
        self._shelf.clear()

    @asynccontextmanager
    async def taken(self, wish: Wish) -> AsyncIterator[Slot]:
        """A slot for one job, with as much of its context in it as there is anywhere."""
        slot = await self._take(wish)
        try:
            await self._prepare(slot, wish)
            yield slot
        finally:
            self._give_back(slot)

    async def _take(self, wish: Wish) -> Slot:
        while True:
            best = max(self._all, key=lambda slot: _reusable(slot, wish))
            if best.copied is not None and _reusable(best, wish) >= LEAST_TOKENS:
                await best.copied.wait()  # a matter of milliseconds, and worth a prefill
            elif self._free:
                break
            else:
                await self._turn()
        slot = self._choose(wish)
        self._free.remove(slot)
        return slot

    def _choose(self, wish: Wish) -> Slot:
        best = max(self._free, key=lambda slot: _reusable(slot, wish))
        shared = _reusable(best, wish)
        if best.held is not None and shared and wish.goes_on_from(best.held, shared):
            return best
        others = [slot for slot in self._free if slot is not best or shared < LEAST_TOKENS] or [best]
        empty = (slot for slot in others if slot.held is None)
        return next(empty, others[0])

    async def _prepare(self, slot: Slot, wish: Wish) -> None:
        """Bring the KV that a job can reuse into its slot, and save what it would push out."""
        own = _reusable(slot, wish)
        if slot.held is not None and own and wish.goes_on_from(slot.held, own):
            return
        source = max(self._free, key=lambda other: _reusable(other, wish), default=None)
        elsewhere = _reusable(source, wish) if source is not None else 0
        saved = self._shelf.best(wish.tenant, wish.shared)
        if source is not None and elsewhere > max(own, saved[1]) and elsewhere >= LEAST_TOKENS:
            copy = await self._copy_out(source)
            saved = (copy, elsewhere) if copy is not None else saved
        if saved[0] is not None:
            self._shelf.touch(saved[0])  # it must not have to make room for what comes now
        await self._shelf.save(slot.number, slot.held, slot.tenant)
        if saved[0] is not None and saved[1] > own:
            await self._restore(saved[0], slot)

    async def _copy_out(self, source: Slot) -> Saved | None:
        """Save another slot's context. Nobody may take it meanwhile."""
        source.copied = asyncio.Event()
        self._free.remove(source)
        try:
            return await self._shelf.save(source.number, source.held, source.tenant)
        finally:
            source.copied.set()
            source.copied = None
            self._give_back(source)

    async def _restore(self, saved: Saved, slot: Slot) -> None:
        slot.hold(None, saved.tenant)
        if await self._shelf.restore(saved, slot.number):
            slot.hold(saved.held, saved.tenant)

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._call_next()  # it was this one's turn: pass it on
            raise

    def _give_back(self, slot: Slot) -> None:
        self._free.append(slot)
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _reusable(slot: Slot, wish: Wish) -> int:
    if slot.held is None or slot.tenant != wish.tenant:
        return 0
    return wish.shared(slot.held)


def shared_tokens(one: Rendered, other: Rendered) -> int:
    """How many tokens two contexts of one renderer share by descent."""
    if one.body is other.body and one.preface is other.preface:
        return one.total
    if one.preface.step.ids != other.preface.step.ids:
        return 0
    ancestors = {id(body) for body in other.body.lineage()}
    common = next((body.total for body in one.body.lineage() if id(body) in ancestors), 0)
    return len(one.preface.step.ids) + common


def common_tokens(one: Rendered, other: Rendered) -> int:
    """How many tokens two contexts have in common at their beginning, however they came about."""
    left, right = (b"".join(step.ids.tobytes() for step in each.steps()) for each in (one, other))
    width = one.preface.step.ids.itemsize
    low, high = 0, min(len(left), len(right)) // width
    while low < high:
        middle = (low + high + 1) // 2
        if left[: middle * width] == right[: middle * width]:
            low = middle
        else:
            high = middle - 1
    return low
