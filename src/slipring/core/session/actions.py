"""Actions: what a session asks its driver to do. The driver runs a list of actions in order.

It reports their results to the session's ``TurnLifecycle``, whose methods are named in the actions.
"""

from collections.abc import Mapping

from msgspec import Struct

from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.gate import Inspection
from slipring.core.generation import Job, Prefill
from slipring.core.hosted.tools import HostedCall, ResolvedServer
from slipring.core.turn.turn import Joined, Turn
from slipring.core.turn.turn_checks import Audit
from slipring.protocol.definitions import Compilable
from slipring.protocol.events import Event
from slipring.protocol.hosted.builtin_tools import BuiltinKind
from slipring.protocol.hosted.mcp_tools import McpTool
from slipring.protocol.items import Item
from slipring.protocol.live_input import Append
from slipring.protocol.timing import TurnReport


class Send(Struct, frozen=True, gc=False):
    """Send events to the client, in this order."""

    events: list[Event]


class Load(Struct, frozen=True):
    """Load a response, items or a conversation from the store by id.

    The driver reports ``loaded`` or ``failed``. An empty load asks only whether the turn may
    begin.
    """

    turn: Turn
    response_id: str | None
    item_ids: frozenset[str]
    conversation_id: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to load."""
        return self.response_id is None and not self.item_ids and self.conversation_id is None


class Loaded(Struct, frozen=True):
    """The result of a ``Load``: what the store found."""

    state: ResponseState | None = None
    """The requested response; for a conversation, the response that it continues, if any."""
    items: dict[str, Item] = {}
    joined: Joined | None = None


class Check(Struct, frozen=True):
    """Compile the grammars of a request. The driver reports ``checked`` or ``failed``."""

    turn: Turn
    job: Job | None
    """None: lists of tools are to be fetched first."""
    grammars: list[Compilable]


class CheckAppended(Struct, frozen=True, eq=False):
    """Compile the grammars of appended tools. The driver calls ``session.appended``, with the append's
    ``error`` set if a grammar is invalid."""

    asked: Append
    grammars: list[Compilable]


class ResolveTools(Struct, frozen=True):
    """Look up the MCP servers of a request and what answers its built-in tools. No server is asked. The
    driver reports ``resolved`` or ``failed``."""

    turn: Turn
    servers: tuple[McpTool, ...]
    builtins: frozenset[BuiltinKind] = frozenset()


class ListTools(Struct, frozen=True, eq=False):
    """Fetch the lists of MCP servers, all at once. The driver reports ``listed`` for each as it ends, however
    it ends, then ``all_listed``; it fetches no more after one for which the response fails."""

    turn: Turn
    servers: Mapping[str, ResolvedServer]
    """By label."""


class ClaimApprovals(Struct, frozen=True):
    """Mark approval requests as used, so that none is used twice. The driver reports ``claimed`` or
    ``failed``."""

    turn: Turn
    ids: tuple[str, ...]


class CallTool(Struct, frozen=True, eq=False):
    """Run a hosted call, beside the turn's other work. The driver reports ``call_progressed`` whenever
    the server reports progress, and ``call_ended`` at the end, however it ends."""

    turn: Turn
    call: HostedCall


class CancelTools(Struct, frozen=True):
    """Cancel the hosted calls of a turn. The driver calls nothing in return."""

    turn: Turn


class Weigh(Struct, frozen=True):
    """Count the tokens of a job. The driver reports ``weighed`` or ``failed``."""

    turn: Turn
    job: Job

    @property
    def enough(self) -> int | None:
        """The number of tokens at which counting may stop, because the context is compacted from there on;
        None: count all of them."""
        compaction = self.turn.compaction
        return compaction.plan.threshold if compaction is not None and not compaction.plan.alone else None


class Counted(Struct, frozen=True):
    """Report the size of a context to the client, in a session that only counts tokens."""

    tokens: int


class Start(Struct, frozen=True):
    """Run a job. The driver reports ``deltas`` for each batch, then ``finished`` or
    ``failed``."""

    turn: Turn
    job: Job


class Inspect(Struct, frozen=True, eq=False):
    """Have safety checks inspect texts, beside the turn's other work. The driver calls
    ``inspected``, also if a check fails."""

    turn: Turn
    inspection: Inspection


class StartAudit(Struct, frozen=True, eq=False):
    """Have safety checks inspect a finished response, beside all turns. The driver calls ``Audit.settle``,
    also after the connection has closed."""

    audit: Audit


class Save(Struct, frozen=True):
    """Save a response, or what it adds to its conversation. The driver reports ``saved`` or
    ``failed``."""

    turn: Turn
    state: ResponseState


class Cancel(Struct, frozen=True):
    """Cancel the work on this turn, its hosted calls included. The driver calls nothing in return."""

    turn: Turn


class StartPrefill(Struct, frozen=True, eq=False):
    """Have the engine prefill what a response will probably be continued with, beside all turns.

    The driver reports ``prefilled`` when the engine is done, unless the prefill is ended before: by
    ``EndPrefill``, or by a job that continues the response.
    """

    response_id: str
    prefill: Prefill


class EndPrefill(Struct, frozen=True):
    """End the prefill for a response, if there is one. The driver calls nothing in return."""

    response_id: str


class Close(Struct, frozen=True):
    """Close the connection after sending everything before."""

    code: int
    reason: str


class Compress(Struct, frozen=True, eq=False):
    """Compress the items of states, in a thread. The driver reports ``compressed``."""

    cache: ConnectionCache
    states: tuple[ResponseState, ...]


class Settle(Struct, frozen=True):
    """The last event of a turn has been sent. The driver writes it and calls ``settle``, which does what no
    client has to wait for, before anything else happens in the session. Always the last action."""

    turn: Turn


class Record(Struct, frozen=True):
    """Log and count an ended turn."""

    lane: str | None
    report: TurnReport
    arrived: float
    """When its request arrived, by the clock of the session's ports."""
    traceparent: str | None = None
    """The trace context that its client sent with the request itself."""
    turn: Turn | None = None
    """The turn itself, for those who record content; None if there is none, or if its client asked the server
    to keep nothing."""


class Refused(Struct, frozen=True):
    """Count a message that was refused and is no turn."""

    code: str


Action = (
    Send
    | Load
    | Check
    | CheckAppended
    | ResolveTools
    | ListTools
    | ClaimApprovals
    | CallTool
    | CancelTools
    | Weigh
    | Counted
    | Start
    | Inspect
    | StartAudit
    | Save
    | Cancel
    | StartPrefill
    | EndPrefill
    | Compress
    | Close
    | Settle
    | Record
    | Refused
)
