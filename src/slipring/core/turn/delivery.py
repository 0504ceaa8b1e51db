"""Delivers what an engine produces for a turn: deltas become events, which go to the client.

The first deltas of a turn begin its response. With safety checks, deltas pass through their gate, and become
events when the verdicts release them. How far the job has come is noted in the turn's ``JobProgress``.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import structs

from slipring.core.checks.answer_gate import Inspection
from slipring.core.checks.verdicts import Verdict
from slipring.core.generation import Accepted, Delta, Emit, Finished
from slipring.core.turn import response_object
from slipring.core.turn.stages import Wait
from slipring.core.turn.turn import Turn
from slipring.core.turn.turn_checks import TurnChecks
from slipring.protocol import events
from slipring.protocol.events import Event
from slipring.protocol.responses import Response

Deliver = Callable[[list[Event]], Awaitable[None] | None]
"""Delivers events to a client; returns an awaitable if the next ones have to wait for it."""


def emitter(turn: Turn, work: Wait[Any], deliver: Deliver, begin: Callable[[Turn], None] | None) -> Emit:
    """What takes the deltas of a job, and delivers their events. ``begin`` is called before the first ones of
    the turn. Deltas of a job that the turn no longer waits for have no effect."""
    progress = turn.progress
    # What delivers the events of a watched turn waits for more than the client.
    is_watched = turn.is_watched

    def emit(deltas: list[Delta]) -> Awaitable[None] | None:
        # Hot path: runs once per token of every answer.
        if turn.wait is not work:
            return None
        if progress.has_begun:
            emitted = feed(turn, deltas)
        else:
            if begin is not None:
                begin(turn)
            emitted = accept(turn, deltas)
        waiting = deliver(emitted)
        return waiting if waiting is None or is_watched else turn.stages.while_client_reads(waiting)

    return emit


def accept(turn: Turn, deltas: list[Delta]) -> list[Event]:
    """Process the engine's first deltas: the events that create the response come first."""
    accepted = next((delta for delta in deltas if type(delta) is Accepted), None)
    emitted = opening(turn, None if accepted is None else accepted.prompt_tokens)
    if turn.is_compacting:
        emitted += turn.output.open_compaction()
    emitted += feed(turn, deltas)
    turn.progress.begin()
    return emitted


def enqueue(turn: Turn) -> list[Event]:
    """The events that create a background response, before its engine accepts the job."""
    shown = structs.replace(_shown(turn), status="queued")
    return [turn.output.announce(events.Created, shown), turn.output.announce(events.Queued, shown)]


def opening(turn: Turn, prompt_tokens: int | None = None) -> list[Event]:
    """The events that begin the response; none if it has begun. ``prompt_tokens``: of its context, if the
    engine has counted them."""
    if turn.progress.accepted is not None:
        return []
    turn.progress.open()
    shown = _shown(turn)
    if prompt_tokens is not None and turn.asked.request.announces_prompt:
        shown = structs.replace(shown, prompt_tokens=prompt_tokens)
    kinds = [events.InProgress] if turn.asked.detached else [events.Created, events.InProgress]
    if turn.asked.request.warms_up:
        kinds = kinds[:1]
    return [turn.output.announce(kind, shown) for kind in kinds]


def _shown(turn: Turn) -> Response:
    """The response as its first events show it: without what has not passed."""
    return response_object.as_announced(turn.passed(), is_short=turn.asked.short_events)


def feed(turn: Turn, deltas: list[Delta]) -> list[Event]:
    """Process deltas of the engine; the last delta of a job is ``Finished``."""
    compaction, prepared, progress = turn.planned.compaction, turn.prepared, turn.progress
    if compaction is not None and compaction.is_running:
        compaction.take(deltas)
        return []
    if prepared is not None and prepared.checks is not None:
        return _feed_gate(turn, prepared.checks, deltas)
    if deltas and type(last := deltas[-1]) is Finished:
        progress.finish(last)
        deltas = deltas[:-1]
    if not progress.is_prefilled:
        deltas = progress.read(deltas)
    emitted = turn.output.feed(deltas)
    if turn.steers is not None:
        progress.ask_to_stop(turn.steers.may_end(deltas))
    return emitted


def _feed_gate(turn: Turn, checks: TurnChecks, deltas: list[Delta]) -> list[Event]:
    """Process deltas of the engine that checks may hold back."""
    if not turn.progress.is_prefilled:
        deltas = turn.progress.read(deltas)
        if turn.progress.is_prefilled:
            checks.begin_answer()
    return _release(turn, checks, checks.gate.feed(deltas))


def judge(turn: Turn, inspection: Inspection, verdicts: Sequence[Sequence[Verdict]]) -> list[Event]:
    """The verdicts of an inspection: the events that they release."""
    assert turn.checks is not None
    return _release(turn, turn.checks, turn.checks.judge(inspection, verdicts))


def _release(turn: Turn, checks: TurnChecks, deltas: list[Delta]) -> list[Event]:
    """Process deltas that the checks have released."""
    if checks.stops_holding():
        turn.stages.lap("held")
    turn.emit_passed()
    if deltas and isinstance(last := deltas[-1], Finished):
        more, finished = checks.ended(last, may_refuse=not turn.output.calls)
        turn.progress.finish(finished)
        deltas = [*deltas[:-1], *more]
    emitted = turn.output.feed(deltas)
    if checks.is_cut:
        turn.progress.ask_to_stop(True)
    elif turn.steers is not None:
        turn.progress.ask_to_stop(turn.steers.may_end(deltas))
    return emitted
