"""Slots and what is saved of them, in an engine that is a dictionary: who gets which slot, and with what."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipring.core.chain.head import Head
from slipring.core.generation import Capabilities, Finished, Job, Model, Settings
from slipring.engines.llama import LlamaEngine
from slipring.engines.llama.api import Api, Chunk, Progress, Unsupported
from slipring.engines.llama.remote import External
from slipring.engines.llama.saved_contexts import MIN_TOKENS, SavedContexts
from slipring.engines.llama.slots import Slot, SlotRequest, Slots
from slipring.engines.remote.admission import JobQueue
from slipring.errors import ApiError, Unavailable
from slipring.prompts.rendering import Preface, Rendered, Step, empty
from slipring.protocol.requests import TEXT
from slipring.protocol.tools import Offer
from tests.prompts.vocabulary import message, renderer

PLENTY = 1_000_000
BYTES_PER_TOKEN = 10
HEAD = Step.of(range(8))
_fresh = count(100)


def preface(ids: Step = HEAD) -> Preface:
    return Preface(Head(), TEXT, ids)


SAME = preface()


def chain(tokens: int = 100, before: Preface = SAME) -> Rendered:
    """The context of a chain that nobody has seen."""
    return then(Rendered("w", before, empty(None)), tokens)


def then(context: Rendered, tokens: int = 50) -> Rendered:
    return context.then([next(_fresh) for _ in range(tokens)], None)


def with_head(context: Rendered, head: Preface) -> Rendered:
    return Rendered(context.writer, head, context.body)


class FakeEngine:
    """Slots and files by token ids. Who owns each token is known by who was first to send it."""

    def __init__(self, slots: int) -> None:
        self.slots: list[tuple[int, ...]] = [()] * slots
        self.files: dict[str, tuple[int, ...]] = {}
        self.owners: dict[int, str] = {}
        self.asked: list[str] = []
        self.busy: set[int] = set()
        self.fails: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        """Held back until set: ``save`` and ``restore``."""

    def hold(self, action: str) -> asyncio.Event:
        self.gates[action] = asyncio.Event()
        return self.gates[action]

    async def _work(self, action: str, slot: int) -> None:
        assert slot not in self.busy, "a slot is used by one at a time"
        self.busy.add(slot)
        self.asked.append(f"{action} {slot}")
        try:
            if action in self.gates:
                await self.gates[action].wait()
            await asyncio.sleep(0)
            if action in self.fails:
                raise Unavailable("gone")
        finally:
            self.busy.discard(slot)

    async def save_slot(self, slot: int, name: str) -> int:
        self.files.pop(name, None)
        await self._work("save", slot)
        self.files[name] = self.slots[slot]
        return BYTES_PER_TOKEN * len(self.slots[slot])

    async def restore_slot(self, slot: int, name: str) -> None:
        await self._work("restore", slot)
        if name not in self.files:
            raise Unavailable("no such file")
        self.slots[slot] = self.files[name]

    def prefill(self, slot: int, tenant: str, prompt: Rendered, cache: bool) -> int:
        """What a completion does to its slot; how much of it was there already."""
        ids = tuple(prompt.ids())
        for id in ids:
            if id >= 100:
                assert self.owners.setdefault(id, tenant) == tenant
        before = self.slots[slot]
        cached = 0
        if cache:
            strangers = {self.owners.get(id, tenant) for id in before} - {tenant}
            assert not strangers, f"{tenant} may reuse a slot that holds what is {strangers}'s"
            while cached < min(len(ids), len(before)) and ids[cached] == before[cached]:
                cached += 1
        self.slots[slot] = ids
        return cached


class Engine:
    """The slots under test, and the engine that they are of."""

    def __init__(self, slots: int = 2, limit: int = PLENTY, directory: Path | None = None) -> None:
        self.fake = FakeEngine(slots)
        self.saved_contexts = SavedContexts(self.fake, limit, directory)
        self.slots = Slots(range(slots), self.saved_contexts)

    @asynccontextmanager
    async def job(
        self,
        prompt: Rendered,
        parent: Rendered | None = None,
        *,
        fork: bool = False,
        tenant: str = "t",
        fate: str = "",
    ) -> AsyncIterator[tuple[int, int]]:
        """A job as the engine does it: the number of its slot, and what was cached.

        ``fate``: it is ``refused`` by the engine, or ``unseen``: begun, and cut off before that was told.
        """
        request = SlotRequest(tenant, prompt, parent, fork)
        async with self.slots.acquire(request) as slot:
            assert slot.number not in self.fake.busy, "a slot is used by one at a time"
            self.fake.busy.add(slot.number)
            try:
                cache = slot.tenant == tenant
                slot.mark_uncertain(tenant, request.certain_context(slot))
                if fate == "refused":
                    raise Unavailable("refused")
                cached = self.fake.prefill(slot.number, tenant, prompt, cache)
                if fate == "unseen":
                    raise Unavailable("gone")
                slot.tenant = tenant
                yield slot.number, cached
            finally:
                self.fake.busy.discard(slot.number)
            slot.record(prompt, tenant)

    async def run(self, prompt: Rendered, parent: Rendered | None = None, **kind: Any) -> tuple[int, int]:
        async with self.job(prompt, parent, **kind) as found:
            return found

    def start(
        self, prompt: Rendered, parent: Rendered | None = None, **kind: Any
    ) -> "asyncio.Task[tuple[int, int]]":
        return asyncio.create_task(self.run(prompt, parent, **kind))

    @property
    def used(self) -> int:
        assert self.saved_contexts._used_bytes == sum(
            saved.size_bytes for saved in self.saved_contexts._saved
        )
        return self.saved_contexts._used_bytes

    @property
    def free(self) -> list[int]:
        return sorted(slot.number for slot in self.slots._free)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# Where a job goes


async def test_a_continuation_goes_on_in_place_without_asking_for_anything() -> None:
    engine = Engine()
    first = chain()
    number, _ = await engine.run(first)
    assert await engine.run(then(first), first) == (number, first.total)
    assert engine.fake.asked == []


async def test_a_fork_copies_its_parent_and_leaves_it() -> None:
    engine = Engine()
    parent = chain()
    number, _ = await engine.run(parent)
    assert await engine.run(then(parent), parent, fork=True) == (1 - number, parent.total)
    assert await engine.run(then(parent), parent) == (number, parent.total)
    assert engine.fake.asked == [f"save {number}", f"restore {1 - number}"]


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
async def test_three_forks_at_once_all_find_their_parent(slots: int) -> None:
    engine = Engine(slots)
    parent = chain()
    await engine.run(parent)
    forks = [engine.start(then(parent), parent, fork=True) for _ in range(3)]
    found = await asyncio.gather(*forks)
    assert [cached for _, cached in found] == [parent.total] * 3
    assert sum(asked.startswith("save") for asked in engine.fake.asked) <= 3


async def test_forks_of_each_other_do_not_wait_for_each_other() -> None:
    engine = Engine(3)
    one, other = chain(), chain()
    await engine.run(one)
    await engine.run(other)
    parents = (one, other, one, other)
    forks = [engine.start(then(parent), parent, fork=True) for parent in parents]
    found = await asyncio.wait_for(asyncio.gather(*forks), 60)
    assert [cached for _, cached in found] == [parent.total for parent in parents]


async def test_the_slot_used_longest_ago_is_saved_and_comes_back() -> None:
    engine = Engine()
    one, two, three = chain(), chain(), chain()
    first, _ = await engine.run(one)
    await engine.run(two)
    assert await engine.run(three) == (first, 8), "but for the head, which all begin with"
    child = then(one)
    assert (await engine.run(child, one))[1] == one.total
    assert (await engine.run(then(two), two))[1] == two.total
    assert (await engine.run(then(three), three))[1] == three.total
    assert (await engine.run(then(child), child))[1] == child.total


async def test_nothing_is_saved_where_nothing_may_be() -> None:
    engine = Engine(limit=0)
    chains = [chain(before=preface(Step.of([next(_fresh)]))) for _ in range(3)]
    for each in chains:
        await engine.run(each)
    assert [(await engine.run(then(each), each))[1] for each in chains] == [0, 0, 0]
    assert engine.fake.asked == []


async def test_a_history_that_is_sent_again_goes_on_in_its_slot() -> None:
    engine = Engine()
    first = chain()
    number, _ = await engine.run(first)
    again = Rendered("w", preface(), empty(None)).then([*first.ids()[8:], next(_fresh)], None)
    assert await engine.run(again) == (number, first.total)
    assert engine.fake.asked == []


async def test_a_history_that_shares_less_than_half_leaves_the_other_alone() -> None:
    engine = Engine()
    first = chain(120)
    number, _ = await engine.run(first)
    other = Rendered("w", preface(), empty(None)).then([*first.ids()[8:48], next(_fresh)], None)
    assert await engine.run(other) == (1 - number, 48)
    assert await engine.run(then(first), first) == (number, first.total)


async def test_a_few_tokens_are_not_worth_a_file() -> None:
    engine = Engine(1)
    few = chain(MIN_TOKENS - 8 - 1)
    await engine.run(few)
    await engine.run(chain())
    assert engine.fake.asked == []
    enough = chain(MIN_TOKENS - 8)
    await engine.run(enough)
    await engine.run(chain())
    assert engine.fake.asked == ["save 0", "save 0"]


async def test_a_parent_that_has_gone_on_is_continued_elsewhere() -> None:
    engine = Engine()
    parent = chain()
    child = then(parent)
    await engine.run(parent)
    number, _ = await engine.run(child, parent)
    assert await engine.run(then(parent), parent) == (1 - number, parent.total), "a second child"
    assert await engine.run(then(child), child) == (number, child.total)


async def test_a_new_head_makes_what_is_held_useless_but_the_chain_stays_where_it_was() -> None:
    engine = Engine()
    parent, other = chain(), chain()
    await engine.run(other)
    number, _ = await engine.run(parent)
    new = then(with_head(parent, preface(Step.of(range(50, 90)))))
    assert await engine.run(new, parent) == (number, 0)
    assert engine.fake.asked == [], "neither is worth saving"


async def test_a_fork_with_a_new_head_copies_nothing() -> None:
    engine = Engine()
    parent = chain()
    number, _ = await engine.run(parent)
    new = then(with_head(parent, preface(Step.of(range(50, 90)))))
    assert await engine.run(new, parent, fork=True) == (1 - number, 0)
    assert engine.fake.asked == []


async def test_what_a_job_leaves_however_it_ends_has_its_own_head() -> None:
    head = preface(Step.of(range(50, 90)))
    parent = chain()
    slot = Slot(0)
    slot.record(parent, "t")
    assert SlotRequest("t", then(with_head(parent, head)), parent, False).certain_context(slot) is None
    assert SlotRequest("other", then(parent), parent, False).certain_context(slot) is None
    slot.record(then(with_head(parent, head)), "t")
    sure = SlotRequest("t", then(with_head(parent, head)), parent, False).certain_context(slot)
    assert sure is not None
    assert (sure.preface, sure.body) == (head, parent.body)


# What is saved


async def test_what_is_saved_is_bounded_in_bytes_and_the_last_used_stay() -> None:
    size = BYTES_PER_TOKEN * 108
    engine = Engine(1, limit=2 * size)
    chains = [chain() for _ in range(4)]
    for each in chains[:3]:
        await engine.run(each)
    assert engine.used == 2 * size, "at the limit"
    await engine.run(chains[3])
    assert engine.used == 2 * size, "past it, the oldest goes"
    engine.fake.asked.clear()
    assert (await engine.run(then(chains[0]), chains[0]))[1] == 8, "dropped"
    assert (await engine.run(then(chains[2]), chains[2]))[1] == chains[2].total


async def test_one_that_is_larger_than_the_bound_is_kept_alone() -> None:
    engine = Engine(1, limit=1)
    one, two = chain(), chain()
    await engine.run(one)
    await engine.run(two)
    assert engine.used == BYTES_PER_TOKEN * one.total
    assert (await engine.run(then(one), one))[1] == one.total, "read before it made room for the other"
    assert engine.used == BYTES_PER_TOKEN * two.total


async def test_a_file_is_not_given_to_another_while_it_is_read() -> None:
    engine = Engine(2, limit=1)
    one, two, three = chain(), chain(), chain()
    for each in (one, two, three):
        await engine.run(each)
    gate = engine.fake.hold("restore")
    back = engine.start(then(one), one)
    await settle()
    assert "restore 1" in engine.fake.asked
    assert await engine.run(chain(), tenant="other")
    gate.set()
    assert (await back)[1] == one.total
    await settle()
    assert engine.saved_contexts._names_made == len(engine.saved_contexts._saved) + len(
        engine.saved_contexts._free_names
    )
    assert not engine.saved_contexts._pins


async def test_files_of_our_own_are_removed_when_they_are_of_no_more_use(tmp_path: Path) -> None:
    engine = Engine(1, limit=BYTES_PER_TOKEN * 150, directory=tmp_path)
    save = engine.fake.save_slot

    async def written(slot: int, name: str) -> int:
        (tmp_path / name).touch()
        return await save(slot, name)

    engine.fake.save_slot = written  # type: ignore[method-assign]
    for _ in range(4):
        await engine.run(chain())
    assert len(os.listdir(tmp_path)) == 1
    engine.fake.fails.add("save")
    await engine.run(chain())
    assert len(os.listdir(tmp_path)) == 1, "nor is one left that was not written to its end"
    engine.slots.reset()
    assert os.listdir(tmp_path) == []


async def test_names_are_used_again() -> None:
    engine = Engine(1, limit=BYTES_PER_TOKEN * 150)
    for _ in range(9):
        await engine.run(chain())
    assert len(engine.fake.files) <= 2


async def test_a_context_is_saved_once() -> None:
    engine = Engine(2)
    parent = chain()
    await engine.run(parent)
    await engine.run(then(parent), parent, fork=True)
    await engine.run(chain())
    await engine.run(chain())
    assert engine.fake.asked.count("save 0") == 1


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_what_cannot_be_saved_or_read_is_prefilled(action: str) -> None:
    engine = Engine(1)
    one, two = chain(), chain()
    await engine.run(one)
    engine.fake.fails.add(action)
    await engine.run(two)
    child = then(one)
    assert (await engine.run(child, one))[1] <= 8
    engine.fake.fails.clear()
    assert await engine.run(then(child), child) == (0, child.total)
    assert engine.used in (0, BYTES_PER_TOKEN * two.total), "one that could not be read is dropped"


async def test_a_fork_whose_parent_cannot_be_copied_is_prefilled_and_the_parent_stays() -> None:
    engine = Engine()
    parent = chain()
    number, _ = await engine.run(parent)
    engine.fake.fails.add("save")
    assert await engine.run(then(parent), parent, fork=True) == (1 - number, 0)
    assert await engine.run(then(parent), parent) == (number, parent.total)
    assert engine.free == [0, 1]


async def test_a_slot_that_could_not_be_read_into_is_believed_to_hold_nothing() -> None:
    engine = Engine(1)
    one, other = chain(), chain()
    await engine.run(one, tenant="a")
    await engine.run(other, tenant="b")
    engine.fake.fails.add("restore")
    async with engine.slots.acquire(SlotRequest("a", then(one), one, False)) as slot:
        assert (slot.context, slot.tenant) == (None, None), "it may still be b's"


async def test_an_engine_that_saves_nothing_is_asked_once() -> None:
    engine = Engine(1)

    async def refuse(slot: int, name: str) -> int:
        engine.fake.asked.append("save")
        raise Unsupported

    engine.fake.save_slot = refuse  # type: ignore[method-assign]
    for _ in range(4):
        await engine.run(chain())
    assert engine.fake.asked == ["save"]
    assert not engine.saved_contexts.is_enabled


async def test_a_fault_of_our_own_fails_the_job_and_gives_everything_back() -> None:
    engine = Engine(2)

    async def broken(slot: int, name: str) -> int:
        raise ZeroDivisionError

    engine.fake.save_slot = broken  # type: ignore[method-assign]
    parent = chain()
    await engine.run(parent)
    with pytest.raises(ZeroDivisionError):
        await engine.run(then(parent), parent, fork=True)
    await settle()
    assert engine.free == [0, 1]


# Tenants


async def test_nobody_finds_in_a_slot_or_a_file_what_is_somebody_elses() -> None:
    engine = Engine(1)
    words = Rendered("w", SAME, empty(None)).then(range(10, 90), None)
    assert await engine.run(words, tenant="a") == (0, 0)
    assert await engine.run(words, tenant="b") == (0, 0)
    assert (await engine.run(words, tenant="a"))[1] == words.total, "its own came back"
    read = engine.fake.asked.count("restore 0")
    assert (await engine.run(words, tenant="c"))[1] == 0
    assert engine.fake.asked.count("restore 0") == read == 1, "nor is it read for them"


async def test_a_slot_is_nobodys_until_the_engine_has_begun() -> None:
    slot = Slot(0)
    slot.record(chain(), "a")
    slot.mark_uncertain("b")
    assert (slot.context, slot.tenant) == (None, None)
    slot.mark_uncertain("a")
    assert slot.tenant is None
    held = chain()
    slot.record(held, "a")
    slot.mark_uncertain("a", held)
    assert (slot.context, slot.tenant) == (held, "a")


@pytest.mark.parametrize("fate", ["refused", "unseen"])
async def test_a_job_that_failed_early_opens_a_slot_to_nobody(fate: str) -> None:
    engine = Engine(1)
    words = Rendered("w", SAME, empty(None)).then(range(10, 90), None)
    await engine.run(chain(), tenant="a")
    await engine.run(words, tenant="a")
    with pytest.raises(Unavailable):
        await engine.run(then(words), tenant="b", fate=fate)
    assert (await engine.run(words, tenant="b"))[1] == 0
    with pytest.raises(Unavailable):
        await engine.run(then(words), tenant="c", fate=fate)
    assert (await engine.run(chain(), tenant="b"))[1] == 0


async def complete_with(engine: LlamaEngine, tenant: str) -> None:
    job = Job(
        response_id="r",
        tenant=tenant,
        model=Model(name="m", owner="tests", capabilities=Capabilities()),
        head=Head(),
        parent=None,
        input=(message("user", "Hi"),),
        offer=Offer(),
        settings=Settings(),
    )
    async with aclosing(engine.generate(job)) as batches:
        async for deltas in batches:
            if any(isinstance(delta, Finished) for delta in deltas):
                assert len(engine._slots._free) == 1, "who takes long to read the end holds no slot"


async def test_a_prompt_may_be_cached_only_after_the_engine_has_begun_for_its_tenant() -> None:
    answers: list[Chunk | ApiError] = []
    cache: list[bool] = []

    class Completes(Api):
        async def complete(self, body: bytes) -> AsyncGenerator[Chunk, None]:
            cache.append(json.loads(body)["cache_prompt"])
            for answer in answers:
                if isinstance(answer, ApiError):
                    raise answer
                yield answer

    engine = object.__new__(LlamaEngine)
    engine.renderer = renderer("chatml in small")
    engine.model = SimpleNamespace(context=999, llguidance=False)  # type: ignore[assignment]
    engine._api = Completes(External("", ""))
    engine._slots = Slots(range(1), SavedContexts(FakeEngine(1), 0))
    engine._queue = JobQueue(1, 8)
    end, begun, gone = Chunk(stop=True), Chunk(prompt_progress=Progress(0)), Unavailable("gone")
    told: list[tuple[str, list[Chunk | ApiError], bool]] = [
        ("a", [end], False),
        ("a", [end], True),
        ("b", [gone], False),
        ("b", [gone], False),
        ("a", [gone], False),
        ("b", [begun, gone], False),
        ("b", [gone], True),
        ("b", [end], True),
        ("a", [begun, end], False),
    ]
    for tenant, answers, allowed in told:  # noqa: B007
        with suppress(Unavailable):
            await complete_with(engine, tenant)
        assert cache.pop() is allowed


# Those who wait, and those who leave


async def test_those_who_wait_are_served_in_order_and_nobody_overtakes_them() -> None:
    engine = Engine(1)
    order: list[int] = []

    async def take(place: int) -> None:
        async with engine.job(chain()):
            order.append(place)

    async with engine.job(chain()):
        waiting = [asyncio.create_task(take(place)) for place in range(4)]
        await settle()
    late = asyncio.create_task(take(4))  # a slot is free by now, but it is spoken for
    await asyncio.gather(*waiting, late)
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ticks", range(8))
async def test_one_who_leaves_passes_the_turn_on(ticks: int) -> None:
    engine = Engine(1)
    async with engine.job(chain()):
        leaves, stays = engine.start(chain()), engine.start(chain())
        await settle()
    for _ in range(ticks):
        await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait_for(stays, 60)
    await asyncio.wait([leaves])
    assert engine.free == [0]
    assert not engine.slots._waiting


async def test_one_who_leaves_while_waiting_is_passed_over() -> None:
    engine = Engine(1)
    async with engine.job(chain()):
        leaves, stays = engine.start(chain()), engine.start(chain())
        await settle()
        leaves.cancel()
    await asyncio.wait_for(stays, 60)
    assert leaves.cancelled()
    assert engine.free == [0]
    assert not engine.slots._waiting


@pytest.mark.parametrize("ticks", range(14))
async def test_a_fork_may_leave_at_any_time(ticks: int) -> None:
    engine = Engine(2)
    parent, other = chain(), chain()
    await engine.run(other)
    await engine.run(parent)
    fork = engine.start(then(parent), parent, fork=True)
    for _ in range(ticks):
        await asyncio.sleep(0)
    fork.cancel()
    _, cached = await asyncio.wait_for(engine.run(then(parent), parent), 60)
    assert cached == parent.total
    await settle()
    assert engine.free == [0, 1]
    assert not any(slot.is_copied for slot in engine.slots._all.values())
    assert (await engine.run(then(other), other))[1] == other.total


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_a_slot_is_not_given_away_while_the_engine_works_on_it(action: str) -> None:
    engine = Engine(1)
    one, other = chain(), chain()
    await engine.run(one, tenant="a")
    await engine.run(other, tenant="b")
    gate = engine.fake.hold(action)
    leaves = engine.start(then(one), one, tenant="a")
    await settle()
    leaves.cancel()
    await asyncio.wait([leaves], timeout=60)
    assert leaves.cancelled(), "who leaves does not wait"
    late = engine.start(then(other), other, tenant="b")
    await settle()
    assert not late.done()
    gate.set()
    assert (await asyncio.wait_for(late, 60))[1] == other.total


async def test_a_continuation_waits_while_its_slot_is_copied_and_others_do_not() -> None:
    engine = Engine(3)
    parent = chain()
    number, _ = await engine.run(parent)
    gate = engine.fake.hold("save")
    fork = engine.start(then(parent), parent, fork=True)
    await settle()
    child = engine.start(then(parent), parent)
    await settle()
    assert not child.done()
    await asyncio.wait_for(engine.run(chain(before=preface(Step.of([7])))), 60)
    gate.set()
    assert await child == (number, parent.total)
    assert (await fork)[1] == parent.total


# An engine that starts again


async def test_nothing_is_believed_of_an_engine_that_has_started_again() -> None:
    engine = Engine(2)
    parent, at_work = chain(), chain()
    await engine.run(parent)
    async with engine.job(at_work):
        engine.slots.reset()
        engine.fake.slots = [(), ()]
        assert len(engine.free) == 1
    known = [slot.context for slot in (*engine.slots._all.values(), *engine.slots._free)]
    assert known == [None] * 4, "nor what a job says that saw both"
    assert engine.free == [0, 1]
    assert engine.used == 0
    assert (await engine.run(then(parent), parent))[1] == 0


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_an_engine_may_start_again_while_a_slot_is_prepared(action: str) -> None:
    engine = Engine(2)
    parent = chain()
    await engine.run(parent)
    gate = engine.fake.hold(action)
    fork = engine.start(then(parent), parent, fork=True)
    await settle()
    engine.slots.reset()
    engine.fake.slots = [(), ()]
    engine.fake.fails.add(action)
    gate.set()
    assert (await asyncio.wait_for(fork, 60))[1] == 0
    assert engine.free == [0, 1]
    assert not any(slot.is_copied for slot in engine.slots._all.values())


# Any schedule


KINDS = ("start", "continue", "continue", "fork", "fork", "history", "head")
FATES = ("", "", "", "refused", "unseen")
COMES = st.tuples(st.sampled_from(KINDS), st.sampled_from("ab"), st.integers(0, 5), st.sampled_from(FATES))
ENDS = st.tuples(st.just("end"), st.sampled_from([True, True, False]), st.integers(0, 5))
LEAVES = st.tuples(st.just("cancel"), st.none(), st.integers(0, 5))
TROUBLES = st.one_of(
    st.tuples(st.just("fail"), st.sampled_from(["save", "restore", None, None]), st.none()),
    st.tuples(st.just("hold"), st.sampled_from(["save", "restore"]), st.none()),
    st.tuples(st.just("release"), st.none(), st.none()),
    st.tuples(st.just("release"), st.none(), st.none()),
    st.tuples(st.just("forget"), st.none(), st.integers(0, 9)),
)
EVENTS = st.tuples(st.one_of(COMES, COMES, ENDS, ENDS, LEAVES, TROUBLES), st.integers(0, 6))
"""What happens, and how many times the loop goes round before anything else does."""


class Schedule:
    """Jobs of two tenants that come, work, end and leave in any order."""

    def __init__(self, slots: int, limit: int) -> None:
        self.engine = Engine(slots, limit)
        self.tasks: list[asyncio.Task[None]] = []
        self.working: list[asyncio.Future[None]] = []
        self.done: dict[str, list[Rendered]] = {"a": [], "b": []}
        self.largest = 100

    async def job(self, prompt: Rendered, parent: Rendered | None, tenant: str, **kind: Any) -> None:
        work = asyncio.get_running_loop().create_future()
        async with self.engine.job(prompt, parent, tenant=tenant, **kind):
            self.working.append(work)
            await work
        self.done[tenant].append(prompt)

    def come(self, kind: str, tenant: str, which: int, fate: str) -> None:
        known = self.done[tenant]
        parent = known[-1 - which % len(known)] if known and kind != "start" else None
        prompt = chain(20 * (which + 1)) if parent is None else then(parent, 10 * which + 1)
        if parent is not None and kind == "head":
            prompt = with_head(prompt, preface(Step.of(range(50, 50 + 10 * which))))
        given = parent if kind != "history" else None
        self.largest = max(self.largest, prompt.total)
        job = self.job(prompt, given, tenant, fork=kind == "fork", fate=fate)
        self.tasks.append(asyncio.create_task(job))

    def end(self, well: bool, which: int) -> None:
        going = [work for work in self.working if not work.done()]
        if going:
            work = going[which % len(going)]
            if well:
                work.set_result(None)
            else:
                work.set_exception(Unavailable("gone"))

    def do(self, event: tuple[Any, ...]) -> None:
        kind, what, which, *fate = event
        fake = self.engine.fake
        if kind in KINDS:
            self.come(kind, what, which, *fate)
        elif kind == "end":
            self.end(what, which)
        elif kind == "cancel":
            going = [task for task in self.tasks if not task.done()]
            if going:
                going[which % len(going)].cancel()
        elif kind == "fail":
            fake.fails = {what} - {None}
        elif kind == "hold" and what not in fake.gates:
            fake.hold(what)
        elif kind == "release":
            self.release()
        elif kind == "forget" and not which:
            self.engine.slots.reset()
            fake.slots = [() for _ in fake.slots]

    def release(self) -> None:
        for gate in self.engine.fake.gates.values():
            gate.set()
        self.engine.fake.gates.clear()

    def check(self) -> None:
        engine = self.engine
        most = max(engine.saved_contexts._limit_bytes, BYTES_PER_TOKEN * self.largest)
        assert engine.used <= most
        assert len(engine.free) == len(set(engine.free)), "no slot is free twice"
        names = [saved.name for saved in engine.saved_contexts._saved]
        assert len({*names, *engine.saved_contexts._free_names}) == len(names) + len(
            engine.saved_contexts._free_names
        )

    async def finish(self) -> None:
        """Everybody gets a slot as soon as others end."""
        self.release()
        for _ in range(1000):
            if all(task.done() for task in self.tasks):
                break
            self.end(True, 0)
            await asyncio.sleep(0)
        await settle()
        for task in self.tasks:
            assert task.done(), "everybody gets a slot"
            if not task.cancelled():
                assert isinstance(task.exception(), Unavailable | None)
        assert self.engine.free == list(range(len(self.engine.fake.slots))), "and gives it back"
        assert not any(slot.is_copied for slot in self.engine.slots._all.values())
        assert not self.engine.slots._waiting
        saved_contexts = self.engine.saved_contexts
        assert not saved_contexts._pins
        assert saved_contexts._names_made == len(saved_contexts._saved) + len(saved_contexts._free_names), (
            "no file is forgotten"
        )
        assert not self.engine.slots._preparations


@settings(max_examples=150)
@given(st.integers(1, 3), st.sampled_from([0, 1, 2000, PLENTY]), st.lists(EVENTS, min_size=30, max_size=90))
def test_whatever_comes_nobody_is_forgotten_and_nothing_is_shared(
    slots: int, limit: int, events: list[tuple[tuple[Any, ...], int]]
) -> None:
    async def run() -> None:
        schedule = Schedule(slots, limit)
        for tenant in "aabb":
            schedule.done[tenant].append(first := chain(60))
            await schedule.engine.run(first, tenant=tenant)
        for event, ticks in events:
            schedule.do(event)
            for _ in range(ticks):
                await asyncio.sleep(0)
                schedule.check()
        await schedule.finish()
        schedule.check()

    asyncio.run(run())
