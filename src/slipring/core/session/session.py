"""A session: the state machine of one connection.

The driver calls it with what happened (a frame arrived, the store answered, the engine produced deltas, time
passed), and each call returns the list of actions that the driver runs next. A session owns the lifetime of
its connection and reads what its client sends; its ``Turns`` run the turns, each as one program. All of it is
pure: the time is an argument, and ids, clock and encryption are injected as ``ports``.
"""

from msgspec import structs

from slipring.base.errors import ApiError, ConnectionLimitReached, InvalidPrompt
from slipring.core.betas import NO_BETAS, Betas
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache, NoCache
from slipring.core.checks.policies import Policies
from slipring.core.generation import Models
from slipring.core.limits import Limits
from slipring.core.ports import Ports
from slipring.core.session import client_events, preparation
from slipring.core.session.actions import (
    Action,
    Close,
    CompileAppended,
    CountRefusal,
    Record,
    Send,
)
from slipring.core.session.appends import Appends
from slipring.core.session.client_events import ClientEvent, Refused
from slipring.core.session.session_state import SessionState
from slipring.core.session.turns import Turns
from slipring.core.turn.stages import Stages
from slipring.core.turn.steps import rollout
from slipring.core.turn.turn import Turn
from slipring.core.turn.turn_values import Asked
from slipring.protocol import requests
from slipring.protocol.events import Error
from slipring.protocol.live_input import Append, Steer
from slipring.protocol.requests import CreateRequest
from slipring.protocol.tool_output import ToolOutputPiece
from slipring.protocol.turn_report import TurnReport

_NORMAL = 1000
_POLICY_VIOLATION = 1008


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
            error=error or (rollout.missing_beta(shared.betas) if request.rollout else None),
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
