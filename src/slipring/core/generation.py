"""The contract with engines: what they are asked (``Job``) and what they answer (``Delta``).

With the head, the only part of the core that engines import. A job gives the context as a chain with shared
structure, so that an engine takes the view it can use and pays for the delta only: ``parent.position`` is
whatever the engine left there when it finished the parent (a KV slot, an upstream id).
"""

from collections.abc import Iterator
from typing import Literal, Protocol

from msgspec import Raw, Struct, field, structs

from slipring.core.chain.head import Head
from slipring.core.chain.state import Position, ResponseState
from slipring.protocol.items import Effort, Item
from slipring.protocol.requests import TEXT, TextFormat
from slipring.protocol.responses import Logprob
from slipring.protocol.tools import Kind, Offer


class Accepted(Struct):
    """The engine has read the job and will do it: only now does the response come to be.

    What an engine raises before is a refusal of the request. An engine that has nothing to refuse may leave
    this out: its first delta, whatever it is, says the same.
    """

    rendered_tokens: int = 0
    fallback: str | None = None
    """Why the whole context was rendered and not the delta alone."""
    dropped_items: int = 0

    def after(self, before: "Accepted") -> "Accepted":
        """What is told of an answer that took an earlier job too."""
        return Accepted(
            self.rendered_tokens + before.rendered_tokens,
            self.fallback or before.fallback,
            self.dropped_items + before.dropped_items,
        )


class Begun(Struct):
    """The job has left the engine's queue. Optional."""


class Prefilled(Struct):
    """The context has been read, and the first token is there, though it may say nothing yet. Optional."""


class Text(Struct, gc=False):
    """A piece of the answer."""

    text: str
    logprobs: list[Logprob] = []


class Annotated(Struct):
    """Something about the answer so far, such as a source, as it stands in ``annotations``."""

    annotation: Raw


class Refused(Struct):
    """A piece of a refusal."""

    text: str


class Thought(Struct):
    """A piece of raw reasoning."""

    text: str


class ThoughtSummary(Struct):
    """A piece of a reasoning summary; ``index`` counts the summary's parts."""

    text: str
    index: int = 0


class CallStarted(Struct):
    """The model begins to call a tool. Its arguments follow as ``CallArguments``."""

    kind: Kind
    name: str
    namespace: str | None = None


class CallArguments(Struct, gc=False):
    """A piece of the JSON arguments of a function or a search, or of a custom tool's free-form input."""

    text: str


class Finished(Struct):
    """The last delta of every job, warmups included."""

    reason: Literal["stop", "max_output_tokens", "content_filter", "steered", "broken_off"]
    """Engines know all but the last."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    position: "Position | None" = None
    """Where the engine's own state of this context lives; handed back as ``parent.position``."""

    def after(self, spent: "Finished") -> "Finished":
        """The end of an answer that took an earlier job too, with the tokens of both."""
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
    | Refused
    | Thought
    | ThoughtSummary
    | CallStarted
    | CallArguments
    | Finished
)


class Capabilities(Struct, frozen=True):
    """What an engine can honour. The core asks, and refuses the rest by name before the engine sees it."""

    logprobs: bool = False
    images: bool = False
    files: bool = False


class Defaults(Struct, frozen=True):
    """What a model is asked for where a request says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    effort: Effort | None = None


class Model(Struct, frozen=True):
    """A model as clients name it."""

    name: str
    owner: str
    capabilities: Capabilities
    created: int = 0
    own_name: str = ""
    """What its engine calls it, where that is another name."""
    defaults: Defaults = Defaults()
    context_tokens: int | None = None
    """How much it can read at once, where its engine knows."""


class Models(Protocol):
    """Where models are looked up."""

    def find(self, name: str | None) -> Model:
        """The model of this name, the default one for None, or ``ModelNotFound``."""


class Settings(Struct, frozen=True):
    """How an answer is to be made."""

    format: TextFormat = TEXT
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    effort: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"


class Stop:
    """Asks an engine to end an answer before its end."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False
        """Looked at between tokens. While it is set, an engine ends the answer where no thought and no call
        of it is half said, with a ``Finished`` whose reason is ``steered`` and whose position is right behind
        what has been said. It may be taken back. An engine that cannot end an answer says all of it."""


class Job(Struct, frozen=True):
    """One generation, or with ``generate`` false the preparation of one."""

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
    """Whether another lane will go on from the parent too: what the engine holds for it is to stay there."""
    cache_key: str | None = None
    """The client's `prompt_cache_key`: jobs that share one are likely to share a beginning."""
    stop: Stop = field(default_factory=Stop)

    def context(self) -> Iterator[Item]:
        """All items, oldest first. Costs the whole history: for engines that must, and on misses."""
        if self.parent is not None:
            yield from self.parent.context()
        yield from self.input
