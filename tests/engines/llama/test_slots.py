"""Slots: which slot each job gets, with which context, and that no tenant can reuse another one's."""

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slipring.base.errors import ApiError, Unavailable
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Capabilities, Delta, Finished, Job, Model, Prefill, Settings
from slipring.engines.engine_hosts import Host
from slipring.engines.llama.api import Api, Chunk, Progress
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.slots_and_saved_contexts import (
    MIN_TOKENS,
    SavedContexts,
    Slot,
    SlotRequest,
    Slots,
)
from slipring.engines.remote.streamed_answer import Consumer
from slipring.engines.scheduling.job_queue import JobQueue
from slipring.engines.tokens.sampling import Sampling
from slipring.prompts.rendering import Rendered
from slipring.protocol.tools.tool_choice import Offer
from tests.engines.emitting import deltas_of
from tests.engines.llama.fake_llama import (
    BYTES_PER_TOKEN,
    HEAD,
    PLENTY,
    FakeLlama,
    FakeServer,
    chain,
    context_of,
    fresh_ids,
    settle,
    then,
    with_head,
)
from tests.prompts.test_rendering import after, job
from tests.prompts.vocabulary import item, message, renderer

# Which slot a job gets


async def test_a_continuation_runs_in_its_parents_slot_without_further_requests() -> None:
    engine = FakeLlama()
    first = chain()
    number, _ = await engine.run(first)
    assert await engine.run(then(first), first) == (number, first.total)
    assert engine.server.requests == []


async def test_a_fork_runs_on_a_copy_of_its_parents_context() -> None:
    engine = FakeLlama()
    parent = chain()
    number, _ = await engine.run(parent)
    assert await engine.run(then(parent), parent, fork=True) == (1 - number, parent.total)
    assert await engine.run(then(parent), parent) == (number, parent.total)
    assert engine.server.requests == [f"save {number}", f"restore {1 - number}"]


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
async def test_three_forks_at_once_all_reuse_their_parent(slots: int) -> None:
    engine = FakeLlama(slots)
    parent = chain()
    await engine.run(parent)
    forks = [engine.start(then(parent), parent, fork=True) for _ in range(3)]
    found = await asyncio.gather(*forks)
    assert [cached for _, cached in found] == [parent.total] * 3
    assert sum(asked.startswith("save") for asked in engine.server.requests) <= 3


async def test_forks_of_two_parents_at_once_do_not_deadlock() -> None:
    engine = FakeLlama(3)
    one, other = chain(), chain()
    await engine.run(one)
    await engine.run(other)
    parents = (one, other, one, other)
    forks = [engine.start(then(parent), parent, fork=True) for parent in parents]
    found = await asyncio.wait_for(asyncio.gather(*forks), 300)
    assert [cached for _, cached in found] == [parent.total for parent in parents]


async def test_the_least_recently_used_slot_is_saved_and_restored() -> None:
    engine = FakeLlama()
    one, two, three = chain(), chain(), chain()
    first, _ = await engine.run(one)
    await engine.run(two)
    assert await engine.run(three) == (first, 8), "only the common head"
    child = then(one)
    assert (await engine.run(child, one))[1] == one.total
    assert (await engine.run(then(two), two))[1] == two.total
    assert (await engine.run(then(three), three))[1] == three.total
    assert (await engine.run(then(child), child))[1] == child.total


async def test_nothing_is_saved_if_the_bound_is_zero() -> None:
    engine = FakeLlama(limit=0)
    chains = [chain(before=context_of([next(fresh_ids)])) for _ in range(3)]
    for each in chains:
        await engine.run(each)
    assert [(await engine.run(then(each), each))[1] for each in chains] == [0, 0, 0]
    assert engine.server.requests == []


async def test_a_history_sent_again_runs_in_the_slot_that_holds_it() -> None:
    engine = FakeLlama()
    first = chain()
    number, _ = await engine.run(first)
    again = context_of([*first.ids(), next(fresh_ids)])
    assert await engine.run(again) == (number, first.total)
    assert engine.server.requests == []


async def test_a_history_that_shares_less_than_half_runs_in_another_slot() -> None:
    engine = FakeLlama()
    first = chain(120)
    number, _ = await engine.run(first)
    other = context_of([*first.ids()[:48], next(fresh_ids)])
    assert await engine.run(other) == (1 - number, 48)
    assert await engine.run(then(first), first) == (number, first.total)


async def test_short_contexts_are_not_saved() -> None:
    engine = FakeLlama(1)
    few = chain(MIN_TOKENS - 8 - 1)
    await engine.run(few)
    await engine.run(chain())
    assert engine.server.requests == []
    enough = chain(MIN_TOKENS - 8)
    await engine.run(enough)
    await engine.run(chain())
    assert engine.server.requests == ["save 0", "save 0"]


async def test_a_second_child_of_a_parent_runs_in_another_slot() -> None:
    engine = FakeLlama()
    parent = chain()
    child = then(parent)
    await engine.run(parent)
    number, _ = await engine.run(child, parent)
    assert await engine.run(then(parent), parent) == (1 - number, parent.total), "a second child"
    assert await engine.run(then(child), child) == (number, child.total)


async def test_a_continuation_with_a_new_head_overwrites_its_parents_slot() -> None:
    engine = FakeLlama()
    parent, other = chain(), chain()
    await engine.run(other)
    number, _ = await engine.run(parent)
    new = then(with_head(parent, range(50, 90)))
    assert await engine.run(new, parent) == (number, 0)
    assert engine.server.requests == [], "nothing was saved"


async def test_a_fork_with_a_new_head_copies_nothing() -> None:
    engine = FakeLlama()
    parent = chain()
    number, _ = await engine.run(parent)
    new = then(with_head(parent, range(50, 90)))
    assert await engine.run(new, parent, fork=True) == (1 - number, 0)
    assert engine.server.requests == []


async def test_what_a_slot_holds_is_certain_if_it_holds_the_parent() -> None:
    parent = chain()
    slot = Slot(0)
    slot.record(parent, "t")
    another = then(with_head(parent, range(50, 90)))
    assert SlotRequest("t", another, parent, False).certain_context(slot) is None
    assert SlotRequest("other", then(parent), parent, False).certain_context(slot) is None
    slot.record(then(parent), "t")
    sure = SlotRequest("t", then(parent), parent, False).certain_context(slot)
    assert sure is not None
    assert sure.body is parent.body


# Tenants


async def test_slots_and_files_are_not_reused_for_another_tenant() -> None:
    engine = FakeLlama(1)
    words = HEAD.then(range(10, 90), None)
    assert await engine.run(words, tenant="a") == (0, 0)
    assert await engine.run(words, tenant="b") == (0, 0)
    assert (await engine.run(words, tenant="a"))[1] == words.total, "its own context was restored"
    read = engine.server.requests.count("restore 0")
    assert (await engine.run(words, tenant="c"))[1] == 0
    assert engine.server.requests.count("restore 0") == read == 1, "another tenant's is not restored"


async def test_the_tenant_of_a_slot_is_uncertain_until_the_engine_has_begun() -> None:
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


@pytest.mark.parametrize("failure", ["refused", "lost"])
async def test_a_job_that_failed_early_makes_no_slot_reusable(failure: str) -> None:
    engine = FakeLlama(1)
    words = HEAD.then(range(10, 90), None)
    await engine.run(chain(), tenant="a")
    await engine.run(words, tenant="a")
    with pytest.raises(Unavailable):
        await engine.run(then(words), tenant="b", failure=failure)
    assert (await engine.run(words, tenant="b"))[1] == 0
    with pytest.raises(Unavailable):
        await engine.run(then(words), tenant="c", failure=failure)
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

    def take(deltas: list[Delta]) -> None:
        if any(isinstance(delta, Finished) for delta in deltas):
            assert len(engine._slots._free) == 1, "the slot is released before the last delta"
            assert not engine._queue.running, "and the next job may run"

    await engine.generate(job, take)


async def test_a_prompt_may_be_cached_only_after_the_engine_has_begun_for_its_tenant() -> None:
    answers: list[Chunk | ApiError] = []
    cache: list[bool] = []

    class Completes(Api):
        async def complete(self, body: bytes, consumer: Consumer[bytes]) -> None:
            cache.append(json.loads(body)["cache_prompt"])
            for answer in answers:
                if isinstance(answer, ApiError):
                    raise answer
                consumer.take([msgspec.json.encode(answer)])

    engine = object.__new__(LlamaEngine)
    engine.renderer = renderer("chatml in small")
    engine.model = SimpleNamespace(context=999, llguidance=False, sees=False, sampling=Sampling())  # type: ignore[assignment]
    engine._host = Host("", "")
    engine._api = Completes(engine._host)
    engine._slots = Slots(range(1), SavedContexts(FakeServer(1), 0))
    engine._queue = JobQueue(1, 8)
    end, begun, lost = Chunk(stop=True), Chunk(prompt_progress=Progress(0)), Unavailable("connection lost")
    cases: list[tuple[str, list[Chunk | ApiError], bool]] = [
        ("a", [end], False),
        ("a", [end], True),
        ("b", [lost], False),
        ("b", [lost], False),
        ("a", [lost], False),
        ("b", [begun, lost], False),
        ("b", [lost], True),
        ("b", [end], True),
        ("a", [begun, end], False),
    ]
    for tenant, answers, allowed in cases:  # noqa: B007
        with suppress(Unavailable):
            await complete_with(engine, tenant)
        assert cache.pop() is allowed


async def test_a_fork_runs_on_a_copy_of_a_context_that_is_being_prefilled() -> None:
    server, stalled = FakeServer(2), asyncio.Event()

    class Completes(Api):
        async def complete(self, body: bytes, consumer: Consumer[bytes]) -> None:
            sent = json.loads(body)
            if not sent["n_predict"]:
                stalled.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await settle()  # it takes some time to end
            consumer.take([msgspec.json.encode(Chunk(stop=True))])

    engine = object.__new__(LlamaEngine)
    engine.serves_one_tenant = False
    engine.renderer = renderer("chatml in small")
    engine.model = SimpleNamespace(context=9999, llguidance=False, sees=False, sampling=Sampling())  # type: ignore[assignment]
    engine._host = Host("", "")
    engine._api = Completes(engine._host)
    engine._slots = Slots(range(2), SavedContexts(server, PLENTY))
    engine._queue = JobQueue(2, 8)
    engine._prefilling = asyncio.Lock()
    asked = job((message("user", "How is the weather? " * 20),))
    asked = structs.replace(asked, offer=Offer())

    async def run(work: Job) -> Rendered:
        finished = (await deltas_of(engine, work))[-1]
        assert isinstance(finished, Finished)
        assert isinstance(finished.position, Rendered)
        return finished.position

    parent = after(asked, await run(asked))
    output = item("function_call_output", call_id="c1", output="It is sunny in one more city.\n" * 20)
    foreseen = structs.replace(asked, parent=parent, input=(output,), generate=False)
    prefill = asyncio.create_task(engine.prefill(Prefill(foreseen, "output")))
    await stalled.wait()
    fork = structs.replace(asked, parent=parent, input=(message("user", "And tomorrow?"),), fork=True)
    await run(fork)
    assert server.requests == ["save 0", "restore 1"]
    prefill.cancel()
    await asyncio.wait([prefill])
    assert len(engine._slots._free) == 2


# Waiting and cancellation


async def test_waiting_jobs_get_slots_in_order() -> None:
    engine = FakeLlama(1)
    order: list[int] = []

    async def take(place: int) -> None:
        async with engine.job(chain()):
            order.append(place)

    async with engine.job(chain()):
        waiting = [asyncio.create_task(take(place)) for place in range(4)]
        await settle()
    late = asyncio.create_task(take(4))  # the slot is free by now, but assigned to the first waiter
    await asyncio.gather(*waiting, late)
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ticks", range(8))
async def test_a_job_cancelled_around_its_assignment_passes_the_slot_on(ticks: int) -> None:
    engine = FakeLlama(1)
    async with engine.job(chain()):
        cancelled, waits = engine.start(chain()), engine.start(chain())
        await settle()
    for _ in range(ticks):
        await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait_for(waits, 300)
    await asyncio.wait([cancelled])
    assert engine.free == [0]
    assert not engine.slots._waiting


async def test_a_job_cancelled_while_it_waits_is_skipped() -> None:
    engine = FakeLlama(1)
    async with engine.job(chain()):
        cancelled, waits = engine.start(chain()), engine.start(chain())
        await settle()
        cancelled.cancel()
    await asyncio.wait_for(waits, 300)
    assert cancelled.cancelled()
    assert engine.free == [0]
    assert not engine.slots._waiting


@pytest.mark.parametrize("ticks", range(14))
async def test_a_fork_can_be_cancelled_at_any_time(ticks: int) -> None:
    engine = FakeLlama(2)
    parent, other = chain(), chain()
    await engine.run(other)
    await engine.run(parent)
    fork = engine.start(then(parent), parent, fork=True)
    for _ in range(ticks):
        await asyncio.sleep(0)
    fork.cancel()
    _, cached = await asyncio.wait_for(engine.run(then(parent), parent), 300)
    assert cached == parent.total
    await settle()
    assert engine.free == [0, 1]
    assert not any(slot.is_copied for slot in engine.slots._all.values())
    assert (await engine.run(then(other), other))[1] == other.total


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_a_slot_is_not_reassigned_while_the_engine_saves_or_restores_it(action: str) -> None:
    engine = FakeLlama(1)
    one, other = chain(), chain()
    await engine.run(one, tenant="a")
    await engine.run(other, tenant="b")
    gate = engine.server.block(action)
    cancelled = engine.start(then(one), one, tenant="a")
    await settle()
    cancelled.cancel()
    await asyncio.wait([cancelled], timeout=300)
    assert cancelled.cancelled(), "cancellation does not wait for the engine"
    late = engine.start(then(other), other, tenant="b")
    await settle()
    assert not late.done()
    gate.set()
    assert (await asyncio.wait_for(late, 300))[1] == other.total


async def test_a_continuation_waits_while_its_slot_is_copied_and_other_jobs_do_not() -> None:
    engine = FakeLlama(3)
    parent = chain()
    number, _ = await engine.run(parent)
    gate = engine.server.block("save")
    fork = engine.start(then(parent), parent, fork=True)
    await settle()
    child = engine.start(then(parent), parent)
    await settle()
    assert not child.done()
    await asyncio.wait_for(engine.run(chain(before=context_of([7]))), 300)
    gate.set()
    assert await child == (number, parent.total)
    assert (await fork)[1] == parent.total


# Restarts of the engine


async def test_after_a_restart_the_content_of_all_slots_is_unknown() -> None:
    engine = FakeLlama(2)
    parent, running = chain(), chain()
    await engine.run(parent)
    async with engine.job(running):
        engine.slots.reset()
        engine.server.slots = [(), ()]
        assert len(engine.free) == 1
    known = [slot.context for slot in (*engine.slots._all.values(), *engine.slots._free)]
    assert known == [None] * 4, "what a job records that ran before is ignored"
    assert engine.free == [0, 1]
    assert engine.used == 0
    assert (await engine.run(then(parent), parent))[1] == 0


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_the_engine_may_restart_while_a_slot_is_prepared(action: str) -> None:
    engine = FakeLlama(2)
    parent = chain()
    await engine.run(parent)
    gate = engine.server.block(action)
    fork = engine.start(then(parent), parent, fork=True)
    await settle()
    engine.slots.reset()
    engine.server.slots = [(), ()]
    engine.server.failing.add(action)
    gate.set()
    assert (await asyncio.wait_for(fork, 300))[1] == 0
    assert engine.free == [0, 1]
    assert not any(slot.is_copied for slot in engine.slots._all.values())


# Random schedules


KINDS = ("start", "continue", "continue", "fork", "fork", "history", "head")
FAILURES = ("", "", "", "refused", "lost")
STARTS = st.tuples(
    st.sampled_from(KINDS), st.sampled_from("ab"), st.integers(0, 5), st.sampled_from(FAILURES)
)
ENDS = st.tuples(st.just("end"), st.sampled_from([True, True, False]), st.integers(0, 5))
CANCELS = st.tuples(st.just("cancel"), st.none(), st.integers(0, 5))
FAULTS = st.one_of(
    st.tuples(st.just("fail"), st.sampled_from(["save", "restore", None, None]), st.none()),
    st.tuples(st.just("block"), st.sampled_from(["save", "restore"]), st.none()),
    st.tuples(st.just("release"), st.none(), st.none()),
    st.tuples(st.just("release"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.none(), st.integers(0, 9)),
)
EVENTS = st.tuples(st.one_of(STARTS, STARTS, ENDS, ENDS, CANCELS, FAULTS), st.integers(0, 6))
"""An event, and the iterations of the event loop until the next one."""


class Schedule:
    """Jobs of two tenants that start, run, end and are cancelled in any order."""

    def __init__(self, slots: int, limit: int) -> None:
        self.engine = FakeLlama(slots, limit)
        self.tasks: list[asyncio.Task[None]] = []
        self.running: list[asyncio.Future[None]] = []
        self.done: dict[str, list[Rendered]] = {"a": [], "b": []}
        self.largest = 100

    async def job(self, prompt: Rendered, parent: Rendered | None, tenant: str, **kind: Any) -> None:
        work = asyncio.get_running_loop().create_future()
        async with self.engine.job(prompt, parent, tenant=tenant, **kind):
            self.running.append(work)
            await work
        self.done[tenant].append(prompt)

    def start(self, kind: str, tenant: str, which: int, failure: str) -> None:
        known = self.done[tenant]
        parent = known[-1 - which % len(known)] if known and kind != "start" else None
        prompt = chain(20 * (which + 1)) if parent is None else then(parent, 10 * which + 1)
        if parent is not None and kind == "head":
            prompt = with_head(prompt, range(50, 50 + 10 * which))
        given = parent if kind != "history" else None
        self.largest = max(self.largest, prompt.total)
        job = self.job(prompt, given, tenant, fork=kind == "fork", failure=failure)
        self.tasks.append(asyncio.create_task(job))

    def end(self, succeeds: bool, which: int) -> None:
        running = [work for work in self.running if not work.done()]
        if running:
            work = running[which % len(running)]
            if succeeds:
                work.set_result(None)
            else:
                work.set_exception(Unavailable("connection lost"))

    def apply(self, event: tuple[Any, ...]) -> None:
        kind, what, which, *failure = event
        server = self.engine.server
        if kind in KINDS:
            self.start(kind, what, which, *failure)
        elif kind == "end":
            self.end(what, which)
        elif kind == "cancel":
            running = [task for task in self.tasks if not task.done()]
            if running:
                running[which % len(running)].cancel()
        elif kind == "fail":
            server.failing = {what} - {None}
        elif kind == "block" and what not in server.gates:
            server.block(what)
        elif kind == "release":
            self.release()
        elif kind == "restart" and not which:
            self.engine.slots.reset()
            server.slots = [() for _ in server.slots]

    def release(self) -> None:
        for gate in self.engine.server.gates.values():
            gate.set()
        self.engine.server.gates.clear()

    def check(self) -> None:
        engine = self.engine
        most = max(engine.saved_contexts._limit_bytes, BYTES_PER_TOKEN * self.largest)
        assert engine.used <= most
        assert len(engine.free) == len(set(engine.free)), "no slot is free twice"
        used = {saved.name for saved in engine.saved_contexts._saved}
        free = engine.saved_contexts._free_names
        assert len({*used, *free}) == len(engine.saved_contexts._saved) + len(free), "no name is used twice"

    async def finish(self) -> None:
        """End all jobs, and check that each got a slot and released it."""
        self.release()
        for _ in range(1000):
            if all(task.done() for task in self.tasks):
                break
            self.end(True, 0)
            await asyncio.sleep(0)
        await settle()
        for task in self.tasks:
            assert task.done(), "every job gets a slot"
            if not task.cancelled():
                assert isinstance(task.exception(), Unavailable | None)
        assert self.engine.free == list(range(len(self.engine.server.slots))), "every slot is released"
        assert not any(slot.is_copied for slot in self.engine.slots._all.values())
        assert not self.engine.slots._waiting
        saved_contexts = self.engine.saved_contexts
        assert not saved_contexts._pins
        assert saved_contexts._names_made == len(saved_contexts._saved) + len(saved_contexts._free_names), (
            "every file is saved or deleted"
        )
        assert not self.engine.slots._preparations


@settings(max_examples=150)
@given(st.integers(1, 3), st.sampled_from([0, 1, 2000, PLENTY]), st.lists(EVENTS, min_size=30, max_size=90))
def test_in_any_schedule_every_job_gets_a_slot_and_no_tenant_reuses_another(
    slots: int, limit: int, events: list[tuple[tuple[Any, ...], int]]
) -> None:
    async def run() -> None:
        schedule = Schedule(slots, limit)
        for tenant in "aabb":
            schedule.done[tenant].append(first := chain(60))
            await schedule.engine.run(first, tenant=tenant)
        for event, ticks in events:
            schedule.apply(event)
            for _ in range(ticks):
                await asyncio.sleep(0)
                schedule.check()
        await schedule.finish()
        schedule.check()

    asyncio.run(run())
