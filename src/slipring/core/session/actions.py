"""Actions: what a session wants done. Values, run by a driver in the order of the list."""

from typing import TYPE_CHECKING

from msgspec import Struct

from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job
from slipring.core.session.client_events import Append
from slipring.protocol.events import Event
from slipring.protocol.intake import Compilable
from slipring.protocol.timing import TurnReport

if TYPE_CHECKING:
    from slipring.core.turn.turn import Turn


class Send(Struct, frozen=True, gc=False):
    """Tell the client, in this order."""

    events: list[Event]


class Load(Struct, frozen=True):
    """Read a stored response, items and a conversation by id; answer with ``session.loaded`` or
    ``session.failed``. There may be nothing to read: then it is only asked whether the turn may begin."""

    turn: "Turn"
    response_id: str | None
    item_ids: frozenset[str]
    conversation_id: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.response_id is None and not self.item_ids and self.conversation_id is None


class Check(Struct, frozen=True):
    """Compile what a request defines; answer with ``session.checked`` or ``session.failed``."""

    turn: "Turn"
    job: Job
    grammars: list[Compilable]


class CheckAppended(Struct, frozen=True, eq=False):
    """Compile what comes with the results of a tool; answer with
    ``session.appended``."""

    asked: Append
    grammars: list[Compilable]


class Weigh(Struct, frozen=True):
    """Count the tokens of a job that may have to be compacted; answer with ``session.weighed`` or
    ``session.failed``."""

    turn: "Turn"
    job: Job

    @property
    def enough(self) -> int | None:
        """The tokens from which on the context is compacted: more need not be counted."""
        compaction = self.turn.compaction
        return compaction.plan.threshold if compaction is not None else None


class Start(Struct, frozen=True):
    """Run a job: ``session.deltas`` for what comes, then ``session.finished`` or ``session.failed``."""

    turn: "Turn"
    job: Job


class Save(Struct, frozen=True):
    """Make a response, or what it adds to its conversation, durable; answer with ``session.saved`` or
    ``session.failed``."""

    turn: "Turn"
    state: ResponseState


class Cancel(Struct, frozen=True):
    """Stop working on this turn. No answer is expected."""

    turn: "Turn"


class Close(Struct, frozen=True):
    """Close the connection once everything before has been sent."""

    code: int
    reason: str


class Record(Struct, frozen=True):
    """A turn is over: take note of how it went."""

    lane: str | None
    report: TurnReport


Action = Send | Load | Check | CheckAppended | Weigh | Start | Save | Cancel | Close | Record
