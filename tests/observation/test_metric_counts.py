"""Counting, snapshots, and their sum over workers that come and go."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipring.observation import metric_table as table
from slipring.observation.bounded_labels import BoundedLabels, BoundedNames
from slipring.observation.metric_counts import Registry, Snapshot
from slipring.observation.worker_metrics import Fold
from tests.observation.snapshot_values import value_of

WORKERS = st.integers(0, 2)


def test_observations_are_counted_in_the_first_bucket_whose_bound_they_do_not_exceed() -> None:
    registry = Registry("p")
    histogram = registry.histogram(table.TOKEN_SECONDS)
    for seconds in (0.0, 0.0001, 0.00010001, 0.25, 0.26):
        histogram.observe(("m",), seconds)
    ((labels, counts, nanoseconds),) = map(
        msgspec.structs.astuple, registry.snapshot().distributions[table.TOKEN_SECONDS.name]
    )
    assert labels == ("m",)
    assert (counts[0], counts[1], counts[-2], counts[-1], sum(counts)) == (2, 1, 1, 1, 5)
    assert nanoseconds == 510_200_010


def test_a_snapshot_survives_json_and_later_counting() -> None:
    registry = Registry("p")
    registry.counter(table.TURNS)["m", "completed", "http", "responses"] += 2**60
    registry.histogram(table.STAGE_SECONDS).observe(("store",), 1.5)
    snapshot = registry.snapshot([(table.START_TIME, (), 12.25), (table.LANES, (), 3)])
    read = msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot)
    registry.counter(table.TURNS)["m", "completed", "http", "responses"] += 1
    registry.histogram(table.STAGE_SECONDS).observe(("store",), 1.5)
    assert read == snapshot
    assert value_of(read, table.TURNS) == 2**60


def test_gauges_are_merged_as_the_table_says() -> None:
    def of(up: int, lanes: int, tenant_bytes: int) -> Snapshot:
        readings = [
            (table.ENGINE_UP, ("llama",), up),
            (table.LANES, (), lanes),
            (table.CACHE_BYTES, ("tenant",), tenant_bytes),
        ]
        return Registry("p").snapshot(readings)

    fold = Fold()
    fold.update(0, of(1, 2, 70))
    merged = fold.snapshot(of(0, 3, 50))
    assert value_of(merged, table.ENGINE_UP) == 0
    assert value_of(merged, table.LANES) == 5
    assert value_of(merged, table.CACHE_BYTES) == 70


def test_metrics_of_another_version_are_left_out() -> None:
    unknown = Snapshot("p", {"slipring_unknown_total": []}, {"slipring_unknown_seconds": []})
    assert Fold().snapshot(unknown) == Snapshot("", {}, {})


def test_a_fold_bounds_the_tenants_of_all_workers_together() -> None:
    fold = Fold(BoundedLabels(tenants=2))
    for number in range(6):
        registry = Registry(f"p{number}")
        registry.counter(table.TENANT_TURNS)[f"tenant-{number}", "completed"] += 1
        registry.counter(table.TENANT_TURNS)["other", "completed"] += 1
        fold.update(number % 2, registry.snapshot())
        fold.snapshot()
    total = fold.snapshot()
    names = {value.labels[0] for value in total.values[table.TENANT_TURNS.name]}
    assert names == {"tenant-0", "tenant-1", "other"}
    assert value_of(total, table.TENANT_TURNS) == 12


@given(st.lists(st.text()), st.integers(0, 3))
def test_names_are_bounded(given: list[str], most: int) -> None:
    names = BoundedNames(most)
    kept = [names.of(name) for name in given]
    assert len(set(kept) - {"other"}) <= most
    assert all(one in (other, "other") for one, other in zip(kept, given, strict=True))


class _Worker:
    """A process that counts."""

    def __init__(self, process: str) -> None:
        self.registry = Registry(process)
        self.turns = self.registry.counter(table.TURNS)
        self.seconds = self.registry.histogram(table.TURN_SECONDS)
        self.cpu_ns = 0

    def snapshot(self) -> Snapshot:
        return self.registry.snapshot([(table.CPU_SECONDS, (), self.cpu_ns), (table.PROCESSES, (), 1)])


class Workers(RuleBasedStateMachine):
    """Workers count, report, die and are replaced in any order; the supervisor may not notice a death."""

    def __init__(self) -> None:
        super().__init__()
        self.fold = Fold()
        self.made = 0
        self.workers: dict[int, _Worker] = {}
        self.reported: dict[str, Snapshot] = {}
        self.living: dict[int, str] = {}
        """The processes that the supervisor takes for alive."""
        self.before: dict[tuple[str, tuple[str, ...], int], float] = {}

    @rule(number=WORKERS)
    def replace(self, number: int) -> None:
        self.made += 1
        self.workers[number] = _Worker(f"process-{self.made}")

    @precondition(lambda self: self.workers)
    @rule(
        number=WORKERS,
        labels=st.tuples(st.sampled_from("ab"), st.sampled_from(table.STATUSES)),
        seconds=st.floats(0, 1e6),
        cpu_ns=st.integers(0, 10**12),
    )
    def count(self, number: int, labels: tuple[str, str], seconds: float, cpu_ns: int) -> None:
        if (worker := self.workers.get(number)) is not None:
            worker.turns[(*labels, "http", "responses")] += 1
            worker.seconds.observe(labels, seconds)
            worker.cpu_ns += cpu_ns

    @rule(number=WORKERS)
    def report(self, number: int) -> None:
        if (worker := self.workers.get(number)) is not None:
            sent = msgspec.json.decode(msgspec.json.encode(worker.snapshot()), type=Snapshot)
            self.fold.update(number, sent)
            self.reported[sent.process] = sent
            self.living[number] = sent.process

    @rule(number=WORKERS)
    def die(self, number: int) -> None:
        self.workers.pop(number, None)
        self.fold.end(number)
        self.living.pop(number, None)

    @rule(number=WORKERS)
    def report_late(self, number: int) -> None:
        """What a worker wrote before its end is read after it."""
        last = self.fold._last_ended.get(number)
        if last is not None:
            self.fold.update(number, self.reported[last])

    @invariant()
    def no_counter_falls(self) -> None:
        now: dict[tuple[str, tuple[str, ...], int], float] = {}
        total = self.fold.snapshot()
        for name, values in total.values.items():
            if table.BY_NAME[name].kind == "counter":
                now |= {(name, each.labels, 0): each.value / table.BY_NAME[name].parts for each in values}
        for name, distributions in total.distributions.items():
            for each in distributions:
                now[name, each.labels, -1] = each.nanoseconds / table.NANOSECONDS
                now |= {(name, each.labels, place): count for place, count in enumerate(each.counts)}
        assert all(now.get(key, -1) >= value for key, value in self.before.items())
        self.before = now

    @invariant()
    def the_sum_has_every_process_once(self) -> None:
        total = self.fold.snapshot()
        assert value_of(total, table.TURNS) == sum(
            value_of(each, table.TURNS) for each in self.reported.values()
        )
        assert value_of(total, table.PROCESSES) == len(self.living)


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
