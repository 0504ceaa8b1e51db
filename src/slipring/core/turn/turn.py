"""A turn: produces one response, from its request to its terminal event.

A turn owns its request, its parent state and the response object as it changes. It turns the engine's deltas
into events through ``Output``. Lanes, queues and caches belong to the session; token generation belongs to
the engine.

What is known of a turn is split by time into values that are made once and complete, and do not change: what
was asked (``Asked``), what it continues (``Bound``), its response (``Prepared``), its jobs (``Planned``) and
its end (``Ended``).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, Struct, structs

from slipring.base.errors import ApiError, InvalidPrompt
from slipring.core.attachments import AttachmentRules
from slipring.core.chain import hosted_items_in_context, input_items, item_ids
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.resent_history import Recognition
from slipring.core.chain.state import Carry, OpenCall, ResponseState
from slipring.core.checks.answer_gate import Emission
from slipring.core.generation import Finished, Job, Model, Settings
from slipring.core.hosted_tools import FetchedList, HostedCall, HostedRequest
from slipring.core.ports import Ports
from slipring.core.token_estimates import estimated_text_tokens, estimated_tokens
from slipring.core.turn import response_object
from slipring.core.turn.compaction import Compaction, Plan
from slipring.core.turn.output.hosted_calls import HostedLists
from slipring.core.turn.output.output_events import Output
from slipring.core.turn.stages import NO_TOKENS, QUEUED, JobProgress, Stages, Wait
from slipring.core.turn.steps.rollout import Rollout
from slipring.core.turn.steps.steered_ends import Steers
from slipring.core.turn.steps.step_jobs import Steps
from slipring.core.turn.turn_checks import TurnChecks
from slipring.protocol import events
from slipring.protocol.events import Event
from slipring.protocol.items.hosted_items import error_text
from slipring.protocol.items.items import Item, shown
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response
from slipring.protocol.tools.grammars_and_schemas import Compilable, Definitions
from slipring.protocol.tools.tool_choice import ToolChoice

_TERMINAL: dict[str, type[events.ResponseEvent]] = {
    "completed": events.Completed,
    "incomplete": events.Incomplete,
    "failed": events.Failed,
}


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


class Inserted(Struct, frozen=True):
    """Items of a turn's input that its client has not sent with the request."""

    count: int = 0
    at: int = 0
    """The index of the first of them."""
    source: str = ""
    """The field of the request through which they came in."""


class Bound(Struct, frozen=True, eq=False):
    """What a turn continues, and its input. Made when the turn has left its lane's queue."""

    parent: ResponseState | None = None
    input: tuple[Item, ...] = ()
    found: Mapping[str, Item] = {}
    """Items that the input refers to by id, until they stand in it."""
    inserted: Inserted = Inserted()
    joined: Joined | None = None
    known_head: Head | None = None
    """A head that was read before and may be that of the request."""
    compared: ResponseState | None = None
    """The response that the client wants the context to be compared with, if it was found."""
    is_comparable: bool = True
    """False if it could not be looked up."""

    @property
    def history_bytes(self) -> int:
        """Length of the items that the request continues and does not contain."""
        return self.parent.context_bytes if self.parent is not None else 0


class Draft(Struct, frozen=True, eq=False):
    """What a valid request asks for: its jobs are made of this."""

    response_id: str
    model: Model
    input: tuple[Item, ...]
    """As the model reads it, but for the results of calls that it approves."""
    settings: Settings
    choice: ToolChoice
    compaction: Plan | None
    definitions: Definitions
    """Those that the input brings."""
    attachment_rules: AttachmentRules


class Prepared(Struct, frozen=True, eq=False):
    """The response of a valid request, before anything is generated."""

    draft: Draft
    response: Response
    head: Head
    """Without the tools of lists that are still to be fetched."""
    carry: OpenCarry
    """Of the context with the input; then with the output, too."""
    checks: TurnChecks | None
    """Set if a policy applies."""
    grammars: list[Compilable]
    """To be compiled before the engine gets a job."""


class Planned(Struct, frozen=True, eq=False):
    """The jobs of a response. Made once all its tools are known."""

    job: Job | None = None
    """The first one for the answer."""
    compaction: Compaction | None = None
    """Set if the context may have to be compacted."""
    steps: Steps | None = None
    """Set if the response may continue after calls."""
    rollout: Rollout | None = None
    """Set if it continues after calls that its client answers."""

    def estimate(self, written_chars: int) -> Finished:
        """About how many tokens the running job has. ``written_chars``: those of the answer."""
        job, compaction = self.job, self.compaction
        assert job is not None
        if compaction is not None:
            job = compaction.job
        if compaction is not None and compaction.is_running:
            written_chars = compaction.written_chars
        elif self.steps is not None:
            job = self.steps.foreseen_job()
        tokens = estimated_tokens(job), estimated_text_tokens(written_chars)
        return structs.replace(NO_TOKENS, input_tokens=tokens[0], output_tokens=tokens[1])


class Ended(Struct, frozen=True, eq=False):
    """How a turn ends. Made when its output is closed, or when it is refused."""

    error: ApiError | None = None
    """Why it fails, or is refused."""
    response: Response | None = None
    """As its terminal event shows it; None if it was never created."""
    finished: Finished | None = None
    """The tokens of all jobs, and the engine's position."""
    state: ResponseState | None = None
    """What later turns can continue; None if nothing of it is kept."""

    @property
    def is_blocked(self) -> bool:
        """Whether a safety check has refused it: nothing of its content is kept."""
        return isinstance(self.error, InvalidPrompt)

    @property
    def has_failed(self) -> bool:
        """Whether the response ends with ``response.failed``."""
        return self.response is not None and self.response.status == "failed"


UNBOUND, UNPLANNED = Bound(), Planned()


class Turn:
    """One response in progress. Its state is split by time: what was asked, bound, prepared, planned, and how
    it ended are values, each made once and complete; the rest changes while it runs. Each attribute is
    assigned by one module only (``tests/core/test_writers.py``)."""

    __slots__ = (
        "_ports",
        "asked",
        "bound",
        "ended",
        "hosted",
        "is_over",
        "lists",
        "output",
        "planned",
        "prepared",
        "progress",
        "recognition",
        "stages",
        "steers",
        "wait",
    )

    lists: HostedLists | None
    """Set if lists of tools are fetched for the response, once it is created."""
    steers: Steers | None
    """Steers added to this response, to be used when it ends."""
    is_over: bool
    """Whether the event that ends it has been made: nothing more can happen to it."""

    def __init__(self, asked: Asked, ports: Ports, stages: Stages) -> None:
        self._ports = ports

        # Values of a time, written by the turn's program.
        self.asked = asked
        self.bound = UNBOUND
        self.prepared: Prepared | None = None
        self.planned = UNPLANNED
        self.ended: Ended | None = None

        # What changes.
        self.wait: Wait[Any] = QUEUED
        """What the turn's program waits for; written by ``Turns``."""
        self.stages = stages
        self.hosted = HostedRequest(ports.seal, asked.tenant)
        self.recognition = Recognition(ports.known, asked.tenant)
        self.output = Output(
            item_ids.call_minter(ports.mint, asked.request.first_call),
            UNSET if asked.lane is None else asked.lane,
        )
        self.progress = JobProgress(stages)
        self.lists = self.steers = None
        self.is_over = False

    @property
    def input(self) -> tuple[Item, ...]:
        """The items that the request adds to its context: as its model reads them, once it is valid."""
        if self.prepared is not None:
            return self.prepared.draft.input if self.hosted.input is None else self.hosted.input
        return self.bound.input or self.asked.request.read

    @property
    def head(self) -> Head:
        """Instructions and tools, as far as these are known."""
        assert self.prepared is not None
        return self.planned.job.head if self.planned.job is not None else self.prepared.head

    @property
    def checks(self) -> TurnChecks | None:
        """Set if a policy applies."""
        return self.prepared.checks if self.prepared is not None else None

    @property
    def response(self) -> Response | None:
        """The response object of a valid request; its output is in it when it has ended."""
        if self.ended is not None and self.ended.response is not None:
            return self.ended.response
        return self.prepared.response if self.prepared is not None else None

    @property
    def stores(self) -> bool:
        """Whether the response itself is stored."""
        return self.asked.request.store is not False

    @property
    def saves(self) -> bool:
        """Whether the store must save something before the response ends."""
        return self.stores or (self.bound.joined is not None and not self.has_failed)

    @property
    def has_failed(self) -> bool:
        """Whether the response ends with ``response.failed``."""
        return self.ended is not None and self.ended.has_failed

    @property
    def is_blocked(self) -> bool:
        """Whether a safety check has refused it: nothing of its content is kept."""
        return self.ended is not None and self.ended.is_blocked

    # Before the engine starts.

    def new_input(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """The input of the first job: what its parent left unread, and the request's items, as the model
        reads them."""
        left = self.bound.parent.unread if self.bound.parent is not None else ()
        return (*left, *shown(items[self.recognition.items :]))

    @property
    def is_listing(self) -> bool:
        """Whether lists of tools are being fetched for the response, which is created."""
        return self.lists is not None and self.planned.job is None and not self.is_closed

    @property
    def yields_while_listing(self) -> bool:
        """Whether a response that waits for lists of tools ends for its steers: its input has passed."""
        is_settled = self.checks is None or self.checks.gate.is_settled
        return self.lists is not None and self.steers is not None and is_settled

    @property
    def place(self) -> str:
        """Where the turn is in its life, for reports."""
        place = self.wait.place
        return "running" if place == "preparing" and self.progress.has_begun else place

    @property
    def is_closed(self) -> bool:
        """Whether the output is complete: what remains is to save the response and to send its last event."""
        return self.ended is not None

    @property
    def is_paused(self) -> bool:
        """Whether the turn is between two steps."""
        return self.planned.steps is not None and self.planned.steps.is_paused and not self.is_closed

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
        return self.planned.compaction is not None and self.planned.compaction.must_weigh()

    def first_job(self, job: Job, tokens: int = 0) -> Job:
        """The job to start with: ``job``, or that of a summary if a context of ``tokens`` is to be
        compacted."""
        compaction = self.planned.compaction
        return compaction.summary_job() if compaction is not None and compaction.is_due(tokens) else job

    # While the engine runs.

    @property
    def is_watched(self) -> bool:
        """Whether deltas may cause inspections or hosted calls. Does not change during a job."""
        return self.checks is not None or self.output.hosted is not None

    def passed(self, *, is_blocked: bool = False) -> Response:
        """The response without instructions, tools and format, if these have not passed."""
        assert self.prepared is not None
        response, checks = self.prepared.response, self.prepared.checks
        holds = is_blocked or (checks is not None and checks.gate.holds_definitions)
        return response_object.without_definitions(response) if holds else response

    def emit(self, emit: Emission) -> None:
        """Emit something once the input has passed. What is emitted now is among the events of the output."""
        if self.checks is None:
            emit()
        else:
            self.checks.gate.hold(emit)
            self.emit_passed()

    def emit_passed(self) -> None:
        """Emit what has passed of what was held."""
        for emit in self.checks.gate.take_emissions() if self.checks is not None else ():
            emit()

    def open_lists(self) -> list[Event]:
        """The events of the lists that are fetched for the response, which has begun."""
        self.lists = HostedLists()
        for label in self.hosted.awaited:
            self.lists.begin(self.output, label, self.hosted.tag_list(label))
        return self.output.take_events()

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

    def end_lists(self) -> list[Event]:
        """Fetch no list any longer."""
        if self.lists is None:
            return []
        self.lists.end_all(self.output)
        return self.output.take_events()

    @property
    def is_compacting(self) -> bool:
        """Whether the running job writes a summary of the context instead of the answer."""
        return self.planned.compaction is not None and self.planned.compaction.is_running

    def compacted(self) -> tuple[list[Event], Job | None]:
        """The summary is finished: its events, and the turn's own job unless only a compaction was asked
        for."""
        prepared, compaction, steps = self.prepared, self.planned.compaction, self.planned.steps
        assert prepared is not None
        assert compaction is not None
        items = compaction.conclude()
        answered = hosted_items_in_context.denied(prepared.carry.current).answered
        prepared.carry.replace(input_items.join(Carry(answered=answered), items, complete=False))
        if prepared.checks is not None:
            prepared.checks.items.add(items, is_sealed=True)
        self.emit(partial(self.output.close_compaction, items, self.conceal(items)))
        emitted = self.output.take_events()
        self.stages.lap("compact")
        if steps is not None:
            steps.begin(compaction.job)
        if compaction.plan.alone:
            assert compaction.finished is not None
            # A truncated summary counts as complete. The engine's position is that of the old context.
            self.progress.finish(
                structs.replace(compaction.finished, reason="stop", position=None, context=None)
            )
            return emitted, None
        return emitted, compaction.job

    def conceal(self, items: tuple[Item, ...]) -> str:
        """Encrypt items for the client to keep."""
        return self._ports.seal.seal(self.asked.tenant, items)

    def steer(self, steers: Steers) -> None:
        """Attach steers, and ask the engine to end the answer as soon as it may."""
        self.steers = steers
        self.progress.ask_to_stop(steers.may_end([]))

    def take_steers(self) -> Steers | None:
        """Its steers, which are used now."""
        steers, self.steers = self.steers, None
        return steers

    @property
    def open_calls(self) -> Mapping[str, OpenCall]:
        """The calls that wait for their outputs, including those of the running answer that are complete."""
        assert self.prepared is not None
        return self.prepared.carry.with_output(self.output.finished).open_calls

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
        finished = self.progress.finished
        is_steered = self.steers is not None or (finished is not None and finished.reason == "steered")
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
        if self.planned.steps is not None:
            self.planned.steps.make_last()
        return self.output.take_events()

    def end_waiting(self, reason: Literal["steered", "broken_off"]) -> list[Event]:
        """End a response that waits for hosted calls, or for lists. The caller cancels both."""
        self.progress.finish_for(reason)
        return self.end_calls()

    def begin_job(self) -> None:
        """The job of the next step begins."""
        self.progress.finish(None)
        self.progress.ask_to_stop(self.steers is not None and self.steers.may_end([]))

    def observe(self) -> None:
        """Count the output items that the steps have finished since the last call."""
        assert self.prepared is not None
        assert self.planned.steps is not None
        self.planned.steps.grow(self.prepared.carry.observe(self.output.finished))

    @property
    def must_end(self) -> bool:
        """Whether this is a paused response that no step continues."""
        is_last = self.planned.steps is not None and self.planned.steps.is_last
        return self.is_paused and is_last and not self.is_calling

    @property
    def may_resume(self) -> bool:
        """Whether this is a paused response that has all outputs for its next step."""
        if not self.is_paused or self.must_end or self.is_calling:
            return False
        return self.planned.rollout is None or (
            self.planned.rollout.is_answered and not self.planned.rollout.holds_appends
        )

    @property
    def waits_for_client(self) -> bool:
        """Whether this is a paused rollout whose client has to send outputs."""
        return self.is_paused and self.planned.rollout is not None and not self.is_calling

    @property
    def can_be_broken_off(self) -> bool:
        """Whether this is a rollout with at least one finished step or hosted call, which is worth keeping,
        and does not wait for its client."""
        if self.planned.rollout is None or self.planned.steps is None:
            return False
        if self.is_paused:
            return self.is_calling
        return self.planned.steps.spent is not None and not self.is_closed

    def break_off(self) -> None:
        """End the running step of a rollout where it is. The caller cancels the job."""
        self.progress.finish(self.cut_off() or NO_TOKENS)

    def return_held(self, *, is_blocked: bool = False) -> list[Event]:
        """Return the appends to the client that were accepted and have no place in the response."""
        if self.planned.rollout is None:
            return []
        return self.planned.rollout.return_held(self.output, is_blocked=is_blocked)

    # The end.

    def terminal(self) -> Event:
        """The terminal event of a response that has finished or failed."""
        assert self.ended is not None
        assert self.ended.response is not None
        self.is_over = True
        return self.output.announce(_TERMINAL[self.ended.response.status], self.ended.response)

    def refusal(self, error: ApiError) -> Event:
        """The event that ends a turn whose response was never created."""
        self.is_over = True
        return events.Error.of(error, self.asked.lane)

    def broken_end(self, error: ApiError) -> list[Event]:
        """The event that ends a turn whose end could not be made, unless there was one."""
        if self.is_over:
            return []
        if not self.is_created:
            return [self.refusal(error)]
        self.is_over = True
        closing = self.output.finish("incomplete")
        output, failure = self.output.raw_items(), response_object.failure(error)
        failed = structs.replace(self.passed(is_blocked=True), status="failed", output=output, error=failure)
        return [*closing, self.output.announce(events.Failed, failed)]

    def cut_off(self) -> Finished | None:
        """An estimate of the tokens of the running job; None if its engine has not begun it."""
        has_begun = self.progress.is_begun or self.is_compacting
        return self.planned.estimate(self.output.written_chars) if has_begun else None
