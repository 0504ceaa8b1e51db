"""What is known of a turn, split by time: what was asked, what it continues, its response, its jobs, its end.

Each is a value that is made once and complete, and does not change.
"""

from collections.abc import Mapping

from msgspec import Struct, structs

from slipring.base.errors import ApiError, InvalidPrompt
from slipring.core.attachment_rules import AttachmentRules
from slipring.core.chain.head import Head
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.state import ResponseState
from slipring.core.generation import (
    Finished,
    Job,
    Model,
    Settings,
)
from slipring.core.token_estimates import estimated_text_tokens, estimated_tokens
from slipring.core.turn.compaction import Compaction, Plan
from slipring.core.turn.stages import NO_TOKENS
from slipring.core.turn.steps.rollout import Rollout
from slipring.core.turn.steps.steered_ends import Steers
from slipring.core.turn.steps.step_jobs import Steps
from slipring.core.turn.turn_checks import TurnChecks
from slipring.protocol.definitions import Compilable, Definitions
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response
from slipring.protocol.tools import ToolChoice


class Joined(Struct, frozen=True):
    """The conversation of a turn, as loaded."""

    conversation_id: str
    version: int
    items: tuple[Item, ...] = ()
    """Its items that are not in the context of the turn's parent."""


class Asked(Struct, frozen=True, eq=False, kw_only=True):
    """What a turn was asked for, before anything is known about it. It does not change."""

    request: CreateRequest
    tenant: str
    lane: str | None
    size_bytes: int
    error: ApiError | None = None
    """Why the request is refused, if that is known already: it is refused when its lane reaches it."""
    detached: bool = False
    """Whether it runs in the background: its response is created before the engine accepts the job."""
    short_events: bool = False
    """Whether the events that begin the response leave out its instructions and tools."""
    parent: ResponseState | None = None
    """What it continues, if that is known: a state of another lane, or, with ``steers``, the steered response
    that the server continues."""
    steers: Steers | None = None
    """What the server continues a steered response with."""

    @property
    def follows(self) -> bool:
        """Whether the server started the turn, as the successor of a steered response."""
        return self.steers is not None

    @property
    def forks(self) -> bool:
        """Whether its parent belongs to another lane."""
        return self.parent is not None and self.steers is None


class Inserted(Struct, frozen=True):
    """Items of a turn's input that its client has not sent with the request."""

    count: int = 0
    at: int = 0
    """The index of the first of them."""
    source: str = ""
    """The field of the request through which they came in."""


class Bound(Struct, frozen=True, eq=False):
    """What a turn continues, and its input. Made when the turn has left its lane's queue."""

    parent: ResponseState | None = None
    input: tuple[Item, ...] = ()
    found: Mapping[str, Item] = {}
    """Items that the input refers to by id, until they stand in it."""
    inserted: Inserted = Inserted()
    joined: Joined | None = None
    known_head: Head | None = None
    """A head that was read before and may be that of the request."""
    compared: ResponseState | None = None
    """The response that the client wants the context to be compared with, if it was found."""
    is_comparable: bool = True
    """False if it could not be looked up."""

    @property
    def history_bytes(self) -> int:
        """Length of the items that the request continues and does not contain."""
        return self.parent.context_bytes if self.parent is not None else 0


class Draft(Struct, frozen=True, eq=False):
    """What a valid request asks for: its jobs are made of this."""

    response_id: str
    model: Model
    input: tuple[Item, ...]
    """As the model reads it, but for the results of calls that it approves."""
    settings: Settings
    choice: ToolChoice
    compaction: Plan | None
    definitions: Definitions
    """Those that the input brings."""
    attachment_rules: AttachmentRules


class Prepared(Struct, frozen=True, eq=False):
    """The response of a valid request, before anything is generated."""

    draft: Draft
    response: Response
    head: Head
    """Without the tools of lists that are still to be fetched."""
    carry: OpenCarry
    """Of the context with the input; then with the output, too."""
    checks: TurnChecks | None
    """Set if a policy applies."""
    grammars: list[Compilable]
    """To be compiled before the engine gets a job."""


class Planned(Struct, frozen=True, eq=False):
    """The jobs of a response. Made once all its tools are known."""

    job: Job | None = None
    """The first one for the answer."""
    compaction: Compaction | None = None
    """Set if the context may have to be compacted."""
    steps: Steps | None = None
    """Set if the response may continue after calls."""
    rollout: Rollout | None = None
    """Set if it continues after calls that its client answers."""

    def estimate(self, written_chars: int) -> Finished | None:
        """About how many tokens the running job has; None if no job is planned. ``written_chars``: those of
        the answer."""
        job, compaction = self.job, self.compaction
        if job is None:
            return None
        if compaction is not None:
            job = compaction.job
        if compaction is not None and compaction.is_running:
            written_chars = compaction.written_chars
        elif self.steps is not None:
            job = self.steps.foreseen_job()
        tokens = estimated_tokens(job), estimated_text_tokens(written_chars)
        return structs.replace(NO_TOKENS, input_tokens=tokens[0], output_tokens=tokens[1])


class Ended(Struct, frozen=True, eq=False):
    """How a turn ends. Made when its output is closed, or when it is refused."""

    error: ApiError | None = None
    """Why it fails, or is refused."""
    response: Response | None = None
    """As its terminal event shows it; None if it was never created."""
    finished: Finished | None = None
    """The tokens of all jobs, and the engine's position."""
    state: ResponseState | None = None
    """What later turns can continue; None if nothing of it is kept."""

    @property
    def is_blocked(self) -> bool:
        """Whether a safety check has refused it: nothing of its content is kept."""
        return isinstance(self.error, InvalidPrompt)

    @property
    def has_failed(self) -> bool:
        """Whether the response ends with ``response.failed``."""
        return self.response is not None and self.response.status == "failed"


UNBOUND, UNPLANNED = Bound(), Planned()
