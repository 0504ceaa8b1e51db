"""A session: everything a connection knows, as a pure state machine.

Calls come in (a frame, a store's answer, an engine's deltas, the time), an eager list of actions goes out.
It owns lanes, lineage and the connection's memory. It never waits, never reads a clock, never draws a random
number: the time is an argument, and what else it takes (ids, a clock, seals) is handed in as its ``means``.
"""

from msgspec import structs

from slipring.core.betas import NONE, Betas
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache, NoMemory
from slipring.core.generation import Delta, Job, Models
from slipring.core.limits import Limits
from slipring.core.ports import Means
from slipring.core.session import client_events, turn_setup
from slipring.core.session.actions import (
    Action,
    Cancel,
    Check,
    CheckAppended,
    Close,
    Load,
    Record,
    Save,
    Send,
    Start,
    Weigh,
)
from slipring.core.session.additions import Additions
from slipring.core.session.age import Age
from slipring.core.session.ending import Ending
from slipring.core.session.lanes import Lanes
from slipring.core.session.loaded import Loaded
from slipring.core.session.request_charges import Charges
from slipring.core.session.succession import Succession
from slipring.core.turn import rollout
from slipring.core.turn.phase import Phase
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError, ConnectionLimitReached, ServerError
from slipring.protocol import requests
from slipring.protocol.events import Error, Event
from slipring.protocol.requests import CreateRequest

_POLICY_VIOLATION = 1008
_RUNNING = Phase.RUNNING  # looking a member up on its enum costs more than the rest of that line


class Session:
    """The state of one connection."""

    __slots__ = (
        "_additions",
        "_age",
        "_betas",
        "_cache",
        "_charges",
        "_closed",
        "_ending",
        "_finished",
        "_lanes",
        "_limits",
        "_means",
        "_models",
        "_succession",
        "asks_each_turn",
        "tenant",
    )

    def __init__(
        self,
        *,
        tenant: str,
        models: Models,
        limits: Limits,
        means: Means,
        cache: ConnectionCache,
        now: float,
        betas: Betas = NONE,
    ) -> None:
        self.tenant = tenant
        self.asks_each_turn = False
        """Whether a turn begins with a ``Load`` even if nothing is missing, so that the driver can say no."""
        self._betas = betas
        self._models = models
        self._limits = limits
        self._means = means
        self._cache = cache
        self._lanes = Lanes(limits.max_in_flight, limits.max_lanes)
        self._charges = Charges(means.requests, tenant)
        self._succession = Succession(limits, means, models, self._charges)
        self._additions = Additions(self._lanes, limits, self._succession, self._charges)
        self._finished: dict[Turn, ResponseState] = {}
        self._age = Age(limits, now)
        self._ending: Ending | None = None
        self._closed = False

    @property
    def in_flight(self) -> int:
        return self._lanes.in_flight

    @property
    def waiting(self) -> int:
        return self._lanes.waiting

    # What the client says.

    def receive(self, frame: bytes | str | client_events.Read, now: float) -> list[Action]:
        """A message arrived on the socket: text, bytes that should have been text, or what was read of it."""
        self._age.touch(now)
        if self._closed:
            return []
        stages = Stages(self._means.clock)
        try:
            asked = (
                client_events.read(frame, self._betas)
                if not isinstance(frame, client_events.Read)
                else frame.result()
            )
        except ApiError as error:
            return [_refuse(error)]
        if asked is None:
            return []
        if isinstance(asked, client_events.Steer):
            return [Send([self._additions.steer(asked, self._cache, self._refusing)])]
        if isinstance(asked, client_events.Append):
            return self._append(asked, now)
        stages.lap("decode")
        return self.create(asked.request, stages, size_bytes=asked.size_bytes, now=now, error=asked.error)

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
        """A response is asked for. It takes its place in its lane, even if only to be refused there.

        ``detached``: its client will not wait for it.
        """
        if self._closed:
            return []
        lane: str | None = None
        try:
            lane = requests.read_lane(request.stream_id)
            if self._lanes.must_wait(self._lanes.open(lane)):
                self._lanes.require_room(size_bytes, self._limits)
            self._charges.require_room(size_bytes)
        except ApiError as refusal:
            return [_refuse(refusal, lane)]
        turn = Turn(
            request,
            tenant=self.tenant,
            lane=lane,
            size_bytes=size_bytes,
            means=self._means,
            stages=stages,
            error=self._refusing or error or rollout.objection_to(request, self._betas),
            detached=detached,
        )
        self._charges.take(turn, size_bytes)
        turn_setup.pin(turn, self._cache)
        self._lanes.enqueue(turn)
        return self._advance(now)

    # What the driver reports.

    def loaded(self, turn: Turn, loaded: Loaded, now: float) -> list[Action]:
        """The store has answered a ``Load``."""
        if turn.may_resume:
            return [Start(turn, turn.resume())]
        if turn.phase is not Phase.LOADING:
            return []
        try:
            turn_setup.take(turn, loaded)
        except ApiError as error:
            return self._reject(turn, error, now)
        return self._start(turn, now) + self._advance(now)

    def checked(self, check: Check) -> list[Action]:
        """What a request defines has been compiled."""
        return self._accept(check.turn, check.job) if check.turn.phase is Phase.CHECKING else []

    def weighed(self, weigh: Weigh, tokens: int) -> list[Action]:
        """The engine has counted the tokens of a job."""
        turn = weigh.turn
        if turn.phase is not Phase.PREPARING:
            return []
        turn.stages.lap("weigh")
        return [Start(turn, turn.first_job(weigh.job, tokens))]

    def deltas(self, turn: Turn, deltas: list[Delta]) -> list[Event]:
        """The engine produced something; what to tell the client.

        The hot path, once per token of every answer: nothing can follow from it but events.
        """
        if turn.phase is _RUNNING:
            return turn.feed(deltas)
        if turn.phase is not Phase.PREPARING:
            return []
        self._succession.commit(turn)
        return turn.accept(deltas)

    def finished(self, turn: Turn, now: float) -> list[Action]:
        """The engine is done with a turn."""
        if turn.phase not in (Phase.PREPARING, Phase.RUNNING):
            return []
        told: list[Event] = []
        if turn.is_compacting:
            try:
                told, job = turn.compacted()
            except ApiError as error:
                return self.failed(turn, error, now)
            if job is not None:
                return [Send(told), Start(turn, job)]
        if turn.rollout is not None and self._ending is None:
            limits = self._limits
            paused, more = turn.pause(now + limits.rollout_wait_s, limits.connection_cache_bytes)
            told += more
            if paused:
                return [Send(told), *self._go_on(turn)]
        return [Send(told), *self._conclude(turn, now)]

    def saved(self, turn: Turn, now: float) -> list[Action]:
        """A response is as durable as it was asked to be; only now may it be called complete."""
        if turn.phase is not Phase.SAVING:
            return []
        if turn.saves:
            turn.stages.lap("store")
        self._cache.remember(self._finished[turn], turn.lane)
        return self._end(turn, [turn.terminal()], now)

    def failed(self, turn: Turn, error: ApiError, now: float) -> list[Action]:
        """The engine or the store could not do its part."""
        if turn.phase is Phase.CHECKING:
            return self._reject(turn, turn_setup.relocated(turn, error), now)
        if turn.phase is Phase.LOADING or (turn.phase is Phase.PREPARING and not turn.detached):
            return self._reject(turn, error, now)
        if turn.phase is Phase.PAUSED:
            return self._conclude(turn, now)  # it may not go on
        if turn.phase not in (Phase.PREPARING, Phase.RUNNING, Phase.SAVING):
            return []
        self._evict_parent(turn)
        self._finished.pop(turn, None)  # what cannot be saved leaves nothing
        left = self._succession.give_back(turn, error)
        return self._end(turn, turn.fail(error) + left, now)

    # Time, and the end.

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self._closed:
            return []
        if self._ending is not None:
            return self._abandon(now) if now >= self._ending.deadline else []
        limits = self._limits
        if self._age.is_reached(now):
            error = ConnectionLimitReached(limits.max_age_s)
            return self.end(error, code=1000, grace_s=limits.age_grace_s, now=now)
        if self._idle and self._age.is_idle(now):
            self._closed = True
            return [Close(1000, "idle")]
        return self._settle(now, late=True) if self._lanes.in_flight else []

    @property
    def rests_until(self) -> float | None:
        """When ``tick`` has something to do if nothing happens before; None: it may have so any moment."""
        at_rest = self._idle and self._ending is None and not self._closed
        return self._age.deadline if at_rest else None

    def end(self, error: ApiError, *, code: int, grace_s: float, now: float) -> list[Action]:
        """Wind down: running turns may finish, everything else is refused with ``error``, then close.

        The notice itself goes out when nothing runs any more: clients take an error without a lane as the
        end of what they are reading.
        """
        if self._closed or self._ending is not None:
            return []
        self._ending = Ending(error=error, code=code, deadline=now + grace_s)
        for turn in self._lanes.queued():
            turn.error = error
        # No create will come any more that could take them.
        left = self._succession.give_all_back(error)
        return [*([Send(left)] if left else []), *self._settle(now), *self._advance(now)]

    def leave(self, now: float) -> list[Action]:
        """The client will not answer any more: nothing is begun, and rollouts end as they are."""
        self._closed = True
        return [*self._settle(now), *self._break_off(now)]

    def recall(self, response_id: str) -> ResponseState | None:
        """A response that this connection remembers."""
        return self._cache.find(response_id)

    def bequeath(self) -> ConnectionCache:
        """Give away all that this connection remembers, before it is closed."""
        cache, self._cache = self._cache, NoMemory()
        return cache

    def closed(self) -> list[Action]:
        """The connection is gone: nobody reads what is made. What is being saved is saved, and counts."""
        self._closed = True
        actions: list[Action] = []
        for turn in list(self._lanes.running()):
            saves = turn.phase is Phase.SAVING
            actions.append(Record(turn.lane, turn.report()) if saves else Cancel(turn))
            turn.phase = Phase.ENDED
        self._finished.clear()
        self._cache.clear()
        self._charges.close()
        return actions

    # Within.

    @property
    def _idle(self) -> bool:
        return not self._lanes.in_flight and not self._lanes.waiting

    @property
    def _refusing(self) -> ApiError | None:
        """Why no response can be begun any more, where that is so."""
        if self._ending is not None:
            return self._ending.error
        return ServerError("The connection has ended.") if self._closed else None

    def _advance(self, now: float) -> list[Action]:
        """Begin every turn that may run now; at the end of a connection, close it when all is quiet."""
        self._age.touch(now)
        actions: list[Action] = []
        while not self._closed and (turn := self._lanes.next()) is not None:
            actions += self._begin(turn, now)
        if self._ending is not None and self._idle and not self._closed:
            self._closed = True
            actions += [_refuse(self._ending.error), Close(self._ending.code, self._ending.error.code)]
        return actions

    def _begin(self, turn: Turn, now: float) -> list[Action]:
        """A turn's time has come: bind its parent, from memory or from the store."""
        turn.stages.lap("queue")
        try:
            load = turn_setup.bind(turn, self._cache, self._succession)
        except ApiError as error:
            return self._drop(turn, error)
        if load.is_empty and not self.asks_each_turn:
            return self._start(turn, now)
        turn.phase = Phase.LOADING
        return [load]

    def _start(self, turn: Turn, now: float) -> list[Action]:
        turn.stages.lap("resolve")
        try:
            job, grammars = turn_setup.begin(turn, self._models, self._means, self._limits, now)
        except ApiError as error:
            return self._drop(turn, error)
        if grammars:
            turn.phase = Phase.CHECKING
            return [Check(turn, job, grammars)]
        return self._accept(turn, job)

    def _accept(self, turn: Turn, job: Job) -> list[Action]:
        """A request is right: the engine may begin."""
        turn.phase = Phase.PREPARING
        turn.stages.lap("validate")
        first = Weigh(turn, job) if turn.must_weigh else Start(turn, turn.first_job(job))
        return [Send(turn.enqueue()), first] if turn.detached else [first]

    def _conclude(self, turn: Turn, now: float) -> list[Action]:
        """Nothing is to be added to a response any more."""
        closing, state = turn.finish(now)
        self._finished[turn] = state
        turn.phase = Phase.SAVING
        return [Send(closing), *([Save(turn, state)] if turn.saves else self.saved(turn, now))]

    def _reject(self, turn: Turn, error: ApiError, now: float) -> list[Action]:
        return self._drop(turn, error) + self._advance(now)

    def _drop(self, turn: Turn, error: ApiError) -> list[Action]:
        """Refuse a turn whose response never came to be."""
        told = self._succession.give_back(turn, error)
        if not turn.follows:
            self._evict_parent(turn)
            told.append(Error.of(error, turn.lane))
        turn.phase = Phase.ENDED
        self._charges.release(turn)
        self._lanes.release(turn)
        turn.stages.lap("terminal")
        return [Send(told), Record(turn.lane, turn.report(error))]

    def _end(self, turn: Turn, last: list[Event], now: float) -> list[Action]:
        """A response is over, with its last events; others may go on."""
        turn.phase = Phase.ENDED
        self._charges.release(turn)
        state = self._finished.pop(turn, None)
        turn.stages.lap("terminal")
        report = turn.report()
        if self._betas.timing:
            last.append(turn.output.tell_timing(report))
        told, successor = self._succession.after(turn, state, self._refusing)
        over: list[Action] = [Send(last + told), Record(turn.lane, report)]
        if successor is None:
            self._lanes.release(turn)
        else:
            self._lanes.succeed(turn, successor)
            over += self._begin(successor, now)
        return over + self._advance(now)

    def _evict_parent(self, turn: Turn) -> None:
        """A continuation that fails on the lane of its parent takes the parent with it; a fork does not."""
        previous = turn.request.previous_response_id
        if previous is not None and previous in self._cache and self._cache.lane_of(previous) == turn.lane:
            self._cache.evict(previous)

    def _append(self, asked: client_events.Append, now: float) -> list[Action]:
        if asked.injects and asked.is_malformed and asked.error is not None:
            close = Close(_POLICY_VIOLATION, "invalid response.inject")
            return [*self.leave(now), _refuse(asked.error), close]
        try:
            grammars = self._additions.defined_by(asked)
        except ApiError as error:
            return self.appended(structs.replace(asked, error=error), now)
        return [CheckAppended(asked, grammars)] if grammars else self.appended(asked, now)

    def appended(self, asked: client_events.Append, now: float) -> list[Action]:
        """Something is appended, with nothing in it that is still to be compiled."""
        if self._closed:
            return []
        told, resuming = self._additions.append(asked, self._cache, now)
        return [Send(told), *([] if resuming is None else self._go_on(resuming))]

    def _settle(self, now: float, *, late: bool = False) -> list[Action]:
        """Rollouts that wait for their client, or only those that have waited too long, end as they are: with
        calls that are open, as any response may."""
        paused = [turn for turn in self._lanes.running() if turn.phase is Phase.PAUSED]
        due = (t for t in paused if not late or (t.rollout is not None and now >= t.rollout.waits_until))
        return [action for turn in due for action in self._conclude(turn, now)]

    def _go_on(self, turn: Turn) -> list[Action]:
        """Go on with a rollout, if it has all that it waits for, and may."""
        if not turn.may_resume:
            return []
        return [Load(turn, None, frozenset())] if self.asks_each_turn else [Start(turn, turn.resume())]

    def _break_off(self, now: float) -> list[Action]:
        """End rollouts in the middle of a step: what was done before is kept."""
        actions: list[Action] = []
        for turn in [turn for turn in self._lanes.running() if turn.can_be_broken_off]:
            turn.break_off()
            actions += [Cancel(turn), *self._conclude(turn, now)]
        return actions

    def _abandon(self, now: float) -> list[Action]:
        """The grace is over: what still runs is stopped and says so. What is finished is being saved."""
        actions = self._break_off(now)
        error = ServerError("The connection ended before this response was finished.")
        for turn in list(self._lanes.running()):
            if turn.phase is not Phase.SAVING:
                actions.append(Cancel(turn))
                actions += self.failed(turn, error, now)
        return actions


def _refuse(error: ApiError, lane: str | None = None) -> Send:
    return Send([Error.of(error, lane)])
