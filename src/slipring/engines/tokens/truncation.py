"""``truncation: "auto"``: how much of a context that is too long is left out."""

from slipring.core.generation import Job
from slipring.engines.tokens.tokenizer_threads import TokenizerThreads
from slipring.prompts.rendering import Renderer, Rendering


async def truncated(
    job: Job, renderer: Renderer, context: int, total: int, tokenizing: TokenizerThreads
) -> Rendering | None:
    """The job without its oldest items, so that a quarter of ``context`` tokens is free; None if it need not
    or cannot be shortened. ``total``: the tokens of the whole prompt, or the least that it has."""
    reserve = min(job.settings.max_output_tokens or context // 8, context // 2)
    if total + reserve <= context:
        return None
    # Drop more than needed: a chain that dropped a little every turn would be prefilled every turn.
    budget = tokenizing.budget(context - max(reserve, context // 4))
    return await tokenizing.run(
        job.tenant, renderer.shorten, job, budget, is_local=renderer.vocabulary.is_local
    )
