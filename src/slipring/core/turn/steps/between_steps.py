"""Between two steps of a response: hosted calls run, or the client of a rollout answers calls.

A turn is paused from the end of a step that made calls until the job of its next step starts. Whether another
step follows is decided here.
"""

from functools import partial

from slipring.core.chain import hosted_items_in_context, input_items
from slipring.core.chain.state import Carry
from slipring.core.generation import Finished, Job
from slipring.core.hosted_tools import CallOutcome, CallProgress
from slipring.core.turn import delivery, turn_reports
from slipring.core.turn.output.output_events import Output
from slipring.core.turn.steps.step_jobs import Steps
from slipring.core.turn.turn import Turn
from slipring.protocol.events import Event
from slipring.protocol.items.items import MOST_ITEMS
from slipring.protocol.live_input import Append

_LEAST_TOKENS = 16
"""Other servers accept no smaller ``max_output_tokens``."""


def open_approved(turn: Turn) -> list[Event]:
    """Begin the response with the calls that its client has approved."""
    calls = turn.output.hosted
    assert calls is not None
    assert turn.planned.steps is not None
    turn.planned.steps.wait_for_approved()
    opening = delivery.opening(turn)
    for each in turn.hosted.approved:
        tool = turn.hosted.find_tool(each.approval)
        assert tool is not None
        calls.approve(turn.output, tool, each.approval.arguments, each.request_id)
    return opening + turn.output.take_events()


def end_step(turn: Turn, waits_until: float, most_bytes: int, *, may_wait: bool) -> tuple[bool, list[Event]]:
    """The engine has ended a step: pause if it made hosted calls, or calls that a rollout's client
    answers. ``may_wait``: whether the client can still send outputs.

    Returns whether it pauses, and the events so far.
    """
    steps, finished, output = turn.planned.steps, turn.progress.finished, turn.output
    assert steps is not None
    if finished is None or not (output.calls or output.calls_hosted):
        return False, []
    prepared = turn.prepared
    assert prepared is not None
    is_whole = finished.reason in ("stop", "steered")
    is_over = finished.stop_sequence is not None  # the client wants nothing that follows
    emitted = output.finish("completed" if is_whole else "incomplete")
    calls_hosted = output.calls_hosted
    waits = turn.planned.rollout is not None and output.calls and not output.asks_approval
    waits = waits and is_whole and may_wait and not is_over
    turn.observe()
    fits = _may_continue(steps, output, finished, most_bytes)
    if not calls_hosted and not (waits and fits):
        return False, emitted
    turn.stages.lap("generate")
    turn.progress.end_job()
    asks = output.asks_approval or (output.calls and not waits)
    if is_whole and not fits and not asks and not is_over:
        # The model will not read the results of its calls.
        turn.progress.finish_for("max_output_tokens")
    carry = input_items.after_output(prepared.carry.settled, output.latest)
    generated = output.end_step()
    is_last = not is_whole or not fits or asks or is_over
    steps.end(generated, turn.without_dropped(finished), prepared.response, carry, is_last=is_last)
    if prepared.checks is not None:
        prepared.checks.items.end_step(generated)
        _inspect_results(turn)
        emitted += output.take_events()
    if not calls_hosted:
        emitted += _wait_for_client(turn, waits_until, may_wait=True)
    return True, emitted


def _may_continue(steps: Steps, output: Output, finished: Finished, most_bytes: int) -> bool:
    """Whether another step fits the bounds on bytes, items and output tokens."""
    most = steps.max_output_tokens
    spent = finished.output_tokens + (steps.spent.output_tokens if steps.spent is not None else 0)
    is_small = steps.size_bytes < most_bytes and len(output.finished) < MOST_ITEMS
    return is_small and (most is None or spent + _LEAST_TOKENS <= most)


def progress_of(turn: Turn, call_id: str, progress: CallProgress, *, detailed: bool) -> list[Event]:
    """The server of a hosted call reports progress: its events; none if the call does not run.
    ``detailed``: the client wants numbers and text."""
    hosted = turn.output.hosted
    assert hosted is not None
    if (call := hosted.running.get(call_id)) is None:
        return []
    says = progress.message if detailed else None
    if turn.checks is None or says is None:
        call.report(turn.output, progress, detailed=detailed)
    elif call_id in hosted.reporting:
        call.report(turn.output, progress, detailed=False)  # its last message waits for its verdicts
    else:
        hosted.reporting.add(call_id)
        turn.checks.hold_message(partial(hosted.report, call_id, progress, turn.output), call.call.tool, says)
        turn.emit_passed()
    return turn.output.take_events()


def end_call(turn: Turn, call_id: str, outcome: CallOutcome) -> list[Event]:
    """A hosted call has ended: its last events; none if it does not run, or if they wait for verdicts about
    the result. Until then, it counts as running."""
    hosted = turn.output.hosted
    assert hosted is not None
    if turn.checks is None or call_id not in hosted.running:
        hosted.end(call_id, outcome, turn.output)
    else:
        hosted.keep(call_id, outcome)
        _inspect_results(turn)
    return turn.output.take_events()


def _inspect_results(turn: Turn) -> None:
    """Have results of hosted calls inspected that can be, and emit those that have passed. If a check reads
    what stands before a result, this must be known: what the step wrote, and the results of its earlier
    calls."""
    hosted, checks = turn.output.hosted, turn.checks
    assert checks is not None
    if hosted is None or (checks.items.reads_context and not turn.is_paused):
        return
    for call_id, outcome in hosted.take_returned(in_order=checks.items.reads_context):
        call = hosted.running[call_id]
        item = hosted_items_in_context.output_item(call_id, call.result_text(outcome))
        end = partial(hosted.end, call_id, outcome, turn.output)
        checks.hold_result(end, call.as_generated(), item, outcome)
    turn.emit_passed()


def calls_ended(turn: Turn, waits_until: float, *, may_wait: bool) -> list[Event]:
    """All hosted calls of the last step have ended: add their results to the next step's input.
    ``may_wait``: whether the client of a rollout can still send outputs."""
    calls, steps = turn.output.hosted, turn.planned.steps
    assert calls is not None
    assert steps is not None
    turn.stages.lap("tools")
    results = calls.take_results()
    if turn.hosted.approved:
        turn.hosted.take_results(calls.approved_results, input_items.carried(turn.bound.parent))
        steps.replace_input(turn.new_input(turn.input))
    else:
        steps.add(results)
    if turn.planned.rollout is None or steps.is_last:
        return []
    emitted = _wait_for_client(turn, waits_until, may_wait=may_wait)
    if not may_wait and not turn.planned.rollout.is_answered:
        steps.make_last()
    return emitted


def _wait_for_client(turn: Turn, waits_until: float, *, may_wait: bool) -> list[Event]:
    """Commit what the client has appended, and tell it what is missing."""
    assert turn.planned.rollout is not None
    turn.planned.rollout.wait_until(waits_until)
    may_commit = turn.checks is None or not turn.checks.gate.holds_input
    return turn.planned.rollout.pause(turn.output, may_commit=may_commit, may_wait=may_wait)


def is_late(turn: Turn, now: float) -> bool:
    """Whether a paused rollout has waited for its client as long as it may: it then ends with its calls
    open."""
    rollout = turn.planned.rollout
    return rollout is not None and rollout.is_late(now)


def append(turn: Turn, append: Append, carry: Carry, waits_until: float) -> list[Event]:
    """Take call outputs of the client, which are accepted. They are held while a step or its hosted calls
    run, and until they have passed. ``carry``: of the context with them. Raises ``ApiError`` if they are
    known to be refused by a safety check."""
    assert turn.planned.rollout is not None
    turn.planned.rollout.hold(append, carry)
    if turn.is_paused and not turn.is_calling:
        turn.planned.rollout.wait_until(waits_until)
    if turn.checks is not None:
        turn.checks.items.append(append.items, turn.output.finished)
    return commit_appended(turn)


def commit_appended(turn: Turn) -> list[Event]:
    """Add what the client has appended to a paused response, if that has passed."""
    is_held = turn.checks is not None and turn.checks.gate.holds_input
    if turn.planned.rollout is None or is_held or not turn.is_paused or turn.is_calling:
        return []
    return turn.planned.rollout.commit(turn.output)


def resume(turn: Turn) -> Job:
    """Continue a paused response; returns the job of its next step."""
    steps, prepared = turn.planned.steps, turn.prepared
    assert steps is not None
    assert prepared is not None
    if turn.planned.rollout is not None and (not turn.stages.laps or turn.stages.laps[-1].name != "tools"):
        turn.stages.lap("client")
    turn_reports.fold(turn.stages.laps)
    turn.begin_job()
    hosted = turn.output.hosted
    is_spent = hosted is not None and hosted.budget is not None and hosted.budget <= 0
    spent = hosted.tools if hosted is not None and is_spent else None
    job = steps.next_job(prepared.carry.current, spent, len(turn.output.items))
    if prepared.checks is not None:
        prepared.checks.resume(job)
    return job


def withdraw(turn: Turn) -> None:
    """The next step does not begin, because the response ends: it is paused again, without the outputs that
    its client has appended for the step, which have not passed."""
    assert turn.planned.rollout is not None
    turn.planned.rollout.withdraw(turn.output)


def foreseen_job(turn: Turn) -> Job | None:
    """While paused: a warmup of the next step with the outputs that are there; None if hosted calls run
    and none of them has a result to begin with."""
    hosted, steps = turn.output.hosted, turn.planned.steps
    if not turn.is_paused or steps is None or steps.is_last or turn.hosted.approved:
        return None
    ready = hosted.ready_results() if hosted is not None else ()
    return None if turn.is_calling and not ready else steps.foreseen_job(ready)
