"""What vLLM's scheduler gets wrong about requests that stay open, by version, and the mending of it.

Runs in the processes of a vLLM server, that of its engine included, not in slipring's. vLLM loads it with the
plugin of ``sessions``, whose sessions are such requests. Other requests are scheduled as before.

Four faults, up to vLLM 0.31, read in its source:

- With asynchronous scheduling, the default on GPUs, the step after the one that samples a stop token is under
  way already. Its token reaches the request when its turn has ended: it becomes the first of the next turn,
  the stop token stays in the context, and a second stop ends the whole engine (vllm-project/vllm#52693).
- A turn has the ``max_tokens`` of the first.
- The token that is dropped at the end of a turn stays in the hash of its block. Another prompt with that
  token then finds a block in the prefix cache that was computed without it.
- A session that goes on is not counted among the requests that have a place in the model runner, though it
  has one. A request that was queued before it may take one too many, which ends the engine.

``turn_settings`` says what is changed so that each turn has settings of its own.

Needs nothing of slipring but this package, and nothing beyond what vLLM installs.
"""

import os
from collections import deque
from typing import Any

from slipring.engines.vllm.plugin.supported_versions import MENDED, missing_of, numbers_of
from slipring.engines.vllm.plugin.turn_settings import keep_grammars, keep_outputs, keep_seeds, with_reserved

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
        keep_outputs(OutputProcessor)
        keep_seeds(WorkerWrapperBase)


def mend_scheduler(scheduler: Any) -> None:
    """Change a class of schedulers."""
    handle_stopped_request = scheduler._handle_stopped_request
    update_request_as_session = scheduler._update_request_as_session
    schedule = scheduler.schedule

    def handle_stopped(self: Any, request: Any) -> bool:
        if request.resumable:
            _forget_steps_under_way(request)
        ended: bool = handle_stopped_request(self, request)
        return ended

    def update_as_session(self: Any, session: Any, update: Any) -> None:
        del session.block_hashes[session.num_computed_tokens // self.hash_block_size :]
        session.max_tokens = update.max_tokens
        update_request_as_session(self, session, update)
        if isinstance(self.skipped_waiting, deque):
            _go_first(self.skipped_waiting, session)
        else:
            self.resumed_sessions = [*getattr(self, "resumed_sessions", ()), session]

    def schedule_beside(self: Any, *args: Any, **named: Any) -> Any:
        if not getattr(self, "resumed_sessions", None):
            return schedule(self, *args, **named)
        self.resumed_sessions = [each for each in self.resumed_sessions if _waits(each)]
        return with_reserved(self, len(self.resumed_sessions), schedule, *args, **named)

    scheduler._handle_stopped_request = handle_stopped
    scheduler._update_request_as_session = update_as_session
    scheduler.schedule = schedule_beside


def _forget_steps_under_way(request: Any) -> None:
    """Take back the steps that were begun after the last token of a turn; each will still bring one token."""
    under_way = request.num_output_placeholders
    request.num_computed_tokens -= under_way
    request.async_tokens_to_discard += under_way
    request.num_output_placeholders = 0


def _go_first(queue: Any, session: Any) -> None:
    """A session has its place in the model runner, and is not counted while it waits to go on. So it goes
    before all that wait for a place, or there would be one too few. In a queue by priority it cannot, and its
    place is reserved instead."""
    if session in queue:
        queue.remove(session)
        queue.appendleft(session)


def _waits(session: Any) -> bool:
    return session.status is type(session.status).WAITING
