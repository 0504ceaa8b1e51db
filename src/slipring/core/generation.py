"""The interface between the core and engines: an engine runs a ``Job`` and emits ``Delta`` values.

Engines import this module, ``chain.head``, ``limits`` and ``token_estimates`` from the core, nothing else.
A job contains its context as a linked chain of responses: an engine that kept its own state of the parent in
``parent.position`` (a KV cache slot, an upstream id) processes the new items only.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Literal, Protocol

from msgspec import Raw, Struct, field, structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Branch, ResponseState, branch_of
from slipring.core.chain.state import Position as Position
from slipring.protocol.events import CallEvent
from slipring.protocol.items.item_pictures import ALL_TYPES, MediaType
from slipring.protocol.items.items import Effort, Item
from slipring.protocol.requests import TEXT, TextFormat
from slipring.protocol.responses import Logprob
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Kind


class Accepted(Struct):
    """The engine accepts the job; the response is created now.

    An error raised before this delta refuses the request. Optional: the first delta of any kind accepts.
    """

    rendered_tokens: int = 0
    fallback: str | None = None
    """Why the engine rendered the whole context instead of the new items only."""
    dropped_items: int = 0
    """Oldest items left out so that the rest fits the context window."""
    prompt_tokens: int | None = None
    """Tokens of the whole context, those included that are cached; None if only the engine's server counts
    them."""
    withheld_thoughts: tuple[str, ...] = ()
    """The ids of reasoning items of earlier turns that the model does not read, oldest first."""
    pictures: int | None = None
    """How many images the engine reads: fewer than the items have if some of these are left out. None if it
    does not count them."""

    def after(self, before: "Accepted") -> "Accepted":
        """The sum over this job and an earlier job of the same response."""
        return Accepted(
            self.rendered_tokens + before.rendered_tokens,
            self.fallback or before.fallback,
            self.dropped_items + before.dropped_items,
            before.prompt_tokens,
            self.withheld_thoughts,
            self.pictures,
        )


class Begun(Struct):
    """The job has left the engine's queue and runs. Optional."""


class Prefilled(Struct):
    """The context is processed and the first token sampled, even if it yields no text yet. Optional."""


class Text(Struct, gc=False):
    """A piece of the answer's text."""

    text: str
    logprobs: list[Logprob] = []


class Annotated(Struct):
    """An annotation of the text so far, such as a source, in the JSON form of ``annotations``."""

    annotation: Raw


class RefusalText(Struct):
    """A piece of the text with which the model refuses."""

    text: str


class Thought(Struct):
    """A piece of raw reasoning."""

    text: str


class ThoughtSummary(Struct):
    """A piece of a reasoning summary; ``index`` is the summary part that it belongs to."""

    text: str
    index: int = 0


class CallStarted(Struct):
    """A tool call begins. Its arguments follow as ``CallArguments``, and ``CallEnded`` after them."""

    kind: Kind
    name: str
    namespace: str | None = None
    is_offered: bool = True
    """False if the model calls a tool that it was not offered, and the engine cannot prevent that."""


class CallArguments(Struct, gc=False):
    """A piece of the JSON arguments of a function or tool search, or of a custom tool's input."""

    text: str


class CallEnded(Struct):
    """No more arguments follow for the call that began last. The client gets the call at once, so an engine
    sends this as soon as it is certain. Without it, the call ends when another item or the answer does."""

    is_complete: bool = True
    """False if the model broke the call off: its item gets the status ``incomplete``, and the client need not
    answer it. The arguments are then no complete JSON object, so that no client can run the call."""


class UpstreamItemStarted(Struct):
    """An item begins that the engine's server makes itself, and that the client gets as it is: of a tool that
    the server runs, or a call that the client has to answer. Other items may begin and end before it ends."""

    key: int | str
    """Names the item in the deltas about it."""
    item: Item
    """As it begins. Its id is kept: the server knows the item by it."""


class UpstreamItemEvent(Struct):
    """An event about an item that an ``UpstreamItemStarted`` has begun."""

    key: int | str
    kind: type[CallEvent]
    fields: dict[str, object]
    """Those that this kind has beside ``item_id`` and the numbers."""


class UpstreamItemEnded(Struct):
    """The whole item. It is valid: its body can be decoded."""

    key: int | str
    item: Item


FinishReason = Literal["stop", "max_output_tokens", "content_filter", "steered", "broken_off"]


class Finished(Struct):
    """The last delta of every job, including warmups."""

    reason: FinishReason
    """``broken_off`` is set by the core only, for a rollout whose step was cancelled."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    position: "Position | None" = None
    """The engine's state of the context, passed back as ``parent.position`` to a continuation."""
    context: "Position | None" = None
    """The same for the context without the answer. An engine sets it if its positions follow from the items
    of a context alone: a request that sends these items again may then be given either of the two."""
    stop_sequence: str | None = None
    """The one of ``Settings.stop`` before which the text ends; None if it ended in another way."""

    def after(self, spent: "Finished") -> "Finished":
        """The same end, with the tokens of an earlier job of the same response added."""
        return structs.replace(
            self,
            input_tokens=spent.input_tokens + self.input_tokens,
            cached_tokens=spent.cached_tokens + self.cached_tokens,
            output_tokens=spent.output_tokens + self.output_tokens,
            reasoning_tokens=spent.reasoning_tokens + self.reasoning_tokens,
        )


Delta = (
    Accepted
    | Begun
    | Prefilled
    | Text
    | Annotated
    | RefusalText
    | Thought
    | ThoughtSummary
    | CallStarted
    | CallArguments
    | CallEnded
    | UpstreamItemStarted
    | UpstreamItemEvent
    | UpstreamItemEnded
    | Finished
)
Hosting = Literal["here", "upstream", "refuse"]
"""Who runs the hosted tools of a request: this server, the engine's server, or nobody."""


ANY_ID = 2**31
"""More token ids than any vocabulary has: for engines whose server knows its own."""


ALL_ROLES = ("user", "system", "developer", "assistant")


class Capabilities(Struct, frozen=True):
    """Optional features of a model. The core refuses requests that need a missing one."""

    logprobs: bool = False
    images: bool = False
    image_roles: tuple[str, ...] = ("user",)
    """Of the messages in which it takes images, beside the outputs of calls."""
    picture_types: tuple[MediaType, ...] = ALL_TYPES
    """Those that the model's decoder reads, if it takes images."""
    resolves_urls: bool = False
    """Whether the engine's server resolves the URLs and file ids of images itself."""
    files: bool = False
    biased_ids: int = 0
    """Requests may change the logits of tokens with ids below this; 0: of none."""


class Defaults(Struct, frozen=True):
    """A model's values for settings that a request leaves out."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    effort: Effort | None = None

    def over(self, other: "Defaults") -> "Defaults":
        """These values, and where there are none, those of ``other``."""
        return Defaults(
            temperature=other.temperature if self.temperature is None else self.temperature,
            top_p=other.top_p if self.top_p is None else self.top_p,
            max_output_tokens=(
                other.max_output_tokens if self.max_output_tokens is None else self.max_output_tokens
            ),
            effort=self.effort or other.effort,
        )


class Model(Struct, frozen=True):
    """A model as clients name it."""

    name: str
    owner: str
    capabilities: Capabilities
    created: int = 0
    own_name: str = ""
    """The engine's own name for the model, if different."""
    defaults: Defaults = Defaults()
    context_tokens: int | None = None
    """Size of the context window; None if the engine does not know it."""
    rewrites_answers: bool = False
    """Whether earlier answers are rendered in another way once a user message follows them."""
    efforts: tuple[Effort, ...] = ()
    """The efforts of reasoning that differ for the model, least first; empty if none do, or if the engine
    does not know."""
    is_upstream: bool = False
    """Whether another Responses server offers the model, so that only its name is known here."""
    hosted_tools: Hosting = "here"
    """``upstream`` only if ``is_upstream``."""

    @property
    def runs_hosted_tools(self) -> bool:
        """Whether the engine's server runs hosted tools. It then owns their items too: they are passed on as
        they are, and models of other engines do not see them."""
        return self.hosted_tools == "upstream"


class Models(Protocol):
    """Looks up models by name."""

    def find(self, name: str | None) -> Model:
        """The model of this name, or the default model for None. Raises ``ModelNotFound``."""


class Settings(Struct, frozen=True):
    """Sampling, output format and tool-call settings of a job."""

    format: TextFormat = TEXT
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """The text of the answer ends before the first of these. Engines need not know them."""
    logit_bias: Mapping[int, float] = {}
    """What is added to the logits of some tokens, by their ids."""
    logprobs: bool = False
    top_logprobs: int = 0
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    effort: str | None = None
    reasoning_context: Literal["current_turn", "all_turns"] | None = None
    """Whose thoughts the model reads: those since the last user message, or all. None: as the engine is set
    up."""
    truncation: Literal["auto", "disabled"] = "disabled"
    pattern: str | None = None
    """A regular expression that the text of the answer has to match as a whole. No client sends one. Engines
    enforce it if they can, so the caller checks the answer."""


class UpstreamTools(Struct, frozen=True):
    """The tools of a request some of which the engine's server runs, as the client sent them.

    They contain the secrets for those tools, so they belong to the jobs of one response and are never kept.
    """

    tools: bytes
    """The whole ``tools``, as JSON."""
    labels: tuple[str, ...] = ()
    """Of the MCP servers in it."""
    secrets: tuple[str, ...] = ()
    """The secrets in it."""
    choice: bytes | None = None
    """``tool_choice`` as JSON; None: the default."""
    include: tuple[str, ...] = ()
    """What ``include`` asks of these tools."""

    def __repr__(self) -> str:
        return "<UpstreamTools>"


class Stop:
    """Lets the core ask a running engine to end its answer early."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False
        """The engine checks this between tokens. While it is true, the engine ends the answer as soon as no
        reasoning and no call is incomplete, with a ``Finished`` whose reason is ``steered`` and whose
        position covers the text so far. The core may reset it to false. An engine that cannot end early
        completes the answer."""


Emit = Callable[[list[Delta]], Awaitable[None] | None]
"""Takes the next deltas of a job, at least one. Returns an awaitable, to be awaited before the next call, if
more must not follow yet: while the client does not keep up, for example."""


async def deliver(emit: Emit, deltas: list[Delta]) -> None:
    """Emit deltas, and wait until more may follow."""
    if (waiting := emit(deltas)) is not None:
        await waiting


class Job(Struct, frozen=True):
    """One generation; with ``generate`` false, a warmup that only prepares the context."""

    response_id: str
    tenant: str
    model: Model
    head: Head
    parent: ResponseState | None
    input: tuple[Item, ...]
    offer: Offer
    settings: Settings
    generate: bool = True
    fork: bool = False
    """Whether the parent belongs to another lane, which may continue it too: the engine must keep the state
    that it holds for the parent."""
    recognised: bool = False
    """Whether the client has sent the parent's items itself, instead of its id. Other requests may continue
    the same parent, but usually none does: each history replaces the one before."""
    began: "Job | None" = None
    """The job of the first step of its response; None for that job itself. The parent of a later step is the
    step before, which is gone when the response has ended."""
    cache_key: str | None = None
    """The client's ``prompt_cache_key``: jobs with the same key are likely to share a prefix."""
    is_summary: bool = False
    """Whether it writes the summary of a compaction: no client reads it, and it may wait for other jobs."""
    upstream_tools: UpstreamTools | None = None
    """Set if the engine's server runs tools of this request."""
    stop: Stop = field(default_factory=Stop)

    @property
    def branch(self) -> Branch:
        """The branch of the chain that the response belongs to."""
        return branch_of(self.response_id, self.parent, fork=self.fork)

    def context(self) -> Iterator[Item]:
        """All items of the context, oldest first. Walks the whole history: prefer ``parent.position``."""
        if self.parent is not None:
            yield from self.parent.context()
        yield from self.input


class Prefill(Struct, frozen=True):
    """Work that the engine can do before the next request of a chain arrives: process the tokens with which
    every likely continuation of the chain begins."""

    job: Job
    """A warmup of what is known of that request."""
    expects: Literal["output", "user"]
    """What the request will add. ``output``: the text of the job's last item, the output of a call, may still
    grow. ``user``: a user message follows."""
    done_tokens: int = 0
    """The result of the chain's last prefill: its tokens are processed already."""
