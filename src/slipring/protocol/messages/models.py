"""Models as the Messages API describes them, and pages of them."""

from typing import Literal

from msgspec import Struct

from slipring.base.errors import InvalidRequest

_PAGE = 20
_LONGEST_PAGE = 1000


class ModelInfo(Struct, tag_field="type", tag="model"):
    id: str
    display_name: str
    created_at: str
    """In RFC 3339."""
    max_input_tokens: int | None
    """The context window; None if it is not known."""
    max_tokens: int | None
    """The most that an answer may have; None if that is not known."""
    lifecycle: Literal["active"] = "active"


class ModelPage(Struct):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def page_of(models: list[ModelInfo], limit: str | None, after: str | None, before: str | None) -> ModelPage:
    """A page of models: those after, or before, the model with an id."""
    most = _limit_of(limit)
    ids = [model.id for model in models]
    for name, model_id in (("after_id", after), ("before_id", before)):
        if model_id is not None and model_id not in ids:
            raise InvalidRequest(f"{name}: there is no such model.", param=name)
    if before is not None:
        earlier = models[: ids.index(before)]
        found, has_more = earlier[-most:], len(earlier) > most
    else:
        later = models[ids.index(after) + 1 :] if after is not None else models
        found, has_more = later[:most], len(later) > most
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    return ModelPage(found, has_more, first, last)


def _limit_of(given: str | None) -> int:
    if given is None:
        return _PAGE
    if not (given.isascii() and given.isdigit()) or not 1 <= int(given[:9]) <= _LONGEST_PAGE:
        raise InvalidRequest(f"limit: must be a number from 1 to {_LONGEST_PAGE}.", param="limit")
    return int(given[:9])
