"""How vLLM schedules a request that stays open, as far as ``vllm_plugin.corrections`` changes
it: with the faults of versions up to 0.31, and with the constraint of the first turn.

As with asynchronous scheduling, a step is begun before the token of the step before it has come. The engine
stops as a whole where vLLM's does.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

STOP = 0
BLOCK = 4


class Status(Enum):
    WAITING = auto()
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = auto()
    WAITING_FOR_STREAMING_REQ = auto()
    RUNNING = auto()
    PREEMPTED = auto()


@dataclass
class Constraint:
    """A grammar, which is being compiled at first, and the tokens that have advanced its state."""

    is_grammar_ready: bool = True
    accepted: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Request:
    prompt_token_ids: list[int]
    max_tokens: int
    resumable: bool = True
    lora_request: str | None = None
    structured_output_request: Constraint | None = None
    all_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    async_tokens_to_discard: int = 0
    block_hashes: list[tuple[int, ...]] = field(default_factory=list)
    status: Status = Status.WAITING

    def __post_init__(self) -> None:
        self.all_token_ids = list(self.prompt_token_ids)
        self.update_block_hashes()

    @property
    def outputs(self) -> int:
        return len(self.all_token_ids) - len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def update_block_hashes(self) -> None:
        """The hash of a block stands for all tokens up to its end."""
        for end in range((len(self.block_hashes) + 1) * BLOCK, len(self.all_token_ids) + 1, BLOCK):
            self.block_hashes.append(tuple(self.all_token_ids[:end]))


@dataclass
class StreamingUpdate:
    """The next turn of a request, made of one that has only its new ids."""

    prompt_token_ids: list[int]
    max_tokens: int

    @classmethod
    def from_request(cls, request: Request) -> "StreamingUpdate | None":
        return cls(request.prompt_token_ids, request.max_tokens) if request.resumable else None


class Queue(deque[object]):
    """Of requests, in the order in which they came."""

    def add_request(self, request: object) -> None:
        self.append(request)

    def prepend_request(self, request: object) -> None:
        self.appendleft(request)


class PriorityQueue(list[object]):
    """Of requests with priorities: none goes before all others because it was put there."""

    def add_request(self, request: object) -> None:
        self.append(request)

    def prepend_request(self, request: object) -> None:
        self.append(request)


class Scheduler:
    """One request, of which at most two steps are under way at a time, and others that wait for a place."""

    hash_block_size = BLOCK
    connector: object = None
    update = StreamingUpdate

    def __init__(
        self, request: Request, *, waiting: Iterable[object] = (), has_priorities: bool = False
    ) -> None:
        self.request = request
        self.skipped_waiting = (PriorityQueue if has_priorities else Queue)(waiting)
        self.num_waiting_for_streaming_input = 0
        self.counted = 0
        """How many places were reserved for sessions when the last step was begun."""
        self.under_way: deque[int] = deque()

    def run(self, *sampled: int) -> list[int]:
        """Run all steps that can be begun; the model samples these tokens. Returns what is emitted."""
        tokens, emitted = iter(sampled), list[int]()
        while True:
            while len(self.under_way) < 2 and self.schedule():
                self.under_way.append(next(tokens))
            if not self.under_way:
                return emitted
            emitted += self.end_step()

    def append(self, ids: list[int], max_tokens: int, constraint: Constraint | None = None) -> None:
        """The next turn."""
        update = self.update.from_request(Request(ids, max_tokens, structured_output_request=constraint))
        assert update is not None
        self._update_request_as_session(self.request, update)

    def schedule(self) -> bool:
        """Begin a step, if one can be begun."""
        request, constraint = self.request, self.request.structured_output_request
        self.counted = self.num_waiting_for_streaming_input
        is_blocked = request.status is Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        if is_blocked and constraint is not None and constraint.is_grammar_ready:
            request.status = Status.WAITING
        if request.status in (Status.WAITING, Status.PREEMPTED):
            request.status = Status.RUNNING
            if request in self.skipped_waiting:
                self.skipped_waiting.remove(request)
        will_emit = request.outputs + request.num_output_placeholders
        is_full = request.num_output_placeholders and will_emit >= request.max_tokens
        if request.status is not Status.RUNNING or is_full:
            return False
        request.num_computed_tokens = len(request.all_token_ids) + request.num_output_placeholders
        request.num_output_placeholders += 1
        return True

    def preempt(self) -> None:
        """Take the request's blocks away. What steps under way emit is emitted still."""
        self.request.status = Status.PREEMPTED
        self.request.num_computed_tokens = 0
        self.skipped_waiting.prepend_request(self.request)

    def get_num_unfinished_requests(self) -> int:
        """Requests for which there is something to do."""
        idle = self.num_waiting_for_streaming_input
        return len(self.skipped_waiting) - idle + (self.request.status is Status.RUNNING)

    def end_step(self) -> list[int]:
        """End the step that was begun first. Returns what is emitted."""
        return self._end(self.under_way.popleft())

    def _end(self, token: int) -> list[int]:
        request = self.request
        if request.async_tokens_to_discard:
            request.async_tokens_to_discard -= 1
            return []
        request.all_token_ids.append(token)
        request.update_block_hashes()
        request.num_output_placeholders -= 1
        if request.structured_output_request is not None:
            request.structured_output_request.accepted.append(token)
        if token == STOP or request.outputs >= request.max_tokens:
            was_preempted = request.status is Status.PREEMPTED
            assert was_preempted or request.status is Status.RUNNING, (
                "the engine ends: a request is queued twice"
            )
            if was_preempted:
                self.skipped_waiting.remove(request)
            self._handle_stopped_request(request)
        return [token]

    def _handle_stopped_request(self, request: Any) -> bool:
        request.status = Status.WAITING_FOR_STREAMING_REQ
        self.num_waiting_for_streaming_input += 1
        self._enqueue_waiting_request(request)
        return False

    def _enqueue_waiting_request(self, request: Any) -> None:
        self.skipped_waiting.add_request(request)

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        del session.all_token_ids[session.num_computed_tokens :]
        session.all_token_ids += update.prompt_token_ids
        session.prompt_token_ids = list(session.all_token_ids)
        session.update_block_hashes()
        self.num_waiting_for_streaming_input -= 1
        session.status = Status.WAITING
