"""How ``corrections`` gives each turn its own settings, shown on parts that keep those of the first."""

import sys
from collections import deque
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slipring.engines.vllm_plugin.corrections import (
    keep_grammars,
    keep_outputs,
    keep_places,
    keep_seeds,
    keep_sessions,
    mend_scheduler,
)
from tests.engines.fakes import vllm_scheduler
from tests.engines.fakes.vllm_scheduler import STOP, Constraint, Request, Scheduler, Status


class Update(vllm_scheduler.StreamingUpdate):
    """Has a method of its own, so that only this class is changed."""

    @classmethod
    def from_request(cls, request: Request) -> "vllm_scheduler.StreamingUpdate | None":
        return super().from_request(request)


class Own(Scheduler):
    """Likewise."""

    update: type[vllm_scheduler.StreamingUpdate] = Update

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


mend_scheduler(Own)
keep_grammars(Update, Own)
keep_places(Own)
keep_sessions(Own)


class FirstOnly(Own):
    """As vLLM is: a turn has the constraint of the first."""

    update = vllm_scheduler.StreamingUpdate

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        super()._update_request_as_session(
            session,
            SimpleNamespace(**vars(update), structured_output_request=session.structured_output_request),
        )


TURNS = [[11, 12, STOP], [21, STOP], [31, STOP], [41, 42, STOP]]


def constrained(scheduler: Scheduler, given: list[Constraint | None]) -> None:
    """A turn with each of these constraints, the first of which is the request's own."""
    for number, (constraint, answer) in enumerate(zip(given, TURNS, strict=True)):
        if number:
            scheduler.append([STOP, 50], 10, constraint)
        assert scheduler.run(*answer, 99) == answer


@pytest.mark.parametrize("has", [(1, 1, 1, 1), (0, 1, 0, 1), (1, 0, 1, 0), (1, 0, 0, 1)])
def test_each_turn_has_its_own_grammar_in_its_first_state(has: tuple[int, ...]) -> None:
    given = [Constraint() if each else None for each in has]
    constrained(Own(Request([1], 10, structured_output_request=given[0])), given)
    accepted = [None if each is None else each.accepted for each in given]
    assert accepted == [answer if each else None for answer, each in zip(TURNS, has, strict=True)]


def test_without_it_a_turn_has_the_grammar_of_the_first() -> None:
    given = [Constraint(), Constraint(), None, Constraint()]
    constrained(FirstOnly(Request([1], 10, structured_output_request=given[0])), given)
    assert given[0] is not None
    assert given[0].accepted == [id for answer in TURNS for id in answer]


def test_a_turn_waits_until_its_grammar_is_compiled() -> None:
    scheduler = Own(Request([1], 10))
    scheduler.run(11, STOP, 99)
    compiling = Constraint(is_grammar_ready=False)
    scheduler.append([STOP, 50], 10, compiling)
    assert not scheduler.run()
    assert scheduler.request.status is Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    # Its place is reserved meanwhile, and is not counted when vLLM counts the requests that do nothing.
    assert (scheduler.counted, scheduler.num_waiting_for_streaming_input) == (1, 0)
    compiling.is_grammar_ready = True
    assert scheduler.run(21, STOP, 99) == [21, STOP]
    assert compiling.accepted == [21, STOP]
    scheduler.append([STOP, 50], 10)
    assert scheduler.run(31, STOP, 99) == [31, STOP]
    assert not vars(scheduler)["resumed_sessions"]


def test_in_a_queue_by_priority_the_place_is_reserved_until_the_turn_runs() -> None:
    """Once, and also when its grammar has been compiled."""
    scheduler = Own(Request([1], 10), has_priorities=True)
    scheduler.run(11, STOP, 99)
    compiling = Constraint(is_grammar_ready=False)
    scheduler.append([STOP, 50], 10, compiling)
    scheduler.schedule()
    assert scheduler.counted == 1
    compiling.is_grammar_ready = True
    scheduler.schedule()
    assert scheduler.counted == 1
    scheduler.schedule()  # it runs now
    assert scheduler.counted == 0


def test_the_end_of_a_session_has_no_grammar() -> None:
    assert (
        Update.from_request(Request([1], 1, resumable=False, structured_output_request=Constraint())) is None
    )


class Generator:
    def __init__(self, device: str) -> None:
        self.device, self.seed = device, 0

    def manual_seed(self, seed: int) -> None:
        self.seed = seed


class Runner:
    """Keeps the state of a request from turn to turn."""

    device = "gpu 0"

    def __init__(self) -> None:
        self.state = SimpleNamespace(generator=Generator("of the first turn"))

    def _update_streaming_request(self, req_id: str, new_req_data: Any) -> Any:
        return self.state


class SecondRunner:
    """Makes the state of a request anew."""


class Worker:
    def __init__(self, runner: Any) -> None:
        self.worker = SimpleNamespace(model_runner=runner)

    def init_device(self) -> None:
        return


keep_seeds(Worker)


def test_each_turn_has_its_own_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    vars(torch)["Generator"] = Generator
    monkeypatch.setitem(sys.modules, "torch", torch)

    def turn(kind: str, seed: int | None) -> Any:
        sampling = SimpleNamespace(sampling_type=SimpleNamespace(name=kind), seed=seed)
        return runner._update_streaming_request("r", SimpleNamespace(sampling_params=sampling)).generator

    runner = Runner()
    for _ in range(2):
        Worker(runner).init_device()
    generator = turn("RANDOM_SEED", 7)
    assert (generator.device, generator.seed) == ("gpu 0", 7)
    assert turn("RANDOM_SEED", 7) is not generator
    assert turn("RANDOM", None) is None
    assert turn("GREEDY", 7) is None
    Worker(SecondRunner()).init_device()


@dataclass
class State:
    logprobs_processor: Any
    detokenizer: Any
    input_chunk_queue: deque[Any] | None = field(default_factory=deque)
    sent_tokens_offset: int = 0

    @classmethod
    def from_new_request(cls, *, tokenizer: Any, request: Any, **others: Any) -> "State":
        return cls(f"logprobs of {request.name}", f"{tokenizer} of {request.name}")


class Processor:
    tokenizer = "text"
    stream_interval = 1

    def _update_streaming_request_state(self, req_state: Any, request: Any, prompt: Any) -> None:
        if request.resumable and req_state.input_chunk_queue is None:
            req_state.input_chunk_queue = deque()


keep_outputs(Processor)


def test_each_turn_has_its_own_log_probabilities_and_text() -> None:
    def turn(name: str, *, resumable: bool = True) -> Any:
        return SimpleNamespace(name=name, resumable=resumable)

    processor, state = Processor(), State.from_new_request(tokenizer="text", request=turn("first"))
    state.sent_tokens_offset = 5
    processor._update_streaming_request_state(state, turn("early"), None)  # the first has not ended
    assert state.logprobs_processor == "logprobs of first"
    state.input_chunk_queue = None
    processor._update_streaming_request_state(state, turn("second"), None)
    assert (state.logprobs_processor, state.detokenizer) == ("logprobs of second", "text of second")
    assert state.sent_tokens_offset == 0
    state.input_chunk_queue = None
    processor._update_streaming_request_state(state, turn("the end", resumable=False), None)
    assert state.logprobs_processor == "logprobs of second"
