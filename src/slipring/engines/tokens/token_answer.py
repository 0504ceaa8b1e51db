"""Decodes the answers of engines that exchange token ids."""

import codecs
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, structs

from slipring.base.errors import ApiError, ServerError
from slipring.core.generation import (
    CallArguments,
    CallStarted,
    Delta,
    Emit,
    Finished,
    Job,
    Prefilled,
    Text,
)
from slipring.engines.remote.streamed_answer import AnswerReader
from slipring.engines.remote.upstream_errors import refusal
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat, PythonCalls
from slipring.prompts.parsing.output_parser import output_parser
from slipring.prompts.rendering import Renderer, Rendering
from slipring.protocol import wire
from slipring.protocol.responses import Logprob

_REASONS: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What parsers raise for a payload that they cannot decode."""


class OutputDecoder:
    """Turns the model's text, piece by piece, into deltas with logprobs. Counts the reasoning tokens."""

    def __init__(
        self,
        job: Job,
        rendering: Rendering,
        renderer: Renderer,
        *,
        constrained: bool = False,
        trusted: bool = False,
    ) -> None:
        """``constrained``: the engine enforces a JSON schema on the answer. ``trusted``: a grammar enforces
        the format of calls."""
        starts_thinking = renderer.opens_thought(rendering.prompt)
        format = _recognized(renderer.output_format, required=job.offer.required, trusted=trusted)
        self._parser = output_parser(format, job.offer, starts_thinking=starts_thinking, trusted=trusted)
        # A schema may apply from the first token, although the prompt has opened a reasoning block.
        self._without_thought = output_parser(format, job.offer) if constrained and starts_thinking else None
        self._logprobs: list[Logprob] = []
        self.characters = Utf8Stream()
        self.thought_tokens = 0
        self.called: list[str] = []
        """The names of the tools that were called."""

    def feed(self, text: str, tokens: int, logprobs: list[Logprob]) -> list[Delta]:
        """Decode the text of ``tokens`` more tokens."""
        if self._without_thought is not None and text.strip():
            if text.lstrip().startswith("{"):
                self._parser = self._without_thought
            self._without_thought = None
        deltas = self._parser.feed(text) if text else []
        if len(deltas) > 1 or (deltas and type(deltas[0]) is CallStarted):
            self._note_calls(deltas)
        if self._parser.is_thinking:
            self.thought_tokens += tokens
        if logprobs:
            self._logprobs += logprobs
        return self._with_logprobs(deltas) if self._logprobs else deltas

    @property
    def is_holding(self) -> bool:
        """Whether a call is held back until it is complete."""
        return self._parser.is_holding

    @property
    def may_end(self) -> bool:
        """Whether the answer may be cut here: outside of reasoning, calls and multi-token characters."""
        return self._parser.is_idle and not self.characters.is_waiting

    def finish(self, *, cut_off: bool) -> list[Delta]:
        """The last deltas; ``cut_off``: a limit has ended the answer."""
        deltas = [*self._parser.feed(self.characters.finish()), *self._parser.finish(cut_off=cut_off)]
        self._note_calls(deltas)
        return self._with_logprobs(deltas) if self._logprobs else deltas

    def _note_calls(self, deltas: list[Delta]) -> None:
        self.called += [delta.name for delta in deltas if isinstance(delta, CallStarted)]

    def _with_logprobs(self, deltas: list[Delta]) -> list[Delta]:
        """Attach all collected logprobs to the next text delta: the parser may have held some text back."""
        text = next((delta for delta in deltas if isinstance(delta, Text)), None)
        if text is not None:
            text.logprobs, self._logprobs = self._logprobs, []
        elif self._parser.is_thinking or any(isinstance(delta, CallArguments) for delta in deltas):
            self._logprobs = []  # the API has none for reasoning and calls
        return deltas


def _recognized(format: OutputFormat, *, required: bool, trusted: bool) -> OutputFormat:
    """The format with the calls that a constraint allows."""
    calls = format.calls
    if trusted and isinstance(calls, JsonCalls | PythonCalls) and (calls.open or calls.section_open):
        # The constraint recognises calls by their marks; it has not checked text without them.
        calls = structs.replace(calls, is_bare=False)
    if isinstance(calls, JsonCalls):
        if trusted:
            calls = structs.replace(calls, announcement="")
        elif required and not calls.section_open:
            # A server that takes no more than a schema enforces a call without marks.
            calls = structs.replace(calls, is_bare=True)
    return structs.replace(format, calls=calls)


class Piece(Struct):
    """A part of a server's stream, in a form that all servers which report their ids share."""

    ids: list[int] = []
    text: str = ""
    """The text of the ids, if the vocabulary is not local."""
    logprobs: list[Logprob] = []
    """One for each id, if the request asks for them."""
    reason: Literal["stop", "length"] | None = None
    stop_id: int | None = None
    """The id that ended the answer, if one did."""
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    """What the server counts, pictures included."""


def _merged(pieces: Sequence[Piece]) -> Piece | None:
    """Merge pieces into one; None if they have logprobs."""
    ids: list[int] = []
    whole = Piece(ids)
    for piece in pieces:
        if piece.logprobs:
            return None
        ids += piece.ids
        if piece.text:
            whole.text += piece.text
        if piece.reason is not None:
            whole.reason, whole.stop_id = piece.reason, piece.stop_id
        if piece.cached_tokens is not None:
            whole.cached_tokens = piece.cached_tokens
        if piece.prompt_tokens is not None:
            whole.prompt_tokens = piece.prompt_tokens
    return whole


class TokenAnswer:
    """Collects the ids of one answer and decodes them.

    Keeps the ids as emitted, so that the next turn appends to exactly what the model has read and written.
    """

    def __init__(
        self,
        job: Job,
        rendering: Rendering,
        renderer: Renderer,
        *,
        constrained: bool = False,
        trusted: bool = False,
    ) -> None:
        self._rendering = rendering
        self._stop = job.stop
        self._is_local = renderer.vocabulary.is_local
        self._token_bytes = renderer.token_bytes
        self._generates = job.generate
        self._stop_ids = renderer.stop_ids()
        self._decoder = OutputDecoder(job, rendering, renderer, constrained=constrained, trusted=trusted)
        self._ids: list[int] = []
        self._closing: list[int] = []
        self._has_gap = False
        self._prefilled = self._steered = False
        self._reason: Literal["stop", "length"] | None = None
        self._cached_tokens = 0
        self._counted: int | None = None

    def take_all(self, pieces: Sequence[Piece]) -> list[Delta]:
        """Decode the pieces of one read. While a call is held back they yield no deltas, so they are merged
        first, which is faster."""
        deltas: list[Delta] = []
        for index, piece in enumerate(pieces):
            if self._decoder.is_holding and (rest := _merged(pieces[index:])) is not None:
                return deltas + self.take(rest)
            deltas += self.take(piece)
        return deltas

    def take(self, piece: Piece) -> list[Delta]:
        if piece.reason is not None:
            self._reason = piece.reason
        if piece.cached_tokens is not None:
            self._cached_tokens = piece.cached_tokens
        if piece.prompt_tokens is not None:
            self._counted = piece.prompt_tokens
        if not self._generates or not piece.ids:
            return []
        # Hot path, once per token: what is usual is not a call of its own.
        ids, logprobs = piece.ids, piece.logprobs
        if ids[-1] == piece.stop_id or not self._stop_ids.isdisjoint(ids):
            ids, logprobs = self._kept(piece)
        characters = self._decoder.characters
        if not self._is_local:
            text = piece.text
        else:
            data = self._token_bytes[ids[0]] if len(ids) == 1 else self._token_bytes.join(ids)
            is_plain = data.isascii() and not characters.is_waiting
            text = data.decode("ascii") if is_plain else characters.feed(data)
        if self._closing or len(ids) < len(piece.ids):
            # Usually the one id that ends the answer. An id that is kept after one that is not leaves a gap.
            self._has_gap |= bool(self._closing and ids) or piece.ids[: len(ids)] != ids
            self._closing += piece.ids[len(ids) :]
        deltas = self._decoder.feed(text, len(ids), logprobs)
        if not self._prefilled:
            self._prefilled = True
            deltas.insert(0, Prefilled())
        self._ids += ids
        return deltas

    @property
    def has_begun(self) -> bool:
        """Whether the first token or the end has arrived."""
        return self._prefilled or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the server has reported the end."""
        return self._reason is not None

    @property
    def called(self) -> list[str]:
        """The names of the tools that were called so far."""
        return self._decoder.called

    @property
    def closing_ids(self) -> list[int] | None:
        """The ids that the model emitted after those of the position where the answer has ended; None if it
        was cut, or if others than the last ones are missing there."""
        return None if self._steered or self._has_gap or not self.has_ended else self._closing

    def ends_here(self) -> bool:
        """Whether to cut the answer here, because the job's ``stop`` asks for it."""
        due = self._stop.asked and self._generates and self._reason is None and self._decoder.may_end
        self._steered = due
        return due

    def finish(self) -> list[Delta]:
        """The last deltas, at the end of the stream."""
        rendering = self._rendering
        sent = rendering.prompt if self._generates else rendering.context
        has_answer = self._generates and (self._ids or not self._steered)
        reason: Literal["stop", "max_output_tokens", "steered"] = "steered" if self._steered else "stop"
        cut_off = self._generates and self._reason == "length"
        # How many tokens pictures take, only the server knows.
        counted = self._counted if sent.body.pictures else None
        input_tokens = sent.total if counted is None else counted
        finished = Finished(
            reason="max_output_tokens" if cut_off else reason,
            input_tokens=input_tokens,
            cached_tokens=min(self._cached_tokens, input_tokens),
            output_tokens=len(self._ids),
            reasoning_tokens=min(self._decoder.thought_tokens, len(self._ids)),
            # Without output, the prompt that opens the model's turn is not part of the context.
            position=rendering.with_answer(self._ids, counted) if has_answer else rendering.context,
            context=rendering.context,
        )
        return [*(self._decoder.finish(cut_off=cut_off) if self._generates else []), finished]

    def _kept(self, piece: Piece) -> tuple[list[int], list[Logprob]]:
        """The ids that are part of the answer, with their logprobs: all but stop ids."""
        ids = piece.ids
        count = len(ids) - (ids[-1] == piece.stop_id)
        kept = [number for number in range(count) if ids[number] not in self._stop_ids]
        logprobs = [piece.logprobs[number] for number in kept] if piece.logprobs else []
        return [ids[number] for number in kept], logprobs


class PieceParser(Protocol):
    """Parses the stream that answers one request."""

    def read(self, payload: bytes) -> Piece:
        """Parse one payload. Raises an ``ApiError`` if it reports a failure."""


def read_payload(parser: PieceParser, payload: bytes) -> Piece:
    """``parser.read``, which also raises an ``ApiError`` for what it cannot decode."""
    try:
        return parser.read(payload)
    except _UNREADABLE as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ServerError:
    fault = ServerError("The engine's answer cannot be read.")
    fault.__cause__ = error
    return fault


class TokenReader(AnswerReader[bytes]):
    """Reads an answer of token ids. Until it has begun, ``answer`` is unchanged, for another attempt."""

    def __init__(
        self, job: Job, parser: PieceParser, answer: TokenAnswer, emit: Emit, begin: Callable[[], None]
    ) -> None:
        super().__init__(job, emit, begin)
        self.answer = answer
        self._parser = parser

    def read(self, batch: list[bytes]) -> tuple[list[Delta], Exception | None]:
        pieces: list[Piece] = []
        fault: ApiError | None = None
        try:
            pieces.extend(map(self._parser.read, batch))
        except ApiError as error:
            fault = error
        except _UNREADABLE as error:
            fault = _unreadable(error)
        if len(pieces) == 1:  # hot path: a token that arrives by itself
            return self.answer.take(pieces[0]), fault
        return self.answer.take_all(pieces), fault

    def may_be_cut(self) -> bool:
        return self.answer.ends_here()

    def begins_without_deltas(self) -> bool:
        return self.answer.has_begun


class Utf8Stream:
    """Decodes UTF-8 piece by piece. Invalid bytes become U+FFFD."""

    __slots__ = ("_decoder", "is_waiting")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.is_waiting = False
        """Whether the last bytes are an incomplete character."""

    def feed(self, data: bytes) -> str:
        """Return the text that ``data`` completes and hold back an incomplete character at its end."""
        if data.isascii() and not self.is_waiting:
            return data.decode("ascii")  # fast path: most output is ASCII
        text = self._decoder.decode(data)
        self.is_waiting = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """Return U+FFFD if the data ended within a character, otherwise an empty string."""
        self.is_waiting = False
        return self._decoder.decode(b"", final=True)


class Fault(Struct):
    """A failure that a server reports within a stream."""

    message: str = ""
    code: int | str | None = None


def failure(fault: Fault, status: int | None = None) -> ApiError:
    """The error for API clients that a failure within a stream means: the same as with this HTTP status."""
    status = status or (fault.code if isinstance(fault.code, int) else 500)
    return refusal(status, wire.encode({"message": fault.message}), {})


def reason_of(name: str) -> Literal["stop", "length"]:
    """Translate a finish reason. Raises ``ServerError`` for any that is no regular end."""
    if name not in _REASONS:
        raise ServerError(f"The engine ended its answer early: {name[:100]}")
    return _REASONS[name]
