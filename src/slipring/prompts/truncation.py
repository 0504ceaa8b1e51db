"""``truncation: auto``: which of the oldest items are left out of a context that is too long, and how many.

Room is left for the answer. A quarter of the context is freed at least: a chain that dropped a little every
turn would be prefilled every turn.
"""

from collections.abc import Sequence

from slipring.core.generation import Job, Settings
from slipring.prompts.rendering import Renderer, Rendering
from slipring.prompts.tokenization.token_budget import BudgetedEncoder, TokenBudget, TooManyTokens
from slipring.protocol.items.items import Item, kept_tools


def is_due(settings: Settings, tokens: int, context: int) -> bool:
    """Whether a prompt of so many tokens is too long for a model with this context."""
    return tokens + _reserve(settings, context) > context


def most_tokens(settings: Settings, context: int) -> int:
    """How many tokens a prompt that is shortened may keep."""
    return context - max(_reserve(settings, context), context // 4)


def _reserve(settings: Settings, context: int) -> int:
    """What is left for the answer."""
    return min(settings.max_output_tokens or context // 8, context // 2)


def shorten(renderer: Renderer, job: Job, budget: TokenBudget) -> Rendering | None:
    """Render a job's context without its oldest items, dropping as few as the budget allows.

    Returns None if not even the last item fits. A call and its output are kept or dropped together. Tools
    that dropped items added are kept.
    """
    items = tuple(job.context())
    cuts = _cuts(items)
    fits: Rendering | None = None
    cache: dict[str, list[int]] = {}
    low, high = 0, len(cuts)
    while low < high:
        middle = (low + high) // 2
        cut = cuts[middle]
        kept = (*filter(None, map(kept_tools, items[:cut])), *items[cut:])
        encoder = BudgetedEncoder(renderer.vocabulary, budget, cache=cache)
        dropped = len(items) - len(kept)
        try:
            tried = renderer.render_all(job, kept, encoder, "the oldest items were dropped", dropped)
        except TooManyTokens:
            tried = None
        if tried is not None and tried.prompt.total <= budget.tokens:
            fits, high = tried, middle
        else:
            low = middle + 1
    return fits


def _cuts(items: Sequence[Item]) -> list[int]:
    """Indices at which a context may begin: not between a call and its output, not after the last item."""
    answered = {item.call_id: index for index, item in enumerate(items) if item.type.endswith("_output")}
    cuts, reach = [], 0
    for index, item in enumerate(items[:-1]):
        if item.call_id is not None:
            reach = max(reach, answered.get(item.call_id, index))
        if reach <= index:
            cuts.append(index + 1)
    return cuts
