"""Saved contexts: what is saved, evicted and restored, and what happens when that fails."""

import os
from pathlib import Path

import pytest

from slipring.engines.llama.api import Unsupported
from slipring.engines.llama.slots_and_saved_contexts import SlotRequest
from tests.engines.llama.fake_llama import BYTES_PER_TOKEN, FakeLlama, chain, settle, then


async def test_saved_contexts_are_bounded_in_bytes_and_the_least_recently_used_is_evicted() -> None:
    size = BYTES_PER_TOKEN * 108
    engine = FakeLlama(1, limit=2 * size)
    chains = [chain() for _ in range(4)]
    for each in chains[:3]:
        await engine.run(each)
    assert engine.used == 2 * size, "at the limit"
    await engine.run(chains[3])
    assert engine.used == 2 * size, "past it, the oldest is evicted"
    engine.server.requests.clear()
    assert (await engine.run(then(chains[0]), chains[0]))[1] == 8, "evicted"
    assert (await engine.run(then(chains[2]), chains[2]))[1] == chains[2].total


async def test_a_context_larger_than_the_bound_is_kept_alone() -> None:
    engine = FakeLlama(1, limit=1)
    one, two = chain(), chain()
    await engine.run(one)
    await engine.run(two)
    assert engine.used == BYTES_PER_TOKEN * one.total
    assert (await engine.run(then(one), one))[1] == one.total, "restored before it was evicted"
    assert engine.used == BYTES_PER_TOKEN * two.total


async def test_a_file_is_not_overwritten_while_it_is_being_restored() -> None:
    engine = FakeLlama(2, limit=1)
    one, two, three = chain(), chain(), chain()
    for each in (one, two, three):
        await engine.run(each)
    gate = engine.server.block("restore")
    back = engine.start(then(one), one)
    await settle()
    assert "restore 1" in engine.server.requests
    assert await engine.run(chain(), tenant="other")
    gate.set()
    assert (await back)[1] == one.total
    await settle()
    assert engine.saved_contexts._names_made == len(engine.saved_contexts._saved) + len(
        engine.saved_contexts._free_names
    )
    assert not engine.saved_contexts._pins


async def test_files_of_evicted_contexts_are_deleted(tmp_path: Path) -> None:
    engine = FakeLlama(1, limit=BYTES_PER_TOKEN * 150, directory=tmp_path)
    save = engine.server.save_slot

    async def written(slot: int, name: str) -> int:
        (tmp_path / name).touch()
        return await save(slot, name)

    engine.server.save_slot = written  # type: ignore[method-assign]
    for _ in range(4):
        await engine.run(chain())
    assert len(os.listdir(tmp_path)) == 1
    engine.server.failing.add("save")
    await engine.run(chain())
    assert len(os.listdir(tmp_path)) == 1, "the file of a failed save is deleted"
    engine.slots.reset()
    assert os.listdir(tmp_path) == []


async def test_file_names_are_reused() -> None:
    engine = FakeLlama(1, limit=BYTES_PER_TOKEN * 150)
    for _ in range(9):
        await engine.run(chain())
    assert len(engine.server.files) <= 2


async def test_a_context_is_saved_once() -> None:
    engine = FakeLlama(2)
    parent = chain()
    await engine.run(parent)
    await engine.run(then(parent), parent, fork=True)
    await engine.run(chain())
    await engine.run(chain())
    assert engine.server.requests.count("save 0") == 1


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_a_context_that_cannot_be_saved_or_restored_is_prefilled(action: str) -> None:
    engine = FakeLlama(1)
    one, two = chain(), chain()
    await engine.run(one)
    engine.server.failing.add(action)
    await engine.run(two)
    child = then(one)
    assert (await engine.run(child, one))[1] <= 8
    engine.server.failing.clear()
    assert await engine.run(then(child), child) == (0, child.total)
    assert engine.used in (0, BYTES_PER_TOKEN * two.total), "one that cannot be restored is evicted"


async def test_a_fork_whose_parent_cannot_be_saved_is_prefilled_and_the_parent_keeps_its_slot() -> None:
    engine = FakeLlama()
    parent = chain()
    number, _ = await engine.run(parent)
    engine.server.failing.add("save")
    assert await engine.run(then(parent), parent, fork=True) == (1 - number, 0)
    assert await engine.run(then(parent), parent) == (number, parent.total)
    assert engine.free == [0, 1]


async def test_after_a_failed_restore_the_content_of_the_slot_is_unknown() -> None:
    engine = FakeLlama(1)
    one, other = chain(), chain()
    await engine.run(one, tenant="a")
    await engine.run(other, tenant="b")
    engine.server.failing.add("restore")
    async with engine.slots.acquire(SlotRequest("a", then(one), one, False)) as slot:
        assert (slot.context, slot.tenant) == (None, None), "it may still hold tokens of b"


async def test_saving_is_disabled_after_the_engine_reports_that_it_cannot() -> None:
    engine = FakeLlama(1)

    async def refuse(slot: int, name: str) -> int:
        engine.server.requests.append("save")
        raise Unsupported

    engine.server.save_slot = refuse  # type: ignore[method-assign]
    for _ in range(4):
        await engine.run(chain())
    assert engine.server.requests == ["save"]
    assert not engine.saved_contexts.is_enabled


async def test_an_unexpected_error_fails_the_job_and_releases_its_slots() -> None:
    engine = FakeLlama(2)

    async def broken(slot: int, name: str) -> int:
        raise ZeroDivisionError

    engine.server.save_slot = broken  # type: ignore[method-assign]
    parent = chain()
    await engine.run(parent)
    with pytest.raises(ZeroDivisionError):
        await engine.run(then(parent), parent, fork=True)
    await settle()
    assert engine.free == [0, 1]
