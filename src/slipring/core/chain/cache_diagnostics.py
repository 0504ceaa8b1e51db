"""Why a context was, or was not, continued from another one: the ``prompt_cache_diagnostics`` of a response.

A client names a response to compare with (``prompt_cache_options.comparison_response_id``). What engines can
reuse of a context is its beginning, so the first thing that differs is the reason. Only what changes the
model's input counts here: a ``prompt_cache_key``, a verbosity or a service tier does not.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import UnsetType

from slipring.core.chain.head import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Finished, Settings
from slipring.core.token_estimates import estimated_context_tokens
from slipring.protocol.item_digests import content_digest
from slipring.protocol.items import Item, last_compaction
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


def compare(
    compared: ResponseState | None,
    *,
    model: str,
    head: Head,
    settings: Settings,
    parent: ResponseState | None,
    input: tuple[Item, ...],
) -> CacheDiagnostics:
    """Compare the context of a request with that of a response; None: it was not found."""
    if compared is None:
        return ComparedNotFound()
    reason = _changed_setting(compared, model, head, settings)
    if parent is compared and reason is None:
        return CacheHit()
    asked, now = _prompt(compared), _context(parent, input)
    if len(asked) > _MOST_ITEMS or len(now) > _MOST_ITEMS:
        return DiagnosticsUnavailable()
    same = 0 if reason is not None else _same(asked, now)
    if same is None:
        return DiagnosticsUnavailable()
    if reason is None and same == len(asked):
        return CacheHit()
    if reason is None:
        is_compacted = last_compaction(now) is not None and last_compaction(asked) is None
        reason = "context_compacted" if is_compacted else "input_changed"
    return CacheMiss(
        reason=reason,
        cache_missed_tokens=estimated_context_tokens(None if same else head, now[same:]),
        comparison_reusable_tokens=estimated_context_tokens(compared.head, asked[:same]) if same else 0,
    )


def _changed_setting(
    compared: ResponseState, model: str, head: Head, settings: Settings
) -> MissReason | None:
    """What stands before the first item and differs."""
    before, echo = compared.head, compared.response
    if echo.model != model:
        return "model_changed"
    if before.tools.raw != head.tools.raw:
        return "tools_changed"
    if bytes(echo.text.format) != bytes(settings.format.echo):
        return "text_format_changed"
    if echo.reasoning.effort != settings.effort:
        return "reasoning_effort_changed"
    return "input_changed" if before.instructions != head.instructions else None


def confirmed(diagnostics: CacheDiagnostics | UnsetType, finished: Finished) -> CacheDiagnostics | UnsetType:
    """What is known once the engine has counted: a context that could have been reused and was not has been
    evicted, for which the API has no reason."""
    if isinstance(diagnostics, CacheHit) and not finished.cached_tokens:
        return DiagnosticsUnavailable()
    return diagnostics


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
