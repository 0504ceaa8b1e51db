"""The chunks of a Chat Completions stream, decoded as tolerantly as servers differ, and errors in it."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from slipring.engines.remote.upstream import refusal
from slipring.errors import ApiError
from slipring.protocol.responses import Logprob, TopLogprob
from slipring.surrogates import repaired


class FunctionPiece(Struct, gc=False):
    name: str | None = None
    arguments: Raw = Raw(b"null")
    """A piece of the JSON text as a string; some servers send the object itself."""


class CallPiece(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None


class ContentPart(Struct, gc=False):
    """A part of content, for servers that send lists: text, or thinking that has parts itself."""

    text: str | None = None
    thinking: "str | list[ContentPart] | None" = None


class ReasoningDetail(Struct, gc=False):
    text: str | None = None
    summary: str | None = None


class ChunkDelta(Struct, gc=False):
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None

    @property
    def thought(self) -> str:
        """Reasoning, which servers send under different names, some under two at once."""
        plain = self.reasoning_content or self.reasoning
        if plain or not self.reasoning_details:
            return plain or ""
        return "".join(detail.text or detail.summary or "" for detail in self.reasoning_details)

    @property
    def only_text(self) -> str:
        """The text, if it is a string and there is nothing besides it but calls; else empty."""
        if type(self.content) is not str:
            return ""
        others = self.reasoning_content or self.reasoning or self.reasoning_details or self.refusal
        return "" if others else self.content

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


class Logprobs(Struct, gc=False):
    content: list[TokenLogprob] | None = None


class Choice(Struct, gc=False):
    index: int = 0
    delta: ChunkDelta | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None

    @property
    def is_empty(self) -> bool:
        has_no_delta = self.delta is None or self.delta.is_empty
        return has_no_delta and not self.finish_reason and self.logprobs is None


class PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None


class CompletionDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Chunk(Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: dict[str, Any] | str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it carries nothing: only the role, or a keep-alive."""
        return self.usage is None and all(choice.is_empty for choice in self.choices or ())


_chunk = msgspec.json.Decoder(Chunk)


def read_chunk(payload: bytes) -> Chunk:
    """Decode a chunk. Raises the error that comes in its place."""
    try:
        chunk = _chunk.decode(payload)
    except msgspec.DecodeError:
        chunk = _chunk.decode(repaired(payload))
    if chunk.error:
        raise _error(chunk.error, payload)
    return chunk


def _error(error: dict[str, Any] | str, payload: bytes) -> ApiError:
    """The error for API clients that an error in the stream means."""
    if isinstance(error, str):
        return refusal(500, payload, {})
    code = str(error.get("code"))
    status = int(code) if code.isdecimal() else 0
    if not 400 <= status < 600:
        names = f"{error.get('type')} {code}".lower()
        status = 429 if "rate_limit" in names else 400 if "invalid" in names or "length" in names else 500
    return refusal(status, payload, {})
