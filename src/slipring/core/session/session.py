"""A session: the state machine of one connection.

The driver calls it with what happened (a frame arrived, the store answered, the engine produced deltas, time
passed), and each call returns the list of actions that the driver runs next. A session owns the lanes and the
cache of its connection. It is pure: it never waits, the time is an argument, and ids, clock and encryption
are injected as ``ports``.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct, structs

from slipring.core.chain import input_items
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache, NoCache
from slipring.core.checks.turn_policy import NoPolicies, Policies
from slipring.core.checks.verdicts import Verdict
from slipring.core.generation import Delta, Job, Models, Prefill
from slipring.core.hosted.tools import CallOutcome, CallProgress, ResolvedBuiltin, ResolvedServer
from slipring.core.limits import Limits
from slipring.core.ports import NO_BETAS, Betas, Ports
from slipring.core.session import client_events, turn_setup
from slipring.core.session.actions import (
    Action,
    CallTool,
    Cancel,
    CancelTools,
    Check,
    CheckAppended,
    ClaimApprovals,
    Close,
    Counted,
    Inspect,
    Load,
    Loaded,
    Record,
    Refused,
    ResolveTools,
    Save,
    Send,
    Start,
    StartAudit,
    StartPrefill,
    Weigh,
)
from slipring.core.session.growing_outputs import GrowingOutputs
from slipring.core.session.lanes import Lanes
from slipring.core.session.live_input_routing import LiveInput
from slipring.core.session.request_charges import Charges
from slipring.core.session.successors import Successors
from slipring.core.turn import turn_reports
from slipring.core.turn.foreseen_job import foreseen_job
from slipring.core.turn.stages import Phase, Stages
from slipring.core.turn.steps import pauses, rollout
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError, ConnectionLimitReached, InvalidPrompt, ServerError
from slipring.protocol import requests
from slipring.protocol.events import Error, Event
from slipring.protocol.hosted.builtin_tools import BuiltinKind
from slipring.protocol.live_input import Append, Steer
from slipring.protocol.requests import CreateRequest
from slipring.protocol.timing import TurnReport
from slipring.protocol.tool_output import ToolOutputPiece

_NORMAL = 1000
_POLICY_VIOLATION = 1008
_NO_POLICIES = NoPolicies()
_BEFORE_CREATION = (Phase.INSPECTING, Phase.PREPARING)
_STARTED = (*_BEFORE_CREATION, Phase.CLAIMING, Phase.RUNNING, Phase.PAUSED, Phase.SAVING)
"""Phases in which a turn that fails may have a response."""
_INSPECTED = (*_BEFORE_CREATION, Phase.CLAIMING, Phase.RUNNING, Phase.PAUSED)
"""Phases in which a turn can be told verdicts."""
_Held = Weigh | Start | ClaimApprovals
"""Work that may have to wait for them."""
_RUNNING = Phase.RUNNING  # an enum lookup would dominate the cost of Session.deltas


class _Age:
    """When a connection was opened and last active, compared with its limits."""

    __slots__ = ("_active_at", "_limits", "opened_at")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self.opened_at = self._active_at = now

    def touch(self, now: float) -> None:
        """Record activity."""
        self._active_at = now

    def is_reached(self, now: float) -> bool:
        """Whether the connection has reached its maximum age."""
        return now - self.opened_at >= self._limits.max_age_s

    def is_idle(self, now: float) -> bool:
        """Whether the idle timeout has passed without activity."""
        timeout_s = self._limits.idle_timeout_s
        return bool(timeout_s) and now - self._active_at >= timeout_s

    @property
    def deadline(self) -> float:
        """When the first of the two limits is reached if there is no further activity."""
        timeout_s = self._limits.idle_timeout_s
        idle_at = self._active_at + timeout_s if timeout_s else math.inf
        return min(self.opened_at + self._limits.max_age_s, idle_at)


class _Ending(Struct, frozen=True):
    """The announced end of a connection."""

    error: ApiError
    code: int
    deadline: float
    """When turns that still run are stopped."""


class Session:
    """The state of one connection."""

    __slots__ = (
        "_age",
        "_betas",
        "_cache",
        "_charges",
        "_closed",
        "_ending",
        "_finished",
        "_growing_outputs",
        "_held_back",
        "_lanes",
        "_limits",
        "_live_input",
        "_models",
        "_policies",
        "_ports",
        "_successors",
        "asks_each_turn",
        "counts_only",
        "tenant",
    )

    def __init__(
        self,
        *,
        tenant: str,
        models: Models,
        limits: Limits,
        ports: Ports,
        cache: ConnectionCache,
        now: float,
        betas: Betas = NO_BETAS,
        policies: Policies = _NO_POLICIES,
    ) -> None:
        self.tenant = tenant
        self.asks_each_turn = False
        """Whether every turn begins with a ``Load``, even an empty one, so that the driver can refuse it."""
        self.counts_only = False
        """Whether turns count the tokens of their context (``Counted``) and generate nothing."""
        self._betas = betas
        self._models = models
        self._policies = policies
        self._limits = limits
        self._ports = ports
        self._cache = cache
        self._lanes = Lanes(limits.max_in_flight, limits.max_lanes)
        self._charges = Charges(ports.requests, tenant)
        self._successors = Successors(limits, ports, models, self._charges)
        self._live_input = LiveInput(
            self._lanes, limits, self._successors, self._charges, ports.ignored_tools
        )
        self._growing_outputs = GrowingOutputs(tenant, self._lanes, limits, self._charges, models)
        # An engine that must see nothing before it was inspected is not given outputs ahead of their turn.
        self._growing_outputs.is_on = not any(check.before for check in policies.checks.values())
        self._finished: dict[Turn, ResponseState] = {}
        """States of turns that are being saved."""
        self._held_back: dict[Turn, tuple[_Held, Phase]] = {}
        """What is done once the input of a turn has passed, and the phase that then begins."""
        self._age = _Age(limits, now)
        self._ending: _Ending | None = None
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Turns that run."""
        return self._lanes.in_flight

    def turns(self) -> list[Turn]:
        """The turns that run, then those that wait."""
        return [*self._lanes.running(), *self._lanes.queued()]

    @property
    def opened_at(self) -> float:
        """When the connection was opened."""
        return self._age.opened_at

    @property
    def lanes(self) -> int:
        """Lanes that have been used."""
        return len(self._lanes)

    @property
    def cache(self) -> ConnectionCache:
        """The states of this connection, to be read only."""
        return self._cache

    @property
    def waiting(self) -> int:
        """Turns that wait in their lanes."""
        return self._lanes.waiting

    # Frames and requests from the client.

    def receive(self, frame: bytes | str | client_events.Read, now: float) -> list[Action]:
        """A WebSocket message arrived: its text, its bytes, or what was decoded from it in a thread."""
        self._age.touch(now)
        if self._closed:
            return []
        stages = Stages(self._ports.clock)
        try:
            event = (
                client_events.read(frame, self._betas)
                if not isinstance(frame, client_events.Read)
                else frame.result()
            )
        except ApiError as error:
            return [_refuse(error), Refused(error.code)]
        if event is None:
            return []
        if isinstance(event, Steer):
            return self._steer(event, now)
        if isinstance(event, Append):
            return self._append(event, now)
        if isinstance(event, ToolOutputPiece):
            # A hint for a response that will not be continued on this connection has no effect.
            return [] if self._ending is not None else self._growing_outputs.take(event, self._cache)
        stages.lap("decode")
        return self.create(event.request, stages, size_bytes=event.size_bytes, now=now, error=event.error)

    def create(
        self,
        request: CreateRequest,
        stages: Stages,
        *,
        size_bytes: int,
        now: float,
        error: ApiError | None = None,
        detached: bool = False,
    ) -> list[Action]:
        """Enqueue a turn in its lane. A request with an ``error`` is enqueued too and refused in its order.

        ``detached``: the response runs in the background.
        """
        if self._closed:
            return []
        lane_id: str | None = None
        try:
            lane_id = requests.read_lane(request.stream_id)
            lane = self._lanes.open(lane_id)
            forked = turn_setup.forked_state(request, lane_id, self._cache)
            waits = self._lanes.must_wait(lane)
            pinned = forked if waits else None
            if waits:
                self._lanes.require_room(size_bytes, self._limits)
            self._charges.require_room(size_bytes, pinned)
        except ApiError as refusal:
            stages.lap("terminal")
            report = _refused_report(refusal, stages, size_bytes)
            return [_refuse(refusal, lane_id), Record(lane_id, report, stages.arrived)]
        turn = Turn(
            request,
            tenant=self.tenant,
            lane=lane_id,
            size_bytes=size_bytes,
            ports=self._ports,
            stages=stages,
            error=self._refusing or error or rollout.missing_beta(request, self._betas),
            detached=detached,
        )
        self._charges.take(turn, size_bytes, pinned)
        turn.parent, turn.forks = forked, forked is not None
        self._lanes.enqueue(turn, lane)
        return self._advance(now)

    def _steer(self, steer: Steer, now: float) -> list[Action]:
        """Accept or refuse a steer. A response that waits for hosted calls is ended for it at once."""
        answer = Send([self._live_input.steer(steer, self._cache, self._refusing)])
        turn = self._lanes.find(steer.target)
        return [answer] if turn is None else [answer, *self._yield_to_steers(turn, now)]

    def _yield_to_steers(self, turn: Turn, now: float) -> list[Action]:
        """End a response that waits for hosted calls if it has steers that can follow it."""
        if not turn.yields_to_steers:
            return []
        cancelled = [CancelTools(turn)] if turn.is_calling else []
        return [*cancelled, Send(turn.end_waiting("steered")), *self._go_on(turn, now)]

    def _append(self, append: Append, now: float) -> list[Action]:
        if append.injects and append.is_malformed and append.error is not None:
            close = Close(_POLICY_VIOLATION, "invalid response.inject")
            return [*self.leave(now), _refuse(append.error), Refused(append.error.code), close]
        try:
            grammars = self._live_input.grammars_in(append)
        except ApiError as error:
            return self.appended(structs.replace(append, error=error), now)
        return [CheckAppended(append, grammars)] if grammars else self.appended(append, now)

    # Results of actions, reported by the driver.

    def loaded(self, turn: Turn, loaded: Loaded, now: float) -> list[Action]:
        """The store has answered a ``Load``."""
        if turn.may_resume:
            return self._start_step(turn, now)
        if turn.phase is not Phase.LOADING:
            return []
        try:
            turn_setup.bind_loaded(turn, loaded)
        except ApiError as error:
            return self._reject(turn, error, now)
        return self._start(turn, now) + self._advance(now)

    def resolved(
        self,
        turn: Turn,
        servers: Mapping[str, ResolvedServer],
        now: float,
        answers: Mapping[BuiltinKind, ResolvedBuiltin] = MappingProxyType({}),
    ) -> list[Action]:
        """The MCP servers of a request are known, by their labels, and have listed their tools. ``answers``:
        what answers its built-in tools."""
        if turn.phase is not Phase.LISTING:
            return []
        turn.hosted.resolved = servers
        turn.hosted.answers = answers
        turn.stages.lap("list")
        return self._validate(turn, now) + self._advance(now)

    def checked(self, check: Check) -> list[Action]:
        """The grammars of a request compile."""
        return self._accept(check.turn, check.job) if check.turn.phase is Phase.CHECKING else []

    def claimed(self, turn: Turn) -> list[Action]:
        """The approvals of a turn are used by it alone: begin its response with the approved calls."""
        if turn.phase is not Phase.CLAIMING:
            return []
        self._successors.commit(turn)
        return [Send(pauses.open_approved(turn)), *self.due_calls(turn)]

    def due_calls(self, turn: Turn) -> list[Action]:
        """The hosted calls that can begin now. The driver asks after each batch of deltas."""
        return [CallTool(turn, call) for call in turn.take_due_calls()]

    def call_progressed(self, turn: Turn, call_id: str, progress: CallProgress) -> list[Action]:
        """The server of a hosted call reports progress."""
        if turn.phase not in (Phase.RUNNING, Phase.PAUSED):
            return []
        return [Send(pauses.progress_of(turn, call_id, progress, detailed=self._betas.tool_progress))]

    def call_ended(self, turn: Turn, call_id: str, outcome: CallOutcome, now: float) -> list[Action]:
        """A hosted call has ended."""
        if turn.phase not in (Phase.RUNNING, Phase.PAUSED):
            return []
        ended = Send(pauses.end_call(turn, call_id, outcome))
        if turn.phase is Phase.RUNNING:
            return [ended]
        if turn.is_calling:
            # The engine processes the results that are there while the other calls run.
            return [ended, *self._growing_outputs.result(turn, self._cache)]
        return [ended, *self._go_on(turn, now)]

    def appended(self, append: Append, now: float) -> list[Action]:
        """Handle an append whose grammars compile, or whose ``error`` says why they do not."""
        if self._closed:
            return []
        emitted, resumable = self._live_input.append(append, self._cache, now)
        if resumable is not None:
            return [Send(emitted), *self._resume(resumable, now)]
        return [Send(emitted), *self._growing_outputs.advance(append.target, self._cache)]

    def weighed(self, weigh: Weigh, tokens: int) -> list[Action]:
        """The engine has counted the tokens of a job."""
        turn = weigh.turn
        if turn.phase is not Phase.PREPARING:
            return []
        turn.stages.lap("weigh")
        if self.counts_only:
            self._discard(turn)
            return [Counted(tokens)]
        return [Start(turn, turn.first_job(weigh.job, tokens))]

    def deltas(self, turn: Turn, deltas: list[Delta]) -> list[Event]:
        """The engine produced deltas; returns the events to send.

        Hot path, called once per token of every answer: it returns events directly instead of actions.
        """
        if turn.phase is _RUNNING:
            return turn.feed(deltas)
        if turn.phase is not Phase.PREPARING:
            return []
        self._successors.commit(turn)
        return turn.accept(deltas)

    def due_inspections(self, turn: Turn) -> list[Action]:
        """The inspections that can begin now. The driver asks after each batch of deltas of a turn with
        checks."""
        return [Inspect(turn, each) for each in turn.checks.due()] if turn.checks is not None else []

    def inspected(self, inspect: Inspect, verdicts: Sequence[Sequence[Verdict]], now: float) -> list[Action]:
        """Safety checks have inspected texts: ``verdicts`` has those about each subject, failed ones
        included."""
        turn = inspect.turn
        if turn.checks is None or turn.phase not in _INSPECTED:
            return []
        released = turn.judge(inspect.inspection, verdicts)
        if (error := turn.checks.error) is not None:
            ending = self._fail if turn.is_created else self._reject
            return [Cancel(turn), *ending(turn, error, now)]
        actions: list[Action] = [Send(released), *self.due_inspections(turn), *self.due_calls(turn)]
        if turn.phase is Phase.INSPECTING and not turn.checks.holds_input:
            work, turn.phase = self._held_back.pop(turn)
            turn.stages.lap("check")
            return [*actions, work]
        return [*actions, *(self.finished(turn, now) if turn.checks.is_awaited else [])]

    def finished(self, turn: Turn, now: float) -> list[Action]:
        """The engine has finished a job of the turn."""
        if turn.phase not in (Phase.PREPARING, Phase.RUNNING):
            return []
        emitted: list[Event] = []
        if turn.is_compacting:
            try:
                emitted, job = turn.compacted()
            except ApiError as error:
                return self.failed(turn, error, now)
            if job is not None:
                return [Send(emitted), *self._hand_over(Start(turn, job), Phase.RUNNING)]
        if turn.checks is not None and not turn.checks.is_settled:
            turn.checks.is_awaited = True
            return [Send(emitted), *self.due_inspections(turn)]
        if turn.steps is not None:
            waits_until, most_bytes = now + self._limits.rollout_wait_s, self._limits.connection_cache_bytes
            paused, more = pauses.end_step(turn, waits_until, most_bytes, may_wait=self._ending is None)
            emitted += more
            if paused:
                return [Send(emitted), *self._after_step(turn, now)]
        return [Send(emitted), *self._conclude(turn, now)]

    def _after_step(self, turn: Turn, now: float) -> list[Action]:
        """A step has ended and another one may follow."""
        if turn.yields_to_steers:
            return self._yield_to_steers(turn, now)
        # The calls that the model's last words have completed.
        due = self.due_calls(turn)
        return due if turn.is_calling else [*due, *self._go_on(turn, now)]

    def prefilled(self, ended: StartPrefill, tokens: int | None) -> list[Action]:
        """The engine has prefilled so many tokens of a context; None: it failed."""
        return [] if self._closed else self._growing_outputs.prefilled(ended, tokens, self._cache)

    def saved(self, turn: Turn, now: float) -> list[Action]:
        """The store has saved a response, or it needs no saving: send its terminal event."""
        if turn.phase is not Phase.SAVING:
            return []
        if turn.saves:
            turn.stages.lap("store")
        state = self._finished[turn]
        self._cache.remember(state, turn.lane)
        if not self._betas.keeps_nothing:
            turn.remember(state, now)
        return self._end(turn, [turn.terminal()], now)

    def failed(self, turn: Turn, error: ApiError, now: float) -> list[Action]:
        """The engine, the compiler or the store has failed."""
        if turn.phase is Phase.CHECKING:
            return self._reject(turn, turn_setup.in_clients_terms(turn, error), now)
        if turn.phase in (Phase.LISTING, Phase.CLAIMING) and not turn.is_created:
            return self._reject(turn, turn_setup.in_clients_terms(turn, error), now)
        if turn.phase is Phase.LOADING or (turn.phase in _BEFORE_CREATION and not turn.is_created):
            return self._reject(turn, turn_setup.of_job(turn, error), now)
        if turn.phase is Phase.PAUSED and not turn.is_calling:
            return self._conclude(turn, now)  # the driver refuses to let it resume
        if turn.phase not in _STARTED:
            return []
        return self._fail(turn, error, now)

    def _fail(self, turn: Turn, error: ApiError, now: float) -> list[Action]:
        """End a response that was created with ``response.failed``."""
        turn_reports.cut_off_stage(turn)
        cancelled = [CancelTools(turn)] if turn.is_calling else []
        self._evict_parent(turn, error)
        self._finished.pop(turn, None)  # a response that cannot be saved leaves no state
        returned = self._successors.return_steers(turn, error)
        ended = self._growing_outputs.end(turn.output.response_id)
        return [*cancelled, *ended, *self._end(turn, turn.fail(error) + returned, now)]

    # Time, and the end of the connection.

    def tick(self, now: float) -> list[Action]:
        """Time has passed: check the deadlines."""
        if self._closed:
            return []
        if self._ending is not None:
            return self._abandon(now) if now >= self._ending.deadline else []
        limits = self._limits
        if self._age.is_reached(now):
            error = ConnectionLimitReached(limits.max_age_s)
            return self.end(error, code=_NORMAL, grace_s=limits.age_grace_s, now=now)
        if self._idle and self._age.is_idle(now):
            self._closed = True
            return [*self._growing_outputs.end_all(), Close(_NORMAL, "idle")]
        return self._conclude_paused(now, only_late=True) if self._lanes.in_flight else []

    @property
    def rests_until(self) -> float | None:
        """For an idle connection, when it next needs a ``tick``; None if it needs regular ticks."""
        at_rest = self._idle and self._ending is None and not self._closed
        return self._age.deadline if at_rest else None

    def end(self, error: ApiError, *, code: int, grace_s: float, now: float) -> list[Action]:
        """Wind down: refuse new and queued turns with ``error``, let running ones finish, then close.

        The error itself is sent last: clients take an error without a lane as the end of the response that
        they are reading. Turns that run longer than ``grace_s`` are stopped.
        """
        if self._closed or self._ending is not None:
            return []
        self._ending = _Ending(error=error, code=code, deadline=now + grace_s)
        for turn in self._lanes.queued():
            turn.error = error
        returned = self._successors.return_all(error)
        sends = [Send(returned)] if returned else []
        prefills = self._growing_outputs.end_all()
        return [*sends, *prefills, *self._conclude_paused(now), *self._advance(now)]

    def leave(self, now: float) -> list[Action]:
        """The client has left: begin no turn, and end rollouts at their last finished step."""
        self._closed = True
        return [*self._conclude_paused(now), *self._break_off(now)]

    def recall(self, response_id: str) -> ResponseState | None:
        """A response to continue, from this connection's cache."""
        found = self._cache.find(response_id)
        if found is not None:
            self._cache.count_hit()
        return found

    def detach_cache(self) -> ConnectionCache:
        """Hand over the cache, before ``closed`` would clear it."""
        cache, self._cache = self._cache, NoCache()
        return cache

    def closed(self) -> list[Action]:
        """The connection is closed: cancel what runs, except saves, and release all memory."""
        self._closed = True
        actions: list[Action] = []
        for turn in self.turns():
            if turn.phase is Phase.SAVING:
                actions.append(self._record(turn, turn_reports.report(turn)))
            elif turn.phase is not Phase.ENDED:
                turn_reports.cut_off_stage(turn)
                is_queued = turn.phase is Phase.WAITING
                actions += [] if is_queued else [Cancel(turn)]
                actions.append(self._record(turn, turn_reports.report(turn, cancelled=True)))
            turn.phase = Phase.ENDED
        self._finished.clear()
        self._held_back.clear()
        actions += self._growing_outputs.end_all()
        self._cache.clear()
        self._charges.close()
        return actions

    # Running turns.

    @property
    def _idle(self) -> bool:
        return not self._lanes.in_flight and not self._lanes.waiting

    @property
    def _refusing(self) -> ApiError | None:
        """Why no new response may begin; None if it may."""
        if self._ending is not None:
            return self._ending.error
        return ServerError("The connection has ended.") if self._closed else None

    def _advance(self, now: float) -> list[Action]:
        """Begin every turn that may run now. If the connection is ending and idle, close it."""
        self._age.touch(now)
        actions: list[Action] = []
        while not self._closed and (turn := self._lanes.next()) is not None:
            actions += self._begin(turn, now)
        if self._ending is not None and self._idle and not self._closed:
            self._closed = True
            actions += [_refuse(self._ending.error), Close(self._ending.code, self._ending.error.code)]
        return actions

    def _begin(self, turn: Turn, now: float) -> list[Action]:
        """Bind the parent of a turn that has left its queue, from the cache or through a ``Load``."""
        turn.stages.lap("queue")
        try:
            load = turn_setup.bind(turn, self._cache, self._successors)
        except ApiError as error:
            return self._drop(turn, error)
        ended = [] if turn.forks else self._growing_outputs.end(turn.request.previous_response_id)
        if load.is_empty and not self.asks_each_turn:
            return [*ended, *self._start(turn, now)]
        turn.phase = Phase.LOADING
        return [*ended, load]

    def _start(self, turn: Turn, now: float) -> list[Action]:
        """Validate a bound turn, once its MCP servers are known and its grammars compiled, if it has any."""
        turn.stages.lap("resolve")
        if not turn.hosted.is_read:
            try:
                hosting = self._models.find(turn.request.model).hosted_tools
                carry = input_items.carried(turn.parent)
                fetch = turn.hosted.read_servers(turn.request, carry, turn.input, hosting)
            except ApiError as error:
                return self._drop(turn, error)
            if turn.hosted.must_resolve:
                turn.phase = Phase.LISTING
                kinds = frozenset(tool.kind for tool in turn.hosted.builtins)
                return [ResolveTools(turn, turn.hosted.servers, fetch, kinds)]
        return self._validate(turn, now)

    def _validate(self, turn: Turn, now: float) -> list[Action]:
        try:
            job, grammars = turn_setup.begin(
                turn, self._models, self._policies, self._ports, self._limits, now, counts=self.counts_only
            )
        except ApiError as error:
            return self._drop(turn, error)
        if grammars:
            turn.phase = Phase.CHECKING
            return [Check(turn, job, grammars)]
        return self._accept(turn, job)

    def _accept(self, turn: Turn, job: Job) -> list[Action]:
        """Begin the work on a valid turn."""
        turn.stages.lap("validate")
        if self.counts_only:
            turn.phase = Phase.PREPARING
            return [Weigh(turn, turn.first_job(job))]
        created: list[Action] = [Send(turn.enqueue())] if turn.detached else []
        if turn.claims:
            return [*created, *self._hand_over(ClaimApprovals(turn, turn.claims), Phase.CLAIMING)]
        first = Weigh(turn, job) if turn.must_weigh else Start(turn, turn.first_job(job))
        return [*created, *self._hand_over(first, Phase.PREPARING)]

    def _hand_over(self, work: _Held, phase: Phase) -> list[Action]:
        """Give work to the engine, beside the inspections of its input; or after them, if the policy wants
        the engine not to see what it refuses. Approved calls always wait for them."""
        turn = work.turn
        due = self.due_inspections(turn)
        if turn.checks is not None and turn.checks.holds_work(is_call=isinstance(work, ClaimApprovals)):
            turn.phase, self._held_back[turn] = Phase.INSPECTING, (work, phase)
            return due
        turn.phase = phase
        return [*due, work]

    def _conclude(self, turn: Turn, now: float) -> list[Action]:
        """Close the output of a turn, and save its state if needed."""
        closing, state = turn.finish(now)
        self._finished[turn] = state
        turn.phase = Phase.SAVING
        return [Send(closing), *([Save(turn, state)] if turn.saves else self.saved(turn, now))]

    def _reject(self, turn: Turn, error: ApiError, now: float) -> list[Action]:
        return self._drop(turn, error) + self._advance(now)

    def _drop(self, turn: Turn, error: ApiError) -> list[Action]:
        """Refuse a turn whose response was never created."""
        turn_reports.cut_off_stage(turn)
        emitted = self._successors.return_steers(turn, error)
        if not turn.follows:
            self._evict_parent(turn, error)
            emitted.append(Error.of(error, turn.lane))
        self._discard(turn)
        turn.stages.lap("terminal")
        return [Send(emitted), self._record(turn, turn_reports.report(turn, error))]

    def _discard(self, turn: Turn) -> None:
        """End a turn that has no response, and let the next one of its lane run."""
        turn.phase = Phase.ENDED
        self._held_back.pop(turn, None)
        self._charges.release(turn)
        self._lanes.release(turn)

    def _end(self, turn: Turn, last: list[Event], now: float) -> list[Action]:
        """End a turn with its last events, then begin its successor and whatever may run now."""
        turn.phase = Phase.ENDED
        self._held_back.pop(turn, None)
        self._charges.release(turn)
        state = self._finished.pop(turn, None)
        turn.stages.lap("terminal")
        report = turn_reports.report(turn)
        if self._betas.timing:
            last.append(turn.output.timing_event(report))
        about_steers, successor = self._successors.after(turn, state, self._refusing)
        actions: list[Action] = [Send(last + about_steers), self._record(turn, report)]
        if successor is None:
            self._lanes.release(turn)
        else:
            self._lanes.succeed(turn, successor)
            actions += self._begin(successor, now)
        actions += self._advance(now)
        if state is None:
            return actions
        audit = turn.audit(state)
        return [*actions, *([StartAudit(audit)] if audit is not None else []), *self._foresee(turn, state)]

    def _record(self, turn: Turn, report: TurnReport) -> Record:
        content = None if self._betas.keeps_nothing else turn
        return Record(turn.lane, report, turn.stages.arrived, turn_reports.traceparent(turn), content)

    def _foresee(self, turn: Turn, state: ResponseState) -> list[Action]:
        """Have the engine prefill what will probably continue a response that has just ended."""
        ends = self._closed or self._ending is not None
        if ends or self._lanes.is_busy(turn.lane) or state.response.status != "completed":
            return []
        if state.carry.open_calls:
            return self._growing_outputs.advance(state.id, self._cache)
        if state.carry.approvals:
            return []  # its client answers with something else than a message
        try:
            rewrites_answers = self._models.find(state.response.model).rewrites_answers
        except ApiError:
            return []  # its model is not served any more
        if turn.request.warms_up or not rewrites_answers:
            return []
        return [StartPrefill(state.id, Prefill(foreseen_job(state, self.tenant, self._models), "user"))]

    def _evict_parent(self, turn: Turn, error: ApiError) -> None:
        """A continuation that fails on its parent's own lane evicts the parent; a failed fork does not, and
        neither does one that a safety check has blocked: the client goes on with another message."""
        if isinstance(error, InvalidPrompt):
            return
        previous = turn.request.previous_response_id
        if previous is not None and previous in self._cache and self._cache.lane_of(previous) == turn.lane:
            self._cache.evict(previous)

    # Responses of several steps.

    def _go_on(self, turn: Turn, now: float) -> list[Action]:
        """No hosted call of a paused response runs any more: resume it, end it, or wait for its client."""
        if turn.output.calls_hosted:
            may_wait = self._ending is None and not self._closed
            emitted = Send(pauses.calls_ended(turn, now + self._limits.rollout_wait_s, may_wait=may_wait))
            return [emitted, *self._go_on(turn, now)]
        if turn.must_end:
            # Pieces of outputs that a rollout still waits for can arrive after its end.
            ended = [] if turn.rollout is not None else self._growing_outputs.end(turn.output.response_id)
            return [*ended, *self._conclude(turn, now)]
        growing = self._growing_outputs.advance(turn.output.response_id, self._cache)
        return self._resume(turn, now) or growing

    def _resume(self, turn: Turn, now: float) -> list[Action]:
        """Resume a paused response that has all required outputs, after asking the driver if needed."""
        if not turn.may_resume:
            return []
        ended = self._growing_outputs.end(turn.output.response_id)
        if self.asks_each_turn:
            return [*ended, Load(turn, None, frozenset())]
        return [*ended, *self._start_step(turn, now)]

    def _start_step(self, turn: Turn, now: float) -> list[Action]:
        """Begin the next step of a rollout."""
        try:
            job = pauses.resume(turn)
        except ApiError as error:
            return self._fail(turn, error, now)
        return self._hand_over(Start(turn, job), Phase.RUNNING)

    def _conclude_paused(self, now: float, *, only_late: bool = False) -> list[Action]:
        """End paused rollouts, or only those past their deadline. Their calls stay open."""
        paused = [turn for turn in self._lanes.running() if turn.waits_for_client]
        due = (t for t in paused if not only_late or (t.rollout is not None and now >= t.rollout.waits_until))
        return [action for turn in due for action in self._conclude(turn, now)]

    def _break_off(self, now: float) -> list[Action]:
        """Cancel the running step of rollouts that have finished steps, or the hosted calls that they await,
        and keep what they have."""
        actions: list[Action] = []
        for turn in [turn for turn in self._lanes.running() if turn.can_be_broken_off]:
            actions.append(Cancel(turn))
            if turn.phase is Phase.PAUSED:
                actions += [Send(turn.end_waiting("broken_off")), *self._go_on(turn, now)]
            else:
                turn.break_off()
                actions += self._conclude(turn, now)
        return actions

    def _abandon(self, now: float) -> list[Action]:
        """The grace period is over: stop and fail everything that runs, except saves."""
        actions = self._break_off(now)
        error = ServerError("The connection ended before this response was finished.")
        for turn in list(self._lanes.running()):
            if turn.phase is not Phase.SAVING:
                actions.append(Cancel(turn))
                actions += self.failed(turn, error, now)
        return actions


def _refused_report(error: ApiError, stages: Stages, size_bytes: int) -> TurnReport:
    """The report of a create that got no place in its lane."""
    return TurnReport("refused", size_bytes, stages.laps, stages.total_ms, error_code=error.code)


def _refuse(error: ApiError, lane: str | None = None) -> Send:
    return Send([Error.of(error, lane)])
