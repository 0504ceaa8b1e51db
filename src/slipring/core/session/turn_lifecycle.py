"""The life of a connection's turns: from their lane's queue, phase by phase, to the terminal event.

The driver reports the result of each action here, and runs the actions that the call returns.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from slipring.base.errors import ApiError, InvalidPrompt, ServerError
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.turn_policy import Policies
from slipring.core.checks.verdicts import Verdict
from slipring.core.generation import Delta, Job, Models, Prefill
from slipring.core.hosted.tools import CallOutcome, CallProgress, FetchedList, ResolvedBuiltin, ResolvedServer
from slipring.core.limits import Limits
from slipring.core.ports import Betas, Ports
from slipring.core.session import turn_setup
from slipring.core.session.actions import (
    Action,
    CallTool,
    Cancel,
    CancelTools,
    Check,
    ClaimApprovals,
    Close,
    Compress,
    Counted,
    Inspect,
    ListTools,
    Load,
    Loaded,
    Record,
    ResolveTools,
    Save,
    Send,
    Settle,
    Start,
    StartAudit,
    StartPrefill,
    Weigh,
)
from slipring.core.session.connection_lifetime import ConnectionLifetime
from slipring.core.session.growing_outputs import GrowingOutputs
from slipring.core.session.lanes import Lanes
from slipring.core.session.request_charges import Charges
from slipring.core.session.successors import Successors
from slipring.core.turn import turn_reports
from slipring.core.turn.foreseen_job import foreseen_job
from slipring.core.turn.stages import Phase
from slipring.core.turn.steps import failed_steps, pauses
from slipring.core.turn.turn import Turn
from slipring.protocol.events import Error, Event
from slipring.protocol.hosted.builtin_tools import BuiltinKind
from slipring.protocol.timing import TurnReport

_BEFORE_CREATION = (Phase.INSPECTING, Phase.PREPARING)
_STARTED = (*_BEFORE_CREATION, Phase.LISTING, Phase.CLAIMING, Phase.RUNNING, Phase.PAUSED, Phase.SAVING)
"""Phases in which a turn that fails may have a response."""
_INSPECTED = (*_BEFORE_CREATION, Phase.LISTING, Phase.CLAIMING, Phase.RUNNING, Phase.PAUSED)
"""Phases in which a turn can be told verdicts."""
_Held = Weigh | Start | ClaimApprovals
"""Work that may have to wait for them."""
_RUNNING = Phase.RUNNING  # an enum lookup would dominate the cost of TurnLifecycle.deltas


class TurnLifecycle:
    """The turns of one connection, with its lanes and its cache."""

    __slots__ = (
        "_betas",
        "_finished",
        "_held_back",
        "_lifetime",
        "_limits",
        "_models",
        "_pinned",
        "_policies",
        "_ports",
        "_tenant",
        "asks_each_turn",
        "cache",
        "charges",
        "counts_only",
        "growing_outputs",
        "lanes",
        "successors",
    )

    def __init__(
        self,
        tenant: str,
        models: Models,
        limits: Limits,
        ports: Ports,
        cache: ConnectionCache,
        lifetime: ConnectionLifetime,
        betas: Betas,
        policies: Policies,
    ) -> None:
        self._tenant = tenant
        self._models = models
        self._limits = limits
        self._ports = ports
        self._lifetime = lifetime
        self._betas = betas
        self._policies = policies
        self.asks_each_turn = False
        """Whether every turn begins with a ``Load``, even an empty one, so that the driver can refuse it."""
        self.counts_only = False
        """Whether turns count the tokens of their context (``Counted``) and generate nothing."""
        self.cache = cache
        self.lanes = Lanes(limits.max_in_flight, limits.max_lanes)
        self.charges = Charges(ports.requests, tenant)
        self.successors = Successors(limits, ports, models, self.charges)
        self.growing_outputs = GrowingOutputs(tenant, self.lanes, limits, self.charges, models)
        # An engine that must see nothing before it was inspected is not given outputs ahead of their turn.
        self.growing_outputs.is_on = not any(check.before for check in policies.checks.values())
        self._finished: dict[Turn, ResponseState] = {}
        """States of turns that are being saved."""
        self._pinned: dict[Turn, tuple[ConnectionCache, ResponseState]] = {}
        """What running turns continue, and where it is counted."""
        self._held_back: dict[Turn, tuple[_Held, Phase]] = {}
        """What is done once the input of a turn has passed, and the phase that then begins."""

    def turns(self) -> list[Turn]:
        """The turns that run, then those that wait."""
        return [*self.lanes.running(), *self.lanes.queued()]

    # Results of actions, reported by the driver.

    def loaded(self, turn: Turn, loaded: Loaded, now: float) -> list[Action]:
        """The store has answered a ``Load``."""
        if turn.may_resume:
            return self._start_step(turn)
        if turn.phase is not Phase.LOADING:
            return []
        try:
            turn_setup.bind_loaded(turn, loaded, self.cache)
        except ApiError as error:
            return self._reject(turn, error, now)
        self._pin(turn)
        # A conversation is continued at its last response.
        continued = turn.parent.id if turn.parent is not None and not turn.forks else None
        return [*self.growing_outputs.end(continued), *self._start(turn, now), *self.advance(now)]

    def resolved(
        self,
        turn: Turn,
        servers: Mapping[str, ResolvedServer],
        now: float,
        answers: Mapping[BuiltinKind, ResolvedBuiltin] = MappingProxyType({}),
    ) -> list[Action]:
        """The MCP servers of a request are known, by their labels. ``answers``: what answers its built-in
        tools."""
        if turn.phase is not Phase.RESOLVING:
            return []
        turn.hosted.resolved = servers
        turn.hosted.answers = answers
        return self._validate(turn, now) + self.advance(now)

    def listed(self, turn: Turn, label: str, fetched: FetchedList, now: float) -> list[Action]:
        """An MCP server has listed its tools, or failed to."""
        if turn.phase is not Phase.LISTING:
            return []
        error = fetched.refusal
        emitted: list[Event] = []
        try:
            emitted = turn.end_list(label, fetched)
        except ApiError as refused:
            error = refused
        if error is not None:
            return [Send(emitted), *self.failed(turn, error, now)]
        return [Send(emitted), *self.due_inspections(turn)]

    def all_listed(self, turn: Turn, now: float) -> list[Action]:
        """All MCP servers have listed their tools."""
        if turn.phase is not Phase.LISTING:
            return []
        turn.stages.lap("list")
        try:
            job = turn_setup.complete(turn)
        except ApiError as error:
            return self.failed(turn, error, now)
        return self._begin_work(turn, job)

    def checked(self, check: Check) -> list[Action]:
        """The grammars of a request compile."""
        return self._accept(check.turn, check.job) if check.turn.phase is Phase.CHECKING else []

    def claimed(self, turn: Turn) -> list[Action]:
        """The approvals of a turn are used by it alone: begin its response with the approved calls."""
        if turn.phase is not Phase.CLAIMING:
            return []
        self.successors.commit(turn)
        return [Send(pauses.open_approved(turn)), *self.due_calls(turn)]

    def due_calls(self, turn: Turn) -> list[Action]:
        """The hosted calls that can begin now. The driver asks after each batch of deltas."""
        return [CallTool(turn, call) for call in turn.take_due_calls()]

    def call_progressed(self, turn: Turn, call_id: str, progress: CallProgress) -> list[Action]:
        """The server of a hosted call reports progress."""
        if turn.phase not in (Phase.RUNNING, Phase.PAUSED):
            return []
        sent = pauses.progress_of(turn, call_id, progress, detailed=self._betas.tool_progress)
        return [Send(sent), *self.due_inspections(turn)]

    def call_ended(self, turn: Turn, call_id: str, outcome: CallOutcome, now: float) -> list[Action]:
        """A hosted call has ended."""
        if turn.phase not in (Phase.RUNNING, Phase.PAUSED):
            return []
        before = turn.calls_running
        ended = Send(pauses.end_call(turn, call_id, outcome))
        return [ended, *self.due_inspections(turn), *self._after_calls(turn, before, now)]

    def _after_calls(self, turn: Turn, before: int, now: float) -> list[Action]:
        """Hosted calls may have ended, or appended items passed: what follows if the response is paused.
        ``before``: how many calls ran."""
        if turn.phase is not Phase.PAUSED:
            return []
        if turn.is_calling:
            # The engine processes the results that are there while the other calls run.
            has_more = turn.calls_running < before
            return self.growing_outputs.result(turn, self.cache) if has_more else []
        # The results of hosted calls come before what the client has appended meanwhile.
        committed = [] if turn.output.calls_hosted else pauses.commit_appended(turn)
        return [Send(committed), *self._go_on(turn, now)]

    def block(self, turn: Turn, error: ApiError) -> list[Action]:
        """Safety checks refuse what a running turn got: end it."""
        return [Cancel(turn), *self._fail(turn, error)]

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
        self.successors.commit(turn)
        return turn.accept(deltas)

    def due_inspections(self, turn: Turn) -> list[Action]:
        """The inspections that can begin now. The driver asks after each batch of deltas of a turn with
        checks."""
        return [Inspect(turn, each) for each in turn.checks.due()] if turn.checks is not None else []

    def inspected(self, inspect: Inspect, verdicts: Sequence[Sequence[Verdict]], now: float) -> list[Action]:
        """Safety checks have inspected texts: ``verdicts`` has those about each subject, failed ones
        included."""
        turn = inspect.turn
        assert turn.checks is not None  # they have asked for the inspection
        if turn.phase not in _INSPECTED:
            turn.checks.remember(inspect.inspection, verdicts)
            return []
        before = turn.calls_running
        released = turn.judge(inspect.inspection, verdicts)
        if (error := turn.checks.error) is not None:
            ended = self._fail(turn, error) if turn.is_created else self._reject(turn, error, now)
            return [Cancel(turn), *ended]
        actions: list[Action] = [Send(released), *self.due_inspections(turn), *self.due_calls(turn)]
        if turn.phase is Phase.INSPECTING and not turn.checks.holds_input:
            work, turn.phase = self._held_back.pop(turn)
            turn.stages.lap("check")
            return [*actions, work]
        if turn.phase is Phase.PAUSED:
            return [*actions, *self._after_calls(turn, before, now)]
        if turn.phase is Phase.LISTING:
            return [*actions, *self.yield_to_steers(turn, now)]
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
            may_wait = self._lifetime.ending is None
            paused, more = pauses.end_step(turn, waits_until, most_bytes, may_wait=may_wait)
            emitted += more
            if paused:
                return [Send(emitted), *self.due_inspections(turn), *self._after_step(turn, now)]
        return [Send(emitted), *self._conclude(turn, now)]

    def _after_step(self, turn: Turn, now: float) -> list[Action]:
        """A step has ended and another one may follow."""
        # The calls that the model's last words have completed.
        due = self.due_calls(turn)
        return due if turn.is_calling else [*due, *self._go_on(turn, now)]

    def prefilled(self, ended: StartPrefill, tokens: int | None) -> list[Action]:
        """The engine has prefilled so many tokens of a context; None: it failed."""
        return [] if self._lifetime.is_closed else self.growing_outputs.prefilled(ended, tokens, self.cache)

    def saved(self, turn: Turn) -> list[Action]:
        """The store has saved a response, or it needs no saving: send its terminal event."""
        if turn.phase is not Phase.SAVING:
            return []
        if turn.saves:
            turn.stages.lap("store")
        return self._end(turn, [turn.terminal()])

    def compressed(self, compress: Compress, items: Sequence[bytes]) -> list[Action]:
        """The items of earlier responses are compressed, or as many of them as could be."""
        compress.cache.keep_compressed(list(zip(compress.states, items, strict=False)))
        return [] if self._lifetime.is_closed else self._compress(compress.cache)

    def _compress(self, cache: ConnectionCache) -> list[Action]:
        states = cache.take_compressible()
        return [Compress(cache, tuple(states))] if states else []

    def failed(self, turn: Turn, error: ApiError, now: float) -> list[Action]:
        """The engine, the compiler or the store has failed."""
        if turn.phase is Phase.CHECKING:
            return self._reject(turn, turn_setup.in_clients_terms(turn, error), now)
        if turn.phase in (Phase.RESOLVING, Phase.LISTING, Phase.CLAIMING) and not turn.is_created:
            return self._reject(turn, turn_setup.in_clients_terms(turn, error), now)
        if turn.phase is Phase.LOADING or (turn.phase in _BEFORE_CREATION and not turn.is_created):
            return self._reject(turn, turn_setup.of_job(turn, error), now)
        if turn.phase is Phase.PAUSED and not turn.is_calling:
            return self._conclude(turn, now)  # the driver refuses to let it resume
        if turn.phase not in _STARTED:
            return []
        return self._fail(turn, error)

    def unattended(self, turn: Turn, now: float) -> list[Action]:
        """The driver works on this turn no longer. It fails, unless it has ended, or waits for its client, a
        hosted call or verdicts."""
        if turn.phase is Phase.PAUSED:
            waits = not turn.may_resume
        elif turn.phase in (Phase.PREPARING, Phase.RUNNING):
            waits = turn.checks is not None and turn.checks.is_awaited
        else:
            waits = turn.phase is Phase.INSPECTING
        return [] if waits else self.failed(turn, ServerError(), now)

    def broken(self, turn: Turn, now: float) -> list[Action]:
        """What this turn waits for, a hosted call or verdicts, will never come."""
        return [Cancel(turn), *self.failed(turn, ServerError(), now)]

    def _fail(self, turn: Turn, error: ApiError) -> list[Action]:
        """End a response that was created with ``response.failed``, and keep its finished steps."""
        turn_reports.cut_off_stage(turn)
        cancelled = [CancelTools(turn)] if turn.is_calling else []
        self._finished.pop(turn, None)  # a response that cannot be saved leaves no state
        ended = self.growing_outputs.end(turn.output.response_id)
        closing = turn.fail(error)
        state = failed_steps.keep(turn, error)
        if state is not None:
            closing += self.successors.return_steers(turn, error)
            return [*cancelled, *ended, Send(closing), *self._save(turn, state)]
        self._evict_parent(turn, error)
        last = [*closing, turn.terminal(), *self.successors.return_steers(turn, error)]
        return [*cancelled, *ended, *self._end(turn, last)]

    # Running turns.

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs or waits."""
        return not self.lanes.in_flight and not self.lanes.waiting

    def advance(self, now: float) -> list[Action]:
        """Begin every turn that may run now. If the connection is ending and idle, close it."""
        self._lifetime.touch(now)
        actions: list[Action] = []
        while not self._lifetime.is_closed and (turn := self.lanes.next()) is not None:
            actions += self._begin(turn, now)
        ending = self._lifetime.ending
        if ending is not None and self.is_idle and not self._lifetime.is_closed:
            self._lifetime.is_closed = True
            actions += [Send([Error.of(ending.error, None)]), Close(ending.code, ending.error.code)]
        return actions

    def _begin(self, turn: Turn, now: float) -> list[Action]:
        """Bind the parent of a turn that has left its queue, from the cache or through a ``Load``."""
        turn.stages.lap("queue")
        if turn.error is not None:
            return self._drop(turn, turn.error)
        try:
            load = turn_setup.bind(turn, self.cache, self.successors, self._ports.items)
        except ApiError as error:
            return self._drop(turn, error)
        self._pin(turn)
        ended = [] if turn.forks else self.growing_outputs.end(turn.request.previous_response_id)
        if load.is_empty and not self.asks_each_turn:
            return [*ended, *self._start(turn, now)]
        turn.phase = Phase.LOADING
        return [*ended, load]

    def _start(self, turn: Turn, now: float) -> list[Action]:
        """Validate a bound turn, once its MCP servers are known and its grammars compiled, if it has any."""
        turn.stages.lap("resolve")
        heads, parent = self._ports.heads, turn.parent
        turn.known_head = parent.head if parent is not None else heads.find(turn.tenant, turn.request)
        if not turn.hosted.is_read:
            try:
                hosting = self._models.find(turn.request.model).hosted_tools
                turn.hosted.read_servers(turn.request, hosting, turn.known_head)
            except ApiError as error:
                return self._drop(turn, error)
            if turn.hosted.must_resolve:
                turn.phase = Phase.RESOLVING
                kinds = frozenset(tool.kind for tool in turn.hosted.builtins)
                return [ResolveTools(turn, turn.hosted.servers, kinds)]
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

    def _accept(self, turn: Turn, job: Job | None) -> list[Action]:
        """Begin the work on a valid turn."""
        turn.stages.lap("validate")
        created: list[Action] = [Send(turn.enqueue())] if turn.detached else []
        return [*created, *(self._begin_work(turn, job) if job is not None else self._fetch_lists(turn))]

    def _fetch_lists(self, turn: Turn) -> list[Action]:
        """Begin a response whose tools are not known yet: how long their servers take, only they know."""
        turn.phase = Phase.LISTING
        fetch = ListTools(turn, dict(turn.hosted.awaited))
        if self.counts_only:
            return [fetch]
        self.successors.commit(turn)
        return [Send(turn.open_lists()), *self.due_inspections(turn), fetch]

    def _begin_work(self, turn: Turn, job: Job) -> list[Action]:
        if self.counts_only:
            turn.phase = Phase.PREPARING
            return [Weigh(turn, turn.first_job(job))]
        if turn.claims:
            return self._hand_over(ClaimApprovals(turn, turn.claims), Phase.CLAIMING)
        first = Weigh(turn, job) if turn.must_weigh else Start(turn, turn.first_job(job))
        return self._hand_over(first, Phase.PREPARING)

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
        return [Send(closing), *self._save(turn, state)]

    def _save(self, turn: Turn, state: ResponseState) -> list[Action]:
        """Save the state of a response that has ended, if needed."""
        self._finished[turn] = state
        turn.phase = Phase.SAVING
        return [Save(turn, state)] if turn.saves else self.saved(turn)

    def _reject(self, turn: Turn, error: ApiError, now: float) -> list[Action]:
        return self._drop(turn, error) + self.advance(now)

    def _drop(self, turn: Turn, error: ApiError) -> list[Action]:
        """Refuse a turn whose response was never created."""
        turn_reports.cut_off_stage(turn)
        turn.is_blocked = isinstance(error, InvalidPrompt)
        emitted = self.successors.return_steers(turn, error)
        if not turn.follows:
            self._evict_parent(turn, error)
            emitted.append(Error.of(error, turn.lane))
        self._discard(turn)
        turn.stages.lap("terminal")
        forgotten = self.growing_outputs.end_unreachable(self.cache)
        return [Send(emitted), *forgotten, self._record(turn, turn_reports.report(turn, error))]

    def _discard(self, turn: Turn) -> None:
        """End a turn that has no response, and let the next one of its lane run."""
        turn.phase = Phase.ENDED
        self._held_back.pop(turn, None)
        self._unpin(turn)
        self.charges.release(turn)
        self.lanes.release(turn)

    def _end(self, turn: Turn, last: list[Event]) -> list[Action]:
        """End a turn with its last events."""
        turn.phase = Phase.ENDED
        turn.stages.lap("terminal")
        if self._betas.timing:
            last.append(turn.output.timing_event(turn_reports.report(turn)))
        return [Send(last), Settle(turn)]

    def settle(self, turn: Turn, now: float) -> list[Action]:
        """The last events of a turn are on their way: remember its response, report the turn, then begin its
        successor and whatever may run now."""
        self._held_back.pop(turn, None)
        self._unpin(turn)
        self.charges.release(turn)
        state = self._finished.pop(turn, None)
        actions = self._remember(turn, state, now) if state is not None else []
        about_steers, successor = self.successors.after(
            turn, state if not turn.has_failed else None, self._lifetime.refusal
        )
        if about_steers:
            actions.append(Send(about_steers))
        actions.append(self._record(turn, turn_reports.report(turn)))
        if successor is None:
            self.lanes.release(turn)
        else:
            self.lanes.succeed(turn, successor)
            actions += self._begin(successor, now)
        actions += self.growing_outputs.end_unreachable(self.cache)
        actions += self.advance(now)
        if state is None:
            return actions
        audit = turn.audit(state)
        return [*actions, *([StartAudit(audit)] if audit is not None else []), *self._foresee(turn, state)]

    def _settled(self, actions: list[Action], now: float) -> list[Action]:
        """The actions that end one of several turns, with what follows from them."""
        settled: list[Action] = []
        for action in actions:
            settled += self.settle(action.turn, now) if isinstance(action, Settle) else [action]
        return settled

    def _remember(self, turn: Turn, state: ResponseState, now: float) -> list[Action]:
        """Let later turns continue a response, by its id or by its items."""
        self.cache.remember(state, turn.lane)
        if not self._betas.keeps_nothing and not turn.has_failed:
            turn.remember(state, now)
            self._ports.heads.remember(turn.tenant, turn.request.model, state.head, now)
            if turn.parent is None:
                self._ports.items.remember(turn.tenant, turn.request.items, now)
        return self._compress(self.cache)

    def _pin(self, turn: Turn) -> None:
        """Count the state that a turn continues for as long as the turn runs."""
        if turn.parent is not None and turn not in self._pinned:
            self._pinned[turn] = self.cache, turn.parent
            self.cache.pin(turn.parent)

    def _unpin(self, turn: Turn) -> None:
        if (pinned := self._pinned.pop(turn, None)) is not None:
            cache, state = pinned
            cache.unpin(state)

    def _record(self, turn: Turn, report: TurnReport) -> Record:
        content = turn if self._may_be_recorded(turn) else None
        return Record(turn.lane, report, turn.stages.arrived, turn_reports.traceparent(turn), content)

    def _may_be_recorded(self, turn: Turn) -> bool:
        """Whether the content of a turn that has ended may be kept: no check has refused any of it, or would
        still have inspected it."""
        if self._betas.keeps_nothing or turn.is_blocked:
            return False
        if turn.checks is not None:
            return turn.checks.has_passed
        # Which policy applies is known once a request is valid.
        return turn.response is not None or not self._policies.checks

    def _foresee(self, turn: Turn, state: ResponseState) -> list[Action]:
        """Have the engine prefill what will probably continue a response that has just ended."""
        if not self._lifetime.accepts_turns or self.lanes.is_busy(turn.lane):
            return []
        if state.carry.open_calls:
            return self.growing_outputs.advance(state.id, self.cache)
        if state.response.status != "completed":
            return []
        if state.carry.approvals:
            return []  # its client answers with something else than a message
        try:
            rewrites_answers = self._models.find(state.response.model).rewrites_answers
        except ApiError:
            return []  # its model is not served any more
        if turn.request.warms_up or not rewrites_answers:
            return []
        return [StartPrefill(state.id, Prefill(foreseen_job(state, self._tenant, self._models), "user"))]

    def _evict_parent(self, turn: Turn, error: ApiError) -> None:
        """A continuation that fails on its parent's own lane evicts the parent; a failed fork does not, and
        neither does one that a safety check has blocked: the client goes on with another message."""
        if isinstance(error, InvalidPrompt):
            return
        previous = turn.request.previous_response_id
        if previous is not None and previous in self.cache and self.cache.lane_of(previous) == turn.lane:
            self.cache.evict(previous)

    # Responses of several steps.

    def yield_to_steers(self, turn: Turn, now: float) -> list[Action]:
        """End a response that waits for lists of tools, if it has steers, once its input has passed: its
        successor continues that. One that waits for hosted calls ends after them: what has begun may have
        effects, and the response that follows reads the results."""
        if not turn.is_listing or turn.steers is None:
            return []
        if turn.checks is not None and not turn.checks.is_settled:
            return []
        turn.stages.lap("list")
        return [Cancel(turn), Send(turn.end_waiting("steered")), *self._conclude(turn, now)]

    def _go_on(self, turn: Turn, now: float) -> list[Action]:
        """No hosted call of a paused response runs any more: resume it, end it, or wait for its client."""
        if turn.output.calls_hosted:
            steered = turn.end_waiting("steered") if turn.yields_to_steers else []
            may_wait = self._lifetime.accepts_turns
            emitted = pauses.calls_ended(turn, now + self._limits.rollout_wait_s, may_wait=may_wait)
            return [Send(steered + emitted), *self._go_on(turn, now)]
        if turn.must_end:
            # Pieces of outputs that a rollout still waits for can arrive after its end.
            ended = [] if turn.rollout is not None else self.growing_outputs.end(turn.output.response_id)
            return [*ended, *self._conclude(turn, now)]
        return self.resume(turn) or self.growing_outputs.advance(turn.output.response_id, self.cache)

    def resume(self, turn: Turn) -> list[Action]:
        """Resume a paused response that has all required outputs, after asking the driver if needed."""
        if not turn.may_resume:
            return []
        ended = self.growing_outputs.end(turn.output.response_id)
        if self.asks_each_turn:
            return [*ended, Load(turn, None, frozenset())]
        return [*ended, *self._start_step(turn)]

    def _start_step(self, turn: Turn) -> list[Action]:
        """Begin the next step of a rollout."""
        try:
            job = pauses.resume(turn)
        except ApiError as error:
            return self._fail(turn, error)
        return self._hand_over(Start(turn, job), Phase.RUNNING)

    def conclude_paused(self, now: float, *, only_late: bool = False) -> list[Action]:
        """End paused rollouts, or only those past their deadline. Their calls stay open."""
        paused = [turn for turn in self.lanes.running() if turn.waits_for_client]
        due = (t for t in paused if not only_late or (t.rollout is not None and now >= t.rollout.waits_until))
        return [action for turn in due for action in self._settled(self._conclude(turn, now), now)]

    def break_off(self, now: float) -> list[Action]:
        """Cancel the running step of rollouts that have finished steps, or the hosted calls that they await,
        and keep what they have."""
        actions: list[Action] = []
        for turn in [turn for turn in self.lanes.running() if turn.can_be_broken_off]:
            actions.append(Cancel(turn))
            if turn.phase is Phase.PAUSED:
                actions += [Send(turn.end_waiting("broken_off")), *self._settled(self._go_on(turn, now), now)]
            else:
                turn.break_off()
                actions += self._settled(self._conclude(turn, now), now)
        return actions

    def abandon(self, now: float) -> list[Action]:
        """The grace period is over: stop and fail everything that runs, except saves."""
        actions = self.break_off(now)
        error = ServerError("The connection ended before this response was finished.")
        for turn in list(self.lanes.running()):
            if turn.phase is not Phase.SAVING:
                actions.append(Cancel(turn))
                actions += self._settled(self.failed(turn, error, now), now)
        return actions

    def close(self) -> list[Action]:
        """The connection is closed: cancel what runs, except saves, and release all memory."""
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
            turn.output.abandon()
        for turn in list(self._pinned):
            self._unpin(turn)
        self._finished.clear()
        self._held_back.clear()
        actions += self.growing_outputs.end_all()
        self.cache.clear()
        self.charges.close()
        return actions
