"""When a serving process looks for garbage."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from slipring.base.garbage_collection import FullCollections

MIB = 2**20


class Cycle:
    """Garbage as soon as nothing else refers to it."""

    def __init__(self) -> None:
        self.itself = self


class Process:
    """The memory of a process, and whether it is busy."""

    def __init__(self) -> None:
        self.resident: int | None = 100 * MIB
        self.is_busy = True
        self.collection_s = 0.6
        """How long a full collection takes."""
        self._read = 0

    def clock(self) -> float:
        """Is read before and after each collection."""
        self._read += 1
        return (self._read // 2) * self.collection_s


@pytest.fixture
def process() -> Iterator[Process]:
    """A process whose collector has the settings of this one again afterwards."""
    before = gc.get_threshold()
    yield Process()
    gc.set_threshold(*before)


def take_over(process: Process) -> FullCollections:
    """The collections of a process, of which the first has run."""
    collections = FullCollections(lambda: process.resident, lambda: process.is_busy, process.clock)
    assert not collections.run_if_due(-10.0)
    gc.collect(1)
    collections.run_if_due(0.0)
    gc.collect(1)  # as if new objects had been looked at: without any, no full collection is due
    if not gc.get_count()[2]:
        pytest.skip("this Python looks at old objects in small steps, and at all of them only when asked")
    return collections


def test_python_starts_no_full_collections_itself(process: Process) -> None:
    gc.collect()
    take_over(process)
    cycle = Cycle()
    gc.collect(1)
    gc.collect(1)  # the cycle is old now
    gone = weakref.ref(cycle)
    del cycle
    kept = [[number] for number in range(100_000)]
    assert gone() is not None
    del kept
    gc.collect()
    assert gone() is None


def test_a_busy_process_collects_when_its_memory_has_grown_by_a_quarter(process: Process) -> None:
    collections = take_over(process)
    process.resident = (100 + 32 + 24) * MIB
    assert not collections.run_if_due(10.0)
    process.resident = (100 + 32 + 25) * MIB
    cycle = weakref.ref(Cycle())
    assert collections.run_if_due(20.0)
    assert cycle() is None


def test_the_growth_counts_from_the_last_collection(process: Process) -> None:
    collections = take_over(process)
    process.resident = 200 * MIB
    assert collections.run_if_due(10.0)
    gc.collect(1)
    process.resident = (200 + 32 + 49) * MIB
    assert not collections.run_if_due(20.0)
    process.resident = (200 + 32 + 50) * MIB
    assert collections.run_if_due(30.0)


def test_a_process_at_rest_collects_when_its_memory_has_grown_by_a_sixteenth(process: Process) -> None:
    collections = take_over(process)
    process.is_busy = False
    process.resident = (100 + 32 + 6) * MIB
    assert not collections.run_if_due(10.0)
    process.resident = (100 + 32 + 7) * MIB
    assert collections.run_if_due(20.0)


def test_it_looks_every_ten_seconds(process: Process) -> None:
    collections = take_over(process)
    process.resident = 1000 * MIB
    assert not collections.run_if_due(9.9)
    assert collections.run_if_due(10.0)


def test_it_rests_after_a_collection_for_500_times_as_long(process: Process) -> None:
    collections = take_over(process)
    assert not collections.run_if_due(290.0)
    process.collection_s = 0.01
    assert collections.run_if_due(300.0)
    gc.collect(1)
    assert collections.run_if_due(310.0)


def test_it_rests_no_longer_than_ten_minutes(process: Process) -> None:
    process.collection_s = 5.0
    collections = take_over(process)
    assert not collections.run_if_due(590.0)
    assert collections.run_if_due(600.0)


def test_without_new_objects_it_does_not_collect_by_time(process: Process) -> None:
    collections = take_over(process)
    gc.collect()
    assert not collections.run_if_due(10.0)
    assert not collections.run_if_due(10_000.0)


def test_a_process_at_rest_collects_what_few_objects_hold(process: Process) -> None:
    collections = take_over(process)
    process.is_busy = False
    gc.collect()
    process.resident = 500 * MIB
    cycle = weakref.ref(Cycle())
    assert collections.run_if_due(10.0)
    assert cycle() is None
    assert not collections.run_if_due(20.0), "the memory has not grown since"


def test_the_growth_counts_from_where_memory_was_lowest(process: Process) -> None:
    collections = take_over(process)
    process.resident = 500 * MIB
    assert collections.run_if_due(10.0)
    process.resident = 100 * MIB  # returned to the system after the collection
    assert not collections.run_if_due(20.0)
    process.resident = (100 + 32 + 25) * MIB
    assert collections.run_if_due(30.0)


def test_where_memory_is_not_known_it_collects_by_time(process: Process) -> None:
    process.resident = None
    collections = take_over(process)
    assert not collections.run_if_due(100.0)
    assert collections.run_if_due(300.0)
