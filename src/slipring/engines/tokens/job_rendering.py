"""Renders jobs to token ids and counts them, in threads where it takes long."""

import asyncio
from collections.abc import Iterable
from itertools import islice

from slipring.base.errors import ContextLengthExceeded
from slipring.core.generation import Accepted, Job, Prefill
from slipring.engines.tokens.tokenizer_threads import TokenizerThreads
from slipring.prompts import foreseen_context, truncation
from slipring.prompts.fallback_reasons import CannotAppend
from slipring.prompts.foreseen_context import Foreseen
from slipring.prompts.rendering import Rendered, Renderer, Rendering
from slipring.prompts.tokenization.token_budget import TokenBudget, TooManyTokens
from slipring.protocol.items.item_pictures import image_parts, pictures, plain_url

_AT_ONCE_BYTES = 8192
"""Texts up to this size are tokenized on the event loop: digits, the slowest text, take 15 ms."""


def position_of(job: Job) -> Rendered | None:
    """The tokens of a job's parent, as far as they are known."""
    position = job.parent.position if job.parent is not None else None
    return position if isinstance(position, Rendered) else None


async def prefetch(renderer: Renderer) -> None:
    """Query a remote vocabulary for what is later needed on the event loop, which must not wait."""
    if not renderer.vocabulary.is_local:
        await asyncio.to_thread(renderer.stop_ids)
        await asyncio.to_thread(renderer.mark_of, 0)


async def render(job: Job, renderer: Renderer, context: int, tokenizing: TokenizerThreads) -> Rendering:
    """Render a job. Raises ``ContextLengthExceeded`` if it does not fit in ``context`` tokens; tokenizes no
    more than fits."""
    rendering: Rendering | None = None
    try:
        rendering = await _rendered(job, renderer, tokenizing.budget(context), tokenizing)
        total = rendering.prompt.total
    except TooManyTokens as error:
        total = max(error.least, context)
    if job.settings.truncation == "auto" and truncation.is_due(job.settings, total, context):
        budget = tokenizing.budget(truncation.most_tokens(job.settings, context))
        shortened = await tokenizing.run(
            job.tenant, truncation.shorten, renderer, job, budget, is_local=renderer.vocabulary.is_local
        )
        if shortened is not None:
            return shortened
    if rendering is None or rendering.prompt.id_count >= context:  # what pictures take, the engine counts
        raise ContextLengthExceeded(total, context, is_exact=rendering is not None)
    return rendering


def accepted(job: Job, renderer: Renderer, rendering: Rendering, resent: str | None = None) -> Accepted:
    """What is known of a job when it is rendered. ``resent``: why its context is sent to the engine in
    another form than its new ids, or all its ids."""
    sent = rendering.prompt if job.generate else rendering.context
    withheld: tuple[str, ...] = ()
    if ranges := renderer.withheld_thoughts(rendering.prompt):
        thoughts = (item for item in job.context() if item.type == "reasoning")
        numbered = enumerate(islice(thoughts, ranges[-1][1]))
        withheld = tuple(
            item.id
            for number, item in numbered
            if item.id is not None and any(first <= number < end for first, end in ranges)
        )
    fallback = rendering.fallback or resent
    counted = None if sent.body.pictures else sent.total
    read = sent.body.pictures
    return Accepted(rendering.new_tokens, fallback, rendering.dropped_items, counted, withheld, read)


def data_urls(job: Job, digests: Iterable[str]) -> dict[str, str]:
    """The data URLs of these pictures in the context of a job, by their digests. Decodes the items that have
    them: not for the event loop."""
    missing, found = set(digests), dict[str, str]()
    for item in reversed(tuple(job.context())):
        if not missing:
            break
        here = pictures(item)
        if missing.isdisjoint(picture.digest for picture in here):
            continue
        for picture, (_, part) in zip(here, image_parts(item), strict=True):
            assert part.image_url is not None, "engines see pictures with their data only"
            found[picture.digest] = plain_url(part.image_url)
        missing -= found.keys()
    return found


async def foresee(
    prefill: Prefill, renderer: Renderer, context: int, tokenizing: TokenizerThreads
) -> Foreseen | None:
    """Render what is certain of a context that is not complete; None if that is nothing new or too long."""
    budget = tokenizing.budget(context)
    try:
        work, is_local = foreseen_context.foresee, renderer.vocabulary.is_local
        return await tokenizing.run_spare(
            prefill.job.tenant, work, renderer, prefill, budget, is_local=is_local
        )
    except TooManyTokens:
        return None


async def count(
    job: Job, renderer: Renderer, context: int, tokenizing: TokenizerThreads, enough: int | None = None
) -> int:
    """Count the tokens of a job's prompt. Counting may stop at ``enough``; without it, the count is exact, or
    ``ContextLengthExceeded`` is raised past ``counted_contexts`` contexts."""
    most = context * tokenizing.counted_contexts
    budget = tokenizing.budget(most if enough is None else min(enough, most))
    try:
        return (await _rendered(job, renderer, budget, tokenizing)).prompt.total
    except TooManyTokens as error:
        if enough is not None and error.least >= enough:
            return error.least
        raise ContextLengthExceeded(error.least, context, is_exact=False) from None


async def _rendered(
    job: Job, renderer: Renderer, budget: TokenBudget, tokenizing: TokenizerThreads
) -> Rendering:
    """Render in a thread, or on the event loop if that is certain to be short."""
    try:
        if _is_short(job, renderer):
            try:
                return (
                    renderer.continued(job, budget)
                    if job.parent is not None
                    else renderer.render(job, budget)
                )
            except CannotAppend:
                pass  # the whole context is rendered
        return await tokenizing.run(
            job.tenant, renderer.render, job, budget, is_local=renderer.vocabulary.is_local
        )
    finally:
        tokenizing.encoded(renderer.vocabulary)


def _is_short(job: Job, renderer: Renderer) -> bool:
    """Whether a job has only a few bytes to render, with a local vocabulary, if its parent's tokens can be
    continued."""
    size_bytes = sum(len(item.raw) for item in job.input)
    if job.parent is None:
        size_bytes += len(bytes(job.head.instructions_json)) + len(job.head.tools.raw)
    else:
        size_bytes += sum(len(item.raw) for item in job.parent.answer)
    is_quick = job.parent is None or renderer.appends_quickly
    return is_quick and renderer.vocabulary.is_local and size_bytes <= _AT_ONCE_BYTES
