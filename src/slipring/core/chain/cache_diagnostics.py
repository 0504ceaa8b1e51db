"""Why a context was, or was not, continued from another one: the ``prompt_cache_diagnostics`` of a response.

A client names a response to compare with (``prompt_cache_options.comparison_response_id``). What engines can
reuse of a context is its beginning, so the first thing that differs is the reason. Only what changes the
model's input counts here: a ``prompt_cache_key``, a verbosity or a service tier does not. Contexts are
compared when the response ends: then it is known what the engine was given of this one, and what it reused.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct, UnsetType

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Accepted, Finished, Settings
from slipring.core.token_estimates import estimated_context_tokens
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.items import Item, last_compaction
from slipring.protocol.responses import (
    CacheDiagnostics,
    CacheHit,
    CacheMiss,
    ComparedNotFound,
    DiagnosticsUnavailable,
    MissReason,
)

_MOST_ITEMS = 4000
"""Items of a context that are compared: digesting them takes about 20 ms if none was digested before."""
_MOST_BYTES = 4 * 2**20
"""Bytes of items that are digested for one comparison, for the same reason."""


class Asked(Struct, frozen=True, eq=False):
    """What a response was asked."""

    model: str
    head: Head
    settings: Settings
    parent: ResponseState | None
    input: tuple[Item, ...]


class Processed(Struct, frozen=True, eq=False):
    """What an engine has made of it."""

    accepted: Accepted
    finished: Finished
    continued_id: str | None
    """The response whose context the job continued."""
    is_compacted: bool
    """Whether a summary has replaced the context first."""


def compare(compared: ResponseState | None, asked: Asked, processed: Processed) -> CacheDiagnostics:
    """Compare the context of a response with that of an earlier one; None: that was not found."""
    if compared is None:
        return ComparedNotFound()
    accepted, finished = processed.accepted, processed.finished
    if processed.is_compacted or accepted.dropped_items:
        # The engine got another context than the items show.
        reason: MissReason = "context_compacted" if processed.is_compacted else "input_changed"
        return CacheMiss(reason, finished.input_tokens - finished.cached_tokens, 0)
    is_appended = processed.continued_id == compared.id and accepted.fallback is None
    changed = _changed_setting(compared, asked)
    if is_appended and accepted.rendered_tokens:
        changed = None  # whatever differs, the context begins with the very tokens of the other one
    if changed is None and is_appended:
        return _confirmed(compared, finished)
    before, now = _prompt(compared), _context(asked.parent, asked.input)
    if len(before) > _MOST_ITEMS or len(now) > _MOST_ITEMS:
        return DiagnosticsUnavailable()
    same = 0 if changed is not None else _same(before, now)
    if same is None:
        return DiagnosticsUnavailable()
    same = min(same, _first_other_thought(compared, accepted, before))
    if changed is None and same == len(before):
        return _confirmed(compared, finished)
    if changed is None:
        changed = "context_compacted" if _is_compacted_since(compared, asked) else "input_changed"
    # An estimate may be larger than what the engine has counted of the whole.
    counted = finished.input_tokens
    missed = min(counted, estimated_context_tokens(None, now[same:])) if same else counted
    usage = compared.response.usage
    most = usage.input_tokens if usage is not None else 0
    reusable = min(most, estimated_context_tokens(compared.head, before[:same])) if same else 0
    return CacheMiss(changed, missed, reusable)


def _changed_setting(compared: ResponseState, asked: Asked) -> MissReason | None:
    """What stands before the first item and differs."""
    before, echo, settings = compared.head, compared.response, asked.settings
    if echo.model != asked.model:
        return "model_changed"
    if before.tools.raw != asked.head.tools.raw:
        return "tools_changed"
    if bytes(echo.text.format) != bytes(settings.format.echo):
        return "text_format_changed"
    if echo.reasoning.effort != settings.effort:
        return "reasoning_effort_changed"
    return "input_changed" if before.instructions != asked.head.instructions else None


def _confirmed(compared: ResponseState, finished: Finished) -> CacheDiagnostics:
    """The contexts fit. One that could have been reused, and of which the engine has not reused the half, was
    evicted, for which the API has no reason."""
    usage = compared.response.usage
    # With several steps, both are sums.
    reusable = min(usage.input_tokens if usage is not None else 1, finished.input_tokens)
    reused = finished.cached_tokens
    return CacheHit() if reused and reused * 2 >= reusable else DiagnosticsUnavailable()


def _is_compacted_since(compared: ResponseState, asked: Asked) -> bool:
    """Whether a compaction stands in the context that the other one did not have."""
    now = _latest_compaction(asked.parent, asked.input)
    if now is None:
        return False
    before = _latest_compaction(compared.parent, (*compared.input, *compared.output))
    return before is None or _digest(before) != _digest(now)


def _latest_compaction(parent: ResponseState | None, added: Sequence[Item]) -> Item | None:
    node = parent
    while (at := last_compaction(added)) is None and node is not None:
        added = (*node.input, *node.output)
        node = node.parent
    return added[at] if at is not None else None


def _first_other_thought(compared: ResponseState, accepted: Accepted, before: Sequence[Item]) -> int:
    """Where the first thought stands that one of the two engines has read and the other has not."""
    listed = compared.response.input_transformations
    withheld = {each.id for each in listed} if not isinstance(listed, UnsetType) else set()
    others = withheld.symmetric_difference(accepted.withheld_thoughts)
    return next((at for at, item in enumerate(before) if item.id in others), len(before))


def _prompt(state: ResponseState) -> list[Item]:
    """The context of a response without its answer."""
    before = _context(state.parent, ())
    return [*before, *state.prompt][: _MOST_ITEMS + 1]


def _context(parent: ResponseState | None, added: tuple[Item, ...]) -> list[Item]:
    """The items of a context, one more than may be compared at most."""
    earlier: Iterator[Item] = parent.context() if parent is not None else iter(())
    return [*islice(earlier, _MOST_ITEMS + 1), *added]


def _same(one: Sequence[Item], other: Sequence[Item]) -> int | None:
    """How many items at the beginning of two contexts are the same to a model; None if too many bytes would
    have to be digested to know it."""
    count, left = 0, _MOST_BYTES
    for first, second in zip(one, other, strict=False):
        if first is not second:
            left -= len(first.raw) + len(second.raw)
            if left < 0:
                return None
            if _digest(first) != _digest(second):
                break
        count += 1
    return count


def _digest(item: Item) -> tuple[bytes, ...]:
    return tuple(content_digest(each) for each in ((item,) if item.opened is None else item.opened))
