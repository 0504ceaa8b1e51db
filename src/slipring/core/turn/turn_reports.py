"""Reports of turns: their stages, tokens and sizes, for the log, metrics, traces and the live page;
and whether the content of a turn may be recorded.
"""

from functools import reduce
from hashlib import blake2b

from msgspec import UNSET, UnsetType, structs

from slipring.base.errors import ApiError
from slipring.core.betas import Betas
from slipring.core.checks.policies import Policies
from slipring.core.generation import Finished
from slipring.core.turn import response_object
from slipring.core.turn.stages import as_ms
from slipring.core.turn.turn import Turn
from slipring.protocol.turn_report import Mark, Stage, StageName, TurnReport

_MOST_STAGES = 400
_ID_LENGTH = 64
"""Ids in reports are cut here: a client may send anything as one."""
_TRACEPARENT = "ws_request_header_traceparent"
"""Key of ``client_metadata`` under which Codex sends the trace context of a request over a WebSocket."""
_TRACEPARENT_LENGTH = 55
_STAGE_AFTER: dict[StageName, StageName] = {
    "decode": "queue",
    "queue": "resolve",
    "resolve": "validate",
    "list": "validate",
    "validate": "render",
    "weigh": "render",
    "compact": "render",
    "client": "render",
    "tools": "render",
    "render": "engine_queue",
    "engine_queue": "prefill",
    "prefill": "generate",
    "check": "render",
    "held": "generate",
    "generate": "store",
}
"""The stage that begins when one has ended, where nothing else says so."""


_STAGE_AT: dict[str, StageName] = {
    "saving": "store",
    "resolving": "validate",
    "listing": "list",
    "inspecting": "check",
}
"""The stage of a turn at a place, where that alone determines it."""


def fold(stages: list[Stage]) -> None:
    """Bound the stages of a report: above 400, replace the oldest 200 by one named ``rollout``."""
    if len(stages) > _MOST_STAGES:
        folded = stages[: _MOST_STAGES // 2]
        end = stages[len(folded)].start_ms
        first = Stage("rollout", folded[0].start_ms, round(end - folded[0].start_ms, 3))
        stages[: len(folded)] = [first]


def cut_off_stage(turn: Turn) -> None:
    """The turn ends within a stage: the time until now is that stage's."""
    turn.stages.lap(_running_stage(turn))


def _running_stage(turn: Turn) -> StageName:
    ended = turn.stages.laps[-1].name if turn.stages.laps else "decode"
    if turn.is_paused:
        return "tools" if turn.is_calling else "client"
    if (stage := _STAGE_AT.get(turn.wait.place)) is not None:
        return stage
    if turn.checks is not None and turn.checks.is_held:
        return "held"
    if ended in ("validate", "weigh") and (compaction := turn.planned.compaction) is not None:
        if compaction.is_running or compaction.finished is not None:
            return "compact"
        if ended == "validate" and compaction.must_weigh():
            return "weigh"
    return _STAGE_AFTER[ended]


def report(turn: Turn, error: ApiError | None = None, *, cancelled: bool = False) -> TurnReport:
    """The report of a turn that has ended. ``error``: why it was refused. ``cancelled``: its client
    disconnected before it had ended."""
    accepted, stages, steps = turn.progress.accepted, turn.stages, turn.planned.steps
    finished = turn.progress.finished if turn.ended is None else turn.ended.finished
    if finished is None and cancelled:
        finished = _spent(turn)
    elif finished is None and steps is not None:
        finished = steps.spent
    previous = turn.asked.request.previous_response_id
    report = TurnReport(
        status="cancelled" if cancelled else "refused",
        request_bytes=turn.asked.size_bytes,
        stages=stages.laps,
        total_ms=stages.total_ms,
        previous_response_id=previous[:_ID_LENGTH] if previous is not None else UNSET,
        error_code=error.code if error is not None else UNSET,
        input_check_ms=turn.checks.input_ms if turn.checks is not None else UNSET,
        flagged_by=(turn.checks.flagged_by or UNSET) if turn.checks is not None else UNSET,
        withheld=(turn.checks.withheld or UNSET) if turn.checks is not None else UNSET,
        safety_id=_safety_id(turn.asked.request.safety_identifier),
    )
    if accepted is None or turn.response is None:
        return report
    failure, hosted = turn.response.error, turn.output.hosted
    return structs.replace(
        report,
        history_bytes=turn.bound.history_bytes or UNSET,
        marks=_marks(turn) or UNSET,
        status="cancelled" if cancelled else turn.response.status,
        response_id=turn.response.id,
        model=turn.response.model,
        input_items=len(turn.input),
        recognised_items=turn.recognition.items or UNSET,
        departed=turn.recognition.departed or UNSET,
        send_ms=as_ms(stages.send_s),
        tokens=response_object.counts(accepted, finished) if finished is not None else UNSET,
        fallback=accepted.fallback or UNSET,
        dropped_items=accepted.dropped_items or UNSET,
        steps=steps.counts if steps is not None and len(steps.counts) > 1 else UNSET,
        hosted_calls=hosted.made if hosted is not None and hosted.made else UNSET,
        error_code=failure.code if failure is not None else UNSET,
    )


def _spent(turn: Turn) -> Finished | None:
    """The tokens of the jobs that have finished, and an estimate for the one that is cut off."""
    jobs = [turn.cut_off()]
    if turn.planned.steps is not None:
        jobs.append(turn.planned.steps.spent)
    if turn.planned.compaction is not None:
        jobs.append(turn.planned.compaction.finished)
    spent = [job for job in jobs if job is not None]
    return reduce(Finished.after, spent) if spent else None


def progress(turn: Turn) -> TurnReport:
    """The report of a turn that has not ended, with the stages that have: its status is its phase."""
    previous, response = turn.asked.request.previous_response_id, turn.response
    return TurnReport(
        status=turn.place,
        request_bytes=turn.asked.size_bytes,
        stages=turn.stages.laps.copy(),
        total_ms=turn.stages.elapsed_ms,
        response_id=response.id if response is not None else UNSET,
        previous_response_id=previous[:_ID_LENGTH] if previous is not None else UNSET,
        model=response.model if response is not None else UNSET,
        input_items=len(turn.input),
        history_bytes=turn.bound.history_bytes or UNSET,
        marks=_marks(turn) or UNSET,
    )


def may_record_content(turn: Turn, betas: Betas, policies: Policies) -> bool:
    """Whether the content of a turn that has ended may be kept: no check has refused any of it, or would
    still have inspected it."""
    if betas.keeps_nothing or turn.is_blocked:
        return False
    if turn.checks is not None:
        return turn.checks.has_passed
    # Which policy applies is known once a request is valid.
    return turn.response is not None or not policies.checks


def traceparent(turn: Turn) -> str | None:
    """The trace context that the request itself contains, not yet validated."""
    given = (turn.asked.request.client_metadata or {}).get(_TRACEPARENT)
    return given if isinstance(given, str) and len(given) == _TRACEPARENT_LENGTH else None


def _marks(turn: Turn) -> tuple[Mark, ...]:
    compaction = turn.planned.compaction
    marks: dict[Mark, bool] = {
        "fork": turn.asked.forks,
        "warmup": turn.asked.request.warms_up,
        "steered": turn.asked.follows,
        "compaction": compaction is not None and compaction.finished is not None,
        "rollout": turn.planned.rollout is not None,
        "background": turn.asked.detached,
    }
    return tuple(mark for mark, applies in marks.items() if applies)


def _safety_id(identifier: str | None) -> str | UnsetType:
    """A digest by which operators recognise a user of their client, without knowing who it is."""
    return UNSET if identifier is None else blake2b(identifier.encode(), digest_size=8).hexdigest()
