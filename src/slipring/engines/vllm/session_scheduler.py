"""What vLLM's scheduler gets wrong about requests that stay open, by version, and the mending of it.

Runs in the processes of a vLLM server, that of its engine included, not in slipring's. vLLM loads it with the
plugin of ``sessions_plugin``, whose sessions are such requests. Other requests are scheduled as before.

Three faults, up to vLLM 0.31, read in its source:

- With asynchronous scheduling, the default on GPUs, the step after the one that samples a stop token is under
  way already. Its token reaches the request when its turn has ended: it becomes the first of the next turn,
  the stop token stays in the context, and a second stop ends the whole engine (vllm-project/vllm#52693).
- A turn has the ``max_tokens`` of the first.
- The token that is dropped at the end of a turn stays in the hash of its block. Another prompt with that
  token then finds a block in the prefix cache that was computed without it.

Needs nothing of slipring but this module, and nothing beyond what vLLM installs.
"""

import os
import re
from typing import Any

PLUGIN = "slipring_sessions"
MENDED = ((0, 26, 0),)
"""Versions that ``mend`` makes right: those that it was tested with, on a GPU."""
RIGHT_SINCE = (0, 32, 0)
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def fault_of(version: str) -> str | None:
    """Why sessions are not right with a version of vLLM, in a few words; None if they are."""
    if (numbers := _numbers(version)) is not None and (numbers in MENDED or numbers >= RIGHT_SINCE):
        return None
    right = " and ".join(".".join(map(str, each)) for each in MENDED)
    since = ".".join(map(str, RIGHT_SINCE))
    return f"vLLM {version}, which loses track of sessions (it is {right}, or {since} and later, that do not)"


def mend() -> None:
    """Mend the scheduler of this process, if sessions are asked for and this version of vLLM needs it. vLLM
    calls it in each of its processes, perhaps several times."""
    import vllm

    if PLUGIN in os.environ.get("VLLM_PLUGINS", "").split(",") and _numbers(vllm.__version__) in MENDED:
        from vllm.v1.core.sched.scheduler import Scheduler

        mend_scheduler(Scheduler)


def mend_scheduler(scheduler: Any) -> None:
    """Change a class of schedulers, once."""
    if "is_mended_for_sessions" in vars(scheduler):
        return
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
    scheduler.is_mended_for_sessions = True


def _forget_steps_under_way(request: Any) -> None:
    """Take back the steps that were begun after the last token of a turn; each will still bring one token."""
    under_way = request.num_output_placeholders
    request.num_computed_tokens -= under_way
    request.async_tokens_to_discard += under_way
    request.num_output_placeholders = 0


def _numbers(version: str) -> tuple[int, int, int] | None:
    found = _NUMBERS.match(version)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
