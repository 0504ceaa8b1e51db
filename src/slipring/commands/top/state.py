"""Folds the messages of a live stream into one view of the server. Without I/O; times are the server's.

Everything that is kept is bounded, whatever a server sends: the number of processes, of the connections and
ended turns of each, and the samples that rates are computed from.
"""

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from msgspec import UNSET, Struct

from slipring.observation.live_messages import (
    Connection,
    Engine,
    Greeting,
    Memory,
    Message,
    Parked,
    ProcessGone,
    TenantMemory,
    Totals,
    Turn,
    Update,
    sum_of,
)

WINDOW_S = 10.0
"""Rates and the longest delay of the event loop are those of this time."""
MOST_PROCESSES = 1024
MOST_CONNECTIONS = 20_000
"""Of one process. Beyond it, those that have not changed for the longest time are left out."""
MOST_TURNS = 200
"""Ended turns, of each process and in a view."""
_MOST_SAMPLES = 64
_LEAST_S = 0.4
"""No rate is computed over less: a single turn would look like many."""
_MOST_COUNTED = 2**63
"""Larger differences of counters are taken for this: a float can hold them."""


# --- The view ---------------------------------------------------------------------------------------


class Rates(Struct, frozen=True):
    """Averages of the last ten seconds, or of the time since the stream began. Turns and tokens are counted
    when a turn ends. What a process had counted before it was first heard of is in no rate; what one has
    counted that has ended since is."""

    turns_per_s: float
    input_tokens_per_s: float
    cached_tokens_per_s: float
    output_tokens_per_s: float
    history_bytes_per_s: float
    """Bytes of earlier items that clients did not have to send."""
    cpu_percent: float
    """Of one core; all processes together."""


class ProcessView(Struct, frozen=True):
    """A process that serves clients."""

    process: int
    pid: int
    resident_bytes: int
    cpu_percent: float | None
    """Of one core. None: not known yet."""
    loop_lag_ms: float
    """The longest that its event loop was late in the last ten seconds."""
    sockets: int
    in_flight: int
    waiting: int
    is_draining: bool


class EngineView(Struct, frozen=True):
    """An engine, as one process sees it."""

    process: int
    engine: Engine


class ConnectionView(Struct, frozen=True):
    """An open WebSocket."""

    process: int
    connection: Connection
    last_turn: Turn | None
    """The latest of its ended turns."""
    idle_s: float | None
    """Time since its last turn ended. None: a turn runs or waits, or none has ended."""


class TurnView(Struct, frozen=True):
    """A turn of one process."""

    process: int
    turn: Turn


class ParkedView(Struct, frozen=True):
    """The states of a dropped connection in one process."""

    process: int
    parked: Parked


class View(Struct, frozen=True):
    """What a server does, all its processes together."""

    version: str
    api_url: str
    now: float
    """Unix time of the latest message, by the server's clock."""
    uptime_s: float
    workers: int
    """Number of processes that should serve clients."""
    is_complete: bool
    """Whether each of them has reported its complete state."""
    processes: list[ProcessView]
    sockets: int
    in_flight: int
    waiting: int
    resident_bytes: int
    loop_lag_ms: float
    rates: Rates | None
    """None: no process has been watched long enough."""
    totals: Totals
    """Since the server started, of processes that have ended too."""
    memory: dict[str, Memory]
    """By what uses it; the sum of all processes, of the bounds too."""
    tenants: list[TenantMemory]
    """Those that use the most, first."""
    engines: list[EngineView]
    """Those in trouble first."""
    connections: list[ConnectionView]
    """By activity: those with the oldest running turn first, then those whose last turn has ended last."""
    http: list[TurnView]
    """Turns of HTTP requests and background runs that run or wait, oldest first."""
    turns: list[TurnView]
    """The latest ended turns, newest first."""
    parked: list[ParkedView]
    """Those with the least time left, first."""
    parked_sessions: int


# --- Turns ------------------------------------------------------------------------------------------


def ended_at(turn: Turn) -> float:
    """Unix time at which an ended turn had ended."""
    return turn.started_at + turn.report.total_ms / 1000


def phase_started_at(turn: Turn) -> float:
    """Unix time at which the present phase of a turn began: the end of its latest stage."""
    ends = (stage.start_ms + stage.duration_ms for stage in turn.report.stages)
    return turn.started_at + max(ends, default=0.0) / 1000


# --- Folding ----------------------------------------------------------------------------------------


class State:
    """What a stream has said so far. A greeting begins anew."""

    def __init__(self) -> None:
        self._greeting: Greeting | None = None
        self._processes: dict[int, _Process] = {}
        self._ended: deque[deque[_Sample]] = deque(maxlen=MOST_PROCESSES)
        """The samples of processes that ended lately."""
        self._departed = Totals()

    def fold(self, message: Message) -> None:
        """Take the next message of the stream."""
        if isinstance(message, Greeting):
            self._greeting = message
            self._processes = {}
            self._ended.clear()
            self._departed = message.departed
        elif isinstance(message, ProcessGone):
            self._end(message.process)
            self._departed = message.departed
        else:
            self._fold_update(message)

    @property
    def is_complete(self) -> bool:
        """Whether each worker has reported its complete state."""
        complete = sum(process.is_complete for process in self._processes.values())
        return self._greeting is not None and complete >= max(self._greeting.workers, 1)

    def _fold_update(self, update: Update) -> None:
        known = self._processes.get(update.process)
        if known is not None and known.latest.pid == update.pid:
            known.fold(update)
            return
        self._end(update.process)
        if len(self._processes) < MOST_PROCESSES:
            self._processes[update.process] = _Process(update)

    def _end(self, process: int) -> None:
        ended = self._processes.pop(process, None)
        if ended is not None:
            self._ended.append(ended.samples)

    def view(self) -> View | None:
        """Everything that is known, all processes together. None: the stream has not begun."""
        greeting = self._greeting
        if greeting is None:
            return None
        processes = [self._processes[number] for number in sorted(self._processes)]
        updates = [process.latest for process in processes]
        now = max((greeting.now, *(update.now for update in updates)))
        shown = [process.view() for process in processes]
        return View(
            version=greeting.version,
            api_url=greeting.api_url,
            now=now,
            uptime_s=max(now - greeting.started_at, 0.0),
            workers=greeting.workers,
            is_complete=self.is_complete,
            processes=shown,
            sockets=sum(each.sockets for each in shown),
            in_flight=sum(each.in_flight for each in shown),
            waiting=sum(each.waiting for each in shown),
            resident_bytes=sum(each.resident_bytes for each in shown),
            loop_lag_ms=max((each.loop_lag_ms for each in shown), default=0.0),
            rates=_rates([*(process.samples for process in processes), *self._ended], now),
            totals=sum_of((self._departed, *(update.totals for update in updates))),
            memory=_sum_of_memory(update.memory for update in updates),
            tenants=_sum_of_tenants(update.tenants for update in updates),
            engines=_engines(updates),
            connections=_connections(processes, now),
            http=_running_http_turns(updates),
            turns=_latest_turns(processes),
            parked=_parked(updates),
            parked_sessions=sum(update.parked_sessions for update in updates),
        )


class _Sample(Struct, frozen=True):
    """The counters of a process at one time."""

    at: float
    turns: int
    input: int
    cached: int
    output: int
    history_bytes: int
    cpu_s: float
    loop_lag_ms: float


class _Process:
    """One process: its latest update, its connections, and its latest turns."""

    def __init__(self, update: Update) -> None:
        self.latest = update
        self.is_complete = False
        self.connections: dict[int, Connection] = {}
        """By number, in the order of their last change."""
        self.last_turns: dict[int, Turn] = {}
        """By number of the connection."""
        self.turns: deque[Turn] = deque(maxlen=MOST_TURNS)
        """In the order in which they ended."""
        self.samples: deque[_Sample] = deque(maxlen=_MOST_SAMPLES)
        self.fold(update)

    def fold(self, update: Update) -> None:
        if update.is_complete:
            self.is_complete = True
            self.connections.clear()
            self.last_turns.clear()
            self.turns.clear()
        self.latest = update
        ended = list(update.turns)
        for connection in update.connections:
            if update.is_complete and connection.recent is not UNSET:
                ended += connection.recent
            self.connections.pop(connection.number, None)
            self.connections[connection.number] = connection
        ended.sort(key=ended_at)
        self.turns.extend(ended)
        for turn in ended:
            if turn.connection in self.connections:
                self.last_turns[turn.connection] = turn
        for number in update.closed:
            self._forget(number)
        while len(self.connections) > MOST_CONNECTIONS:
            self._forget(next(iter(self.connections)))
        self._measure(update)

    def _forget(self, number: int) -> None:
        self.connections.pop(number, None)
        self.last_turns.pop(number, None)

    def _measure(self, update: Update) -> None:
        if self.samples and update.now < self.samples[-1].at:
            self.samples.clear()  # the server's clock was set back
        tokens = update.totals.tokens
        self.samples.append(
            _Sample(
                at=update.now,
                turns=sum(update.totals.turns.values()),
                input=tokens.get("input", 0),
                cached=tokens.get("cached", 0),
                output=tokens.get("output", 0),
                history_bytes=update.totals.history_bytes,
                cpu_s=update.cpu_s,
                loop_lag_ms=update.loop_lag_ms,
            )
        )
        while len(self.samples) > 2 and self.samples[1].at <= update.now - WINDOW_S:
            self.samples.popleft()

    def view(self) -> ProcessView:
        latest, rates = self.latest, _rates([self.samples], self.samples[-1].at)
        return ProcessView(
            process=latest.process,
            pid=latest.pid,
            resident_bytes=latest.resident_bytes,
            cpu_percent=None if rates is None else rates.cpu_percent,
            loop_lag_ms=max(sample.loop_lag_ms for sample in self.samples),
            sockets=latest.sockets,
            in_flight=latest.in_flight,
            waiting=latest.waiting,
            is_draining=latest.is_draining,
        )


# --- Of all processes together ----------------------------------------------------------------------


def _rates(histories: Iterable[deque[_Sample]], now: float) -> Rates | None:
    """The rates of several processes together, over one window that is the same for all of them."""
    known = [samples for samples in histories if samples[-1].at > now - WINDOW_S]
    start = max(min((samples[0].at for samples in known), default=now), now - WINDOW_S)
    seconds = now - start
    if seconds < _LEAST_S:
        return None

    def per_second(name: str) -> float:
        return min(sum(_counted(samples, name, start) for samples in known), _MOST_COUNTED) / seconds

    return Rates(
        turns_per_s=per_second("turns"),
        input_tokens_per_s=per_second("input"),
        cached_tokens_per_s=per_second("cached"),
        output_tokens_per_s=per_second("output"),
        history_bytes_per_s=per_second("history_bytes"),
        cpu_percent=100 * per_second("cpu_s"),
    )


def _counted(samples: deque[_Sample], name: str, start: float) -> float:
    """What a process has counted since then. Between two samples it counts evenly."""
    counted = 0.0
    for before, after in pairwise(samples):
        if after.at > start:
            grown = min(max(getattr(after, name) - getattr(before, name), 0), _MOST_COUNTED)
            length = after.at - before.at
            counted += grown * min((after.at - start) / length, 1) if before.at < start else grown
    return counted


def _sum_of_memory(each: Iterable[dict[str, Memory]]) -> dict[str, Memory]:
    sums: dict[str, Memory] = {}
    for memory in each:
        for name, part in memory.items():
            so_far = sums.get(name, Memory(0, 0))
            sums[name] = Memory(so_far.used_bytes + part.used_bytes, so_far.limit_bytes + part.limit_bytes)
    return sums


def _sum_of_tenants(each: Iterable[list[TenantMemory]]) -> list[TenantMemory]:
    sums = _sum_of_memory(
        {part.tenant: Memory(part.used_bytes, part.limit_bytes)} for tenants in each for part in tenants
    )
    tenants = [TenantMemory(name, memory.used_bytes, memory.limit_bytes) for name, memory in sums.items()]
    return sorted(tenants, key=lambda tenant: (-tenant.used_bytes, tenant.tenant))


def _engines(updates: list[Update]) -> list[EngineView]:
    engines = [EngineView(update.process, engine) for update in updates for engine in update.engines]
    return sorted(engines, key=lambda each: each.engine.trouble is None and each.engine.breaker != "open")


def _connections(processes: list[_Process], now: float) -> list[ConnectionView]:
    views = []
    for process in processes:
        for number, connection in process.connections.items():
            last = process.last_turns.get(number)
            idle_s = None
            if last is not None and not connection.running:
                idle_s = max(now - ended_at(last), 0.0)
            views.append(ConnectionView(process.latest.process, connection, last, idle_s))
    return sorted(views, key=_by_activity)


def _by_activity(view: ConnectionView) -> tuple[int, float, int, int]:
    connection = view.connection
    if connection.running:
        rank, order = 0, min(turn.started_at for turn in connection.running)
    elif view.last_turn is not None:
        rank, order = 1, -ended_at(view.last_turn)
    else:
        rank, order = 2, -connection.opened_at
    return rank, order, view.process, connection.number


def _running_http_turns(updates: list[Update]) -> list[TurnView]:
    turns = [TurnView(update.process, turn) for update in updates for turn in update.http]
    return sorted(turns, key=lambda each: each.turn.started_at)


def _latest_turns(processes: list[_Process]) -> list[TurnView]:
    turns = [TurnView(process.latest.process, turn) for process in processes for turn in process.turns]
    turns.sort(key=lambda each: ended_at(each.turn), reverse=True)
    return turns[:MOST_TURNS]


def _parked(updates: list[Update]) -> list[ParkedView]:
    parked = [ParkedView(update.process, each) for update in updates for each in update.parked]
    return sorted(parked, key=lambda each: each.parked.seconds_left)
