"""What comes back for one job: chunks in, deltas out."""

from typing import Literal

import msgspec
from msgspec import structs

from slipring.core.generation import Delta, Finished, Prefilled, Refused, Text, Thought
from slipring.engines.chat.call_assembly import Calls
from slipring.engines.chat.chunks import Choice, Chunk, ChunkDelta, ContentPart, Usage, read_chunk
from slipring.engines.chat.request_body import Written
from slipring.errors import ServerError
from slipring.prompts.parsing.parser import CallFormat, Parser
from slipring.protocol.responses import Logprob
from slipring.protocol.tools import Offer

Reason = Literal["stop", "max_output_tokens", "content_filter"]
_REASONS: dict[str, Reason] = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "model_length": "max_output_tokens",
    "content_filter": "content_filter",
}
"""What servers call the ends that are none of the model's own; every other is."""
_THINK_TAGS = CallFormat(think_open="<think>", think_close="</think>")


class Answer:
    """The answer to one job as it comes in."""

    def __init__(self, position: Written, *, logprobs: bool = False, think_tags: bool = False) -> None:
        """``position`` is left with the response when it is done; ``logprobs``: they were asked for."""
        self._position = position
        self._wants_logprobs = logprobs
        self._calls = Calls(position.toolbox.names)
        self._parser = Parser(_THINK_TAGS, Offer()) if think_tags else None
        self._begun = False
        self._reason: Reason | None = None
        self._usage = Usage()
        self._logprobs: list[Logprob] = []
        self._later: list[Delta] = []
        """Said while a call was not whole: one thing is told at a time."""

    def read(self, payload: bytes) -> list[Delta]:
        """Read a payload of the stream."""
        try:
            return self.take(read_chunk(payload))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ServerError("The engine's answer cannot be read.") from error

    def take(self, chunk: Chunk) -> list[Delta]:
        """Read a chunk of the stream. Nothing has begun until one says something."""
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
        """The end of the stream: the last deltas."""
        if self._reason is None:
            raise ServerError("The engine ended its answer without saying so.")
        rest = self._parser.finish() if self._parser is not None else []
        if self._calls.any:
            # White space before a call was held back for a tag that might have come.
            rest = [each for each in rest if not isinstance(each, Text) or each.text.strip()]
        deltas: list[Delta] = []
        self._tell(rest, deltas)
        deltas += self._calls.finish(cut_off=self._reason != "stop")
        deltas += self._later
        return [*deltas, self._finished(self._reason)]

    def prepared(self) -> list[Delta]:
        """The end of a warmup, whose one token is nobody's."""
        return [structs.replace(self._finished("stop"), output_tokens=0, reasoning_tokens=0)]

    def _finished(self, reason: Reason) -> Finished:
        """The counts as the server told them; zeros where it did not."""
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
        )

    def _take_choice(self, choice: Choice, deltas: list[Delta]) -> None:
        if choice.logprobs is not None and self._wants_logprobs:
            self._logprobs += [each.as_logprob() for each in choice.logprobs.content or ()]
        delta = choice.delta
        if delta is not None:
            if delta.speaks:
                self._tell(self._said(delta), deltas)
            if delta.tool_calls:
                for piece in delta.tool_calls:
                    deltas += self._calls.take(piece)
        if choice.finish_reason:
            if choice.finish_reason == "error":
                raise ServerError("The engine has failed.")
            self._reason = _REASONS.get(choice.finish_reason, "stop")

    def _said(self, delta: ChunkDelta) -> list[Delta]:
        """What a chunk says beside calls."""
        thought = delta.thought
        said: list[Delta] = [Thought(thought)] if thought else []
        if isinstance(delta.content, list):
            said += [each for part in delta.content for each in self._part(part)]
        elif delta.content:
            said += self._words(delta.content)
        if delta.refusal:
            said.append(Refused(delta.refusal))
        return said

    def _part(self, part: ContentPart) -> list[Delta]:
        if part.thinking:
            inner = part.thinking
            thought = inner if isinstance(inner, str) else "".join(each.text or "" for each in inner)
            return [Thought(thought)] if thought else []
        return self._words(part.text) if part.text else []

    def _words(self, text: str) -> list[Delta]:
        said: list[Delta] = [Text(text)] if self._parser is None else self._parser.feed(text)
        spoken = next((each for each in said if isinstance(each, Text)), None)
        if spoken is not None and self._logprobs:
            spoken.logprobs, self._logprobs = self._logprobs, []
        return said

    def _tell(self, said: list[Delta], deltas: list[Delta]) -> None:
        """Tell it now, or after the calls that are not whole yet."""
        if not said:
            return
        settled, ending = self._calls.settle() if not self._later else (False, [])
        deltas += ending
        (deltas if settled else self._later).extend(said)
