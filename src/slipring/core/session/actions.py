"""Actions: what a session asks its driver to do. The driver runs a list of actions in order.

``Work`` is what a turn waits for: the driver reports its end by ``session.done`` with the result, or by
``session.failed`` with an error. Of the other actions, those with an outcome name the method that takes it.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct

from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.answer_gate import Inspection
from slipring.core.generation import Job, Prefill
from slipring.core.hosted_tools import HostedCall, ResolvedBuiltin, ResolvedServer
from slipring.core.turn.stages import Wait
from slipring.core.turn.turn import Joined, Turn
from slipring.core.turn.turn_checks import Audit
from slipring.protocol.events import Event
from slipring.protocol.items.items import Item
from slipring.protocol.live_input import Append
from slipring.protocol.tools.grammars_and_schemas import Compilable
from slipring.protocol.tools.mcp_tools import McpTool
from slipring.protocol.tools.tool_types import BuiltinKind
from slipring.protocol.turn_report import TurnReport

Result = TypeVar("Result")


class Work(Wait[Result], frozen=True, eq=False):
    """Something that takes time, for which a turn waits. A turn has one piece of work at a time."""

    turn: Turn


# Work, in the order of a turn's life.


class Loaded(Struct, frozen=True):
    """What the store found."""

    state: ResponseState | None = None
    """The requested response; for a conversation, the response that it continues, if any."""
    items: dict[str, Item] = {}
    joined: Joined | None = None
    compared: ResponseState | None = None
    is_comparable: bool = True
    """False if the response to compare with could not be looked up."""


class Load(Work[Loaded], frozen=True, eq=False):
    """Load a response, items or a conversation from the store by id. An empty load only asks whether the
    caller may begin a turn."""

    place = "loading"
    response_id: str | None = None
    item_ids: frozenset[str] = frozenset()
    conversation_id: str | None = None
    compared_id: str | None = None
    """Of the response that the request is to be compared with."""


class Resolved(Struct, frozen=True):
    """The hosted tools of a request."""

    servers: Mapping[str, ResolvedServer]
    """By label."""
    answers: Mapping[BuiltinKind, ResolvedBuiltin] = {}
    """What answers its built-in tools."""


class ResolveTools(Work[Resolved], frozen=True, eq=False):
    """Look up the MCP servers of a request and what answers its built-in tools. No server is asked."""

    place = "resolving"
    servers: tuple[McpTool, ...]
    builtins: frozenset[BuiltinKind] = frozenset()


class FetchImages(Work[tuple[Item, ...]], frozen=True, eq=False):
    """Fetch images that a request names by URL. Returns its items with them
    (``attachments.with_fetched_images``). Fails if one could not be fetched."""

    place = "fetching"
    items: tuple[Item, ...]
    urls: tuple[str, ...]


class ReadDocuments(Work[tuple[Item, ...]], frozen=True, eq=False):
    """Read documents of a request. Returns its items with their pages (``attachments.with_pages``). Fails if
    one could not be read."""

    place = "reading"
    items: tuple[Item, ...]
    draws: bool
    """Whether the model sees pictures of the pages."""
    roles: tuple[str, ...]
    """Of the messages that may have pictures."""


class CompileGrammars(Work[None], frozen=True, eq=False):
    """Compile the grammars of a request. Fails if one is invalid."""

    place = "checking"
    grammars: list[Compilable]


class ListTools(Work[None], frozen=True, eq=False):
    """Fetch the lists of MCP servers, all at once. The driver calls ``session.listed`` for each as it ends,
    however it ends. It fetches no more after one for which the response fails."""

    place = "listing"
    servers: Mapping[str, ResolvedServer]
    """By label."""


class ClaimApprovals(Work[None], frozen=True, eq=False):
    """Mark approval requests as used, so that none is used twice."""

    place = "claiming"
    ids: tuple[str, ...]


class CountTokens(Work[int], frozen=True, eq=False):
    """Count the tokens of a job."""

    place = "preparing"
    job: Job

    @property
    def enough(self) -> int | None:
        """The number of tokens at which counting may stop, because the context is compacted from there on;
        None: count all of them."""
        compaction = self.turn.planned.compaction
        return compaction.plan.threshold if compaction is not None and not compaction.plan.alone else None


class Generate(Work[None], frozen=True, eq=False):
    """Run a job. The driver calls ``session.deltas`` for each batch."""

    place = "preparing"
    job: Job


class Save(Work[None], frozen=True, eq=False):
    """Save a response, or what it adds to its conversation."""

    place = "saving"
    state: ResponseState


class Flush(Work[None], frozen=True, eq=False):
    """Write the last events of a turn. The driver reports the end at once, before anything else happens in
    the session: what follows is work that no client has to wait for. Always the last action."""

    place = "ended"


# Beside the turns.


class Send(Struct, frozen=True, gc=False):
    """Send events to the client, in this order."""

    events: list[Event]


class CompileAppended(Struct, frozen=True, eq=False):
    """Compile the grammars of appended tools. The driver calls ``session.appended``, with the append's
    ``error`` set if a grammar is invalid."""

    asked: Append
    grammars: list[Compilable]


class CallTool(Struct, frozen=True, eq=False):
    """Run a hosted call, beside the turn's other work. The driver calls ``session.call_progressed`` whenever
    the server reports progress, and ``session.call_ended`` at the end, however it ends."""

    turn: Turn
    call: HostedCall


class CancelCalls(Struct, frozen=True):
    """Cancel the hosted calls of a turn. The driver calls nothing in return."""

    turn: Turn


class Inspect(Struct, frozen=True, eq=False):
    """Have safety checks inspect texts, beside the turn's other work. The driver calls
    ``session.inspected``, also if a check fails."""

    turn: Turn
    inspection: Inspection


class Cancel(Struct, frozen=True):
    """Cancel all work on a turn, its hosted calls and inspections included. The driver calls nothing in
    return."""

    turn: Turn


class StartAudit(Struct, frozen=True, eq=False):
    """Have safety checks inspect a finished response, beside all turns. The driver calls ``Audit.settle``,
    also after the connection has closed."""

    audit: Audit


class StartPrefill(Struct, frozen=True, eq=False):
    """Have the engine prefill what a response will probably be continued with, beside all turns.

    The driver calls ``session.prefilled`` when the engine is done, unless the prefill is ended before: by
    ``EndPrefill``, or by a job that continues the response.
    """

    response_id: str
    prefill: Prefill


class EndPrefill(Struct, frozen=True):
    """End the prefill for a response, if there is one. The driver calls nothing in return."""

    response_id: str


class ReportOutput(Struct, frozen=True):
    """Tell the engines that a tool for which the loop of a response waits gives out its output. The driver
    calls nothing in return."""

    response_id: str


class ReportSteer(Struct, frozen=True):
    """Tell the engines that another turn follows a response at once: it was steered. The driver calls nothing
    in return."""

    response_id: str


class Compress(Struct, frozen=True, eq=False):
    """Compress the items of states, in a thread. The driver calls ``session.compressed``."""

    cache: ConnectionCache
    states: tuple[ResponseState, ...]


class Counted(Struct, frozen=True):
    """Report the size of a context to the client, in a session that only counts tokens."""

    tokens: int


class Record(Struct, frozen=True):
    """Log and count an ended turn."""

    lane: str | None
    report: TurnReport
    arrived: float
    """When its request arrived, by the clock of the session's ports."""
    traceparent: str | None = None
    """The trace context that its client sent with the request itself."""
    turn: Turn | None = None
    """The turn itself, for observers that record content; None if there is none, or if its client asked the
    server to keep nothing."""


class CountRefusal(Struct, frozen=True):
    """Count a message that was refused and is no turn."""

    code: str


class LogFault(Struct, frozen=True, eq=False):
    """Log an exception that should not have happened. Its turn has failed with it."""

    fault: Exception


class Close(Struct, frozen=True):
    """Close the connection after sending everything before."""

    code: int
    reason: str


Action = (
    Send
    | Work[Any]
    | CompileAppended
    | CallTool
    | CancelCalls
    | Inspect
    | Cancel
    | StartAudit
    | StartPrefill
    | EndPrefill
    | ReportOutput
    | ReportSteer
    | Compress
    | Counted
    | Record
    | CountRefusal
    | LogFault
    | Close
)
