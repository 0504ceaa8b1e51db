"""Pagination of lists of items."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from slipring.base.errors import InvalidRequest, quoted
from slipring.protocol import wire
from slipring.protocol.endpoints.reply_bodies import ItemPage
from slipring.protocol.items.item_listing import ListKind, present
from slipring.protocol.items.items import Item
from slipring.stores.conversations import Page, UnknownItem

_MAX_LIMIT = 100
_MAX_DIGITS = 9
"""Longer numbers are refused without parsing, which could take long."""


def read_page(query: Mapping[str, str]) -> Page:
    """Parse ``limit``, ``order`` and ``after`` of a request. Raises ``InvalidRequest``."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest.at("order", "must be 'asc' or 'desc'")
    limit = query.get("limit", "20")
    if not (
        limit.isascii() and limit.isdigit() and len(limit) <= _MAX_DIGITS and 1 <= int(limit) <= _MAX_LIMIT
    ):
        raise InvalidRequest.at("limit", f"must be a whole number from 1 to {_MAX_LIMIT}")
    return Page(limit=int(limit), ascending=order == "asc", after=query.get("after") or None)


def cut(items: Sequence[Item], page: Page) -> tuple[list[Item], bool]:
    """One page of ``items``, which are in order from oldest to newest, and whether there are more. Raises
    ``UnknownItem``."""
    ordered = list(items) if page.ascending else list(reversed(items))
    start = 0
    if page.after is not None:
        found = [index for index, item in enumerate(ordered) if item.id == page.after]
        if not found:
            raise UnknownItem(page.after)
        start = found[0] + 1
    return ordered[start : start + page.limit], len(ordered) > start + page.limit


@contextmanager
def refusing_unknown(page: Page) -> Iterator[None]:
    """Refuse the request if the item after which its page begins is unknown."""
    try:
        yield
    except UnknownItem:
        raise InvalidRequest.at("after", f"there is no item with the id {quoted(page.after or '')}") from None


def encoded(items: Sequence[Item], has_more: bool, within: ListKind) -> bytes:
    """A page of items as the API's list object, in JSON. Items may be as large as requests: not for the event
    loop."""
    page = ItemPage(
        data=[present(item, item.id or "", within) for item in items],
        first_id=(items[0].id or "") if items else "",
        last_id=(items[-1].id or "") if items else "",
        has_more=has_more,
    )
    return wire.encode(page)
