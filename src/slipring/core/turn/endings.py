"""Ends a turn: closes its output, and makes the response and the state that it leaves.

A response that fails in a later step keeps what the steps before it have done: it ends with
``response.failed``, and can be continued like any other. Its output is what the finished steps wrote, with
the outputs of their calls; what the failed step wrote is dropped. The outputs that no finished step has read
are the state's ``unread``, so a turn that continues the response repeats the failed step, and nothing before
it. A failed step whose model has called hosted tools is kept as far as it came: the calls may have had
effects, and must not be made again.
"""

from msgspec import UNSET, Raw, UnsetType, structs

from slipring.base.errors import ApiError, InvalidPrompt
from slipring.core.chain import cache_diagnostics, hosted_items_in_context, input_items
from slipring.core.chain.state import Position, ResponseState
from slipring.core.checks.verdicts import NodeVerdicts
from slipring.core.generation import Accepted, Finished
from slipring.core.turn import response_object
from slipring.core.turn.stages import NO_TOKENS
from slipring.core.turn.turn import Ended, Turn
from slipring.protocol.events import Event
from slipring.protocol.items.items import Item
from slipring.protocol.responses import (
    CacheDiagnostics,
    DiagnosticsUnavailable,
    IncompleteDetails,
    InputTransformation,
    Response,
)


def finish(turn: Turn, now: float) -> tuple[list[Event], Ended]:
    """The engine is done: the events that close the output, and the end."""
    finished, prepared, planned = turn.progress.finished, turn.prepared, turn.planned
    if turn.is_paused and planned.steps is not None and planned.rollout is None and not planned.steps.is_last:
        # It may not go on, though the model has not read the results of its calls.
        planned.steps.make_last()
        finished = structs.replace(finished or NO_TOKENS, reason="broken_off")
    if finished is None or prepared is None:
        raise RuntimeError("the engine ended its stream without a Finished delta")
    if planned.steps is not None:
        finished = planned.steps.total(finished)
    if planned.compaction is not None:
        finished = planned.compaction.together(finished)
    if turn.progress.is_rendered:
        turn.stages.lap("generate")
    elif turn.waits_for_client:
        turn.stages.lap("client")
    reason = finished.reason
    if reason == "steered" and turn.output.asks_client:
        reason = "stop"  # the client must answer first
    stopped = reason == "stop"
    # A steered answer ends after whole reasoning items, but possibly within a message.
    is_whole = stopped or (reason == "steered" and turn.output.last_words is None)
    closing = turn.end_lists() + turn.output.finish("completed" if is_whole else "incomplete")
    closing += [*(turn.end_calls() if turn.is_calling else ()), *turn.return_held()]
    finished = turn.without_dropped(finished)
    response = structs.replace(
        _transformed(turn, prepared.response),
        status="completed" if stopped else "incomplete",
        completed_at=int(now) if stopped else None,
        incomplete_details=None if reason == "stop" else IncompleteDetails.of(reason),
        output=turn.output.raw_items(),
        usage=response_object.usage(finished, turn.asked.request.cache_lifetime),
        stop_sequence=(finished.stop_sequence if stopped else None) or UNSET,
        prompt_cache_diagnostics=_diagnostics(turn, finished),
        moderation=prepared.checks.moderation if prepared.checks is not None else UNSET,
    )
    state = _new_state(turn, response, turn.output.items, finished.position, cut_off=not stopped)
    if state.unread and turn.progress.is_rendered:
        # Its last step answered nothing, so that the items do not show that it has read the outputs.
        state.position = None
    return closing, Ended(None, response, finished, state)


def _diagnostics(turn: Turn, finished: Finished) -> CacheDiagnostics | UnsetType:
    """Where the context departs from that of the response that the client has named for it."""
    if turn.asked.request.compared_id is None:
        return UNSET
    if not turn.bound.is_comparable:
        return DiagnosticsUnavailable()
    prepared, planned = turn.prepared, turn.planned
    assert prepared is not None
    continued = planned.job.parent if planned.job is not None else None
    asked = cache_diagnostics.Asked(
        model=prepared.draft.model.name,
        head=turn.head,
        settings=prepared.draft.settings,
        parent=turn.bound.parent,
        input=turn.input,
    )
    processed = cache_diagnostics.Processed(
        accepted=turn.progress.accepted or Accepted(),
        finished=finished,
        continued_id=continued.id if continued is not None else None,
        is_compacted=planned.compaction is not None and planned.compaction.is_done,
    )
    return cache_diagnostics.compare(turn.bound.compared, asked, processed)


def _transformed(turn: Turn, response: Response) -> Response:
    """The response with the reasoning items that the model did not read."""
    accepted = turn.progress.accepted
    withheld = accepted.withheld_thoughts if accepted is not None else ()
    # Where a client leaves thoughts out of its history, the items do not show which the model has read.
    if not withheld or turn.asked.request.restores_thoughts:
        return response
    return structs.replace(
        response,
        reasoning=structs.replace(response.reasoning, context="current_turn"),
        input_transformations=[InputTransformation(id) for id in withheld],
    )


def fail(turn: Turn, error: ApiError, *, keeps_steps: bool) -> tuple[list[Event], Ended]:
    """The engine or the store failed: the events that close the output, and the end. ``keeps_steps``: with a
    state of the finished steps, if there are any and they have passed."""
    is_blocked = isinstance(error, InvalidPrompt)
    closing = turn.end_lists() + turn.output.finish("incomplete")
    closing += turn.end_calls() + turn.return_held(is_blocked=is_blocked)
    response = structs.replace(
        turn.passed(is_blocked=is_blocked),
        status="failed",
        output=turn.output.raw_items(),
        error=response_object.failure(error),
        moderation=turn.checks.moderation if turn.checks is not None else UNSET,
    )
    finished = turn.progress.finished if turn.ended is None else turn.ended.finished
    kept = _finished_steps(turn) if keeps_steps and _may_be_kept(turn, error) else None
    if kept is None:
        return closing, Ended(error, response, finished)
    items, spent, position, cut_off = kept
    output = [Raw(item.raw) for item in items]
    usage = response_object.usage(spent, turn.asked.request.cache_lifetime)
    response = structs.replace(response, output=output, usage=usage)
    return closing, Ended(
        error, response, finished, _new_state(turn, response, items, position, cut_off=cut_off)
    )


def _finished_steps(turn: Turn) -> tuple[list[Item], Finished, Position | None, bool] | None:
    """What is kept of a response that fails: its items, tokens and position, and whether the last item is
    incomplete; None if no step has ended."""
    steps, items = turn.planned.steps, turn.output.items
    if steps is None or (steps.spent is None if steps.is_paused else steps.begun_with is None):
        return None
    spent, position, cut_off = steps.spent or NO_TOKENS, steps.position, False
    if not steps.is_paused:
        if _has_called(turn):
            position, cut_off = None, True
        else:
            items = items[: steps.begun_with]
    if turn.planned.compaction is not None:
        spent = turn.planned.compaction.together(spent)
    return items, spent, position, cut_off


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
    if checks.error is not None or checks.gate.holds_input:
        return False
    return checks.gate.is_settled or not _has_called(turn)


def _new_state(
    turn: Turn, response: Response, items: list[Item], position: Position | None, *, cut_off: bool
) -> ResponseState:
    """The state of the response, which has ended with these output items: all, or the first ones.
    ``cut_off``: the last one is incomplete."""
    prepared, compaction, output = turn.prepared, turn.planned.compaction, turn.output
    assert prepared is not None
    parent = turn.bound.parent if compaction is None or not compaction.is_done else None
    # Without the appends that were held and have just been returned.
    latest = tuple(items[output.since :])
    carry = input_items.after_output(prepared.carry.settled, latest, cut_off=cut_off)
    if prepared.draft.model.runs_hosted_tools:
        carry = carry.without_hosted_items
    if carry.pictures and (accepted := turn.progress.accepted) is not None and accepted.pictures is not None:
        carry = input_items.with_pictures_read(carry, accepted.pictures, latest)
    prepared.carry.replace(carry, len(output.finished))
    state = ResponseState(
        response=response,
        parent=parent,
        head=turn.head,
        input=turn.input,
        output=_opened(turn, items),
        carry=carry,
        position=position,
        fork=turn.asked.forks,
    )
    # A client that sends its history again will do so with the next turn, too, and would have all ids of its
    # context stored each time.
    state.keeps_position = parent is not None or turn.recognition.match is None
    if prepared.checks is not None:
        state.verdicts = prepared.checks.verdicts(parent)
    elif parent is not None and parent.is_audited:
        state.verdicts = NodeVerdicts(b"", is_audited=True)
    return state


def _opened(turn: Turn, items: list[Item]) -> tuple[Item, ...]:
    """Output items, of which those of hosted tools stand for what the model has seen of them."""
    hosted = turn.output.hosted
    if hosted is None:
        return tuple(items)
    return hosted_items_in_context.opened(items, hosted.approved_results)


def remember(turn: Turn, state: ResponseState, now: float) -> None:
    """Let later requests that send the context of the finished response again continue it."""
    assert turn.ended is not None
    assert turn.ended.finished is not None
    accepted = turn.progress.accepted
    if accepted is not None and accepted.dropped_items:
        return  # the context is not what its items say, and neither is any that continues it
    is_shared = accepted is not None and accepted.fallback is None and turn.planned.compaction is None
    steps = turn.planned.steps
    turn.recognition.remember(
        state,
        turn.ended.finished,
        is_shared=is_shared,
        unanswered=None if steps is None else steps.unanswered,
        now=now,
    )
