"""The chunks of a Chat Completions stream, as most servers send them."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.engines.remote.streamed_answer import token_count
from slipring.protocol.responses import Logprob, TopLogprob


class FunctionPiece(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None
    """A piece of the JSON text."""


class CallPiece(Struct, gc=False):
    index: int | str | None = None
    id: str | int | None = None
    function: FunctionPiece | None = None
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET


class ContentPart(Struct, gc=False):
    """A part of content, for servers that send lists: text, or thinking that has parts itself."""

    text: str | None = None
    thinking: "str | list[ContentPart] | None" = None


class ChunkDelta(Struct, gc=False):
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET

    @property
    def thought(self) -> str:
        """Reasoning, which servers send under different names, some under two at once."""
        plain = self.reasoning_content or self.reasoning
        if plain or not self.reasoning_details:
            return plain or ""
        texts = (detail.get("text") or detail.get("summary") for detail in self.details)
        return "".join(text for text in texts if isinstance(text, str))

    @property
    def details(self) -> list[dict[str, Any]]:
        """The details of the reasoning; none if they are no list of objects."""
        found = self.reasoning_details
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def has_content(self) -> bool:
        """Whether there is anything besides calls."""
        return bool(
            self.content or self.reasoning_content or self.reasoning or self.reasoning_details or self.refusal
        )

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.refusal or self.tool_calls or self.thought)


class TokenLogprob(Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: "list[TokenLogprob] | None" = None

    def as_logprob(self) -> Logprob:
        top = [TopLogprob(each.token, each.logprob, each.bytes or []) for each in self.top_logprobs or ()]
        return Logprob(self.token, self.logprob, self.bytes or [], top)


class _Logprobs(Struct, gc=False):
    content: list[TokenLogprob] | None = None


def read_logprobs(sent: Any) -> list[Logprob]:
    """The logprobs of a choice; none if they have another form."""
    try:
        return [each.as_logprob() for each in msgspec.convert(sent, _Logprobs).content or ()]
    except msgspec.ValidationError:
        return []


class Choice(Struct, gc=False):
    index: int | None = 0
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
    """The whole answer, of servers that do not stream."""
    finish_reason: str | None = None
    logprobs: Any = None

    @property
    def is_empty(self) -> bool:
        delta = self.delta or self.message
        return (delta is None or delta.is_empty) and not self.finish_reason and self.logprobs is None


class Usage(Struct, frozen=True, gc=False):
    """The counts of an answer; zeros where the server sends none, or something else than a number."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, usage: Any) -> "Usage":
        prompt, completion = token_count(usage, "prompt_tokens"), token_count(usage, "completion_tokens")
        cached = token_count(usage, "prompt_tokens_details", "cached_tokens")
        reasoning = token_count(usage, "completion_tokens_details", "reasoning_tokens")
        return cls(prompt, min(cached, prompt), completion, min(reasoning, completion))


class Chunk(Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None

    @property
    def is_empty(self) -> bool:
        """Whether it carries nothing: only the role, or a keep-alive."""
        return self.usage is None and all(choice.is_empty for choice in self.choices or ())
