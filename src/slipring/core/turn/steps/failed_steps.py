"""A response that fails in a later step: what the steps before it have done is kept.

The response ends with ``response.failed``, and can be continued like any other. Its output is what the
finished steps wrote, with the outputs of their calls; what the failed step wrote is dropped. The outputs that
no finished step has read are the state's ``unread``, so whoever continues the response repeats the failed
step, and nothing before it. A failed step whose model has called hosted tools is kept as far as it came: the
calls may have had effects, and must not be made again.
"""

from msgspec import Raw, structs

from slipring.base.errors import ApiError, InvalidPrompt
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Finished
from slipring.core.turn import response_object
from slipring.core.turn.turn import Turn

_NOTHING = Finished("broken_off", input_tokens=0, cached_tokens=0, output_tokens=0)


def keep(turn: Turn, error: ApiError) -> ResponseState | None:
    """The state of a response that has just failed with this error, without what is dropped; None if nothing
    is kept: it was in its first step, could not be saved, or was blocked."""
    steps, response = turn.steps, turn.response
    if steps is None or response is None or not _may_be_kept(turn, error):
        return None
    items, position, cut_off = turn.output.items, steps.position, False
    if steps.is_paused:
        if steps.spent is None:
            return None
    elif steps.begun_with is None:
        return None
    elif _has_called(turn):
        position, cut_off = None, True
    else:
        items = items[: steps.begun_with]
    finished = steps.spent or _NOTHING
    if turn.compaction is not None:
        finished = turn.compaction.together(finished)
    output, usage = [Raw(item.raw) for item in items], response_object.usage(finished)
    turn.response = structs.replace(response, output=output, usage=usage)
    return turn.new_state(items, position, cut_off=cut_off)


def _has_called(turn: Turn) -> bool:
    """Whether the failed step has called hosted tools."""
    hosted = turn.output.hosted
    return hosted is not None and hosted.has_calls


def _may_be_kept(turn: Turn, error: ApiError) -> bool:
    """Whether everything that would be kept has passed the safety checks."""
    checks = turn.checks
    if isinstance(error, InvalidPrompt):
        return False
    if checks is None:
        return True
    if checks.error is not None or checks.holds_input:
        return False
    return checks.is_settled or not _has_called(turn)
