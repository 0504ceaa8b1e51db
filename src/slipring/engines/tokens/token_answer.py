"""What engines by token ids share: how a job becomes ids, and how ids become an answer.

``TokenAnswer`` is for servers that name every id they emit. It keeps the ids as emitted, so that the next
turn appends to exactly what the model has read and said.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from slipring.core.generation import CallArguments, Delta, Finished, Job, Prefilled, Settings, Text
from slipring.engines.tokens.tokenizer_threads import TokenizerThreads
from slipring.errors import ContextLengthExceeded
from slipring.prompts.parsing.parser import Parser
from slipring.prompts.parsing.utf8 import Utf8Stream
from slipring.prompts.rendering import Rendered, Renderer, Rendering
from slipring.prompts.tokenization.token_budget import Room, TooManyTokens
from slipring.protocol.responses import Logprob

_AT_ONCE_BYTES = 8192
"""Of texts that are tokenized on the event loop: of digits, a vocabulary reads so many in 15 ms."""


def sampling(settings: Settings) -> dict[str, Any]:
    """Sampling as the API means it: nothing is narrowed but by what the client asked for. What servers name
    differently (how many candidates are no limit, the seed) is theirs to add."""
    return {
        "temperature": settings.temperature if settings.temperature is not None else 1.0,
        "top_p": settings.top_p if settings.top_p is not None else 1.0,
        "min_p": 0.0,
        "presence_penalty": settings.presence_penalty or 0.0,
        "frequency_penalty": settings.frequency_penalty or 0.0,
    }


async def learn(renderer: Renderer) -> None:
    """Ask once for all that is later needed where nobody may wait."""
    if not renderer.vocabulary.is_local:
        await asyncio.to_thread(renderer.stop_ids)
        await asyncio.to_thread(renderer.mark_of, 0)


async def render(job: Job, renderer: Renderer, context: int, tokenizing: TokenizerThreads) -> Rendering:
    """Render; refuse what does not fit in ``context``. No more is tokenized than fits."""
    rendering: Rendering | None = None
    try:
        rendering = await _rendered(job, renderer, tokenizing.room(context), tokenizing)
        total = rendering.prompt.total
    except TooManyTokens as error:
        total = max(error.least, context)
    if job.settings.truncation == "auto":
        reserve = min(job.settings.max_output_tokens or context // 8, context // 2)
        if total + reserve > context:
            # More than needed is dropped: a chain that dropped a little every turn would have to be
            # prefilled every turn.
            room = tokenizing.room(context - max(reserve, context // 4))
            shortened = await tokenizing.run(
                job.tenant, renderer.shorten, job, room, is_local=renderer.vocabulary.is_local
            )
            if shortened is not None:
                return shortened
    if rendering is None or total >= context:
        raise ContextLengthExceeded(total, context, is_exact=rendering is not None)
    return rendering


async def count(
    job: Job, renderer: Renderer, context: int, tokenizing: TokenizerThreads, enough: int | None = None
) -> int:
    """The tokens of a job's prompt: up to ``enough``, or exactly, up to what is worth counting."""
    most = context * tokenizing.counted_contexts
    room = tokenizing.room(most if enough is None else min(enough, most))
    try:
        return (await _rendered(job, renderer, room, tokenizing)).prompt.total
    except TooManyTokens as error:
        if enough is not None and error.least >= enough:
            return error.least
        raise ContextLengthExceeded(error.least, context, is_exact=False) from None


async def _rendered(job: Job, renderer: Renderer, room: Room, tokenizing: TokenizerThreads) -> Rendering:
    """Render, off the event loop where it is much or has to wait."""
    if _renders_at_once(job, renderer):
        return renderer.render(job, room)
    return await tokenizing.run(job.tenant, renderer.render, job, room, is_local=renderer.vocabulary.is_local)


def _renders_at_once(job: Job, renderer: Renderer) -> bool:
    """Whether rendering is sure to be short: a little that is appended, by a renderer that never has to
    write everything again, with a vocabulary that is here."""
    position = job.parent.position if job.parent is not None else None
    appends = isinstance(position, Rendered) and renderer.wrote(position)
    size_bytes = sum(len(item.raw) for item in job.input)
    if not (isinstance(position, Rendered) and appends and position.preface.covers(job)):
        size_bytes += len(bytes(job.head.instructions_json)) + len(job.head.tools.raw)
    if not renderer.vocabulary.is_local or size_bytes > _AT_ONCE_BYTES:
        return False
    return job.parent is None or (renderer.always_appends and appends)


class Speech:
    """What a model says, piece by piece: deltas, with the logprobs of the words, and how much was thought."""

    def __init__(
        self,
        job: Job,
        rendering: Rendering,
        renderer: Renderer,
        *,
        constrained: bool = False,
        trusted: bool = False,
    ) -> None:
        """``constrained``: the engine keeps the answer to a JSON schema; ``trusted``: a grammar keeps its
        calls to their form."""
        starts_thinking = renderer.opens_thought(rendering.prompt)
        calls = renderer.calls
        if trusted and calls.call_open:
            # The grammar knows calls by their mark: what comes without it has not been checked.
            calls = structs.replace(calls, bare_json=False, prefix="")
        self._parser = Parser(calls, job.offer, starts_thinking=starts_thinking, trusted=trusted)
        # A schema may forbid the thought that the prompt has opened, or hold only after it.
        self._thoughtless = Parser(renderer.calls, job.offer) if constrained and starts_thinking else None
        self._logprobs: list[Logprob] = []
        self.characters = Utf8Stream()
        self.thought_tokens = 0

    def say(self, text: str, tokens: int, logprobs: list[Logprob]) -> list[Delta]:
        """Take the text that so many tokens have completed."""
        if self._thoughtless is not None and text.strip():
            if text.lstrip().startswith("{"):
                self._parser = self._thoughtless
            self._thoughtless = None
        deltas = self._parser.feed(text) if text else []
        if self._parser.is_thinking:
            self.thought_tokens += tokens
        if logprobs:
            self._logprobs += logprobs
        return self._with_logprobs(deltas) if self._logprobs else deltas

    @property
    def is_holding(self) -> bool:
        """Whether a call is held back until it is whole."""
        return self._parser.is_holding

    @property
    def may_end(self) -> bool:
        """Whether nothing is lost where it ends here: no thought, no call and no character is half said."""
        return self._parser.is_between and not self.characters.is_waiting

    def finish(self) -> list[Delta]:
        deltas = [*self._parser.feed(self.characters.finish()), *self._parser.finish()]
        return self._with_logprobs(deltas) if self._logprobs else deltas

    def _with_logprobs(self, deltas: list[Delta]) -> list[Delta]:
        """Give the next words the logprobs of all tokens since the last: the parser may have held some."""
        spoken = next((delta for delta in deltas if isinstance(delta, Text)), None)
        if spoken is not None:
            spoken.logprobs, self._logprobs = self._logprobs, []
        elif self._parser.is_thinking or any(isinstance(delta, CallArguments) for delta in deltas):
            self._logprobs = []  # of thoughts and calls nobody is told any
        return deltas


class Piece(Struct):
    """A piece of a server's stream, in the terms of all that name their ids."""

    ids: list[int] = []
    text: str = ""
    """What the ids say, where the vocabulary is not here."""
    logprobs: list[Logprob] = []
    """One for each id, where they were asked for."""
    reason: Literal["stop", "length"] | None = None
    stop_id: int | None = None
    """The id that ended the answer, where it ended by one."""
    cached_tokens: int | None = None


def _together(pieces: Sequence[Piece]) -> Piece | None:
    """Pieces as one; None where each has logprobs of its own."""
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
    return whole


class TokenAnswer:
    """The answer to one job as it comes in, id by id."""

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
        self._said = renderer.said
        self._generates = job.generate
        self._stop_ids = renderer.stop_ids()
        self._speech = Speech(job, rendering, renderer, constrained=constrained, trusted=trusted)
        self._ids: list[int] = []
        self._prefilled = self._steered = False
        self._reason: Literal["stop", "length"] | None = None
        self._cached_tokens = 0

    def take_all(self, pieces: Sequence[Piece]) -> list[Delta]:
        """What one read has brought. While a call is held back there is nothing to tell of its pieces, one by
        one: they are looked at together."""
        deltas: list[Delta] = []
        for index, piece in enumerate(pieces):
            if self._speech.is_holding and (rest := _together(pieces[index:])) is not None:
                return deltas + self.take(rest)
            deltas += self.take(piece)
        return deltas

    def take(self, piece: Piece) -> list[Delta]:
        if piece.reason is not None:
            self._reason = piece.reason
        if piece.cached_tokens is not None:
            self._cached_tokens = piece.cached_tokens
        if not self._generates or not piece.ids:
            return []
        ids, logprobs = self._kept(piece)
        deltas = self._speech.say(self._words(ids, piece.text), len(ids), logprobs)
        if not self._prefilled:
            self._prefilled = True
            deltas.insert(0, Prefilled())
        self._ids += ids
        return deltas

    @property
    def has_begun(self) -> bool:
        """Whether there is anything of it."""
        return self._prefilled or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the server has said that this is all."""
        return self._reason is not None

    def ends_here(self) -> bool:
        """Whether to end it here, though the model has not."""
        due = self._stop.asked and self._generates and self._reason is None and self._speech.may_end
        self._steered = due
        return due

    def finish(self) -> list[Delta]:
        """The end of the stream: the last deltas."""
        rendering = self._rendering
        sent = rendering.prompt if self._generates else rendering.context
        spoke = self._generates and (self._ids or not self._steered)
        reason: Literal["stop", "max_output_tokens", "steered"] = "steered" if self._steered else "stop"
        finished = Finished(
            reason="max_output_tokens" if self._generates and self._reason == "length" else reason,
            input_tokens=sent.total,
            cached_tokens=min(self._cached_tokens, sent.total),
            output_tokens=len(self._ids),
            reasoning_tokens=min(self._speech.thought_tokens, len(self._ids)),
            # Where nothing was said, it has never been the model's turn.
            position=rendering.spoken(self._ids) if spoke else rendering.context,
        )
        return [*(self._speech.finish() if self._generates else []), finished]

    def _kept(self, piece: Piece) -> tuple[list[int], list[Logprob]]:
        """The ids that are part of the answer, with their logprobs: all but those that end it."""
        ids = piece.ids
        if ids[-1] != piece.stop_id and self._stop_ids.isdisjoint(ids):
            return ids, piece.logprobs
        count = len(ids) - (ids[-1] == piece.stop_id)
        kept = [number for number in range(count) if ids[number] not in self._stop_ids]
        logprobs = [piece.logprobs[number] for number in kept] if piece.logprobs else []
        return [ids[number] for number in kept], logprobs

    def _words(self, ids: list[int], told: str) -> str:
        if not self._is_local:
            return told
        return self._speech.characters.feed(self._said.together(ids))
