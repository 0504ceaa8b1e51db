"""What templates of both engines share: their filters and functions, and the errors that they raise."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar

T = TypeVar("T")
FUEL: Final = 2_000_000
"""Steps of one render. 200 messages of a tool loop take about 10,000; an endless loop ends in about 1 s."""
MAX_CHARS: Final = 32 * 2**20
"""Length of what one render may write: several times what the largest accepted context holds."""
_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class TemplateError(ValueError):
    """The template is unusable: it cannot be parsed, or cannot render a single user message."""


class TemplateRefused(Exception):
    """A template called ``raise_exception``: it does not write such a conversation."""


class TemplateFailed(Exception):
    """A template failed: it used a value in a way that is not possible, or exceeded a limit."""


class OutOfFuel(TemplateFailed):
    """A template took more steps than one render may take."""

    def __init__(self) -> None:
        super().__init__("it takes too many steps")


class SupportsStrftime(Protocol):
    """A date, such as a ``datetime.date``, for the template function ``strftime_now``."""

    def strftime(self, format: str, /) -> str: ...


class YieldingList(list[T]):
    """A list whose entries are fetched by Python code, so that other threads can run in between."""

    def __iter__(self) -> Iterator[T]:
        yield from super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


def without_generation(source: str) -> str:
    """Replace ``{% generation %}``, which marks training targets and renders its content."""

    def plain(found: re.Match[str]) -> str:
        left, end, right = found.groups()
        return f"{{%{left} {'endif' if end else 'if true'} {right}%}}"

    return _GENERATION.sub(plain, source)


def raise_exception(message: object = "") -> NoReturn:
    """The function with which templates refuse a conversation."""
    raise TemplateRefused(str(message))


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
