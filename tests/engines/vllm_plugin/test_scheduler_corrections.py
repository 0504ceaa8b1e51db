"""What ``corrections`` changes of vLLM's scheduler, shown on a small one with the same faults."""

import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest

from slipring.engines.vllm_plugin.corrections import keep_places, keep_sessions, mend_scheduler
from slipring.engines.vllm_plugin.session_versions import missing_of
from tests.engines.fakes.vllm_scheduler import BLOCK, STOP, Request, Scheduler, StreamingUpdate


class Mended(Scheduler):
    """Has methods of its own, so that only this class is changed."""

    def schedule(self) -> bool:
        return super().schedule()

    def _handle_stopped_request(self, request: Any) -> bool:
        return super()._handle_stopped_request(request)

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        super()._update_request_as_session(session, update)

    def _enqueue_waiting_request(self, request: Any) -> None:
        super()._enqueue_waiting_request(request)

    def get_num_unfinished_requests(self) -> int:
        return super().get_num_unfinished_requests()


mend_scheduler(Mended)
keep_places(Mended)
keep_sessions(Mended)
LATE = 99
"""What the model samples in the step that was begun after the last of a turn."""


def chain(kind: type[Scheduler], *, answers: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """A session of turns that a stop token ends. Returns what each emitted, and the context that the engine
    has at the end."""
    scheduler = kind(Request([1, 2, 3], max_tokens=10))
    emitted, context = [], [1, 2, 3]
    for number, answer in enumerate(answers):
        if number:
            new = [context.pop(), 50 + number]  # the last token was dropped, so it is sent again
            scheduler.append(new, max_tokens=10)
            context += new
        emitted.append(scheduler.run(*answer, LATE))
        context += answer
    scheduler.append([context[-1]], max_tokens=10)
    return emitted, scheduler.request.all_token_ids


ANSWERS = [[11, 12, STOP], [21, STOP], [31, 32, STOP]]


def test_turns_that_a_stop_token_ends_are_kept_token_by_token() -> None:
    emitted, held = chain(Mended, answers=ANSWERS)
    assert emitted == ANSWERS
    assert held == [1, 2, 3, 11, 12, STOP, 51, 21, STOP, 52, 31, 32, STOP]
    # Without the mending the late token is emitted, and the stop token is there twice.
    emitted, held = chain(Scheduler, answers=ANSWERS)
    assert emitted[0] == [*ANSWERS[0], LATE]
    assert held.count(STOP) > len(ANSWERS)


def test_turns_whose_first_token_ends_them_do_not_end_the_engine() -> None:
    answers = [[11, STOP], [STOP], [STOP], [21, STOP]]
    emitted, held = chain(Mended, answers=answers)
    assert emitted == answers
    assert held == [1, 2, 3, 11, STOP, 51, STOP, 52, STOP, 53, 21, STOP]
    scheduler = Scheduler(Request([1, 2, 3], max_tokens=10))
    with pytest.raises(AssertionError, match="the engine ends"):
        scheduler.run(STOP, STOP)


def test_a_turn_that_a_limit_ends_has_no_late_token() -> None:
    scheduler = Mended(Request([1], max_tokens=2))
    assert scheduler.run(11, 12) == [11, 12]
    assert scheduler.request.async_tokens_to_discard == 0
    scheduler.append([12, 51], max_tokens=2)
    assert scheduler.run(21, 22) == [21, 22]


def test_each_turn_has_its_own_limit() -> None:
    for kind, second in ((Mended, [21, 22, 23]), (Scheduler, [21])):
        scheduler = kind(Request([1], max_tokens=1))
        assert scheduler.run(11) == [11]
        scheduler.append([11, 51], max_tokens=3)
        assert scheduler.run(21, 22, 23) == second


def test_a_token_that_is_dropped_is_in_no_hash() -> None:
    for kind, is_right in ((Mended, True), (Scheduler, False)):
        scheduler = kind(Request(list(range(1, BLOCK)), max_tokens=1))
        scheduler.run(77)  # a warmup: its token ends a block, and does not belong to the chain
        scheduler.append([51], max_tokens=1)
        request = scheduler.request
        assert (request.block_hashes[0] == tuple(request.all_token_ids[:BLOCK])) is is_right


def test_requests_that_do_not_stay_open_are_left_alone() -> None:
    scheduler = Mended(Request([1, 2, 3], max_tokens=10, resumable=False))
    scheduler.run(11, STOP, LATE)
    assert scheduler.request.num_computed_tokens == len([1, 2, 3, 11, STOP])


def test_a_session_that_goes_on_goes_first() -> None:
    """It has a place in the model runner already, which nothing that waits for one may take."""
    for kind, place in ((Mended, 0), (Scheduler, 2)):
        scheduler = kind(Request([1], max_tokens=2), waiting=["one", "two"])
        scheduler.run(11, 12)
        scheduler.append([12, 51], max_tokens=2)
        assert list(scheduler.skipped_waiting).index(scheduler.request) == place


def test_in_a_queue_by_priority_the_place_of_a_session_that_goes_on_is_reserved() -> None:
    for kind, reserved in ((Mended, 1), (Scheduler, 0)):
        scheduler = kind(Request([1], max_tokens=2), has_priorities=True)
        scheduler.run(11, 12)
        scheduler.append([12, 51], max_tokens=2)
        assert scheduler.num_waiting_for_streaming_input == 0
        scheduler.schedule()
        assert scheduler.counted == reserved
        scheduler.schedule()  # it runs now
        assert scheduler.counted == 0


def test_the_place_of_a_session_whose_adapter_may_have_to_wait_is_reserved() -> None:
    """vLLM then schedules what is behind it."""
    scheduler = Mended(Request([1], max_tokens=2, lora_request="adapter"))
    scheduler.run(11, 12)
    scheduler.append([12, 51], max_tokens=2)
    scheduler.schedule()
    assert scheduler.counted == 1
    scheduler.schedule()  # it runs now
    assert scheduler.counted == 0


def test_where_requests_are_looked_for_in_all_queues_idle_sessions_stay_there() -> None:
    """As vLLM does where it has a connector to another engine."""
    scheduler = Mended(Request([1], max_tokens=2))
    scheduler.connector = object()
    scheduler.run(11, 12)
    assert list(scheduler.skipped_waiting) == [scheduler.request]
    assert scheduler.get_num_unfinished_requests() == 0
    scheduler.append([12, 51], max_tokens=2)
    assert list(scheduler.skipped_waiting) == [scheduler.request]
    assert scheduler.run(21, 22) == [21, 22]


@pytest.mark.parametrize("has_priorities", [False, True])
def test_a_session_that_waits_for_its_next_turn_stands_in_no_queue(*, has_priorities: bool) -> None:
    for kind, queued in ((Mended, 1), (Scheduler, 2)):
        scheduler = kind(Request([1], max_tokens=2), waiting=["another"], has_priorities=has_priorities)
        scheduler.run(11, 12)
        assert scheduler.num_waiting_for_streaming_input == 1
        assert len(scheduler.skipped_waiting) == queued
        assert scheduler.get_num_unfinished_requests() == 1  # the other one
        scheduler.append([12, 51], max_tokens=2)
        assert len(scheduler.skipped_waiting) == 2
        assert scheduler.get_num_unfinished_requests() == 2
        assert scheduler.run(21, 22) == [21, 22]


@pytest.mark.parametrize("steps_under_way", [1, 2])
def test_a_session_that_is_preempted_at_the_end_of_its_turn_keeps_its_context(steps_under_way: int) -> None:
    for kind, is_right in ((Mended, True), (Scheduler, False)):
        scheduler = kind(Request([1, 2, 3], max_tokens=10))
        scheduler.schedule()
        scheduler.under_way.append(11)
        scheduler.end_step()
        for token in (STOP, LATE)[:steps_under_way]:
            scheduler.schedule()
            scheduler.under_way.append(token)
        scheduler.preempt()
        assert scheduler.end_step() == [STOP]
        if is_right:
            # The step that was begun after the last token emits nothing, and nothing is computed.
            assert all(scheduler.end_step() == [] for _ in range(len(scheduler.under_way)))
            assert scheduler.request.num_computed_tokens == 0
        scheduler.under_way.clear()
        scheduler.append([STOP, 51], max_tokens=10)
        assert (scheduler.request.all_token_ids == [1, 2, 3, 11, STOP, 51]) is is_right
        if is_right:
            assert scheduler.request.num_computed_tokens == 0
            assert scheduler.request.block_hashes == [(1, 2, 3, 11)]
            assert scheduler.run(21, STOP, LATE) == [21, STOP]


@pytest.mark.parametrize(
    ("version", "plugins", "mended"),
    [
        ("0.26.0", "slipring_sessions", {"faults", "own"}),
        ("0.26.0", "other,slipring_sessions", {"faults", "own"}),
        ("0.26.0", "other", set()),
        ("0.26.0", None, set()),
        ("0.26.1", "slipring_sessions", set()),
        ("0.32.0", "slipring_sessions", {"own"}),
        ("0.32.4+cpu", "slipring_sessions", {"own"}),
        ("0.33.0", "slipring_sessions", set()),
        ("dev", "slipring_sessions", set()),
    ],
)
def test_vllm_loads_it_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, version: str, plugins: str | None, mended: set[str]
) -> None:
    class Real(Mended):
        """As vLLM's module has it."""

        schedule = Scheduler.schedule
        _handle_stopped_request = Scheduler._handle_stopped_request
        _update_request_as_session = Scheduler._update_request_as_session
        _enqueue_waiting_request = Scheduler._enqueue_waiting_request
        get_num_unfinished_requests = Scheduler.get_num_unfinished_requests

    class Update(StreamingUpdate):
        @classmethod
        def from_request(cls, request: Request) -> StreamingUpdate | None:
            return super().from_request(request)

    class Processor:
        def _update_streaming_request_state(self) -> None:
            return

    class Worker:
        def init_device(self) -> None:
            return

    modules: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": version},
        **{f"vllm.{part}": {} for part in ("v1", "v1.core", "v1.core.sched", "v1.engine", "v1.worker")},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Real},
        "vllm.v1.engine.output_processor": {"OutputProcessor": Processor},
        "vllm.v1.request": {"StreamingUpdate": Update},
        "vllm.v1.worker.worker_base": {"WorkerWrapperBase": Worker},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    if plugins is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    before = [vars(each).copy() for each in (Real, Update, Processor, Worker)]
    (found,) = entry_points(group="vllm.general_plugins", name="slipring_sessions")
    found.load()()
    after = [vars(each).copy() for each in (Real, Update, Processor, Worker)]
    # What the faults concern is changed first, and then what belongs to a turn.
    scheduler = Real(Request([1], max_tokens=1))
    scheduler.request.num_output_placeholders = 1
    scheduler._handle_stopped_request(scheduler.request)
    assert scheduler.request.async_tokens_to_discard == ("faults" in mended)
    changed = [one != other for one, other in zip(before, after, strict=True)]
    assert changed == [bool(mended), *["own" in mended] * 3]
    # vLLM may load it again.
    found.load()()
    assert [vars(each).copy() for each in (Real, Update, Processor, Worker)] == after


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [
        ("0.26.0", True),
        ("0.26.1", False),
        ("0.32.0", True),
        ("0.32.7+cpu", True),
        ("0.33.0", False),
        ("dev", False),
    ],
)
def test_turns_have_settings_of_their_own_where_it_was_tested(version: str, is_tested: bool) -> None:
    missing = missing_of(version)
    assert (missing is None) is is_tested
    if missing is not None:
        assert missing == f"vLLM {version} was not tested with them (0.26.0 and 0.32 were)"
