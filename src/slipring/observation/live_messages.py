"""The live stream of the admin listener: the messages of ``GET /live``, one JSON object per line.

The first message is a ``Greeting``. Then each process that serves clients sends an ``Update`` twice a second
while a client reads the stream, with what has changed; its first one is complete. A process that has ended is
announced by ``ProcessGone``. ``top`` and the live page read the same messages.

A reader keeps, for each process, the connections by ``number`` and the turns by ``connection`` and ``lane``:
an update replaces the connections that it contains, removes those that it lists as closed, and appends its
turns. A complete update replaces everything that the process has sent before. The totals of the server are
the sum of those of its processes and of ``departed``, and never fall.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
from msgspec import UNSET, Struct, UnsetType

from slipring.protocol.turn_report import TurnReport

INTERVAL_S = 0.5
"""Time between two updates of one process."""
Receive = Callable[[bytes], None]
"""Takes one line of a live stream, without waiting."""


class Totals(Struct, frozen=True):
    """Counts since a process started."""

    turns: dict[str, int] = {}
    """By status."""
    tokens: dict[str, int] = {}
    """By kind: ``rendered``, ``input``, ``cached``, ``output``, ``reasoning``."""
    request_bytes: int = 0
    history_bytes: int = 0
    """Bytes of earlier items that clients did not have to send."""
    fallbacks: dict[str, int] = {}
    """Contexts that were rendered in full although their parent was in memory, by reason."""


def sum_of(each: Iterable[Totals]) -> Totals:
    """The counts of several processes."""
    turns, tokens, fallbacks = Counter[str](), Counter[str](), Counter[str]()
    request_bytes = history_bytes = 0
    for totals in each:
        turns.update(totals.turns)
        tokens.update(totals.tokens)
        fallbacks.update(totals.fallbacks)
        request_bytes += totals.request_bytes
        history_bytes += totals.history_bytes
    return Totals(dict(turns), dict(tokens), request_bytes, history_bytes, dict(fallbacks))


class Greeting(Struct, frozen=True, tag="greeting"):
    """The first message of a stream."""

    version: str
    started_at: float
    """Unix time at which the server started."""
    now: float
    """Unix time of the server, for clients whose clock differs."""
    interval_s: float
    """Time between the updates of one process."""
    api_url: str
    """Base URL of the API, for the first request to an empty server."""
    workers: int
    """Number of processes that serve clients."""
    departed: Totals
    """What the processes that have ended had counted. It belongs to the totals of the server."""


class Turn(Struct, frozen=True):
    """A turn that waits, runs or has ended."""

    started_at: float
    """Unix time at which its request had arrived."""
    report: TurnReport
    """Of a turn that has not ended: the stages that have, and as status the phase that it is in: ``waiting``,
    ``loading``, ``resolving``, ``checking``, ``listing``, ``claiming``, ``preparing``, ``running``,
    ``calling`` (hosted tools), ``paused`` (until its client continues it) or ``saving``."""
    transport: str
    """``websocket``, ``sse``, ``http`` or ``background``."""
    tenant: str
    connection: int = 0
    """Number of its WebSocket; 0 for an HTTP request."""
    lane: str | None = None
    api: str = "responses"
    """The API of its request: ``responses``, ``chat_completions`` or ``messages``."""


class Memory(Struct, frozen=True):
    """Bytes in use, and the bound on them."""

    used_bytes: int
    limit_bytes: int


class TenantMemory(Struct, frozen=True):
    """The cached states of one tenant."""

    tenant: str
    used_bytes: int
    limit_bytes: int


class Connection(Struct, frozen=True):
    """An open WebSocket."""

    number: int
    """Counted from 1 in each process; the last connection of a process has the highest."""
    tenant: str
    opened_at: float
    cache: Memory
    """The states of earlier responses that it keeps, without what is compressed."""
    responses: int
    """Responses that it can continue from memory."""
    lanes: int
    turns_ended: int
    unsent_bytes: int
    """Bytes that its client has not read yet."""
    running: list[Turn]
    """Its turns that run or wait, by lane."""
    recent: list[Turn] | UnsetType = UNSET
    """Its latest ended turns, oldest first; only in a complete update."""


class Node(Struct, frozen=True):
    """One response of a chain that a connection keeps in memory."""

    id: str
    parent: str | None
    lane: str | None
    depth: int
    """Number of responses from the first of the chain to this one."""
    created_at: int
    size_bytes: int
    """Memory that it does not share with its parent."""
    context_bytes: int
    """Length of the JSON of all items up to here."""
    tokens: int | None
    """Length of the context, as counted by the engine; None if unknown."""
    items: int
    is_latest: bool
    """Whether it is the latest response of its lane, which is evicted last."""
    is_cached: bool = True
    """False: an ancestor that only its descendants keep in memory, which cannot be continued by its id."""
    is_stored: bool = False
    marks: tuple[str, ...] = ()
    """Its marks as in the report of its turn; none if the connection has forgotten the turn."""


class ConnectionDetail(Struct, frozen=True):
    """``GET /live/connections/{process}/{number}``: the chains in the memory of one connection."""

    connection: Connection
    nodes: list[Node]
    """Parents before their children."""
    is_complete: bool
    """False if there are more nodes than fit."""


class Parked(Struct, frozen=True):
    """The states of a dropped connection, kept for a client that reconnects."""

    tenant: str
    responses: int
    size_bytes: int
    seconds_left: float


class Slot(Struct, frozen=True):
    """A slot of the embedded engine."""

    number: int
    state: str
    """``idle`` or ``busy``."""
    tokens: int
    """Length of the context whose KV it holds; 0: unknown or none."""
    tenant: str | None
    response_id: str | None
    """The latest response whose context it holds, or the one that runs in it."""


class SavedContext(Struct, frozen=True):
    """A context whose KV the embedded engine has saved beside its slots."""

    tenant: str
    tokens: int
    size_bytes: int
    response_id: str | None
    """The latest response of the context."""


class Loop(Struct, frozen=True):
    """A loop of an agent whose turns are scheduled by the room in the engine's KV cache."""

    tenant: str
    state: str
    """``running``; ``paused``: between two turns, and its context is kept; ``waiting``: its turn waits for
    room."""
    seconds: float
    """How long it has been paused or waiting; 0 while it runs."""
    tokens: int
    """Of the cache, which it has or waits for."""
    turns: int
    tools: str = ""
    """What a paused loop waits for; empty: its user."""
    usually_s: float = 0.0
    """How long such a pause usually takes."""
    replica: str = ""
    """Where it is; empty: answers name no replica."""
    why: str = ""
    """Why a loop that waits may not run yet, in words."""


class Replica(Struct, frozen=True):
    """One of the servers behind an engine's address, with a KV cache of its own."""

    name: str
    capacity_tokens: int
    held_tokens: int


class Loops(Struct, frozen=True):
    """How the KV cache of an engine is divided among loops."""

    capacity_tokens: int
    held_tokens: int
    running: int
    paused: int
    """Those whose context is kept."""
    waiting: int
    listed: list[Loop]
    """Those that wait, longest first, then those that have most; at most twenty of each."""
    replicas: list[Replica] = []


class Engine(Struct, frozen=True):
    """An engine and its queue, as this process sees it."""

    name: str
    models: list[str]
    trouble: str | None
    """Why it cannot generate at present."""
    running: int = 0
    waiting: int = 0
    breaker: str = "none"
    """``closed``: it is asked; ``open``: it has failed too often and is not asked for a while; ``none``: it
    has no breaker."""
    slots: list[Slot] = []
    saved: list[SavedContext] = []
    saved_memory: Memory | None = None
    """None: it saves no contexts."""
    loops: Loops | None = None
    """None: its turns are not scheduled."""


class Update(Struct, frozen=True, tag="update"):
    """The state of one process, and what has changed since its last update."""

    process: int
    """Number of the worker, from 0."""
    pid: int
    now: float
    is_complete: bool
    memory: dict[str, Memory]
    """By what uses it: ``states``, ``parked``, ``recognised``, ``requests``, ``unread``, ``compiled``."""
    tenants: list[TenantMemory]
    """Those that use the most."""
    resident_bytes: int
    """Physical memory; 0 where the system does not say."""
    cpu_s: float
    """CPU time of the process since it started."""
    loop_lag_ms: float
    """The longest that the event loop was late since the last update with changes."""
    sockets: int
    in_flight: int
    waiting: int
    is_draining: bool
    engines: list[Engine]
    parked: list[Parked]
    """Those with the least time left, at most fifty."""
    parked_sessions: int
    totals: Totals
    connections: list[Connection]
    """New and changed ones; all of them in a complete update."""
    closed: list[int]
    """Numbers of connections that are closed."""
    http: list[Turn]
    """Turns of HTTP requests and background runs that run or wait."""
    turns: list[Turn]
    """Turns that have ended since the last update; in a complete one, the latest of HTTP requests."""
    turns_missed: int
    """Turns that ended and are left out, because there were too many."""
    needs_key: bool = False
    """Whether requests of clients need an API key."""


class ProcessGone(Struct, frozen=True, tag="process_gone"):
    """A worker has ended. Another one may take its number, with a complete update."""

    process: int
    departed: Totals
    """As in the greeting: what all that have ended had counted, this one included."""


Message = Greeting | Update | ProcessGone

_message: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """One line of the stream."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """Read one line of the stream. Raises ``msgspec.MsgspecError``."""
    return _message.decode(line)
