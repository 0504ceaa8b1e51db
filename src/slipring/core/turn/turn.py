"""A turn: produces one response, from its request to its terminal event.

A turn owns its request, its parent state and the response object as it changes. It turns the engine's deltas
into events through ``Output``. Lanes, queues and caches belong to the session; token generation belongs to
the engine.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, Struct, structs

from slipring.base.errors import ApiError, InvalidPrompt
from slipring.core.chain import hosted_items, input_items, item_ids
from slipring.core.chain.head import NO_HEAD, Head
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.state import Carry, OpenCall, Position, ResponseState
from slipring.core.checks.gate import Emit, Inspection
from slipring.core.checks.verdicts import NodeVerdicts, Verdict
from slipring.core.generation import (
    Accepted,
    Delta,
    Finished,
    Job,
    Model,
    Settings,
    Stop,
)
from slipring.core.hosted.request import HostedRequest
from slipring.core.hosted.tools import FetchedList, HostedCall
from slipring.core.ports import Ports
from slipring.core.token_estimates import estimated_text_tokens, estimated_tokens
from slipring.core.turn import response_object
from slipring.core.turn.compaction import Compaction, Plan
from slipring.core.turn.job_progress import JobProgress
from slipring.core.turn.output.hosted_lists import HostedLists
from slipring.core.turn.output.output_events import Output
from slipring.core.turn.recognition import Recognition
from slipring.core.turn.stages import Stages
from slipring.core.turn.steps.rollout import Rollout
from slipring.core.turn.steps.steer_queue import Steers
from slipring.core.turn.steps.steps import Steps
from slipring.core.turn.turn_checks import Audit, TurnChecks, is_audited
from slipring.core.turn.waits import QUEUED, Wait
from slipring.protocol import events
from slipring.protocol.definitions import Definitions
from slipring.protocol.events import Event
from slipring.protocol.hosted.mcp_items import error_text
from slipring.protocol.items import Item, in_context
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import (
    IncompleteDetails,
    Response,
)
from slipring.protocol.tools import ToolChoice

_TERMINAL: dict[str, type[events.ResponseEvent]] = {
    "completed": events.Completed,
    "incomplete": events.Incomplete,
    "failed": events.Failed,
}
_NOTHING = Finished("broken_off", input_tokens=0, cached_tokens=0, output_tokens=0)
"""The end of a job that did not run to its end."""


class Joined(Struct, frozen=True):
    """The conversation of a turn, as loaded."""

    conversation_id: str
    version: int
    items: tuple[Item, ...] = ()
    """Its items that are not in the context of the turn's parent."""


class Asked(Struct, frozen=True, eq=False, kw_only=True):
    """What a turn was asked for, before anything is known about it. It does not change."""

    request: CreateRequest
    tenant: str
    lane: str | None
    size_bytes: int
    error: ApiError | None = None
    """Why the request is refused, if that is known already: it is refused when its lane reaches it."""
    detached: bool = False
    """Whether it runs in the background: its response is created before the engine accepts the job."""
    short_events: bool = False
    """Whether the events that begin the response leave out its instructions and tools."""
    parent: ResponseState | None = None
    """What it continues, if that is known: a state of another lane, or, with ``steers``, the steered response
    that the server continues."""
    steers: Steers | None = None
    """What the server continues a steered response with."""

    @property
    def follows(self) -> bool:
        """Whether the server started the turn, as the successor of a steered response."""
        return self.steers is not None

    @property
    def forks(self) -> bool:
        """Whether its parent belongs to another lane."""
        return self.parent is not None and self.steers is None


class Draft(Struct, frozen=True, eq=False):
    """What a valid request asks for, until its job can be made."""

    response_id: str
    model: Model
    carry: Carry
    """Of the context with the input."""
    settings: Settings
    choice: ToolChoice
    plan: Plan | None
    now: float
    definitions: Definitions
    """Those that the input brings."""
    recognise: bool
    """Whether the job may continue a context that the items repeat."""


class Turn:
    """One response in progress."""

    __slots__ = (
        "_ports",
        "asked",
        "carry",
        "checks",
        "compaction",
        "draft",
        "finished",
        "found",
        "has_begun",
        "head",
        "history_bytes",
        "hosted",
        "input",
        "is_blocked",
        "job",
        "joined",
        "known_head",
        "lists",
        "output",
        "parent",
        "progress",
        "recognition",
        "response",
        "rollout",
        "stages",
        "steered_by",
        "steers",
        "steps",
        "stop",
        "wait",
    )

    checks: TurnChecks | None
    """Set if a policy applies."""
    compaction: Compaction | None
    """Set if the context may have to be compacted."""
    draft: Draft | None
    """Set while lists of tools are fetched on which the job depends."""
    lists: HostedLists | None
    """Set if lists of tools are fetched for the response, once it is created."""
    steps: Steps | None
    """Set if the response may continue after calls."""
    rollout: Rollout | None
    """Set if it continues after calls that its client answers."""
    has_begun: bool
    """Whether the engine has accepted the first job."""
    is_blocked: bool
    """Whether a safety check has refused it: nothing of its content is kept."""
    steers: Steers | None
    """Steers added to this response, to be used when it ends."""
    steered_by: Steers | None
    """Steers of its parent that are in its input, until the response is created."""

    def __init__(self, asked: Asked, ports: Ports, stages: Stages) -> None:
        self._ports = ports
        self.asked = asked

        # The context, bound when the turn leaves its lane's queue.
        self.parent = asked.parent
        self.joined: Joined | None = None
        self.input: tuple[Item, ...] = ()
        self.found: dict[str, Item] = {}
        """Items that the input refers to by id."""
        self.recognition = Recognition(ports.known, asked.tenant)
        self.hosted = HostedRequest(ports.seal, asked.tenant)
        self.known_head: Head | None = None
        """A head that was read before and may be that of the request."""
        self.head = NO_HEAD
        self.carry = OpenCarry(input_items.NOTHING)
        self.history_bytes = 0
        """Length of the items that the request continues and does not contain."""

        # Steering.
        self.steers, self.steered_by = None, asked.steers
        self.stop = Stop()

        # Progress.
        self.wait: Wait[Any] = QUEUED
        """What the turn's program waits for."""
        self.is_blocked = self.has_begun = False
        self.stages = stages
        self.response: Response | None = None
        self.output = Output(
            item_ids.call_minter(ports.mint, asked.request.first_call),
            UNSET if asked.lane is None else asked.lane,
        )
        self.checks = self.compaction = self.draft = self.lists = self.steps = self.rollout = None
        self.progress = JobProgress(stages)
        self.finished: Finished | None = None
        """The end of the current job, once it has ended; then that of the response."""
        self.job: Job | None = None
        """The first job for the answer, once it is known."""

    @property
    def stores(self) -> bool:
        """Whether the response itself is stored."""
        return self.asked.request.store is not False

    @property
    def saves(self) -> bool:
        """Whether the store must save something before the response ends."""
        return self.stores or (self.joined is not None and not self.has_failed)

    @property
    def has_failed(self) -> bool:
        """Whether the response ends with ``response.failed``."""
        return self.response is not None and self.response.status == "failed"

    # Before the engine starts.

    def new_input(self) -> tuple[Item, ...]:
        """The input of the first job: what its parent left unread, and the request's items."""
        left = self.parent.unread if self.parent is not None else ()
        return (*left, *in_context(self.input[self.recognition.items :]))

    @property
    def is_listing(self) -> bool:
        """Whether lists of tools are being fetched for the response, which is created."""
        return self.wait.place == "listing" and self.lists is not None

    @property
    def yields_while_listing(self) -> bool:
        """Whether a response that waits for lists of tools ends for its steers: its input has passed."""
        is_settled = self.checks is None or self.checks.is_settled
        return self.lists is not None and self.steers is not None and is_settled

    @property
    def place(self) -> str:
        """Where the turn is in its life, for reports."""
        place = self.wait.place
        return "running" if place == "preparing" and self.has_begun else place

    @property
    def is_closed(self) -> bool:
        """Whether the output is complete: what remains is to save the response and to send its last event."""
        return self.response is not None and self.response.status in _TERMINAL

    @property
    def is_paused(self) -> bool:
        """Whether the turn is between two steps."""
        return self.steps is not None and self.steps.is_paused and not self.is_closed

    @property
    def is_created(self) -> bool:
        """Whether the client knows of the response."""
        return self.progress.accepted is not None or (self.asked.detached and self.response is not None)

    @property
    def claims(self) -> tuple[str, ...]:
        """The approval requests that the turn uses: their calls run before the engine starts."""
        return tuple(each.request_id for each in self.hosted.approved)

    @property
    def must_weigh(self) -> bool:
        """Whether the engine must count the context's tokens before ``first_job``."""
        return self.compaction is not None and self.compaction.must_weigh()

    def first_job(self, job: Job, tokens: int = 0) -> Job:
        """The job to start with: ``job``, or that of a summary if a context of ``tokens`` is to be
        compacted."""
        compaction = self.compaction
        return compaction.summary_job() if compaction is not None and compaction.is_due(tokens) else job

    def enqueue(self) -> list[Event]:
        """The events that create a background response, before its engine accepts the job."""
        shown = self._shown()
        return [self.output.announce(events.Created, shown), self.output.announce(events.Queued, shown)]

    # While the engine runs.

    def accept(self, deltas: list[Delta]) -> list[Event]:
        """Process the engine's first deltas: the events that create the response come first."""
        opening = self.opening()
        if self.is_compacting:
            opening += self.output.open_compaction()
        opening += self.feed(deltas)
        self.has_begun = True
        return opening

    def opening(self) -> list[Event]:
        """The events that begin the response; none if it has begun."""
        assert self.response is not None
        if self.progress.accepted is not None:
            return []
        self.progress.accepted = Accepted()
        announce = self.output.announce
        if self.asked.detached:
            self.response = structs.replace(self.response, status="in_progress")
            opening = [announce(events.InProgress, self._shown())]
        else:
            shown = self._shown()
            opening = [announce(events.Created, shown)]
            if not self.asked.request.warms_up:
                opening.append(announce(events.InProgress, shown))
        return opening

    def _shown(self) -> Response:
        """The response as its first events show it: without what has not passed, and without what the client
        does not want to see."""
        shown = self._passed()
        return response_object.shortened(shown) if self.asked.short_events else shown

    def _passed(self) -> Response:
        """The response without instructions, tools and format, if these have not passed."""
        assert self.response is not None
        holds = self.is_blocked or (self.checks is not None and self.checks.holds_definitions)
        return response_object.without_definitions(self.response) if holds else self.response

    def emit(self, emit: Emit) -> None:
        """Emit something once the input has passed. What is emitted now is among the events of the output."""
        if self.checks is None:
            emit()
        else:
            self.checks.hold(emit)
            self.emit_passed()

    def emit_passed(self) -> None:
        """Emit what has passed of what was held."""
        for emit in self.checks.take_emissions() if self.checks is not None else ():
            emit()

    def open_lists(self) -> list[Event]:
        """The events that begin the response, and those of the lists that are fetched for it."""
        opening = self.opening()
        self.lists = HostedLists()
        for label in self.hosted.awaited:
            self.lists.begin(self.output, label, self.hosted.tag_list(label))
        return opening + self.output.take_events()

    def end_list(self, label: str, fetched: FetchedList) -> list[Event]:
        """The list of a server has been fetched: the events that can be sent now. Raises ``ApiError`` if it
        is known that a check refuses the list."""
        tools = self.hosted.take_list(label, fetched)
        if self.lists is None:
            return []
        self.lists.end(label, tools, fetched.error)
        if self.checks is not None:
            self.checks.add_list(label, tools, None if fetched.error is None else error_text(fetched.error))
        self.emit(partial(self.lists.show, self.output))
        return self.output.take_events()

    def _end_lists(self) -> list[Event]:
        if self.lists is None:
            return []
        self.lists.end_all(self.output)
        return self.output.take_events()

    def feed(self, deltas: list[Delta]) -> list[Event]:
        """Process deltas of the engine; the last delta of a job is ``Finished``."""
        if self.compaction is not None and self.compaction.is_running:
            self.compaction.take(deltas)
            return []
        if self.checks is not None:
            return self._feed_gate(self.checks, deltas)
        if deltas and type(last := deltas[-1]) is Finished:
            self.finished = last
            deltas = deltas[:-1]
        if not self.progress.is_prefilled:
            deltas = self.progress.read(deltas, has_ended=self.finished is not None)
        emitted = self.output.feed(deltas)
        if self.steers is not None:
            self.stop.asked = self.steers.may_end(deltas)
        return emitted

    def _feed_gate(self, checks: TurnChecks, deltas: list[Delta]) -> list[Event]:
        """Process deltas of the engine that checks may hold back."""
        if not self.progress.is_prefilled:
            deltas = self.progress.read(deltas, has_ended=self.finished is not None)
            checks.is_held = self.progress.is_prefilled and checks.holds_input
        return self._release(checks, checks.feed(deltas))

    def judge(self, inspection: Inspection, verdicts: Sequence[Sequence[Verdict]]) -> list[Event]:
        """The verdicts of an inspection: the events that they release."""
        assert self.checks is not None
        return self._release(self.checks, self.checks.judge(inspection, verdicts))

    def _release(self, checks: TurnChecks, deltas: list[Delta]) -> list[Event]:
        """Process deltas that the checks have released."""
        if checks.is_held and not checks.holds_input:
            checks.is_held = False
            self.stages.lap("held")
        self.emit_passed()
        if deltas and isinstance(last := deltas[-1], Finished):
            more, self.finished = checks.ended(last, may_refuse=not self.output.calls)
            deltas = [*deltas[:-1], *more]
        emitted = self.output.feed(deltas)
        if checks.is_cut:
            self.stop.asked = True
        elif self.steers is not None:
            self.stop.asked = self.steers.may_end(deltas)
        return emitted

    @property
    def is_compacting(self) -> bool:
        """Whether the running job writes a summary of the context instead of the answer."""
        return self.compaction is not None and self.compaction.is_running

    def compacted(self) -> tuple[list[Event], Job | None]:
        """The summary is finished: its events, and the turn's own job unless only a compaction was asked
        for."""
        compaction = self.compaction
        assert compaction is not None
        items = compaction.conclude()
        self.parent, self.carry = (
            None,
            OpenCarry(input_items.join(input_items.NOTHING, items, complete=False)),
        )
        if self.checks is not None:
            self.checks.add(items)
        self.emit(partial(self.output.close_compaction, items, self.conceal(items)))
        emitted = self.output.take_events()
        self.stages.lap("compact")
        job = self.job = compaction.job_after(items)
        if self.steps is not None:
            self.steps.begin(job)
        if compaction.plan.alone:
            assert compaction.finished is not None
            # A truncated summary counts as complete. The engine's position is that of the old context.
            self.finished = structs.replace(compaction.finished, reason="stop", position=None, context=None)
            return emitted, None
        return emitted, job

    def conceal(self, items: tuple[Item, ...]) -> str:
        """Encrypt items for the client to keep."""
        return self._ports.seal.seal(self.asked.tenant, items)

    def steer(self, steers: Steers) -> None:
        """Attach steers, and ask the engine to end the answer as soon as it may."""
        self.steers = steers
        self.stop.asked = steers.may_end([])

    @property
    def cannot_be_steered(self) -> str | None:
        """Why this response refuses steers, as a sentence for the client; None if it accepts them."""
        if self.asked.request.warms_up:
            return "It is a warmup and generates nothing."
        if self.asked.detached:
            return "It runs in the background."
        if self.joined is not None:
            return "It is part of a conversation."
        if self.compaction is not None or self.asked.request.context_management:
            return "Its context may be compacted."
        return None

    @property
    def open_calls(self) -> Mapping[str, OpenCall]:
        """The calls that wait for their outputs, including those of the running answer that are complete."""
        return self.carry.with_output(self.output.finished).open_calls

    # Between two steps.

    def without_dropped(self, finished: Finished) -> Finished:
        """The end of a job; without its position if that covers calls that no item shows."""
        hosted = self.output.hosted
        if hosted is None or not hosted.has_dropped:
            return finished
        return structs.replace(finished, position=None)

    @property
    def yields_to_steers(self) -> bool:
        """Whether this is a paused response that waits for hosted calls, or has just waited for them, and
        has steers that can follow it then."""
        has_called = self.is_paused and self.output.calls_hosted
        is_steered = self.steers is not None or (
            self.finished is not None and self.finished.reason == "steered"
        )
        return has_called and is_steered and not self.output.asks_client

    @property
    def is_calling(self) -> bool:
        """Whether hosted calls run."""
        return self.output.hosted is not None and bool(self.output.hosted.running)

    @property
    def calls_running(self) -> int:
        """How many hosted calls run."""
        return len(self.output.hosted.running) if self.output.hosted is not None else 0

    @property
    def has_due_calls(self) -> bool:
        """Whether hosted calls can begin now."""
        hosted = self.output.hosted
        return hosted is not None and bool(hosted.due)

    def take_due_calls(self) -> list[HostedCall]:
        """The hosted calls that can begin now."""
        hosted = self.output.hosted
        return [each.call for each in hosted.take_due()] if hosted is not None else []

    def end_calls(self) -> list[Event]:
        """Wait for no hosted call any longer, and end the response instead of continuing it. The caller
        cancels the calls."""
        hosted = self.output.hosted
        if hosted is not None:
            hosted.end_all(self.output)
        if self.steps is not None:
            self.steps.is_last = True
        return self.output.take_events()

    def end_waiting(self, reason: Literal["steered", "broken_off"]) -> list[Event]:
        """End a response that waits for hosted calls, or for lists. The caller cancels both."""
        self.finished = structs.replace(self.finished or _NOTHING, reason=reason)
        return self.end_calls()

    def observe(self) -> None:
        """Count the output items that the steps have finished since the last call."""
        assert self.steps is not None
        new = self.carry.observe(self.output.finished)
        self.steps.size_bytes += sum(item.size_bytes for item in new)

    @property
    def must_end(self) -> bool:
        """Whether this is a paused response that no step continues."""
        is_last = self.steps is not None and self.steps.is_last
        return self.is_paused and is_last and not self.is_calling

    @property
    def may_resume(self) -> bool:
        """Whether this is a paused response that has all outputs for its next step."""
        if not self.is_paused or self.must_end or self.is_calling:
            return False
        return self.rollout is None or (self.rollout.is_answered and not self.rollout.holds_appends)

    @property
    def waits_for_client(self) -> bool:
        """Whether this is a paused rollout whose client has to send outputs."""
        return self.is_paused and self.rollout is not None and not self.is_calling

    @property
    def can_be_broken_off(self) -> bool:
        """Whether this is a rollout with at least one finished step or hosted call, which is worth keeping,
        and does not wait for its client."""
        if self.rollout is None or self.steps is None:
            return False
        if self.is_paused:
            return self.is_calling
        return self.place == "running" and self.steps.spent is not None

    def break_off(self) -> None:
        """End the running step of a rollout where it is. The caller cancels the job."""
        self.finished = self.cut_off() or _NOTHING

    def _return_held(self, *, is_blocked: bool = False) -> list[Event]:
        if self.rollout is None:
            return []
        return self.rollout.return_held(self.output, is_blocked=is_blocked)

    # The end.

    def finish(self, now: float) -> tuple[list[Event], ResponseState]:
        """The engine is done: the events that close the output, and the new state.

        ``terminal`` returns the last event, once the state is saved.
        """
        finished, response, steps = self.finished, self.response, self.steps
        if steps is not None and self.is_paused and self.rollout is None and not steps.is_last:
            # It may not go on, though the model has not read the results of its calls.
            finished, steps.is_last = structs.replace(finished or _NOTHING, reason="broken_off"), True
        if finished is None or response is None:
            raise RuntimeError("the engine ended its stream without a Finished delta")
        if steps is not None:
            finished = steps.total(finished)
        if self.compaction is not None:
            finished = self.compaction.together(finished)
        if self.progress.is_rendered:
            self.stages.lap("generate")
        elif self.waits_for_client:
            self.stages.lap("client")
        reason = finished.reason
        if reason == "steered" and self.output.asks_client:
            reason = "stop"  # the client must answer first
        stopped = reason == "stop"
        # A steered answer ends after whole reasoning items, but possibly within a message.
        is_whole = stopped or (reason == "steered" and self.output.last_words is None)
        closing = self._end_lists() + self.output.finish("completed" if is_whole else "incomplete")
        closing += [*(self.end_calls() if self.is_calling else ()), *self._return_held()]
        finished = self.finished = self.without_dropped(finished)
        self.response = response = structs.replace(
            response,
            status="completed" if stopped else "incomplete",
            completed_at=int(now) if stopped else None,
            incomplete_details=None if reason == "stop" else IncompleteDetails.of(reason),
            output=self.output.raw_items(),
            usage=response_object.usage(finished),
            stop_sequence=finished.stop_sequence or UNSET,
            moderation=self.checks.moderation if self.checks is not None else UNSET,
        )
        state = self.new_state(self.output.items, finished.position, cut_off=not stopped)
        if state.unread and self.progress.is_rendered:
            # Its last step answered nothing, so that the items do not show that it has read the outputs.
            state.position = None
        return closing, state

    def new_state(self, items: list[Item], position: Position | None, *, cut_off: bool) -> ResponseState:
        """The state of the response, which has ended with these output items: all, or the first ones.
        ``cut_off``: the last one is incomplete."""
        assert self.response is not None
        # Without the appends that were held and have just been returned.
        latest = tuple(items[self.output.since :])
        carry = input_items.after_output(self.carry.settled, latest, cut_off=cut_off)
        self.carry.current = carry = self.hosted.carry_on(carry)
        self.carry.settle(self.output.finished)
        state = ResponseState(
            response=self.response,
            parent=self.parent,
            head=self.head,
            input=self.input,
            output=self._opened(items),
            carry=carry,
            position=position,
            fork=self.asked.forks,
        )
        state.verdicts = self._verdicts()
        return state

    def _opened(self, items: list[Item]) -> tuple[Item, ...]:
        """Output items, of which those of hosted tools stand for what the model has seen of them."""
        if self.hosted.is_upstream:
            return tuple(items)
        hosted = self.output.hosted
        return hosted_items.opened(items, hosted.approved_results if hosted is not None else None)

    def _verdicts(self) -> NodeVerdicts | None:
        if self.checks is not None:
            return self.checks.verdicts(self.parent)
        return NodeVerdicts(b"", is_audited=True) if is_audited(self.parent) else None

    def audit(self, state: ResponseState) -> Audit | None:
        """What remains to be inspected of the finished response."""
        return self.checks.audit(state, is_stored=self.stores) if self.checks is not None else None

    def remember(self, state: ResponseState, now: float) -> None:
        """Let later requests that send the context of the finished response again continue it."""
        assert self.finished is not None
        accepted = self.progress.accepted
        if accepted is not None and accepted.dropped_items:
            return  # the context is not what its items say, and neither is any that continues it
        is_shared = accepted is not None and accepted.fallback is None and self.compaction is None
        self.recognition.remember(state, self.finished, is_shared=is_shared, now=now)

    def terminal(self) -> Event:
        """The terminal event of a response that has finished or failed."""
        assert self.response is not None
        return self.output.announce(_TERMINAL[self.response.status], self.response)

    def fail(self, error: ApiError) -> list[Event]:
        """The engine or the store failed: the events that close the output. ``terminal`` returns the last
        event."""
        assert self.response is not None
        is_blocked = self.is_blocked = isinstance(error, InvalidPrompt)
        closing = self._end_lists() + self.output.finish("incomplete")
        closing += self.end_calls() + self._return_held(is_blocked=is_blocked)
        self.response = structs.replace(
            self._passed(),
            status="failed",
            completed_at=None,
            incomplete_details=None,
            output=self.output.raw_items(),
            usage=None,
            error=response_object.failure(error),
            moderation=self.checks.moderation if self.checks is not None else UNSET,
        )
        return closing

    def cut_off(self) -> Finished | None:
        """An estimate of the tokens of the running job; None if its engine has not begun it."""
        job = self.job
        if job is None or not (self.progress.is_begun or self.is_compacting):
            return None
        if self.compaction is not None and self.compaction.is_running:
            written = self.compaction.written_chars
        else:
            written = self.output.written_chars
            job = self.steps.foreseen_job() if self.steps is not None else job
        return structs.replace(
            _NOTHING, input_tokens=estimated_tokens(job), output_tokens=estimated_text_tokens(written)
        )
