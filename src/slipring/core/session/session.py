"""A session: the state machine of one connection.

The driver calls it with what happened (a frame arrived, the store answered, the engine produced deltas, time
passed), and each call returns the list of actions that the driver runs next. A session owns the lifetime of
its connection and reads what its client sends; its ``TurnLifecycle`` owns the turns. Both are pure: they
never wait, the time is an argument, and ids, clock and encryption are injected as ``ports``.
"""

from msgspec import structs

from slipring.base.errors import ApiError, ConnectionLimitReached, InvalidPrompt, forget_frames
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache, NoCache
from slipring.core.checks.turn_policy import Policies
from slipring.core.generation import Models
from slipring.core.limits import Limits
from slipring.core.ports import NO_BETAS, Betas, Ports
from slipring.core.session import client_events, turn_setup
from slipring.core.session.actions import (
    Action,
    CheckAppended,
    Close,
    Record,
    Refused,
    Send,
)
from slipring.core.session.connection_lifetime import ConnectionLifetime, Ending
from slipring.core.session.live_input_routing import LiveInput
from slipring.core.session.turn_lifecycle import TurnLifecycle
from slipring.core.turn.stages import Stages
from slipring.core.turn.steps import rollout
from slipring.core.turn.turn import Turn
from slipring.protocol import requests
from slipring.protocol.events import Error
from slipring.protocol.live_input import Append, Steer
from slipring.protocol.requests import CreateRequest
from slipring.protocol.timing import TurnReport
from slipring.protocol.tool_output import ToolOutputPiece

_NORMAL = 1000
_POLICY_VIOLATION = 1008


class Session:
    """The state of one connection."""

    __slots__ = ("_betas", "_lifetime", "_limits", "_live_input", "_ports", "lifecycle", "tenant")

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
        self._betas = betas
        self._limits = limits
        self._ports = ports
        self._lifetime = ConnectionLifetime(limits, now)
        lifecycle = TurnLifecycle(tenant, models, limits, ports, cache, self._lifetime, betas, policies)
        self.lifecycle = lifecycle
        """Takes the results of actions."""
        self._live_input = LiveInput(
            lifecycle.lanes, limits, lifecycle.successors, lifecycle.charges, ports.ignored_tools
        )

    @property
    def in_flight(self) -> int:
        """Turns that run."""
        return self.lifecycle.lanes.in_flight

    def turns(self) -> list[Turn]:
        """The turns that run, then those that wait."""
        return self.lifecycle.turns()

    @property
    def opened_at(self) -> float:
        """When the connection was opened."""
        return self._lifetime.opened_at

    @property
    def lanes(self) -> int:
        """Lanes that have been used."""
        return len(self.lifecycle.lanes)

    @property
    def cache(self) -> ConnectionCache:
        """The states of this connection, to be read only."""
        return self.lifecycle.cache

    @property
    def waiting(self) -> int:
        """Turns that wait in their lanes."""
        return self.lifecycle.lanes.waiting

    # Frames and requests from the client.

    def receive(self, frame: bytes | str | client_events.Read, now: float) -> list[Action]:
        """A WebSocket message arrived: its text, its bytes, or what was decoded from it in a thread."""
        self._lifetime.touch(now)
        if self._lifetime.is_closed:
            return []
        stages = Stages(self._ports.clock)
        try:
            event = (
                client_events.read(frame, self._betas)
                if not isinstance(frame, client_events.Read)
                else frame.result()
            )
        except ApiError as error:
            forget_frames(error)
            return [_refuse(error), Refused(error.code)]
        if event is None:
            return []
        if isinstance(event, Steer):
            return self._steer(event, now)
        if isinstance(event, Append):
            return self._append(event, now)
        if isinstance(event, ToolOutputPiece):
            # A hint for a response that will not be continued on this connection has no effect.
            if self._lifetime.ending is not None:
                return []
            return self.lifecycle.growing_outputs.take(event, self.lifecycle.cache)
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
        lane_id: str | None = None
        try:
            lane_id = requests.read_lane(request.stream_id)
            lane = self.lifecycle.lanes.open(lane_id)
            forked = turn_setup.forked_state(request, lane_id, self.lifecycle.cache)
            waits = self.lifecycle.lanes.must_wait(lane)
            pinned = forked if waits else None
            if waits:
                self.lifecycle.lanes.require_room(size_bytes, self._limits)
            self.lifecycle.charges.require_room(size_bytes, pinned)
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
            error=self._lifetime.refusal or error or rollout.missing_beta(request, self._betas),
            detached=detached,
        )
        turn.short_events = self._betas.short_events
        self.lifecycle.charges.take(turn, size_bytes, pinned)
        turn.parent, turn.forks = forked, forked is not None
        self.lifecycle.lanes.enqueue(turn, lane)
        return self.lifecycle.advance(now)

    def _steer(self, steer: Steer, now: float) -> list[Action]:
        """Accept or refuse a steer. A response that waits for lists of tools is ended for it at once."""
        answer = Send([self._live_input.steer(steer, self.lifecycle.cache, self._lifetime.refusal)])
        turn = self.lifecycle.lanes.find(steer.target)
        return [answer] if turn is None else [answer, *self.lifecycle.yield_to_steers(turn, now)]

    def _append(self, append: Append, now: float) -> list[Action]:
        if append.injects and append.is_malformed and append.error is not None:
            close = Close(_POLICY_VIOLATION, "invalid response.inject")
            return [*self.leave(now), _refuse(append.error), Refused(append.error.code), close]
        try:
            grammars = self._live_input.grammars_in(append)
        except ApiError as error:
            return self.appended(structs.replace(append, error=error), now)
        return [CheckAppended(append, grammars)] if grammars else self.appended(append, now)

    def appended(self, append: Append, now: float) -> list[Action]:
        """Handle an append whose grammars compile, or whose ``error`` says why they do not."""
        if self._lifetime.is_closed:
            return []
        turn = self.lifecycle.lanes.find(append.target)
        try:
            emitted, resumable = self._live_input.append(append, self.lifecycle.cache, now)
        except InvalidPrompt as error:
            assert turn is not None  # its checks refuse what is appended
            return self.lifecycle.block(turn, error)
        inspections = self.lifecycle.due_inspections(turn) if turn is not None else []
        if resumable is not None:
            return [Send(emitted), *inspections, *self.lifecycle.resume(resumable)]
        advanced = self.lifecycle.growing_outputs.advance(append.target, self.lifecycle.cache)
        return [Send(emitted), *inspections, *advanced]

    # Time, and the end of the connection.

    def tick(self, now: float) -> list[Action]:
        """Time has passed: check the deadlines."""
        if self._lifetime.is_closed:
            return []
        if self._lifetime.ending is not None:
            return self.lifecycle.abandon(now) if now >= self._lifetime.ending.deadline else []
        limits = self._limits
        if self._lifetime.is_over(now):
            error = ConnectionLimitReached(limits.max_age_s)
            return self.end(error, code=_NORMAL, grace_s=limits.age_grace_s, now=now)
        if self.lifecycle.is_idle and self._lifetime.is_idle(now):
            self._lifetime.is_closed = True
            return [*self.lifecycle.growing_outputs.end_all(), Close(_NORMAL, "idle")]
        return self.lifecycle.conclude_paused(now, only_late=True) if self.lifecycle.lanes.in_flight else []

    @property
    def rests_until(self) -> float | None:
        """For an idle connection, when it next needs a ``tick``; None if it needs regular ticks."""
        at_rest = self.lifecycle.is_idle and self._lifetime.accepts_turns
        return self._lifetime.deadline if at_rest else None

    def end(self, error: ApiError, *, code: int, grace_s: float, now: float) -> list[Action]:
        """Wind down: refuse new and queued turns with ``error``, let running ones finish, then close.

        The error itself is sent last: clients take an error without a lane as the end of the response that
        they are reading. Turns that run longer than ``grace_s`` are stopped.
        """
        if self._lifetime.is_closed or self._lifetime.ending is not None:
            return []
        self._lifetime.ending = Ending(error=error, code=code, deadline=now + grace_s)
        for turn in self.lifecycle.lanes.queued():
            turn.error = error
        returned = self.lifecycle.successors.return_all(error)
        sends = [Send(returned)] if returned else []
        prefills = self.lifecycle.growing_outputs.end_all()
        return [*sends, *prefills, *self.lifecycle.conclude_paused(now), *self.lifecycle.advance(now)]

    def leave(self, now: float) -> list[Action]:
        """The client has left: begin no turn, and end rollouts at their last finished step."""
        self._lifetime.is_closed = True
        return [*self.lifecycle.conclude_paused(now), *self.lifecycle.break_off(now)]

    def recall(self, response_id: str) -> ResponseState | None:
        """A response to continue, from this connection's cache."""
        found = self.lifecycle.cache.find(response_id)
        if found is not None:
            self.lifecycle.cache.count_hit()
        return found

    def detach_cache(self) -> ConnectionCache:
        """Hand over the cache, before ``closed`` would clear it."""
        cache, self.lifecycle.cache = self.lifecycle.cache, NoCache()
        return cache

    def closed(self) -> list[Action]:
        """The connection is closed: cancel what runs, except saves, and release all memory."""
        self._lifetime.is_closed = True
        return self.lifecycle.close()


def _refused_report(error: ApiError, stages: Stages, size_bytes: int) -> TurnReport:
    """The report of a create that got no place in its lane."""
    return TurnReport("refused", size_bytes, stages.laps, stages.total_ms, error_code=error.code)


def _refuse(error: ApiError, lane: str | None = None) -> Send:
    return Send([Error.of(error, lane)])
