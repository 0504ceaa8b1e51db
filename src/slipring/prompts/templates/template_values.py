"""Lists that templates get, and values as JSON. Imports no library that runs templates: the chat engine
writes messages with this, and works without them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class YieldingList(list[T]):
    """A list whose entries are fetched by Python code, so that other threads can run in between."""

    def __iter__(self) -> Iterator[T]:
        yield from super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson`` as templates expect it: Jinja's own would escape for HTML."""
    item, key = separators if separators is not None else (", " if indent is None else ",", ": ")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=(item, key), sort_keys=sort_keys
    )
