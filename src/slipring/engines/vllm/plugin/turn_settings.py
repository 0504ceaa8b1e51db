"""Settings of each turn of a session: constraint, seed, log probabilities. vLLM reads them from the first.

Runs in the processes of a vLLM server, as ``scheduler_corrections`` does, and changes nothing for requests
that do not stay open. Three parts of vLLM keep what the first turn asked for:

- The scheduler has the grammar of the first turn, with the state that this turn has left. vLLM compiles the
  grammar of every turn, and drops it with the message that brings the turn. It is kept here, so that each
  turn begins with its own, in its first state, or with none.
- The first generation of vLLM's model runners has the random numbers of the first turn. (The second makes its
  state of a request anew with each turn.)
- What makes outputs of tokens, in the API process, has the log probabilities and the text of the first turn.

``supported_versions`` names the versions for which this holds. The plugin sends a turn when the one before it
has ended, so no step of the model is under way that a grammar would still be asked for.
"""

from typing import Any


def keep_grammars(streaming_update: Any, scheduler: Any) -> None:
    """Change vLLM's message of a turn and its class of schedulers: a turn has its own constraint."""
    from_request = streaming_update.from_request.__func__
    update_request_as_session = scheduler._update_request_as_session
    schedule = scheduler.schedule

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
            self.compiling_sessions = [*getattr(self, "compiling_sessions", ()), session]

    def schedule_beside(self: Any, *args: Any, **named: Any) -> Any:
        # A session whose grammar is being compiled waits, and keeps its place in the model runner.
        if not getattr(self, "compiling_sessions", None):
            return schedule(self, *args, **named)
        self.compiling_sessions = [each for each in self.compiling_sessions if _is_compiling(each)]
        return with_reserved(self, len(self.compiling_sessions), schedule, *args, **named)

    streaming_update.from_request = classmethod(with_grammar)
    scheduler._update_request_as_session = update_as_session
    scheduler.schedule = schedule_beside


def with_reserved(scheduler: Any, places: int, schedule: Any, *args: Any, **named: Any) -> Any:
    """Schedule a step while some sessions, which are not counted, keep their places in the model runner. vLLM
    reserves the places of sessions that wait for their next turn, so they are counted among these."""
    scheduler.num_waiting_for_streaming_input += places
    try:
        return schedule(scheduler, *args, **named)
    finally:
        scheduler.num_waiting_for_streaming_input -= places


def _is_compiling(session: Any) -> bool:
    is_waiting = session.status == type(session.status).WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return is_waiting and not session.structured_output_request.is_grammar_ready


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
