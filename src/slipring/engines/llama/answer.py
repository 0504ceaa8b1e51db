"""Turns the chunks of one completion into deltas, and keeps the emitted ids for the next turn.

llama-server streams whole characters: for a character of several tokens it reports the last id and the count.
The other ids are recovered from the character's bytes. If that fails, the answer's ids are unknown, and the
next turn is rendered from its items.
"""

from slipring.base.errors import ApiError, ServerError
from slipring.core.generation import Delta, Emit, Finished, Job, Prefilled
from slipring.engines.engine_hosts import Host
from slipring.engines.llama.api import Chunk, Timings, read_chunk
from slipring.engines.llama.slots_and_saved_contexts import Slot
from slipring.engines.remote.streamed_answer import AnswerReader, CutOff
from slipring.engines.tokens.token_answer import OutputDecoder
from slipring.prompts.rendering import Rendered, Renderer, Rendering


class LlamaAnswer:
    """Parses the answer to one job: ``take`` every chunk, then ``finish``."""

    def __init__(
        self, job: Job, rendering: Rendering, renderer: Renderer, limit: int, *, trusted: bool
    ) -> None:
        """``limit``: the maximum of output tokens; the engine may send one more. ``trusted``: a grammar
        guarantees that calls are well-formed."""
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
        self.prefilled = 0
        """How many tokens of the prompt the slot holds for certain, while it is being read."""
        self._stopped = self._cut_off = self._steered = False
        self._ids: list[int] | None = []

    def take(self, chunk: Chunk) -> list[Delta]:
        """The deltas of the next chunk."""
        if chunk.prompt_progress is not None:
            self._cached = chunk.prompt_progress.cache
            self.prefilled = chunk.prompt_progress.processed
            return []
        if chunk.stop:
            self._last = chunk
        if not self._generates or not chunk.tokens:
            return []
        first: list[Delta] = [Prefilled()] if not self._predicted else []
        room = max(self._limit - self._predicted, 0)
        hidden = max(chunk.tokens_predicted - self._predicted - len(chunk.tokens), 0)
        self._predicted += hidden + len(chunk.tokens)
        ids = self._recover_ids(chunk, hidden) if hidden else chunk.tokens
        text = self._take_ids(ids, chunk, room) if ids is not None else self._take_text(chunk, room)
        logprobs = [] if self._cut_off else [each.as_logprob() for each in chunk.completion_probabilities]
        return first + self._decoder.feed(text, len(chunk.tokens) + hidden, logprobs)

    def ends_before(self, chunk: Chunk) -> bool:
        """Whether to end the answer before ``chunk`` because a client steers it. A further chunk proves that
        the engine has evaluated all earlier tokens, so the next turn finds their KV."""
        is_output = chunk.prompt_progress is None and not chunk.stop and not self._stopped
        self._steered = self._stop.asked and self._generates and is_output and self._decoder.may_end
        return self._steered

    def finish(self) -> tuple[list[Delta], Rendered | None]:
        """Returns the last deltas, and the context that the slot now holds (None if its ids are unknown).
        Raises ``ServerError`` if the stream ended too early."""
        if self._last is None and not self._steered:
            raise ServerError("The engine ended its answer without a finish reason.")
        last = self._last or self._steered_last()
        timings = last.timings
        cut_off = self._generates and (self._cut_off or (not self._stopped and last.stop_type == "limit"))
        rest = self._decoder.finish(cut_off=cut_off) if self._generates else []
        output_tokens = min(timings.predicted_n - self._stopped, self._limit) if self._generates else 0
        sent = self._rendering.prompt if self._generates else self._rendering.context
        counted = timings.cache_n + timings.prompt_n if sent.body.pictures and self._last else None
        position = self._position(counted)
        input_tokens = sent.total if counted is None else counted
        finished = Finished(
            reason="max_output_tokens" if cut_off else "steered" if self._steered else "stop",
            input_tokens=input_tokens,
            cached_tokens=min(timings.cache_n, input_tokens),
            output_tokens=output_tokens,
            reasoning_tokens=min(self._decoder.thought_tokens, output_tokens),
            position=position,
            context=self._rendering.context,
        )
        return [*rest, finished], position

    def _steered_last(self) -> Chunk:
        """Stands in for the last chunk of the engine, which a steered answer never gets."""
        return Chunk(timings=Timings(cache_n=self._cached, predicted_n=self._predicted))

    def _position(self, counted: int | None) -> Rendered | None:
        """The context that the slot holds. ``counted``: the tokens of the prompt, as llama.cpp counts them if
        there are pictures."""
        if not self._generates or (self._steered and not self._predicted):
            return self._rendering.context  # without the opening of an answer
        return self._rendering.with_answer(self._ids, counted) if self._ids is not None else None

    def _take_ids(self, ids: list[int], chunk: Chunk, room: int) -> str:
        """Keep the ids of a chunk, up to ``room``; returns their text."""
        ids = self._without_stop(ids)
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

    def _take_text(self, chunk: Chunk, room: int) -> str:
        """The text of a chunk whose ids are unknown. From here on the ids of the answer are unknown."""
        self._ids = None
        self._without_stop(chunk.tokens)
        self._cut_off = self._cut_off or not room
        return self._decoder.characters.finish() + chunk.content if room else ""

    def _without_stop(self, ids: list[int]) -> list[int]:
        """Drop stop ids, and remember that there was one."""
        if self._stop_ids.isdisjoint(ids):
            return ids
        self._stopped = not self._cut_off
        return [id for id in ids if id not in self._stop_ids]

    def _recover_ids(self, chunk: Chunk, hidden: int) -> list[int] | None:
        """All ids of a chunk of which ``hidden`` were not reported; None if they cannot be recovered."""
        vocabulary = self._renderer.vocabulary
        before = vocabulary.spell(chunk.content.encode(), hidden, chunk.tokens)
        return None if before is None else [*before, *chunk.tokens]


class LlamaReader(AnswerReader[bytes]):
    """Reads the completion that llama.cpp generates in a slot."""

    def __init__(self, job: Job, answer: LlamaAnswer, slot: Slot, host: Host, emit: Emit) -> None:
        super().__init__(job, emit)
        self._answer = answer
        self._slot = slot
        self._host = host
        self._tenant = job.tenant

    def read(self, batch: list[bytes]) -> tuple[list[Delta], Exception | None]:
        answer, slot, deltas = self._answer, self._slot, list[Delta]()
        try:
            for payload in batch:
                chunk = read_chunk(payload)
                slot.tenant = self._tenant  # the engine has begun: other tenants' tokens are dropped
                if self._host.rejects_grammar(slot.number):
                    raise ServerError("The engine does not enforce the grammar of this answer.")
                if answer.ends_before(chunk):
                    return deltas, CutOff()
                deltas += answer.take(chunk)
        except ApiError as fault:
            return deltas, fault
        return deltas, None


class PrefillReader:
    """Reads a completion without an answer. Implements ``streamed_answer.Consumer``."""

    has_ended = False
    fault: Exception | None = None

    def __init__(self, slot: Slot, tenant: str) -> None:
        self._slot = slot
        self._tenant = tenant

    def take(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            read_chunk(payload)
            self._slot.tenant = self._tenant  # the engine has begun: other tenants' tokens are dropped
