"""A session: the state machine of one connection.

The driver calls it with what happened (a frame arrived, the store answered, the engine produced deltas, time
passed), and each call returns the list of actions that the driver runs next. All of it is pure: the time is
an argument, and ids, clock and encryption are injected as ``ports``.

``Session`` takes what concerns the connection: what its client sends, the time, its end. Its ``Turns`` run
each turn as one program, and take whatever comes from outside for a turn that runs: results and failures of
its work, deltas, verdicts, progress and ends of hosted calls, lists of tools, steers and appends. A result of
work that the turn no longer waits for has no effect.
"""

from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec import structs

from slipring.base.errors import ApiError, ConnectionLimitReached, InvalidPrompt, ServerError
from slipring.core.betas import NO_BETAS, Betas, missing_rollout
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache, NoCache
from slipring.core.checks.policies import Policies
from slipring.core.checks.verdicts import Verdict
from slipring.core.generation import Emit, Models, Prefill
from slipring.core.hosted_tools import CallOutcome, CallProgress, FetchedList
from slipring.core.limits import Limits
from slipring.core.ports import Ports
from slipring.core.session import client_events, foreseen_jobs, preparation
from slipring.core.session.actions import (
    Action,
    Cancel,
    Close,
    CompileAppended,
    Compress,
    CountRefusal,
    Flush,
    Generate,
    Inspect,
    ListTools,
    LogFault,
    Record,
    ReportSteer,
    Result,
    Send,
    StartAudit,
    StartPrefill,
    Work,
)
from slipring.core.session.appends import Appends
from slipring.core.session.client_events import ClientEvent, Refused
from slipring.core.session.session_state import SessionState
from slipring.core.session.turn_program import TurnProgram
from slipring.core.turn import delivery, turn_reports
from slipring.core.turn.delivery import Deliver
from slipring.core.turn.stages import ENDED, Blocked, CutShort, Interrupted, News, Stages, Wait
from slipring.core.turn.steps import between_steps
from slipring.core.turn.turn import Asked, Turn
from slipring.protocol import requests
from slipring.protocol.events import Error
from slipring.protocol.live_input import Append, Steer, ToolOutputPiece
from slipring.protocol.requests import CreateRequest
from slipring.protocol.turn_report import TurnReport

_NORMAL, _POLICY_VIOLATION = 1000, 1008
"""Codes with which connections are closed."""
_Run = Coroutine[Wait[Any], Any, Turn | None]


class Turns:
    """The programs of the turns that run."""

    __slots__ = ("_advances", "_ends_several", "_programs", "_shared")

    def __init__(self, shared: SessionState) -> None:
        self._shared = shared
        self._programs: dict[Turn, tuple[TurnProgram, _Run]] = {}
        self._advances = False
        self._ends_several = False
        """Whether one call ends several turns: each is then settled before the next one ends."""

    # Starting turns.

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs or waits."""
        return not self._shared.lanes.in_flight and not self._shared.lanes.waiting

    def advance(self) -> None:
        """Begin every turn that may run now. If the connection is ending and idle, close it."""
        shared = self._shared
        shared.lifetime.touch(shared.now)
        if self._advances:
            return  # a turn has ended as it began: the loop below goes on
        self._advances = True
        try:
            while not shared.lifetime.is_closed and (turn := shared.lanes.next()) is not None:
                self._begin(turn)
        finally:
            self._advances = False
        if (ending := shared.lifetime.take_end(is_idle=self.is_idle)) is not None:
            shared.send([Error.of(ending.error, None)])
            shared.actions.append(Close(ending.code, ending.error.code))

    def _begin(self, turn: Turn) -> None:
        program = TurnProgram(turn, self._shared)
        self._programs[turn] = program, program.run()
        self._resume(turn)

    # Running programs.

    def _resume(self, turn: Turn, result: Any = None, error: Exception | None = None) -> None:
        """Let a turn's program run to its next wait. ``error``: what its current wait ends with."""
        program, run = self._programs[turn]
        try:
            wait = run.send(result) if error is None else run.throw(error)
            while self._ends_several and isinstance(wait, Flush):
                turn.wait = wait
                wait = run.send(None)
        except StopIteration as ended:
            successor = ended.value
        except Exception as fault:
            successor = None
            self._give_up(program, fault)
        else:
            turn.wait = wait
            if isinstance(wait, Work):
                self._shared.actions.append(wait)
            return
        turn.wait = ENDED
        del self._programs[turn]
        self._after(turn, successor)

    def _give_up(self, program: TurnProgram, fault: Exception) -> None:
        """The end of a turn has failed itself: the turn then holds nothing either, and its client gets the
        one event that ends it."""
        turn, shared, error = program.turn, self._shared, ServerError()
        shared.actions += [LogFault(fault), Cancel(turn)]
        shared.actions += shared.growing_outputs.end(turn.output.response_id)
        program.release()
        if turn.is_created or not turn.asked.follows:
            shared.send(turn.broken_end(error))
        shared.send(shared.successors.return_steers(turn, error))
        if (steers := turn.take_steers()) is not None:
            shared.send(shared.successors.after(turn, steers, None, error)[0])

    def _after(self, turn: Turn, successor: Turn | None) -> None:
        """A turn has ended: begin its successor and whatever may run now."""
        shared, ended = self._shared, turn.ended
        if successor is not None:
            self._begin(successor)
        if turn.response is not None and shared.growing_outputs.growing:
            shared.actions += shared.growing_outputs.end_unreachable(shared.cache)
        self.advance()
        if ended is not None and (state := ended.state) is not None:
            audit = turn.checks.audit(state, is_stored=turn.stores) if turn.checks is not None else None
            if audit is not None:
                shared.actions.append(StartAudit(audit))
            self._foresee(turn, state)

    def _foresee(self, turn: Turn, state: ResponseState) -> None:
        """Have the engine prefill what will probably continue a response that has just ended."""
        shared = self._shared
        if not shared.lifetime.accepts_turns or shared.lanes.is_busy(turn.asked.lane):
            return
        if state.carry.open_calls:
            shared.actions += shared.growing_outputs.advance(state.id, shared.cache)
            return
        model = turn.prepared.draft.model if turn.prepared is not None else None
        if model is None or not model.rewrites_answers:
            return  # the engine has all of the next context but its new items
        if (job := foreseen_jobs.after(turn, state, shared.models)) is not None:
            shared.actions.append(StartPrefill(state.id, Prefill(job, "user")))

    def _wake(self, turn: Turn) -> None:
        """Something has changed for a turn: a program that waits for news looks whether it can go on. One
        that waits for lists ends for its steers, once its input has passed: its successor continues that. One
        that waits for hosted calls ends after them: what has begun may have effects."""
        if isinstance(turn.wait, News):
            self._resume(turn)
        elif isinstance(turn.wait, ListTools) and turn.yields_while_listing:
            self._stop(turn, CutShort())

    def _stop(self, turn: Turn, why: Exception) -> None:
        """Cancel the work on a turn, and end its wait."""
        self._shared.actions.append(Cancel(turn))
        self._resume(turn, error=why)

    # Results of work.

    def done(self, work: Work[Result], result: Result, now: float) -> list[Action]:
        """Work of a turn has ended with this result."""
        self._shared.now = now
        if work.turn.wait is work:
            self._resume(work.turn, result)
        return self._shared.take_actions()

    def failed(self, work: Work[Any], error: ApiError, now: float) -> list[Action]:
        """Work of a turn has failed."""
        self._shared.now = now
        if work.turn.wait is work:
            self._resume(work.turn, error=error)
        return self._shared.take_actions()

    def unattended(self, turn: Turn, now: float) -> list[Action]:
        """The driver works on this turn no longer: if it waits for work, that will never end."""
        self._shared.now = now
        if turn in self._programs and isinstance(turn.wait, Work):
            self._resume(turn, error=Interrupted(ServerError()))
        return self._shared.take_actions()

    def broken(self, turn: Turn, now: float) -> list[Action]:
        """A hosted call or verdicts that a turn may wait for will never come."""
        self._shared.now = now
        if turn in self._programs:
            self._stop(turn, Interrupted(ServerError()))
        return self._shared.take_actions()

    def emitter(self, work: Generate, deliver: Deliver) -> Emit:
        """What an engine emits the deltas of a job to. Their events are delivered at once, not as actions:
        they are as many as the tokens of an answer."""
        turn, successors = work.turn, self._shared.successors
        begin = successors.commit if turn in successors.in_input else None
        return delivery.emitter(turn, work, deliver, begin)

    # What happens beside the work of a turn.

    def _is_open(self, turn: Turn) -> bool:
        """Whether the turn can still take something from outside: it runs, and its output is not closed."""
        return turn in self._programs and not turn.is_closed

    def due(self, turn: Turn) -> list[Action]:
        """The inspections and hosted calls that a batch of deltas has made possible."""
        self._shared.begin_due(turn)
        return self._shared.take_actions()

    def listed(self, work: ListTools, label: str, fetched: FetchedList, now: float) -> list[Action]:
        """An MCP server has listed its tools, or failed to."""
        self._shared.now = now
        if work.turn.wait is work:
            self._add_list(work.turn, label, fetched)
        return self._shared.take_actions()

    def _add_list(self, turn: Turn, label: str, fetched: FetchedList) -> None:
        error = fetched.refusal
        try:
            self._shared.send(turn.end_list(label, fetched))
        except ApiError as refused:
            error = refused
        if error is not None:
            self._resume(turn, error=error)
        else:
            self._shared.begin_due(turn)

    def inspected(self, inspect: Inspect, verdicts: Sequence[Sequence[Verdict]], now: float) -> list[Action]:
        """Safety checks have inspected texts: ``verdicts`` has those about each subject, failed ones
        included."""
        self._shared.now, turn = now, inspect.turn
        assert turn.checks is not None  # they have asked for the inspection
        if not self._is_open(turn):
            turn.checks.remember(inspect.inspection, verdicts)
            return []
        released = delivery.judge(turn, inspect.inspection, verdicts)
        if (error := turn.checks.error) is not None:
            self._stop(turn, Blocked(error))
        else:
            self._shared.send(released)
            self.changed(turn)
        return self._shared.take_actions()

    def call_progressed(self, turn: Turn, call_id: str, progress: CallProgress) -> list[Action]:
        """The server of a hosted call reports progress."""
        if self._is_open(turn):
            detailed = self._shared.betas.tool_progress
            self._shared.send(between_steps.progress_of(turn, call_id, progress, detailed=detailed))
            self._shared.begin_due(turn)
        return self._shared.take_actions()

    def call_ended(self, turn: Turn, call_id: str, outcome: CallOutcome, now: float) -> list[Action]:
        """A hosted call has ended."""
        self._shared.now = now
        if self._is_open(turn):
            self._shared.send(between_steps.end_call(turn, call_id, outcome))
            self.changed(turn)
        return self._shared.take_actions()

    def changed(self, turn: Turn) -> None:
        """Something has been added to a turn that runs."""
        self._shared.begin_due(turn)
        self._wake(turn)

    def block(self, turn: Turn, error: ApiError) -> None:
        """Safety checks refuse what a client has added to a turn."""
        self._stop(turn, Blocked(error))

    def compressed(self, compress: Compress, items: Sequence[bytes]) -> list[Action]:
        """The items of earlier responses are compressed, or as many of them as could be."""
        compress.cache.keep_compressed(list(zip(compress.states, items, strict=False)))
        if not self._shared.lifetime.is_closed:
            self._shared.compress(compress.cache)
        return self._shared.take_actions()

    def prefilled(self, ended: StartPrefill, tokens: int | None) -> list[Action]:
        """The engine has prefilled so many tokens of a context; None: it failed."""
        shared = self._shared
        if shared.lifetime.is_closed:
            return []
        return shared.growing_outputs.prefilled(ended, tokens, shared.cache)

    # Ending several turns at once.

    def _cut_short(self, turns: list[Turn]) -> None:
        self._ends_several = True
        try:
            for turn in turns:
                self._stop(turn, CutShort())
        finally:
            self._ends_several = False

    def conclude_paused(self, *, only_late: bool = False) -> None:
        """End paused rollouts, or only those past their deadline. Their calls stay open."""
        now = self._shared.now
        paused = [turn for turn in self._shared.lanes.running() if turn.waits_for_client]
        self._cut_short([turn for turn in paused if not only_late or between_steps.is_late(turn, now)])

    def break_off(self) -> None:
        """Cancel the running step of rollouts that have finished steps, or the hosted calls that they await,
        and keep what they have."""
        broken = [turn for turn in self._shared.lanes.running() if turn.can_be_broken_off]
        self._cut_short(broken)

    def abandon(self) -> None:
        """The grace period is over: stop and fail everything that runs, except saves."""
        self.break_off()
        error = self._shared.lifetime.cut_off_error
        self._ends_several = True
        try:
            for turn in list(self._shared.lanes.running()):
                if self._is_open(turn):
                    self._stop(turn, Interrupted(error))
        finally:
            self._ends_several = False

    def close(self) -> None:
        """The connection is closed: cancel what runs, except saves, and release all memory."""
        shared = self._shared
        for turn in [*shared.lanes.running(), *shared.lanes.queued()]:
            if turn.wait is ENDED:
                continue  # the session was closed before
            if turn.is_closed:
                shared.record(turn, turn_reports.report(turn))
            else:
                turn_reports.cut_off_stage(turn)
                if turn in self._programs:
                    shared.actions.append(Cancel(turn))
                shared.record(turn, turn_reports.report(turn, cancelled=True))
            turn.wait = ENDED
            turn.output.abandon()
        for program, run in self._programs.values():
            run.close()
            program.unpin()
        self._programs.clear()
        shared.actions += shared.growing_outputs.end_all()
        shared.cache.clear()
        shared.charges.close()


class Session:
    """The state of one connection."""

    __slots__ = ("_appends", "_lifetime", "_limits", "shared", "tenant", "turns")

    def __init__(
        self,
        *,
        tenant: str,
        models: Models,
        limits: Limits,
        ports: Ports,
        cache: ConnectionCache,
        now: float,
        policies: Policies,
        betas: Betas = NO_BETAS,
    ) -> None:
        self.tenant = tenant
        self._limits = limits
        self.shared = shared = SessionState(tenant, models, limits, ports, cache, now, betas, policies)
        self._lifetime = shared.lifetime
        self.turns = Turns(shared)
        """Takes the results of actions."""
        self._appends = Appends(shared.lanes, limits, shared.charges, ports.ignored_tools)

    @property
    def in_flight(self) -> int:
        """Turns that run."""
        return self.shared.lanes.in_flight

    def running_and_queued(self) -> list[Turn]:
        """The turns that run, then those that wait."""
        return [*self.shared.lanes.running(), *self.shared.lanes.queued()]

    @property
    def opened_at(self) -> float:
        """When the connection was opened."""
        return self._lifetime.opened_at

    @property
    def lanes(self) -> int:
        """Lanes that have been used."""
        return len(self.shared.lanes)

    @property
    def cache(self) -> ConnectionCache:
        """The states of this connection, to be read only."""
        return self.shared.cache

    @property
    def waiting(self) -> int:
        """Turns that wait in their lanes."""
        return self.shared.lanes.waiting

    # Frames and requests from the client.

    def receive(self, frame: bytes | str | ClientEvent | None, now: float) -> list[Action]:
        """A WebSocket message arrived: its text, its bytes, or what was decoded from it in a thread."""
        self.shared.now = now
        self._lifetime.touch(now)
        if self._lifetime.is_closed:
            return []
        stages = Stages(self.shared.ports.clock)
        event = client_events.read(frame, self.shared.betas) if isinstance(frame, bytes | str) else frame
        if event is None:
            return []
        if isinstance(event, Refused):
            return [_refuse(event.error), CountRefusal(event.error.code)]
        if isinstance(event, Steer):
            return self._steer(event)
        if isinstance(event, Append):
            return self._append(event, now)
        if isinstance(event, ToolOutputPiece):
            # A hint for a response that will not be continued on this connection has no effect.
            if self._lifetime.ending is not None:
                return []
            return self.shared.growing_outputs.take(event, self.shared.cache)
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
        if self._lifetime.is_closed:
            return []
        shared = self.shared
        shared.now = now
        lane_id: str | None = None
        try:
            lane_id = requests.read_lane(request.stream_id)
            lane = shared.lanes.open(lane_id)
            forked = preparation.forked_state(request, lane_id, shared.cache)
            pinned = shared.lanes.parent_to_pin(lane, forked)
            if shared.lanes.must_wait(lane):
                shared.lanes.require_room(size_bytes, self._limits)
            shared.charges.require_room(size_bytes, pinned)
        except ApiError as refusal:
            stages.lap("terminal")
            report = _refused_report(refusal, stages, size_bytes)
            return [_refuse(refusal, lane_id), Record(lane_id, report, stages.arrived)]
        asked = Asked(
            request=request,
            tenant=self.tenant,
            lane=lane_id,
            size_bytes=size_bytes,
            error=error or (missing_rollout(shared.betas) if request.rollout else None),
            detached=detached,
            short_events=shared.betas.short_events,
            parent=forked,
        )
        turn = Turn(asked, shared.ports, stages)
        shared.charges.take(turn, size_bytes, pinned)
        shared.lanes.enqueue(turn, lane)
        self.turns.advance()
        return shared.take_actions()

    def _steer(self, steer: Steer) -> list[Action]:
        """Accept or refuse a steer."""
        shared = self.shared
        shared.send([shared.successors.steer(steer, shared.cache, self._lifetime.refusal)])
        if (turn := shared.lanes.find(steer.target)) is not None:
            if turn.steers is not None:
                shared.actions.append(ReportSteer(steer.target))
            self.turns.changed(turn)
        return shared.take_actions()

    def _append(self, append: Append, now: float) -> list[Action]:
        if append.injects and append.is_malformed and append.error is not None:
            close = Close(_POLICY_VIOLATION, "invalid response.inject")
            return [*self.leave(now), _refuse(append.error), CountRefusal(append.error.code), close]
        try:
            grammars = self._appends.grammars_in(append)
        except ApiError as error:
            return self.appended(structs.replace(append, error=error), now)
        return [CompileAppended(append, grammars)] if grammars else self.appended(append, now)

    def appended(self, append: Append, now: float) -> list[Action]:
        """Handle an append whose grammars compile, or whose ``error`` says why they do not."""
        if self._lifetime.is_closed:
            return []
        shared = self.shared
        shared.now = now
        turn = shared.lanes.find(append.target)
        try:
            shared.send(self._appends.append(append, shared.cache, now))
        except InvalidPrompt as error:
            assert turn is not None  # its checks refuse what is appended
            self.turns.block(turn, error)
            return shared.take_actions()
        if turn is not None:
            self.turns.changed(turn)
        shared.actions += shared.growing_outputs.advance(append.target, shared.cache)
        return shared.take_actions()

    # Time, and the end of the connection.

    def tick(self, now: float) -> list[Action]:
        """Time has passed: check the deadlines."""
        shared, limits = self.shared, self._limits
        shared.now = now
        if self._lifetime.is_closed:
            return []
        reached = self._lifetime.reached(now, is_at_rest=self.turns.is_idle)
        if reached == "grace":
            self.turns.abandon()
        elif reached == "age":
            error = ConnectionLimitReached(limits.max_age_s)
            return self.end(error, code=_NORMAL, grace_s=limits.age_grace_s, now=now)
        elif reached == "idle":
            self._lifetime.close()
            shared.actions += [*shared.growing_outputs.end_all(), Close(_NORMAL, "idle")]
        elif self._lifetime.accepts_turns and shared.lanes.in_flight:
            self.turns.conclude_paused(only_late=True)
        return shared.take_actions()

    @property
    def rests_until(self) -> float | None:
        """For an idle connection, when it next needs a ``tick``; None if it needs regular ticks."""
        at_rest = self.turns.is_idle and self._lifetime.accepts_turns
        return self._lifetime.deadline if at_rest else None

    def end(self, error: ApiError, *, code: int, grace_s: float, now: float) -> list[Action]:
        """Wind down: refuse new and queued turns with ``error``, let running ones finish, then close.

        The error itself is sent last: clients take an error without a lane as the end of the response that
        they are reading. Turns that run longer than ``grace_s`` are stopped.
        """
        if not self._lifetime.accepts_turns:
            return []
        shared = self.shared
        shared.now = now
        self._lifetime.wind_down(error, code, now, grace_s)
        shared.send(shared.successors.return_all(error))
        shared.actions += shared.growing_outputs.end_all()
        self.turns.conclude_paused()
        self.turns.advance()
        return shared.take_actions()

    def leave(self, now: float) -> list[Action]:
        """The client has left: begin no turn, and end rollouts at their last finished step."""
        self.shared.now = now
        self._lifetime.close()
        self.turns.conclude_paused()
        self.turns.break_off()
        return self.shared.take_actions()

    def recall(self, response_id: str) -> ResponseState | None:
        """A response to continue, from this connection's cache."""
        found = self.shared.cache.find(response_id)
        if found is not None:
            self.shared.cache.count_hit()
        return found

    def detach_cache(self) -> ConnectionCache:
        """Hand over the cache, before ``closed`` would clear it."""
        cache, self.shared.cache = self.shared.cache, NoCache()
        return cache

    def closed(self) -> list[Action]:
        """The connection is closed: cancel what runs, except saves, and release all memory."""
        self._lifetime.close()
        self.turns.close()
        return self.shared.take_actions()


def _refused_report(error: ApiError, stages: Stages, size_bytes: int) -> TurnReport:
    """The report of a create that got no place in its lane."""
    return TurnReport("refused", size_bytes, stages.laps, stages.total_ms, error_code=error.code)


def _refuse(error: ApiError, lane: str | None = None) -> Send:
    return Send([Error.of(error, lane)])
