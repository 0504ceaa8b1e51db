"""The chunks of a Chat Completions stream: what each says, in whichever form a server sends it.

Servers differ from the API's form: content comes as an object, as a list of strings or as a number, a finish
reason under another name or as `false`, arguments as an object, one call without a list around it, an error
in the place of a chunk, a character in two halves of which each chunk has one. What they mean is taken, and
nothing else of the answer is lost. Only the frame has to be right: choices are objects in a list, and deltas
and calls are objects.
"""

import json
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.surrogates import repaired
from slipring.engines.remote.streamed_answer import token_count
from slipring.engines.remote.upstream_errors import reported
from slipring.protocol.responses import Logprob, TopLogprob

_DEEPEST = 4
"""How many objects and lists may be around a text."""
_TEXTS = ("text", "value", "content")
"""The fields of an object that may be its text."""
_NOTHING = (None, "")
"""What servers send in fields without a text."""
_OTHER_ERRORS = (b"[{", b'"')
"""How errors in the place of a chunk begin that are no object: a list of objects, a text."""
_HALF_CHARACTER = b"\\ud"


def text_of(value: Any, depth: int = 0) -> str:
    """The text of a value: itself, that of an object, those of a list together; a number's digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if depth == _DEEPEST:
        return ""
    if isinstance(value, list):
        return "".join(text_of(each, depth + 1) for each in value)
    if isinstance(value, dict):
        return next(filter(None, (text_of(value.get(name), depth + 1) for name in _TEXTS)), "")
    return ""


def number_of(value: Any) -> int | None:
    """A whole number; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value == value // 1 else None


class FunctionPiece(Struct, gc=False):
    name: Any = None
    arguments: Any = None
    """A piece of the JSON text; some servers send the object itself."""

    @property
    def arguments_json(self) -> str:
        arguments = self.arguments
        if arguments is None or isinstance(arguments, str):
            return arguments or ""
        return msgspec.json.encode(arguments).decode()


class CallPiece(Struct, gc=False):
    index: Any = None
    id: Any = None
    function: FunctionPiece | None = None
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET


class ChunkDelta(Struct, gc=False):
    content: Any = None
    """A text. Some servers send a list of parts: texts, and thinking that has parts itself."""
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: list[CallPiece] | CallPiece | None = None
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET

    @property
    def has_text(self) -> bool:
        """Whether it may have text, reasoning or a refusal. The pieces of a call have none."""
        return not (
            self.content in _NOTHING
            and self.reasoning_content in _NOTHING
            and self.reasoning in _NOTHING
            and not self.reasoning_details
            and self.refusal in _NOTHING
        )

    @property
    def thought(self) -> str:
        """Reasoning, which servers send under different names, some under two at once."""
        plain = text_of(self.reasoning_content) or text_of(self.reasoning)
        if plain or not self.reasoning_details:
            return plain
        texts = (detail.get("text") or detail.get("summary") for detail in self.details)
        return "".join(text for text in texts if isinstance(text, str))

    @property
    def details(self) -> list[dict[str, Any]]:
        """The details of the reasoning; none if they are no list of objects."""
        found = self.reasoning_details
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The texts of the content, each with whether it is thinking."""
        found: list[tuple[str, bool]] = []
        for part in self.content if isinstance(self.content, list) else (self.content,):
            thinking = part.get("thinking") if isinstance(part, dict) else None
            text, is_thinking = text_of(thinking or part), bool(thinking)
            if found and found[-1][1] == is_thinking:
                found[-1] = (found[-1][0] + text, is_thinking)
            elif text:
                found.append((text, is_thinking))
        return found

    @property
    def is_empty(self) -> bool:
        return not (self.tool_calls or self.thought or self.parts or text_of(self.refusal))


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
    index: Any = 0
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
    """The whole answer, of servers that do not stream."""
    finish_reason: Any = None
    """Why the answer has ended. Nothing is stated by `false`, `0` or an empty object."""
    logprobs: Any = None

    @property
    def is_further(self) -> bool:
        """Whether it is another choice than the first. An index that is no whole number says nothing."""
        return number_of(self.index) not in (0, None)

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


class _BareError(Struct):
    """What a payload without choices may be: an error that is not in a field of its own."""

    object: Any = None
    type: Any = None
    message: Any = None
    detail: Any = None
    error_message: Any = None


_bare_error = msgspec.json.Decoder(_BareError)


def is_error(payload: bytes) -> bool:
    """Whether a payload without choices is an error that is not in a field of its own."""
    bare = _bare_error.decode(repaired(payload))
    return "error" in (bare.object, bare.type) or bool(bare.message or bare.detail or bare.error_message)


decode_chunk = msgspec.json.Decoder(Chunk).decode
Halves = dict[str, str]
"""The first halves that a chunk ends with, by their places in it."""


def recovered(payload: bytes, error: msgspec.DecodeError, earlier: Halves) -> tuple[Chunk, Halves]:
    """A chunk that half of a character makes unreadable, joined with what the one before it began, and the
    halves that it ends with itself. Raises the error that comes in the place of one, or ``error``."""
    if isinstance(error, msgspec.ValidationError) and payload.startswith(_OTHER_ERRORS):
        raise reported(payload) from None
    if isinstance(error, msgspec.ValidationError) or _HALF_CHARACTER not in payload.lower():
        raise error
    whole, halves = _joined(payload, earlier)
    return decode_chunk(whole), halves


def _joined(payload: bytes, earlier: Halves) -> tuple[bytes, Halves]:
    """A chunk with what the one before it began, and the halves that it ends with itself. Raises
    ``ValueError`` if it is not JSON."""
    halves: Halves = {}

    def whole(value: Any, place: str) -> Any:
        if isinstance(value, dict):
            return {name: whole(each, f"{place}.{name}") for name, each in value.items()}
        if isinstance(value, list):
            return [whole(each, f"{place}.{index}") for index, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = earlier.get(place, "") + value
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, halves[place] = text[:-1], text[-1]
        # Halves that belong together become one character, others are replaced.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    return msgspec.json.encode(whole(json.loads(payload), "")), halves
