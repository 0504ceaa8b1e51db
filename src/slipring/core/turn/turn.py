"""A turn: produces one response, from its request to its terminal event.

A turn owns its request, its parent state and the response object as it changes. It turns the engine's deltas
into events through ``Output``. Lanes, queues and caches belong to the session; token generation belongs to
the engine.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import reduce
from typing import Literal

from msgspec import UNSET, Struct, structs

from slipring.core.chain import hosted_items, input_items
from slipring.core.chain.head import Head
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.state import Carry, OpenCall, ResponseState
from slipring.core.checks.gate import Inspection
from slipring.core.checks.node_verdicts import NodeVerdicts
from slipring.core.checks.policies import Policy
from slipring.core.checks.verdicts import Verdict
from slipring.core.generation import (
    Accepted,
    Begun,
    Delta,
    Finished,
    Job,
    Model,
    Prefilled,
    Settings,
    Stop,
)
from slipring.core.hosted.request import HostedRequest
from slipring.core.hosted.tools import CallOutcome, CallProgress, HostedCall
from slipring.core.ports import Ports
from slipring.core.token_estimates import estimated_text_tokens, estimated_tokens
from slipring.core.turn import hosted_events, response_object
from slipring.core.turn.compaction import Compaction, read_plan
from slipring.core.turn.hosted_calls import HostedCalls
from slipring.core.turn.output_events import Output
from slipring.core.turn.recognition import Recognition
from slipring.core.turn.request_validation import (
    ENCRYPTED_REASONING,
    read_settings,
    refuse_unseen_content,
    require_something,
)
from slipring.core.turn.rollout import Rollout, require_possible
from slipring.core.turn.stages import Stages, as_ms
from slipring.core.turn.steer_queue import Steers
from slipring.core.turn.steps import Steps
from slipring.core.turn.turn_checks import Audit, TurnChecks, is_audited, safety_id
from slipring.errors import ApiError, InvalidPrompt
from slipring.protocol import events
from slipring.protocol.definitions import Definitions
from slipring.protocol.events import Event
from slipring.protocol.items import Item, in_context
from slipring.protocol.live_input import Append
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import (
    ConversationEcho,
    IncompleteDetails,
    Response,
)
from slipring.protocol.timing import Mark, StageName, TurnReport
from slipring.protocol.tools import ToolChoice, merged

_ID_LENGTH = 64
"""Ids in reports are cut here: a client may send anything as one."""
_TRACEPARENT = "ws_request_header_traceparent"
"""Key of ``client_metadata`` under which Codex sends the trace context of a request over a WebSocket."""
_TRACEPARENT_LENGTH = 55
_PROGRESS = frozenset({Accepted, Begun, Prefilled})
"""Deltas that report progress before the first output."""
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


_NOTHING = Finished("broken_off", input_tokens=0, cached_tokens=0, output_tokens=0)
"""The end of a job that did not run to its end."""


class Phase(Enum):
    """The progress of a turn."""

    WAITING = "queued in its lane"
    LOADING = "the store loads its parent"
    LISTING = "its MCP servers are looked up and list their tools"
    CHECKING = "the compiler checks its grammars"
    INSPECTING = "its input is inspected before anything is done with it"
    CLAIMING = "the approvals that it uses are marked as used"
    PREPARING = "the engine may still refuse the job"
    RUNNING = "the engine generates"
    PAUSED = "it waits between two steps: for hosted calls, or, in a rollout, for its client"
    SAVING = "finished; the store saves it"
    ENDED = "its terminal event has been sent"


class Joined(Struct, frozen=True):
    """The conversation of a turn, as loaded."""

    conversation_id: str
    version: int
    items: tuple[Item, ...] = ()
    """Its items that are not in the context of the turn's parent."""


class Turn:
    """One response in progress."""

    __slots__ = (
        "_accepted",
        "_begun",
        "_carry",
        "_finished",
        "_head",
        "_history_bytes",
        "_job",
        "_ports",
        "_prefilled",
        "_rendered",
        "checks",
        "compaction",
        "detached",
        "error",
        "follows",
        "forks",
        "found",
        "hosted",
        "input",
        "joined",
        "lane",
        "output",
        "parent",
        "phase",
        "recognition",
        "request",
        "response",
        "rollout",
        "size_bytes",
        "stages",
        "steered_by",
        "steers",
        "steps",
        "stop",
        "tenant",
    )

    checks: TurnChecks | None
    """Set if a policy applies."""
    compaction: Compaction | None
    """Set if the context may have to be compacted."""
    steps: Steps | None
    """Set if the response may continue after calls."""
    rollout: Rollout | None
    """Set if it continues after calls that its client answers."""
    steers: Steers | None
    """Steers added to this response, to be used when it ends."""
    steered_by: Steers | None
    """Steers of its parent that begin its input, until the response is created."""

    def __init__(
        self,
        request: CreateRequest,
        *,
        tenant: str,
        lane: str | None,
        size_bytes: int,
        ports: Ports,
        stages: Stages,
        error: ApiError | None = None,
        detached: bool = False,
    ) -> None:
        self._ports = ports

        # The request.
        self.request = request
        self.tenant = tenant
        self.lane = lane
        self.size_bytes = size_bytes
        self.error = error
        """Why the request is refused, if that is known already: it is refused when its lane reaches it."""
        self.detached = detached
        """Whether it runs in the background: its response is created before the engine accepts the job."""

        # The context, bound when the turn leaves its lane's queue.
        self.parent: ResponseState | None = None
        self.joined: Joined | None = None
        self.input: tuple[Item, ...] = ()
        self.found: dict[str, Item] = {}
        """Items that the input refers to by id."""
        self.forks = False
        """Whether its parent belongs to another lane."""
        self.recognition = Recognition(ports.known, tenant)
        self.hosted = HostedRequest(ports.seal, tenant)
        self._head = Head()
        self._carry = OpenCarry(input_items.NOTHING)
        self._history_bytes = 0
        """Length of the items that the request continues and does not contain."""

        # Steering.
        self.follows = False
        """Whether the server started it, as the successor of a steered response."""
        self.steers = self.steered_by = None
        self.stop = Stop()

        # Progress.
        self.phase = Phase.WAITING
        self.stages = stages
        self.response: Response | None = None
        self.output = Output(ports.mint, UNSET if lane is None else lane)
        self.checks = self.compaction = self.steps = self.rollout = None
        self._accepted: Accepted | None = None
        self._rendered = self._begun = self._prefilled = False
        self._finished: Finished | None = None
        self._job: Job | None = None
        """The first job for the answer, once it is known."""

    @property
    def stores(self) -> bool:
        """Whether the response itself is stored."""
        return self.request.store is not False

    @property
    def saves(self) -> bool:
        """Whether the store must save something before the response completes."""
        return self.stores or self.joined is not None

    # Before the engine starts.

    def join(self, joined: Joined, tip: ResponseState | None) -> None:
        """Continue a conversation: ``tip`` is its last response, ``joined`` holds the items added since."""
        references = input_items.references(self.input)
        if references:
            known = tip.find_items(references) if tip is not None else {}
            named = {item.id: item for item in joined.items if item.id in references}
            self.found = {**self.found, **known, **{key: item for key, item in named.items() if key}}
        self.joined, self.parent = joined, tip
        self.input = joined.items + self.input

    def begin(
        self,
        response_id: str,
        model: Model,
        items: tuple[Item, ...],
        now: float,
        definitions: Definitions,
        *,
        recognise: bool = True,
    ) -> Job:
        """Validate the request against its parent and the model; returns the job.

        With ``recognise``, the job of a request without a parent continues the context that its items repeat.
        Adds the request's grammars to ``definitions``; they are compiled before the engine starts. Raises
        ``ApiError`` for an invalid request.
        """
        request, parent = self.request, self.parent
        generate = not request.warms_up
        plan = read_plan(request, items, model)
        if request.rollout:
            require_possible(request, compacts=plan is not None)
        alone = plan is not None and plan.alone
        if alone:
            items = items[:-1]  # the compaction_trigger is not part of the context
        if generate and parent is None:
            require_something(request, items)
        carry = self._read_input(items, definitions, complete=generate and not alone)
        items = self.input
        settings = read_settings(request, carry, model, definitions, detached=self.detached)
        refuse_unseen_content(items, model.capabilities)
        continued = self._continued(response_id, items, model, now, recognise=recognise)
        self.hosted.excuse(definitions, model)
        head = Head.read(request, self._known_head(continued, carry), definitions)
        passes_on = self.hosted.upstream_tools is not None
        choice = (ToolChoice.passed_on if passes_on else ToolChoice.read)(request.tool_choice)
        offer = choice.offer(merged(head.tools.callables, carry.tools))
        self._head, self._carry = head, OpenCarry(carry)
        self._history_bytes = parent.context_bytes if parent is not None else 0
        self._open_response(response_id, model, choice, settings, now)
        job = Job(
            response_id=response_id,
            tenant=self.tenant,
            model=model,
            head=head,
            parent=continued,
            input=self._new_input(),
            offer=offer,
            settings=settings,
            generate=generate,
            fork=self.forks or self.recognition.match is not None,
            recognised=self.recognition.match is not None,
            cache_key=request.prompt_cache_key,
            upstream_tools=self.hosted.upstream_tools,
            stop=self.stop,
        )
        self._job = job
        if plan is not None and not self.hosted.approved:
            self.compaction = Compaction(plan, job, carry, continues=parent is not None)
        if request.rollout or self.output.hosted is not None:
            self.steps = Steps(job, choice)
        if request.rollout and self.steps is not None:
            self.rollout = Rollout(self.steps, self._carry, model.capabilities)
        return job

    def _read_input(self, items: tuple[Item, ...], definitions: Definitions, *, complete: bool) -> Carry:
        """Set the input, and offer the hosted tools of the request; returns the carry of the context with the
        input. ``complete``: a response will be generated."""
        request, before = self.request, input_items.carried(self.parent)
        self.input = self.hosted.read_input(before, items, complete=complete)
        carry = input_items.join(before, self.input, complete=complete, definitions=definitions)
        if complete and carry.approvals:
            carry = structs.replace(carry, approvals={})
        if (offered := self.hosted.offer(request, carry)) is not None:
            includes = frozenset(request.include or ())
            self.output.hosted = HostedCalls(offered.tools, request.max_tool_calls, includes)
            self.output.sign = self.hosted.sign
        return carry

    def inspect(self, policy: Policy) -> None:
        """Have the input of a validated turn inspected. Raises if it is known to be refused."""
        if self.parent is not None and (check := self.parent.refused_by) is not None:
            raise InvalidPrompt(f"The response to continue was blocked by the safety check '{check}'.")
        if policy.checks:
            self.checks = TurnChecks(policy, self._ports.verdicts, self.tenant)
            request = self.request
            digests = dict(zip(map(id, request.items), request.content_digests, strict=True))
            offered = self.hosted.offered
            lists = [tools for _, _, tools in offered.fetched] if offered is not None else []
            self.checks.begin(self.parent, self._head, self.input, digests, lists)

    def _new_input(self) -> tuple[Item, ...]:
        """The input of the first job: what its parent left unread, and the request's items."""
        left = self.parent.unread if self.parent is not None else ()
        return (*left, *in_context(self.input[self.recognition.items :]))

    @property
    def is_created(self) -> bool:
        """Whether the client knows of the response."""
        return self._accepted is not None or (self.detached and self.response is not None)

    @property
    def claims(self) -> tuple[str, ...]:
        """The approval requests that the turn uses: their calls run before the engine starts."""
        return tuple(each.request_id for each in self.hosted.approved)

    def _open_response(
        self, response_id: str, model: Model, choice: ToolChoice, settings: Settings, now: float
    ) -> None:
        """Make the response object, and prepare the output for it."""
        self.output.response_id = response_id
        if ENCRYPTED_REASONING in (self.request.include or ()):
            self.output.conceal = self._conceal
        self.response = response_object.new_response(
            self.request, self._head, choice, settings, response_id=response_id, model=model.name, now=now
        )
        if self.detached:
            self.response = structs.replace(self.response, status="queued", background=True)
        if self.joined is not None:
            conversation = ConversationEcho(self.joined.conversation_id)
            self.response = structs.replace(self.response, conversation=conversation)

    def _continued(
        self, response_id: str, items: tuple[Item, ...], model: Model, now: float, *, recognise: bool
    ) -> ResponseState | None:
        """The state that the job continues: the parent, or a context that the items repeat."""
        # What approved calls return will be part of the context, and is not known yet.
        is_known = not self.hosted.approved
        if self.parent is not None:
            if is_known:
                self.recognition.follow(self.parent, self.request, items)
            return self.parent
        if recognise and is_known:
            self.recognition.look_up(self.request, items, model.name, now)
        return self.recognition.parent(items, response_id)

    def _known_head(self, continued: ResponseState | None, carry: Carry) -> Head | None:
        """The head that need not be read again if the request has the same.

        In a history that the client sends itself, tools that items bring count towards the same limits as
        those of the head, so all are read.
        """
        if continued is None or (self.parent is None and carry.tools):
            return None
        return continued.head

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
        assert self.response is not None
        return [
            self.output.announce(events.Created, self.response),
            self.output.announce(events.Queued, self.response),
        ]

    # While the engine runs.

    def accept(self, deltas: list[Delta]) -> list[Event]:
        """Process the engine's first deltas: the events that create the response come first."""
        assert self.response is not None
        self._accepted = Accepted()
        opening = self._opening()
        if self.is_compacting:
            opening += self.output.open_compaction()
        opening += self.feed(deltas)
        self.phase = Phase.RUNNING
        return opening

    def _opening(self) -> list[Event]:
        """The events that begin the response, and the lists that were fetched for it."""
        assert self.response is not None
        announce = self.output.announce
        if self.detached:
            self.response = structs.replace(self.response, status="in_progress")
            opening = [announce(events.InProgress, self.response)]
        else:
            opening = [announce(events.Created, self.response)]
            if not self.request.warms_up:
                opening.append(announce(events.InProgress, self.response))
        offered = self.hosted.offered
        for label, server, tools in offered.fetched if offered is not None else ():
            hosted_events.show_list(self.output, label, server, tools)
        return opening + self.output.take_events()

    def feed(self, deltas: list[Delta]) -> list[Event]:
        """Process deltas of the engine; the last delta of a job is ``Finished``."""
        if self.compaction is not None and self.compaction.is_running:
            self.compaction.take(deltas)
            return []
        if self.checks is not None:
            return self._feed_gate(self.checks, deltas)
        if deltas and type(last := deltas[-1]) is Finished:
            self._finished = last
            deltas = deltas[:-1]
        if not self._prefilled:
            deltas = self._prelude(deltas)
        emitted = self.output.feed(deltas)
        if self.steers is not None:
            self.stop.asked = self.steers.may_end(deltas)
        return emitted

    def _feed_gate(self, checks: TurnChecks, deltas: list[Delta]) -> list[Event]:
        """Process deltas of the engine that checks may hold back."""
        if not self._prefilled:
            deltas = self._prelude(deltas)
            checks.is_held = self._prefilled and checks.holds_input
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
        if deltas and isinstance(last := deltas[-1], Finished):
            more, self._finished = checks.ended(last, may_refuse=not self.output.calls)
            deltas = [*deltas[:-1], *more]
        emitted = self.output.feed(deltas)
        if checks.is_cut:
            self.stop.asked = True
        elif self.steers is not None:
            self.stop.asked = self.steers.may_end(deltas)
        return emitted

    def _prelude(self, deltas: list[Delta]) -> list[Delta]:
        """Record the engine's progress reports before its first output; returns the other deltas."""
        if not self._rendered:
            self._rendered = True
            accepted = next((delta for delta in deltas if isinstance(delta, Accepted)), Accepted())
            self._accepted = accepted if self._accepted is None else accepted.after(self._accepted)
            self.stages.lap("render")
        kinds = set(map(type, deltas))
        if Begun in kinds:
            self._begun = True
            self.stages.lap("engine_queue")
        rest = [delta for delta in deltas if type(delta) not in _PROGRESS]
        if rest or self._finished is not None or Prefilled in kinds:
            self._begun = self._prefilled = True
            self.stages.lap("prefill")
        return rest

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
        self.parent, self._carry = (
            None,
            OpenCarry(input_items.join(input_items.NOTHING, items, complete=False)),
        )
        if self.checks is not None:
            self.checks.add(items, is_sealed=True)
        emitted = self.output.close_compaction(items, self._conceal(items))
        self.stages.lap("compact")
        job = self._job = compaction.job_after(items)
        if self.steps is not None:
            self.steps.begin(job)
        if compaction.plan.alone:
            assert compaction.finished is not None
            # A truncated summary counts as complete. The engine's position is that of the old context.
            self._finished = structs.replace(compaction.finished, reason="stop", position=None, context=None)
            return emitted, None
        return emitted, job

    def _conceal(self, items: tuple[Item, ...]) -> str:
        return self._ports.seal.seal(self.tenant, items)

    def steer(self, steers: Steers) -> None:
        """Attach steers, and ask the engine to end the answer as soon as it may."""
        self.steers = steers
        self.stop.asked = steers.may_end([])

    @property
    def cannot_be_steered(self) -> str | None:
        """Why this response refuses steers, as a sentence for the client; None if it accepts them."""
        if self.request.warms_up:
            return "It is a warmup and generates nothing."
        if self.detached:
            return "It runs in the background."
        if self.joined is not None:
            return "It is part of a conversation."
        if self.compaction is not None or self.request.context_management:
            return "Its context may be compacted."
        return None

    @property
    def open_calls(self) -> Mapping[str, OpenCall]:
        """The calls that wait for their outputs, including those of the running answer that are complete."""
        return self._carry.with_output(self.output.finished).open_calls

    # Between two steps.

    def open_approved(self) -> list[Event]:
        """Begin the response with the calls that its client has approved."""
        calls = self.output.hosted
        assert calls is not None
        self._accepted = Accepted()
        self.phase = Phase.PAUSED
        opening = self._opening()
        for each in self.hosted.approved:
            tool = self.hosted.find_tool(each.approval)
            assert tool is not None
            calls.approve(self.output, tool, each.approval.arguments, each.request_id)
        return opening + self.output.take_events()

    def end_step(self, waits_until: float, most_bytes: int, *, may_wait: bool) -> tuple[bool, list[Event]]:
        """The engine has ended a step: pause if it made hosted calls, or calls that a rollout's client
        answers. ``may_wait``: whether the client can still send outputs.

        Returns whether it pauses, and the events so far.
        """
        steps, finished, output = self.steps, self._finished, self.output
        if steps is None or finished is None or self.response is None:
            return False, []
        is_whole = finished.reason in ("stop", "steered")
        if not output.calls and not output.calls_hosted:
            return False, []
        emitted = output.finish("completed" if is_whole else "incomplete")
        calls_hosted = output.calls_hosted
        waits = self.rollout is not None and output.calls and not output.asks_approval
        waits = waits and is_whole and may_wait
        self._observe()
        fits = steps.may_continue(output, finished, most_bytes)
        if not calls_hosted and not (waits and fits):
            return False, emitted
        self.stages.lap("generate")
        self._rendered = self._begun = self._prefilled = False
        self.phase = Phase.PAUSED
        asks = output.asks_approval or (output.calls and not waits)
        steps.is_last = not is_whole or not fits or asks
        if is_whole and not fits and not asks:
            # The model will not read the results of its calls.
            self._finished = structs.replace(finished, reason="max_output_tokens")
        carry = input_items.after_output(self._carry.settled, output.latest)
        steps.end(output.end_step(), self._without_dropped(finished), self.response, carry)
        if not calls_hosted:
            emitted += self._wait_for_client(waits_until, may_wait=True)
        return True, emitted

    def _without_dropped(self, finished: Finished) -> Finished:
        """The end of a job; without its position if that covers calls that no item shows."""
        hosted = self.output.hosted
        if hosted is None or not hosted.take_dropped():
            return finished
        return structs.replace(finished, position=None)

    @property
    def yields_to_steers(self) -> bool:
        """Whether this is a paused response that waits for hosted calls, or has just waited for them, and
        has steers that can follow it at once."""
        has_called = self.phase is Phase.PAUSED and self.output.calls_hosted
        is_steered = self.steers is not None or (
            self._finished is not None and self._finished.reason == "steered"
        )
        return has_called and is_steered and not self.output.calls

    @property
    def is_calling(self) -> bool:
        """Whether hosted calls run."""
        return self.output.hosted is not None and bool(self.output.hosted.running)

    @property
    def has_due_calls(self) -> bool:
        """Whether hosted calls can begin now."""
        hosted = self.output.hosted
        return hosted is not None and bool(hosted.due)

    def take_due_calls(self) -> list[HostedCall]:
        """The hosted calls that can begin now."""
        hosted = self.output.hosted
        return [each.call for each in hosted.take_due()] if hosted is not None else []

    def progress_of(self, call_id: str, progress: CallProgress, *, detailed: bool) -> list[Event]:
        """The server of a hosted call reports progress. ``detailed``: the client wants numbers and text."""
        hosted = self.output.hosted
        if hosted is None or (call := hosted.running.get(call_id)) is None:
            return []
        call.report(self.output, progress, detailed=detailed)
        return self.output.take_events()

    def end_call(self, call_id: str, outcome: CallOutcome) -> list[Event]:
        """A hosted call has ended: its last events; none if it does not run."""
        hosted = self.output.hosted
        if hosted is not None:
            hosted.end(call_id, outcome, self.output)
        return self.output.take_events()

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
        """End a response that waits for hosted calls. The caller cancels the calls."""
        self._finished = structs.replace(self._finished or _NOTHING, reason=reason)
        return self.end_calls()

    def calls_ended(self, waits_until: float, *, may_wait: bool) -> list[Event]:
        """All hosted calls of the last step have ended: add their results to the next step's input.
        ``may_wait``: whether the client of a rollout can still send outputs."""
        calls, steps = self.output.hosted, self.steps
        assert calls is not None
        assert steps is not None
        self.stages.lap("tools")
        results = calls.take_results()
        if self.hosted.approved:
            before = input_items.carried(self.parent)
            self.input = self.hosted.input_with(calls.approved_results, before)
            steps.replace_input(self._new_input())
        else:
            steps.add(results)
        if self.rollout is None or steps.is_last:
            return []
        emitted = self._wait_for_client(waits_until, may_wait=may_wait)
        steps.is_last = not may_wait and not self.rollout.is_answered
        return emitted

    def _wait_for_client(self, waits_until: float, *, may_wait: bool) -> list[Event]:
        """Commit what the client has appended, and tell it what is missing."""
        assert self.rollout is not None
        assert self.response is not None
        self.rollout.waits_until = waits_until
        return self.rollout.pause(self.output, self.response.id, may_wait=may_wait)

    def _observe(self) -> None:
        """Count the output items that have been finished since the last call."""
        new = self._carry.observe(self.output.finished)
        if self.steps is not None:
            self.steps.size_bytes += sum(item.size_bytes for item in new)

    def append(self, append: Append, waits_until: float) -> list[Event]:
        """Accept call outputs from the client. While a step or its hosted calls run they are held.

        Raises ``AppendRefused``.
        """
        assert self.rollout is not None
        self._observe()
        self.rollout.hold(append, self.output)
        if self.phase is not Phase.PAUSED or self.is_calling:
            return []
        self.rollout.waits_until = waits_until
        return self.rollout.commit(self.output)

    @property
    def must_end(self) -> bool:
        """Whether this is a paused response that no step continues."""
        is_last = self.steps is not None and self.steps.is_last
        return self.phase is Phase.PAUSED and is_last and not self.is_calling

    @property
    def may_resume(self) -> bool:
        """Whether this is a paused response that has all outputs for its next step."""
        if self.phase is not Phase.PAUSED or self.must_end or self.is_calling:
            return False
        return self.rollout is None or self.rollout.is_answered

    @property
    def waits_for_client(self) -> bool:
        """Whether this is a paused rollout whose client has to send outputs."""
        return self.phase is Phase.PAUSED and self.rollout is not None and not self.is_calling

    def resume(self) -> Job:
        """Continue a paused response; returns the job of its next step."""
        assert self.steps is not None
        if self.rollout is not None and (not self.stages.laps or self.stages.laps[-1].name != "tools"):
            self.stages.lap("client")
        self.stages.fold()
        self._finished = None
        self.phase = Phase.RUNNING
        self.stop.asked = self.steers is not None and self.steers.may_end([])
        hosted = self.output.hosted
        is_spent = hosted is not None and hosted.budget is not None and hosted.budget <= 0
        job = self.steps.next_job(
            self._carry.current, hosted.tools if hosted is not None and is_spent else None
        )
        if self.checks is not None:
            self.checks.resume(job)
        return job

    def foreseen_job(self) -> Job | None:
        """While paused: a warmup of the next step with the outputs that are there; None if hosted calls run
        and none of them has a result to begin with."""
        hosted, steps = self.output.hosted, self.steps
        if self.phase is not Phase.PAUSED or steps is None or steps.is_last or self.hosted.approved:
            return None
        ready = hosted.ready_results() if hosted is not None else ()
        return None if self.is_calling and not ready else steps.foreseen_job(ready)

    @property
    def can_be_broken_off(self) -> bool:
        """Whether this is a rollout with at least one finished step or hosted call, which is worth keeping,
        and does not wait for its client."""
        if self.rollout is None or self.steps is None:
            return False
        if self.phase is Phase.PAUSED:
            return self.is_calling
        return self.phase is Phase.RUNNING and self.steps.spent is not None

    def break_off(self) -> None:
        """End the running step of a rollout where it is. The caller cancels the job."""
        self._finished = self._cut_off() or _NOTHING

    def _return_held(self) -> list[Event]:
        return self.rollout.return_held(self.output) if self.rollout is not None else []

    # The end.

    def finish(self, now: float) -> tuple[list[Event], ResponseState]:
        """The engine is done: the events that close the output, and the new state.

        ``terminal`` returns the last event, once the state is saved.
        """
        finished, response, steps = self._finished, self.response, self.steps
        if steps is not None and self.phase is Phase.PAUSED and self.rollout is None and not steps.is_last:
            # It may not go on, though the model has not read the results of its calls.
            finished, steps.is_last = structs.replace(finished or _NOTHING, reason="broken_off"), True
        if finished is None or response is None:
            raise RuntimeError("the engine ended its stream without a Finished delta")
        if steps is not None:
            finished = steps.total(finished)
        if self.compaction is not None:
            finished = self.compaction.together(finished)
        if self._rendered:
            self.stages.lap("generate")
        elif self.waits_for_client:
            self.stages.lap("client")
        reason = finished.reason
        if reason == "steered" and self.output.calls:
            reason = "stop"  # the client must answer the calls first
        stopped = reason == "stop"
        # A steered answer ends after whole reasoning items, but possibly within a message.
        is_whole = stopped or (reason == "steered" and self.output.last_words is None)
        closing = self.output.finish("completed" if is_whole else "incomplete")
        closing += [*(self.end_calls() if self.is_calling else ()), *self._return_held()]
        finished = self._finished = self._without_dropped(finished)
        self.response = response = structs.replace(
            response,
            status="completed" if stopped else "incomplete",
            completed_at=int(now) if stopped else None,
            incomplete_details=None if reason == "stop" else IncompleteDetails.of(reason),
            output=self.output.raw_items(),
            usage=response_object.usage(finished),
            moderation=self.checks.moderation if self.checks is not None else UNSET,
        )
        # Without the appends that were held and have just been returned.
        latest = tuple(self.output.items[self.output.since :])
        carry = input_items.after_output(self._carry.settled, latest, cut_off=not stopped)
        self._carry.current = carry = self.hosted.carry_on(carry)
        self._carry.settle(self.output.finished)
        state = ResponseState(
            response=response,
            parent=self.parent,
            head=self._head,
            input=self.input,
            output=self._state_output(),
            carry=carry,
            position=finished.position,
            fork=self.forks,
        )
        state.verdicts = self._verdicts()
        if state.unread and self._rendered:
            # Its last step answered nothing, so that the items do not show that it has read the outputs.
            state.position = None
        self.recognition.complete(state, dropped_items=self._accepted.dropped_items if self._accepted else 0)
        return closing, state

    def _state_output(self) -> tuple[Item, ...]:
        """The output, in which the items of hosted tools stand for what the model has seen of them."""
        if self.hosted.is_upstream:
            return tuple(self.output.items)
        hosted = self.output.hosted
        return hosted_items.opened(self.output.items, hosted.approved_results if hosted is not None else None)

    def _verdicts(self) -> NodeVerdicts | None:
        if self.checks is not None:
            return self.checks.verdicts(self.parent)
        return NodeVerdicts(b"", is_audited=True) if is_audited(self.parent) else None

    def audit(self, state: ResponseState) -> Audit | None:
        """What remains to be inspected of the finished response."""
        return self.checks.audit(state, is_stored=self.stores) if self.checks is not None else None

    def remember(self, state: ResponseState, now: float) -> None:
        """Let later requests that send the context of the finished response again continue it."""
        assert self._finished is not None
        is_shared = self._accepted is not None and self._accepted.fallback is None and self.compaction is None
        self.recognition.remember(state, self._finished, is_shared=is_shared, now=now)

    def terminal(self) -> Event:
        """The terminal event of a finished response."""
        assert self.response is not None
        completed = self.response.status == "completed"
        return self.output.announce(events.Completed if completed else events.Incomplete, self.response)

    def cut_off_stage(self) -> None:
        """The turn ends within a stage: the time until now is that stage's."""
        self.stages.lap(self._running_stage)

    @property
    def _running_stage(self) -> StageName:
        ended = self.stages.laps[-1].name if self.stages.laps else "decode"
        if self.phase is Phase.PAUSED:
            return "tools" if self.is_calling else "client"
        if self.phase is Phase.LISTING:
            return "list"
        if self.phase is Phase.INSPECTING:
            return "check"
        if self.checks is not None and self.checks.is_held:
            return "held"
        if ended in ("validate", "weigh") and (compaction := self.compaction) is not None:
            if compaction.is_running or compaction.finished is not None:
                return "compact"
            if ended == "validate" and compaction.must_weigh():
                return "weigh"
        return _STAGE_AFTER[ended]

    def fail(self, error: ApiError) -> list[Event]:
        """The engine or the store failed: the events that close the output, and ``response.failed``."""
        assert self.response is not None
        closing = self.output.finish("incomplete") + self.end_calls() + self._return_held()
        self.response = structs.replace(
            self.response,
            status="failed",
            completed_at=None,
            incomplete_details=None,
            output=self.output.raw_items(),
            error=response_object.failure(error),
            moderation=self.checks.moderation if self.checks is not None else UNSET,
        )
        closing.append(self.output.announce(events.Failed, self.response))
        return closing

    def report(self, error: ApiError | None = None, *, cancelled: bool = False) -> TurnReport:
        """The report of a turn that has ended. ``error``: why it was refused. ``cancelled``: its client
        disconnected before it had ended."""
        accepted, finished, stages = self._accepted, self._finished, self.stages
        if finished is None and cancelled:
            finished = self._spent()
        elif finished is None and self.steps is not None:
            finished = self.steps.spent
        previous = self.request.previous_response_id
        report = TurnReport(
            status="cancelled" if cancelled else "refused",
            request_bytes=self.size_bytes,
            stages=stages.laps,
            total_ms=stages.total_ms,
            previous_response_id=previous[:_ID_LENGTH] if previous is not None else UNSET,
            error_code=error.code if error is not None else UNSET,
            input_check_ms=self.checks.input_ms if self.checks is not None else UNSET,
            flagged_by=(self.checks.flagged_by or UNSET) if self.checks is not None else UNSET,
            safety_id=safety_id(self.request.safety_identifier),
        )
        if accepted is None or self.response is None:
            return report
        failure, hosted = self.response.error, self.output.hosted
        return structs.replace(
            report,
            history_bytes=self._history_bytes or UNSET,
            marks=self._marks() or UNSET,
            status="cancelled" if cancelled else self.response.status,
            response_id=self.response.id,
            model=self.response.model,
            input_items=len(self.input),
            recognised_items=self.recognition.items or UNSET,
            send_ms=as_ms(stages.send_s),
            tokens=response_object.counts(accepted, finished) if finished is not None else UNSET,
            fallback=accepted.fallback or UNSET,
            dropped_items=accepted.dropped_items or UNSET,
            steps=self.steps.counts if self.steps is not None and len(self.steps.counts) > 1 else UNSET,
            hosted_calls=hosted.made if hosted is not None and hosted.made else UNSET,
            error_code=failure.code if failure is not None else UNSET,
        )

    def _spent(self) -> Finished | None:
        """The tokens of the jobs that have finished, and an estimate for the one that is cut off."""
        jobs = [self._cut_off()]
        if self.steps is not None:
            jobs.append(self.steps.spent)
        if self.compaction is not None:
            jobs.append(self.compaction.finished)
        spent = [job for job in jobs if job is not None]
        return reduce(Finished.after, spent) if spent else None

    def _cut_off(self) -> Finished | None:
        """An estimate of the tokens of the running job; None if its engine has not begun it."""
        job = self._job
        if job is None or not (self._begun or self.is_compacting):
            return None
        if self.compaction is not None and self.compaction.is_running:
            written = self.compaction.written_chars
        else:
            written = self.output.written_chars
            job = self.steps.foreseen_job() if self.steps is not None else job
        return structs.replace(
            _NOTHING, input_tokens=estimated_tokens(job), output_tokens=estimated_text_tokens(written)
        )

    def progress(self) -> TurnReport:
        """The report of a turn that has not ended, with the stages that have: its status is its phase."""
        previous, response = self.request.previous_response_id, self.response
        return TurnReport(
            status=self.phase.name.lower(),
            request_bytes=self.size_bytes,
            stages=self.stages.laps.copy(),
            total_ms=self.stages.elapsed_ms,
            response_id=response.id if response is not None else UNSET,
            previous_response_id=previous[:_ID_LENGTH] if previous is not None else UNSET,
            model=response.model if response is not None else UNSET,
            input_items=len(self.input),
            history_bytes=self._history_bytes or UNSET,
            marks=self._marks() or UNSET,
        )

    @property
    def traceparent(self) -> str | None:
        """The trace context that the request itself contains, not yet validated."""
        given = (self.request.client_metadata or {}).get(_TRACEPARENT)
        return given if isinstance(given, str) and len(given) == _TRACEPARENT_LENGTH else None

    def _marks(self) -> tuple[Mark, ...]:
        marks: dict[Mark, bool] = {
            "fork": self.forks,
            "warmup": self.request.warms_up,
            "steered": self.follows,
            "compaction": self.compaction is not None and self.compaction.finished is not None,
            "rollout": self.rollout is not None,
            "background": self.detached,
        }
        return tuple(mark for mark, applies in marks.items() if applies)
