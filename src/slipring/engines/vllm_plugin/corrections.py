"""Mends what vLLM gets wrong about requests that stay open: scheduling, and the settings of each turn.

vLLM loads this with the plugin of ``sessions``, whose sessions are such requests, in each of its processes,
that of its engine included, and not in slipring's. Other requests are scheduled and answered as before.
``session_versions`` names the versions for which this holds.

Three faults of the scheduler, up to vLLM 0.31, read in its source:

- With asynchronous scheduling, the default on GPUs, the step after the one that samples a stop token is under
  way already. Its token reaches the request when its turn has ended: it becomes the first of the next turn,
  the stop token stays in the context, and a second stop ends the whole engine (vllm-project/vllm#52693).
- A turn has the ``max_tokens`` of the first.
- The token that is dropped at the end of a turn stays in the hash of its block. Another prompt with that
  token then finds a block in the prefix cache that was computed without it.

Three that 0.32 has too:

- A session that goes on is not counted among the requests that have a place in the model runner, though it
  has one. A request that is scheduled before it may take one too many, which ends the engine. In 0.32 that
  can be only while its grammar is compiled or its adapter waits for others.
- A session that waits for its next turn stands in a queue that every step looks through. With many, that is
  most of a step's time: here it stands in none until its turn comes, and counts as no waiting request.
- A session that is preempted while its last token is under way has no computed tokens when its turn ends.
  vLLM keeps what is computed: 0.26.0 goes on without the context, 0.32 never schedules the session again.

Three parts of vLLM keep the settings that the first turn asked for, and get those of each turn:

- The scheduler has the grammar of the first turn, with the state that this turn has left. vLLM compiles the
  grammar of every turn, and drops it with the message that brings the turn. It is kept here, so that each
  turn begins with its own, in its first state, or with none.
- The first generation of vLLM's model runners has the random numbers of the first turn. (The second makes its
  state of a request anew with each turn.)
- What makes outputs of tokens, in the API process, has the log probabilities and the text of the first turn.

The plugin sends a turn when the one before it has ended, so no step of the model is under way that a grammar
would still be asked for. Needs nothing of slipring but this package, and nothing beyond what vLLM installs.
"""

import os
from collections import deque
from typing import Any

from slipring.engines.vllm_plugin.session_versions import MENDED, missing_of, numbers_of

PLUGIN = "slipring_sessions"


def mend() -> None:
    """Mend vLLM in this process, if sessions are asked for and this version needs it. vLLM calls it in each
    of its processes, perhaps several times."""
    import vllm

    if PLUGIN not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return
    has_faults, has_own = numbers_of(vllm.__version__) in MENDED, missing_of(vllm.__version__) is None
    if not has_faults and not has_own:
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    if "is_mended_for_sessions" in vars(Scheduler):
        return
    Scheduler.is_mended_for_sessions = True
    if has_faults:
        mend_scheduler(Scheduler)
    if has_own:
        from vllm.v1.engine.output_processor import OutputProcessor
        from vllm.v1.request import StreamingUpdate
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        keep_grammars(StreamingUpdate, Scheduler)
        keep_places(Scheduler)
        keep_sessions(Scheduler)
        keep_outputs(OutputProcessor)
        keep_seeds(WorkerWrapperBase)


def mend_scheduler(scheduler: Any) -> None:
    """Change a class of schedulers."""
    handle_stopped_request = scheduler._handle_stopped_request
    update_request_as_session = scheduler._update_request_as_session

    def handle_stopped(self: Any, request: Any) -> bool:
        if request.resumable:
            _forget_steps_under_way(request)
        ended: bool = handle_stopped_request(self, request)
        return ended

    def update_as_session(self: Any, session: Any, update: Any) -> None:
        del session.block_hashes[session.num_computed_tokens // self.hash_block_size :]
        session.max_tokens = update.max_tokens
        update_request_as_session(self, session, update)

    scheduler._handle_stopped_request = handle_stopped
    scheduler._update_request_as_session = update_as_session


def _forget_steps_under_way(request: Any) -> None:
    """Take back the steps that were begun after the last token of a turn; each will still bring one token.
    Of a preempted request nothing is computed, these steps included."""
    under_way = request.num_output_placeholders
    request.num_computed_tokens = max(request.num_computed_tokens - under_way, 0)
    request.async_tokens_to_discard += under_way
    request.num_output_placeholders = 0


def keep_grammars(streaming_update: Any, scheduler: Any) -> None:
    """Change vLLM's message of a turn and its class of schedulers: a turn has its own constraint."""
    from_request = streaming_update.from_request.__func__
    update_request_as_session = scheduler._update_request_as_session

    def with_grammar(cls: Any, request: Any) -> Any:
        update = from_request(cls, request)
        if update is not None:
            update.structured_output_request = request.structured_output_request
        return update

    def update_as_session(self: Any, session: Any, update: Any) -> None:
        update_request_as_session(self, session, update)
        session.structured_output_request = update.structured_output_request
        if update.structured_output_request is not None:
            session.status = type(session.status).WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    streaming_update.from_request = classmethod(with_grammar)
    scheduler._update_request_as_session = update_as_session


def keep_sessions(scheduler: Any) -> None:
    """Change a class of schedulers: a session that waits for its next turn stands in no queue, and has its
    whole context when that comes. Must be the last to change ``_update_request_as_session``."""
    enqueue_waiting_request = scheduler._enqueue_waiting_request
    get_num_unfinished_requests = scheduler.get_num_unfinished_requests
    update_request_as_session = scheduler._update_request_as_session

    def enqueue(self: Any, request: Any) -> None:
        if not (_is_idle(request) and _stands_in_no_queue(self)):
            enqueue_waiting_request(self, request)

    def update_as_session(self: Any, session: Any, update: Any) -> None:
        is_in_no_queue = _is_idle(session) and _stands_in_no_queue(self)
        is_computed = session.num_computed_tokens > 0
        if not is_computed:
            # It was preempted. All but the last token belongs to it, as if that was computed.
            session.num_computed_tokens = session.num_tokens - 1
        update_request_as_session(self, session, update)
        if not is_computed:
            session.num_computed_tokens = 0
        if is_in_no_queue and hasattr(self, "skipped_waiting"):
            # Up to 0.31 only this puts it before all that wait for a place in the model runner.
            self.skipped_waiting.prepend_request(session)
        elif is_in_no_queue:
            enqueue_waiting_request(self, session)

    def get_unfinished(self: Any) -> int:
        # vLLM takes idle sessions off the lengths of the queues, in which they are not.
        idle = self.num_waiting_for_streaming_input if _stands_in_no_queue(self) else 0
        count: int = with_reserved(self, -idle, get_num_unfinished_requests)
        return count

    scheduler._enqueue_waiting_request = enqueue
    scheduler._update_request_as_session = update_as_session
    scheduler.get_num_unfinished_requests = get_unfinished


def _is_idle(session: Any) -> bool:
    return session.status is type(session.status).WAITING_FOR_STREAMING_REQ


def _stands_in_no_queue(scheduler: Any) -> bool:
    """Whether idle sessions do. With a connector vLLM looks for requests that are in none."""
    return scheduler.connector is None


def keep_places(scheduler: Any) -> None:
    """Change a class of schedulers: a session that goes on keeps its place in the model runner."""
    update_request_as_session = scheduler._update_request_as_session
    schedule = scheduler.schedule

    def update_as_session(self: Any, session: Any, update: Any) -> None:
        update_request_as_session(self, session, update)
        self.resumed_sessions = [*getattr(self, "resumed_sessions", ()), session]

    def schedule_beside(self: Any, *args: Any, **named: Any) -> Any:
        if not getattr(self, "resumed_sessions", None):
            return schedule(self, *args, **named)
        self.resumed_sessions = [each for each in self.resumed_sessions if _waits(each)]
        places = sum(_may_be_overtaken(self, each) for each in self.resumed_sessions)
        return with_reserved(self, places, schedule, *args, **named)

    scheduler._update_request_as_session = update_as_session
    scheduler.schedule = schedule_beside


def _waits(session: Any) -> bool:
    status = type(session.status)
    return session.status in (status.WAITING, status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)


def _may_be_overtaken(scheduler: Any, session: Any) -> bool:
    """Whether others may be scheduled before a session that goes on, so that its place in the model runner
    must be reserved: while its grammar is being compiled; if it has an adapter and there are too many; or if
    the queue is ordered by priority, up to 0.31. Else it goes first."""
    goes_first = isinstance(getattr(scheduler, "skipped_waiting", None), deque | None)
    return _is_compiling(session) or session.lora_request is not None or not goes_first


def _is_compiling(session: Any) -> bool:
    is_waiting = session.status is type(session.status).WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return is_waiting and not session.structured_output_request.is_grammar_ready


def with_reserved(scheduler: Any, places: int, function: Any, *args: Any, **named: Any) -> Any:
    """Run a function of a scheduler that counts as many sessions more as waiting for their next turn. vLLM
    reserves the places in the model runner of those."""
    scheduler.num_waiting_for_streaming_input += places
    try:
        return function(scheduler, *args, **named)
    finally:
        scheduler.num_waiting_for_streaming_input -= places


def keep_seeds(worker: Any) -> None:
    """Change vLLM's class of workers: a turn has its own random numbers."""
    init_device = worker.init_device

    def init(self: Any) -> None:
        init_device(self)
        _seed_turns(type(self.worker.model_runner))

    worker.init_device = init


def _seed_turns(runner: Any) -> None:
    update = getattr(runner, "_update_streaming_request", None)
    if update is None or hasattr(runner, "seeds_turns"):
        return

    def update_streaming_request(self: Any, req_id: str, new_req_data: Any) -> Any:
        state = update(self, req_id, new_req_data)
        state.generator = _generator(self.device, new_req_data.sampling_params)
        return state

    runner._update_streaming_request = update_streaming_request
    runner.seeds_turns = True


def _generator(device: Any, sampling: Any) -> Any:
    if sampling.sampling_type.name != "RANDOM_SEED":
        return None
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(sampling.seed)
    return generator


def keep_outputs(processor: Any) -> None:
    """Change vLLM's class of output processors: a turn has its own log probabilities and its own text."""
    update_streaming_request_state = processor._update_streaming_request_state

    def update_state(self: Any, req_state: Any, request: Any, prompt: Any) -> None:
        begins = request.resumable and req_state.input_chunk_queue is None
        update_streaming_request_state(self, req_state, request, prompt)
        if not begins:
            return
        turn = type(req_state).from_new_request(
            tokenizer=self.tokenizer,
            request=request,
            prompt=prompt,
            parent_req=None,
            request_index=0,
            queue=None,
            log_stats=False,
            stream_interval=self.stream_interval,
        )
        req_state.logprobs_processor, req_state.detokenizer = turn.logprobs_processor, turn.detokenizer
        req_state.sent_tokens_offset = 0

    processor._update_streaming_request_state = update_state
