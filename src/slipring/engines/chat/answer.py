"""Translates the chunks of a Chat Completions stream into deltas, one item at a time.

Servers interleave calls, and send text between their pieces. The first call that is not over is emitted as it
comes; later calls, text and thoughts are held back. A call is over when its arguments are a complete JSON
object, which nothing but white space can follow, or when the answer ends. An empty object is certain only
once another call or text has begun: some servers send one before the arguments, which then replace it.

Servers number and name calls in many ways. A piece that has a name belongs to a further call if its id or its
name is another, or if the arguments are complete. A piece without a name never does: some servers change the
id of a call after its first piece. Pieces that belong to no call for certain fail the answer: a call is
never made up.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from slipring.base.errors import ApiError, ServerError
from slipring.core.generation import (
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Emit,
    Finished,
    Job,
    Prefilled,
    RefusalText,
    Text,
    Thought,
)
from slipring.engines.chat.chunks import (
    CallPiece,
    Choice,
    ChunkDelta,
    Halves,
    Usage,
    decode_chunk,
    is_error,
    number_of,
    read_logprobs,
    recovered,
    text_of,
)
from slipring.engines.chat.finish_reasons import FAILED_REASONS, FINISH_REASONS, Reason
from slipring.engines.chat.request_body import Written
from slipring.engines.chat.returned_fields import NONE, Details, ReturnedAnswer, ReturnedFields, kept
from slipring.engines.remote.streamed_answer import AnswerReader, SteeredCut
from slipring.engines.remote.upstream_errors import reported
from slipring.prompts.parsing.calls.json_scanner import JsonScanner
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.parsing.output_parser import output_parser
from slipring.protocol.responses import Logprob
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool

_LONGEST_NAME = 256
_THINK_TAGS = OutputFormat(think_open="<think>", think_close="</think>")


class _Input(Struct):
    """The arguments of a custom tool's call."""

    input: str


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_input = msgspec.json.Decoder(_Input | str)


def _named(value: Any) -> int | str | None:
    """What a server names a call by: a text or a whole number. Anything else names none."""
    return value if isinstance(value, str) else number_of(value)


class _Call:
    """One call and how much of it has been emitted."""

    __slots__ = (
        *("_scanner", "emitted", "id", "is_certain", "is_complete", "is_over", "is_started", "name"),
        *("pieces", "returned", "tool"),
    )

    def __init__(self, id: str | float) -> None:
        self.id = id
        self.name = ""
        self.tool: CallableTool | None = None
        self.returned = NONE
        """What the server wants back with the call."""
        self.pieces: list[str] = []
        self.emitted = 0
        """How many pieces of the arguments have been emitted."""
        self.is_started = self.is_over = False
        self.is_complete = False
        """Whether the arguments are a complete JSON object."""
        self.is_certain = False
        """Whether no other arguments can follow."""
        self._scanner = JsonScanner("{")

    @property
    def is_function(self) -> bool:
        """Whether arguments are emitted piece by piece: for functions and searches for tools."""
        return self.tool is None or self.tool.kind != "custom"

    @property
    def emittable(self) -> int:
        """How many pieces may be emitted: not the end of an empty object that others may replace."""
        return len(self.pieces) - (self.is_complete and not self.is_certain and not self.is_over)

    def add(self, text: str) -> None:
        """Add a piece of the arguments."""
        if self.is_complete and not self.is_certain and text.strip():
            self._restart()
            text = text.lstrip().removeprefix("{")
        self.pieces.append(text)
        scanner = self._scanner
        if not scanner.complete:
            scanner.feed(text)
            if not scanner.complete:
                return
            try:
                self.is_certain = bool(_object.decode("".join(self.pieces)))
            except (ValueError, RecursionError):
                return
            self.is_complete = True
            if not self.is_certain:
                self.pieces, self.emitted = ["{", "}"], min(self.emitted, 1)
        elif text.strip():
            self.is_complete = False

    def _restart(self) -> None:
        """Begin the arguments again, after an empty object whose end was held back."""
        self.pieces, self.is_complete = ["{"], False
        self._scanner = JsonScanner("{")
        self._scanner.feed("{")


class CallAssembly:
    """The calls of one answer: takes pieces, returns deltas."""

    def __init__(self, names: Mapping[str, CallableTool]) -> None:
        """``names``: the tools that were sent, by the names that the model uses."""
        self._names = names
        self._calls: list[_Call] = []
        self._at: dict[float | str, _Call] = {}
        self._current = 0
        self._growing: _Call | None = None
        """The last call, if its arguments are emitted as they come."""

    @property
    def any(self) -> bool:
        return bool(self._calls)

    @property
    def returned(self) -> tuple[ReturnedFields, ...]:
        """What the server wants back with each call."""
        return tuple(call.returned for call in self._calls)

    @property
    def are_complete(self) -> bool:
        """Whether every call that has begun has its arguments."""
        return all(call.is_over or call.is_complete for call in self._calls)

    def take(self, piece: CallPiece) -> list[Delta]:
        """Add a piece. Returns the deltas that can be emitted."""
        function, growing = piece.function, self._growing
        if (
            growing is not None
            and function is not None
            and not function.name
            and type(piece.index) in (int, str)
            and self._at.get(piece.index) is growing
            and not growing.is_complete
            and piece.extra_content is UNSET
            and type(text := function.arguments) is str
        ):
            # The hot path, once per token of a call: more arguments of the call that is being emitted.
            if not text:
                return []
            growing.add(text)
            if growing.is_complete:
                return self._advance()
            growing.emitted += 1
            return [CallArguments(text)]
        piece.index, piece.id = _named(piece.index), _named(piece.id)
        name, text = (text_of(function.name), function.arguments_json) if function is not None else ("", "")
        call = self._find(piece, name, text)
        if call is None:
            return []
        if piece.extra_content is not UNSET or piece.provider_specific_fields is not UNSET:
            call.returned = call.returned.updated(
                ReturnedFields(kept(piece.extra_content), kept(piece.provider_specific_fields))
            )
        # A name comes before the arguments: whole or in pieces, and some servers repeat it.
        if name and not call.pieces and not (call.name in self._names and name == call.name):
            call.name += name
        if call.is_over and text.strip():
            raise ServerError("The engine's calls cannot be told apart.")
        if text and not call.is_over:
            call.add(text)
        return self._advance()

    def settle(self) -> tuple[bool, list[Delta]]:
        """End all calls if they are complete, so that text may follow: whether they are, and the deltas."""
        if not self.are_complete:
            return False, []
        return True, self.finish(cut_off=False)

    def finish(self, *, cut_off: bool) -> list[Delta]:
        """End all calls. ``cut_off``: the answer hit a limit, so that the last call may be incomplete."""
        deltas: list[Delta] = []
        for call in self._calls[self._current :]:
            if not call.name and not call.pieces and cut_off:
                continue
            self._emit(call, deltas)
            self._end(call, deltas, cut_off=cut_off)
        self._current = len(self._calls)
        self._growing = None
        return deltas

    def _find(self, piece: CallPiece, name: str, text: str) -> _Call | None:
        """The call that a piece belongs to, perhaps a new one; None if it repeats a call as a whole."""
        call = self._candidate(piece)
        if call is not None and self._is_of_another_call(call, piece, name):
            if piece.id and piece.id == call.id and name == call.name and text == "".join(call.pieces):
                return None
            call = None
        if call is None:
            call = _Call(piece.id or "")
            self._calls.append(call)
        if piece.index is not None:
            self._at[piece.index] = call
        return call

    def _candidate(self, piece: CallPiece) -> _Call | None:
        """The call that a piece may belong to: by its index, else by its id, else the last one."""
        if piece.index is not None:
            return self._at.get(piece.index)
        if piece.id:
            return next((call for call in reversed(self._calls) if call.id == piece.id), None)
        return self._calls[-1] if self._calls else None

    def _is_of_another_call(self, call: _Call, piece: CallPiece, name: str) -> bool:
        """Whether a piece begins a call, although a server gives it the place of another."""
        if not name:
            return False
        if piece.id and call.id and piece.id != call.id:
            return True
        if call.pieces:
            return call.is_complete or name != call.name
        # No arguments yet: the name may come in pieces, or the first call may have none.
        names = self._names
        return name != call.name and call.name in names and name in names and call.name + name not in names

    def _advance(self) -> list[Delta]:
        deltas: list[Delta] = []
        self._growing = None
        while self._current < len(self._calls):
            call = self._calls[self._current]
            self._emit(call, deltas)
            is_last = self._current == len(self._calls) - 1
            if not (call.is_certain if is_last else call.is_complete):
                self._growing = call if is_last and call.is_started and call.is_function else None
                break
            self._end(call, deltas, cut_off=False)
            self._current += 1
        return deltas

    def _emit(self, call: _Call, deltas: list[Delta]) -> None:
        """Emit the new pieces of the current call. Its name is complete once arguments have come."""
        if not call.pieces:
            return
        if not call.is_started:
            self._start(call, deltas)
        if call.is_function and call.emitted < (end := call.emittable):
            deltas.append(CallArguments("".join(call.pieces[call.emitted : end])))
            call.emitted = end

    def _start(self, call: _Call, deltas: list[Delta]) -> None:
        if not 1 <= len(call.name) <= _LONGEST_NAME:
            raise ServerError("The engine called a tool without naming it.")
        call.is_started = True
        call.tool = tool = self._names.get(call.name)
        if tool is None:
            deltas.append(CallStarted("function", call.name, is_offered=False))
        else:
            deltas.append(CallStarted(tool.kind, tool.name, tool.namespace))

    def _end(self, call: _Call, deltas: list[Delta], *, cut_off: bool) -> None:
        if not call.is_started:
            self._start(call, deltas)
        call.is_over = True
        self._emit(call, deltas)
        text = "".join(call.pieces)
        if call.tool is not None and call.tool.kind == "custom":
            deltas.append(CallArguments(_custom_input(text)))
        elif not text and not cut_off:
            deltas.append(CallArguments("{}"))
        deltas.append(CallEnded(call.is_complete or not cut_off))


def _custom_input(text: str) -> str:
    """The input of a custom tool, from ``{"input": …}``; text of any other form is the input itself."""
    for ending in ("", '"}'):  # the second for a call that was cut off
        try:
            value = _input.decode(text + ending)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, str) else value.input
    return text


class ChatAnswer:
    """The answer to one job: takes payloads, returns deltas."""

    def __init__(self, position: Written, *, logprobs: bool = False, think_tags: str = "false") -> None:
        """``position`` is what the engine leaves with the response; ``logprobs``: the client wants them;
        ``think_tags``: see ``ChatOptions``."""
        self._position = position
        self._wants_logprobs = logprobs
        self._calls = CallAssembly(position.toolbox.names)
        self._parser = (
            output_parser(_THINK_TAGS, Offer(), starts_thinking=think_tags == "opened")
            if think_tags != "false"
            else None
        )
        self._halves: Halves = {}
        """Of characters that the last chunk has begun."""
        self._is_plain = self._parser is None and not logprobs
        """Whether text is emitted as it comes: nothing is parsed, attached to it or emitted before it."""
        self._begun = self._streams = False
        self._reason: Reason | None = None
        self._usage = Usage()
        self._logprobs: list[Logprob] = []
        self._returned = NONE
        """What the server wants back with the message."""
        self._details = Details()
        self._held: list[Delta] = []
        """Text and reasoning that came while a call was incomplete: items are emitted one at a time."""

    def read(self, payloads: Iterable[bytes]) -> tuple[list[Delta], ApiError | None]:
        """Decode the payloads of one read up to the first that reports a failure. Returns the deltas before
        it, and the failure, which the caller raises after passing them on."""
        deltas: list[Delta] = []
        try:
            for payload in payloads:
                self._take(payload, deltas)
        except ApiError as fault:
            return deltas, fault
        except (ValueError, RecursionError) as error:  # msgspec's are of the first kind
            unreadable = ServerError("The engine's answer cannot be read.")
            unreadable.__cause__ = error
            unreadable.detail = str(error)
            return deltas, unreadable
        return deltas, None

    def _take(self, payload: bytes, deltas: list[Delta]) -> None:
        """Add the deltas of a chunk. The answer begins with the first one that is not empty."""
        try:
            chunk, self._halves = decode_chunk(payload), {}
        except msgspec.DecodeError as error:
            chunk, self._halves = recovered(payload, error, self._halves)
        if chunk.error or (not chunk.choices and chunk.usage is None and is_error(payload)):
            raise reported(payload)
        if not self._begun:
            if chunk.is_empty:
                return
            self._begun = True
            self._streams = any(choice.delta is not None for choice in chunk.choices or ())
            deltas.append(Prefilled())
        if chunk.usage:
            self._usage = Usage.of(chunk.usage)
        for choice in chunk.choices or ():
            if not choice.index or not choice.is_further:
                self._take_choice(choice, deltas)

    def finish(self) -> list[Delta]:
        """End the stream and return the last deltas. Raises ``ServerError`` if no finish reason has come."""
        if self._reason is None:
            raise ServerError("The engine ended its answer without a finish reason.")
        rest = self._parser.finish() if self._parser is not None else []
        if self._calls.any:
            # The parser held back white space before a call, in case a tag followed.
            rest = [each for each in rest if not isinstance(each, Text) or each.text.strip()]
        deltas: list[Delta] = []
        self._emit(rest, deltas)
        deltas += self._calls.finish(cut_off=self._reason != "stop")
        deltas += self._held
        return [*deltas, self._finished(self._reason)]

    def prepared(self) -> list[Delta]:
        """The last delta of a warmup: its one token is not counted."""
        return [structs.replace(self._finished("stop"), output_tokens=0, reasoning_tokens=0)]

    def _finished(self, reason: Reason) -> Finished:
        """The server's counts; zeros if it sent none."""
        usage = self._usage
        return Finished(
            reason=reason,
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            position=self._position_left(),
            context=self._position,
        )

    def _take_choice(self, choice: Choice, deltas: list[Delta]) -> None:
        delta = choice.delta
        if (
            self._is_plain
            and delta is not None
            and (text := delta.content)
            and type(text) is str
            and not (delta.reasoning_content or delta.reasoning or delta.reasoning_details or delta.refusal)
            and not (delta.tool_calls or delta.extra_content or delta.provider_specific_fields)
        ):
            deltas.append(Text(text))  # the hot path, once per token of a text
        else:
            self._take_delta(choice, deltas)
        if choice.finish_reason:
            self._reason = self._read_reason(choice.finish_reason)

    def _take_delta(self, choice: Choice, deltas: list[Delta]) -> None:
        if self._wants_logprobs and choice.logprobs is not None:
            self._logprobs += read_logprobs(choice.logprobs)
        # A whole message after deltas repeats them.
        delta = choice.delta or (None if self._streams else choice.message)
        if delta is None:
            return
        if delta.has_text:
            self._emit(self._content(delta), deltas)
        if delta.reasoning_details or delta.extra_content or delta.provider_specific_fields:
            self._keep(delta)
        calls = delta.tool_calls or ()
        for piece in (calls,) if isinstance(calls, CallPiece) else calls:
            self._is_plain = False
            deltas += self._calls.take(piece)

    def _keep(self, delta: ChunkDelta) -> None:
        """Keep what the server wants back with the message."""
        self._details.add(delta.details)
        fields = ReturnedFields(kept(delta.extra_content), kept(delta.provider_specific_fields))
        self._returned = self._returned.updated(fields)

    def _position_left(self) -> Written:
        """The position, with what the server wants back with the answer."""
        joined = self._details.joined()
        details = msgspec.json.encode(joined) if joined else b""
        message = self._returned.updated(ReturnedFields(reasoning_details=details))
        returned = ReturnedAnswer(message, self._calls.returned).bounded()
        return structs.replace(self._position, returned=returned) if returned.size_bytes else self._position

    def _read_reason(self, stated: Any) -> Reason:
        """The reason that a server states. Raises ``ServerError`` if the answer has failed."""
        if not isinstance(stated, str):
            stated = msgspec.json.encode(stated).decode()
        name = stated.partition(":")[0].strip().lower()  # Gemini: "content_filter: RECITATION"
        known = FINISH_REASONS.get(name)
        if name in FAILED_REASONS or (known is None and not self._calls.are_complete):
            raise ServerError(f"The engine ended its answer early: {stated[:100]}")
        return known or "stop"

    @property
    def has_reason(self) -> bool:
        """Whether the server has said why the answer ended: nothing but its usage can follow."""
        return self._reason is not None

    def _content(self, delta: ChunkDelta) -> list[Delta]:
        """The reasoning, text and refusal of a chunk."""
        thought = delta.thought
        deltas: list[Delta] = [Thought(thought)] if thought else []
        for text, is_thinking in delta.parts:
            deltas += [Thought(text)] if is_thinking else self._text(text)
        if refusal := text_of(delta.refusal):
            deltas.append(RefusalText(refusal))
        return deltas

    def _text(self, text: str) -> list[Delta]:
        deltas: list[Delta] = [Text(text)] if self._parser is None else self._parser.feed(text)
        first = next((each for each in deltas if isinstance(each, Text)), None)
        if first is not None and self._logprobs:
            first.logprobs, self._logprobs = self._logprobs, []
        return deltas

    def _emit(self, new: list[Delta], deltas: list[Delta]) -> None:
        """Append new deltas, or hold them back until the calls are complete."""
        if not self._calls.any:
            deltas += new
            return
        if not new:
            return
        settled, ending = self._calls.settle() if not self._held else (False, [])
        deltas += ending
        (deltas if settled else self._held).extend(new)


class ChatReader(AnswerReader[bytes]):
    """Reads the chunks of an answer. Until it has begun, ``answer`` is unchanged, for another attempt."""

    def __init__(
        self, job: Job, answer: ChatAnswer, cut: SteeredCut, emit: Emit, begin: Callable[[], None]
    ) -> None:
        super().__init__(job, emit if job.generate else _drop, begin)
        self.answer = answer
        self._cut = cut

    def read(self, batch: list[bytes]) -> tuple[list[Delta], Exception | None]:
        deltas, fault = self.answer.read(batch)
        self._cut.count(deltas)
        if fault is not None and self.answer.has_reason:
            self.has_ended, fault = True, None  # the answer is complete: only its usage may be missing
        return deltas, fault

    def may_be_cut(self) -> bool:
        return self._cut.may_be_made()


def _drop(deltas: list[Delta]) -> None:
    """The deltas of a warmup are not wanted."""
