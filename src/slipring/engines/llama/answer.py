"""What comes back for one job: the ids as emitted, what they say, and what the engine reports.

llama-server streams whole characters: of a character that takes several tokens it names only the last, and
the count. The others are found again from the bytes; where that fails the ids are not known, and the next
turn renders from items.
"""

from slipring.core.generation import Delta, Finished, Job, Prefilled
from slipring.engines.llama.api import Chunk, Timings
from slipring.engines.tokens.token_answer import OutputDecoder
from slipring.errors import ServerError
from slipring.prompts.rendering import Rendered, Renderer, Rendering


class LlamaAnswer:
    """The answer to one job as it comes in. ``trusted``: a grammar keeps its calls to their form."""

    def __init__(
        self, job: Job, rendering: Rendering, renderer: Renderer, limit: int, *, trusted: bool
    ) -> None:
        self._stop = job.stop
        self._rendering = rendering
        self._renderer = renderer
        self._generates = job.generate
        self._limit = limit
        self._stop_ids = renderer.stop_ids()
        self._decoder = OutputDecoder(job, rendering, renderer, trusted=trusted)
        self._last: Chunk | None = None
        self._predicted = 0
        self._cached = 0
        self._stopped = self._cut_off = self._steered = False
        self._ids: list[int] | None = []

    def take(self, chunk: Chunk) -> list[Delta]:
        """Read a chunk of the stream."""
        if chunk.prompt_progress is not None:
            self._cached = chunk.prompt_progress.cache
            return []
        if chunk.stop:
            self._last = chunk
        if not self._generates or not chunk.tokens:
            return []
        first: list[Delta] = [Prefilled()] if not self._predicted else []
        room = max(self._limit - self._predicted, 0)
        hidden = max(chunk.tokens_predicted - self._predicted - len(chunk.tokens), 0)
        self._predicted += hidden + len(chunk.tokens)
        ids = self._found_again(chunk, hidden) if hidden else chunk.tokens
        said = self._listen(ids, chunk, room) if ids is not None else self._overhear(chunk, room)
        logprobs = [] if self._cut_off else [each.as_logprob() for each in chunk.completion_probabilities]
        return first + self._decoder.feed(said, len(chunk.tokens) + hidden, logprobs)

    def ends_before(self, chunk: Chunk) -> bool:
        """Whether to end the answer before a chunk, though the model goes on. That there is one shows that
        the engine has read all that was said before it: the next turn finds it there."""
        is_word = chunk.prompt_progress is None and not chunk.stop and not self._stopped
        self._steered = self._stop.asked and self._generates and is_word and self._decoder.may_end
        return self._steered

    def finish(self) -> tuple[list[Delta], Rendered | None]:
        """The end of the stream: the last deltas, and the context that the engine now holds."""
        if self._last is None and not self._steered:
            raise ServerError("The engine ended its answer without a finish reason.")
        last = self._last or self._as_ended()
        timings = last.timings
        rest = self._decoder.finish() if self._generates else []
        cut_off = self._generates and (self._cut_off or (not self._stopped and last.stop_type == "limit"))
        output_tokens = min(timings.predicted_n - self._stopped, self._limit) if self._generates else 0
        position = self._position()
        input_tokens = (self._rendering.prompt if self._generates else self._rendering.context).total
        finished = Finished(
            reason="max_output_tokens" if cut_off else "steered" if self._steered else "stop",
            input_tokens=input_tokens,
            cached_tokens=min(timings.cache_n, input_tokens),
            output_tokens=output_tokens,
            reasoning_tokens=min(self._decoder.thought_tokens, output_tokens),
            position=position,
        )
        return [*rest, finished], position

    def _as_ended(self) -> Chunk:
        """What the engine would have said at the end of an answer that it was not left to end."""
        return Chunk(timings=Timings(cache_n=self._cached, predicted_n=self._predicted))

    def _position(self) -> Rendered | None:
        if not self._generates or (self._steered and not self._predicted):
            return self._rendering.context  # it has never been the model's turn
        return self._rendering.with_answer(self._ids) if self._ids is not None else None

    def _listen(self, ids: list[int], chunk: Chunk, room: int) -> str:
        """Keep ids as emitted, as many as there is room for; what they say."""
        ids = self._until_stop(ids)
        self._cut_off = self._cut_off or len(ids) > room
        ids = ids[:room]
        if self._ids is not None:
            self._ids += ids
        if not ids:
            return ""
        renderer = self._renderer
        if renderer.vocabulary.is_local:
            return self._decoder.characters.feed(renderer.token_bytes.join(ids))
        return "".join(renderer.mark_of(id) for id in ids) or chunk.content

    def _overhear(self, chunk: Chunk, room: int) -> str:
        """The words are known, the ids are not."""
        self._ids = None
        self._until_stop(chunk.tokens)
        self._cut_off = self._cut_off or not room
        return self._decoder.characters.finish() + chunk.content if room else ""

    def _until_stop(self, ids: list[int]) -> list[int]:
        if self._stop_ids.isdisjoint(ids):
            return ids
        self._stopped = not self._cut_off
        return [id for id in ids if id not in self._stop_ids]

    def _found_again(self, chunk: Chunk, hidden: int) -> list[int] | None:
        vocabulary = self._renderer.vocabulary
        before = vocabulary.spell(chunk.content.encode(), hidden, chunk.tokens)
        return None if before is None else [*before, *chunk.tokens]
