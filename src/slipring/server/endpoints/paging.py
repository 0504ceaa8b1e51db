"""Lists in pages, as the API has them."""

from collections.abc import Mapping, Sequence

from slipring.errors import InvalidRequest
from slipring.protocol.endpoints.small_objects import ItemPage
from slipring.protocol.item_listing import ListKind, present
from slipring.protocol.items import Item
from slipring.stores.base import Page

_MOST = 100
_DIGITS = 9
"""A number that is longer is not read at all: that could take long."""


def read_page(query: Mapping[str, str]) -> Page:
    """``limit``, ``order`` and ``after`` of a request."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid 'order': must be 'asc' or 'desc'.", param="order")
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= _DIGITS and 1 <= int(limit) <= _MOST):
        raise InvalidRequest(f"Invalid 'limit': must be a whole number from 1 to {_MOST}.", param="limit")
    return Page(limit=int(limit), ascending=order == "asc", after=query.get("after") or None)


def cut(items: Sequence[Item], page: Page) -> tuple[list[Item], bool]:
    """A page of items that are all at hand, oldest first; and whether there are more."""
    ordered = list(items) if page.ascending else list(reversed(items))
    start = 0
    if page.after is not None:
        places = [place for place, item in enumerate(ordered) if item.id == page.after]
        start = places[0] + 1 if places else len(ordered)
    return ordered[start : start + page.limit], len(ordered) > start + page.limit


def as_list(items: Sequence[Item], within: ListKind, *, has_more: bool) -> ItemPage:
    return ItemPage(
        data=[present(item, item.id or "", within) for item in items],
        first_id=(items[0].id or "") if items else "",
        last_id=(items[-1].id or "") if items else "",
        has_more=has_more,
    )
