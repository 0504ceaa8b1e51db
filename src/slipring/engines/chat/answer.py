"""Translates the chunks of a Chat Completions stream into deltas."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import structs

from slipring.core.generation import Delta, Finished, Prefilled, Refused, Text, Thought
from slipring.engines.chat.call_assembly import CallAssembly
from slipring.engines.chat.chunks import Choice, Chunk, ChunkDelta, ContentPart, Usage, read_chunk
from slipring.engines.chat.request_body import Written
from slipring.errors import ApiError, ServerError
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.parsing.output_parser import OutputParser
from slipring.protocol.responses import Logprob
from slipring.protocol.tools import Offer

Reason = Literal["stop", "max_output_tokens", "content_filter"]
_REASONS: dict[str, Reason] = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "model_length": "max_output_tokens",
    "content_filter": "content_filter",
}
"""Finish reasons of answers that were cut off; any other means that the model ended the answer."""
_THINK_TAGS = OutputFormat(think_open="<think>", think_close="</think>")


class ChatAnswer:
    """The answer to one job: takes payloads, returns deltas."""

    def __init__(self, position: Written, *, logprobs: bool = False, think_tags: bool = False) -> None:
        """``position`` is what the engine leaves with the response; ``logprobs``: the client wants them."""
        self._position = position
        self._wants_logprobs = logprobs
        self._calls = CallAssembly(position.toolbox.names)
        self._parser = OutputParser(_THINK_TAGS, Offer()) if think_tags else None
        self._begun = False
        self._reason: Reason | None = None
        self._usage = Usage()
        self._logprobs: list[Logprob] = []
        self._held: list[Delta] = []
        """Text and reasoning that came while a call was incomplete: items are emitted one at a time."""

    def read(self, payloads: Iterable[bytes]) -> tuple[list[Delta], ApiError | None]:
        """Decode the payloads of one read up to the first that reports a failure. Returns the deltas before
        it, and the failure, which the caller raises after passing them on."""
        deltas: list[Delta] = []
        try:
            for payload in payloads:
                deltas += self.take(read_chunk(payload))
        except ApiError as fault:
            return deltas, fault
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            unreadable = ServerError("The engine's answer cannot be read.")
            unreadable.__cause__ = error
            return deltas, unreadable
        return deltas, None

    def take(self, chunk: Chunk) -> list[Delta]:
        """Return the deltas of a chunk. The answer begins with the first chunk that is not empty."""
        deltas: list[Delta] = []
        if not self._begun:
            if chunk.is_empty:
                return deltas
            self._begun = True
            deltas.append(Prefilled())
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.index == 0:
                self._take_choice(choice, deltas)
        return deltas

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
        prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
        input_tokens, output_tokens = usage.prompt_tokens or 0, usage.completion_tokens or 0
        cached = (prompt.cached_tokens if prompt is not None else None) or 0
        thought = (completion.reasoning_tokens if completion is not None else None) or 0
        return Finished(
            reason=reason,
            input_tokens=input_tokens,
            cached_tokens=min(cached, input_tokens),
            output_tokens=output_tokens,
            reasoning_tokens=min(thought, output_tokens),
            position=self._position,
            context=self._position,
        )

    def _take_choice(self, choice: Choice, deltas: list[Delta]) -> None:
        if choice.logprobs is not None and self._wants_logprobs:
            self._logprobs += [each.as_logprob() for each in choice.logprobs.content or ()]
        delta = choice.delta
        if delta is not None:
            if (text := delta.only_text) and self._passes_text_on:
                deltas.append(Text(text))  # the hot path, once per token of a text
            elif delta.has_content:
                self._emit(self._content(delta), deltas)
            if delta.tool_calls:
                for piece in delta.tool_calls:
                    deltas += self._calls.take(piece)
        if choice.finish_reason:
            if choice.finish_reason == "error":
                raise ServerError("The engine has failed.")
            self._reason = _REASONS.get(choice.finish_reason, "stop")

    @property
    def _passes_text_on(self) -> bool:
        """Whether text is emitted as it comes: nothing is parsed, attached to it or emitted before it."""
        return self._parser is None and not self._logprobs and not self._calls.any

    def _content(self, delta: ChunkDelta) -> list[Delta]:
        """The reasoning, text and refusal of a chunk."""
        thought = delta.thought
        deltas: list[Delta] = [Thought(thought)] if thought else []
        if isinstance(delta.content, list):
            deltas += [each for part in delta.content for each in self._part(part)]
        elif delta.content:
            deltas += self._text(delta.content)
        if delta.refusal:
            deltas.append(Refused(delta.refusal))
        return deltas

    def _part(self, part: ContentPart) -> list[Delta]:
        if part.thinking:
            inner = part.thinking
            thought = inner if isinstance(inner, str) else "".join(each.text or "" for each in inner)
            return [Thought(thought)] if thought else []
        return self._text(part.text) if part.text else []

    def _text(self, text: str) -> list[Delta]:
        deltas: list[Delta] = [Text(text)] if self._parser is None else self._parser.feed(text)
        first = next((each for each in deltas if isinstance(each, Text)), None)
        if first is not None and self._logprobs:
            first.logprobs, self._logprobs = self._logprobs, []
        return deltas

    def _emit(self, new: list[Delta], deltas: list[Delta]) -> None:
        """Append new deltas, or hold them back until the calls are complete."""
        if not new:
            return
        settled, ending = self._calls.settle() if not self._held else (False, [])
        deltas += ending
        (deltas if settled else self._held).extend(new)
