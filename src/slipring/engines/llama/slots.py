"""Slots: which context lies where in the engine, and who may use it next.

A slot holds the KV of one context. A continuation goes on in the slot that holds its parent. Where that
cannot be (a fork leaves the parent's slot alone, another chain has taken it) the KV is copied from the slot
or the saved context that has most of it, so that only what is new is prefilled. Those who find all slots at
work wait in order.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from msgspec import Struct

from slipring.engines.llama.saved_contexts import MIN_TOKENS, Saved, SavedContexts
from slipring.prompts.rendering import Rendered

_SEAM_TOKENS = 8
"""What opens and closes a message may be written differently before another one."""


class SlotRequest(Struct, frozen=True):
    """What a job wants to find in its slot."""

    tenant: str
    prompt: Rendered
    parent: Rendered | None
    """The context that it continues. Without one, its prompt is compared token by token."""
    fork: bool

    def shared(self, held: Rendered) -> int:
        """How many tokens of what is held somewhere can be reused."""
        if self.parent is not None:
            return shared_tokens(self.prompt, held)
        return common_tokens(self.prompt, held)

    def goes_on_from(self, held: Rendered) -> bool:
        """Whether nothing that is worth keeping is lost when this job goes on where that is held."""
        if self.fork:
            return False
        if self.parent is not None:
            # Its own chain, of no more use to anybody even where a new head leaves nothing to reuse.
            return shared_tokens(self.parent, held) == held.total
        # A client that sends its whole history again, perhaps with the last answer in other tokens, has no
        # use for the end of what it sent before. One that only begins alike is another conversation.
        common = common_tokens(self.prompt, held)
        without_answer = held.total - len(held.body.step.ids) - _SEAM_TOKENS
        return common >= without_answer and 2 * common > held.total

    def sure_of(self, slot: "Slot") -> Rendered | None:
        """What will be in a slot however this job ends: a cancel leaves what was there, and more or less."""
        if self.parent is None or slot.held is None or slot.tenant != self.tenant:
            return None
        kept = Rendered(self.prompt.writer, self.prompt.preface, self.parent.body)
        return kept if self.shared(slot.held) >= kept.total else None


class Slot:
    """A place for one context in the engine."""

    __slots__ = ("held", "is_copied", "number", "tenant")

    def __init__(self, number: int) -> None:
        self.number = number
        self.held: Rendered | None = None
        """The context whose KV lies here, as far as that is known. The engine itself compares tokens, so a
        wrong belief costs time and nothing else."""
        self.tenant: str | None = None
        """Whose all of it is, for sure. The engine reuses any common beginning, so what may be somebody
        else's, or nobody knows whose, must not be reused."""
        self.is_copied = False
        """Whether its context is just being copied elsewhere."""

    def hold(self, context: Rendered | None, tenant: str | None) -> None:
        self.held, self.tenant = context, tenant

    def doubt(self, tenant: str, sure: Rendered | None = None) -> None:
        """The engine is about to be asked to fill it for a tenant. Until it says that it has begun, what lies
        here may still be what lay here before."""
        self.hold(sure, tenant if self.tenant == tenant else None)


class _Turn:
    """A job that waits for its slot."""

    __slots__ = ("slot", "wish")

    def __init__(self, wish: SlotRequest) -> None:
        self.wish = wish
        self.slot: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()


class Slots:
    """The slots of an engine, as far as they are ours."""

    def __init__(self, numbers: Iterable[int], shelf: SavedContexts) -> None:
        self._all = {number: Slot(number) for number in numbers}
        self._free = list(self._all.values())  # least recently used first
        self._waiting: list[_Turn] = []
        self._moves: set[asyncio.Task[None]] = set()
        self._shelf = shelf

    def forget(self) -> None:
        """The engine has lost everything. What jobs at work still say of their slots is of no interest."""
        self._all = {number: Slot(number) for number in self._all}
        self._free = [self._all[slot.number] for slot in self._free]
        self._shelf.clear()

    @asynccontextmanager
    async def taken(self, wish: SlotRequest) -> AsyncIterator[Slot]:
        """A slot for one job, with as much of its context in it as there is anywhere."""
        slot = await self._take(wish)
        try:
            yield slot
        finally:
            self._give_back(slot)

    async def _take(self, wish: SlotRequest) -> Slot:
        turn = _Turn(wish)
        self._waiting.append(turn)
        self._serve()
        try:
            return await turn.slot
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            if not turn.slot.cancelled() and turn.slot.exception() is None:
                self._give_back(turn.slot.result())  # it came with the cancel
            raise

    def _give_back(self, slot: Slot) -> None:
        self._free.append(self._all[slot.number])
        self._serve()

    def _serve(self) -> None:
        """Give the free slots to those who wait, in order."""
        for turn in list(self._waiting):
            if not self._free:
                return
            if turn.slot.done() or self._should_wait(turn.wish):
                continue
            self._waiting.remove(turn)
            slot = self._choose(turn.wish)
            self._free.remove(slot)
            self._hand_over(slot, turn)

    def _should_wait(self, wish: SlotRequest) -> bool:
        """Whether a copy is being made of what a job wants: a matter of milliseconds, and worth a prefill."""
        most = max((_reusable(slot, wish) for slot in self._all.values() if slot.is_copied), default=0)
        return most >= MIN_TOKENS and most > max(_reusable(slot, wish) for slot in self._free)

    def _choose(self, wish: SlotRequest) -> Slot:
        in_place = [slot for slot in self._free if _goes_on_in(slot, wish)]
        best = max(in_place or self._free, key=lambda slot: _reusable(slot, wish))
        if in_place:
            return best
        is_source = _reusable(best, wish) >= MIN_TOKENS
        others = [slot for slot in self._free if slot is not best or not is_source] or [best]
        empty = (slot for slot in others if slot.held is None)
        return next(empty, others[0])

    def _hand_over(self, slot: Slot, turn: _Turn) -> None:
        if _goes_on_in(slot, turn.wish):
            turn.slot.set_result(slot)
            return
        source = self._source(slot, turn.wish)
        if source is not None:
            self._free.remove(source)
            source.is_copied = True
        move = asyncio.get_running_loop().create_task(self._move(slot, source, turn))
        self._moves.add(move)
        move.add_done_callback(self._moves.discard)

    def _source(self, slot: Slot, wish: SlotRequest) -> Slot | None:
        """Another slot, with more of what is wanted than there is in this one and among what is saved."""
        if not self._shelf.is_open or not self._free:
            return None
        source = max(self._free, key=lambda other: _reusable(other, wish))
        _, saved = self._shelf.best(wish.tenant, wish.shared)
        return source if _reusable(source, wish) > max(_reusable(slot, wish), saved) else None

    async def _move(self, slot: Slot, source: Slot | None, turn: _Turn) -> None:
        """Prepare a slot for a job. Should the job leave, this goes on: what the engine has been asked to do
        with a slot it will do, and nobody else may have the slot before."""
        try:
            if source is not None:
                await self._copy_out(source)
            await self._prepare(slot, turn.wish)
        except Exception as error:
            if not turn.slot.done():
                turn.slot.set_exception(error)
        finally:
            if turn.slot.done():
                self._give_back(slot)
            else:
                turn.slot.set_result(slot)

    async def _copy_out(self, source: Slot) -> None:
        """Save another slot's context. Nobody may take it meanwhile."""
        try:
            await self._shelf.save(source.number, source.held, source.tenant)
        finally:
            source.is_copied = False
            self._give_back(source)

    async def _prepare(self, slot: Slot, wish: SlotRequest) -> None:
        """Bring the saved KV that a job can reuse into its slot, and save what it would push out."""
        saved, shared = self._shelf.best(wish.tenant, wish.shared)
        if saved is None or shared <= _reusable(slot, wish):
            await self._shelf.save(slot.number, slot.held, slot.tenant)
            return
        with self._shelf.kept(saved):
            await self._shelf.save(slot.number, slot.held, slot.tenant)
            await self._restore(saved, slot)

    async def _restore(self, saved: Saved, slot: Slot) -> None:
        slot.doubt(saved.tenant)
        if await self._shelf.restore(saved, slot.number):
            slot.hold(saved.held, saved.tenant)


def _reusable(slot: Slot, wish: SlotRequest) -> int:
    if slot.held is None or slot.tenant != wish.tenant:
        return 0
    return wish.shared(slot.held)


def _goes_on_in(slot: Slot, wish: SlotRequest) -> bool:
    return slot.held is not None and slot.tenant == wish.tenant and wish.goes_on_from(slot.held)


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
