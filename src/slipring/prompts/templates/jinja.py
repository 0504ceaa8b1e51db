"""The sandbox: a model's own chat template, run by minijinja as Hugging Face's libraries would run it.

Nothing of Python is in a template's reach but its values and their plain methods, and ``_FUEL`` bounds its
steps: a count, not a clock, so that the same conversation is always written or always refused.

minijinja keeps every other thread waiting while a template runs. So templates are given their lists as
``Yielding`` ones, whose entries are fetched by code of Python: with each, other threads can have their turn.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import minijinja

from slipring.errors import InvalidRequest

T = TypeVar("T")
_FUEL = 2_000_000
"""Steps of a render. 200 messages of a tool loop take some 10,000; an endless loop ends in a second or so."""
_LONGEST = 300  # of what a template says: it may repeat a client's own words
_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class TemplateError(ValueError):
    """This template cannot be used: it cannot be parsed, or not even write that a user said something."""


class Dated(Protocol):
    """A day, such as a ``datetime.date``. Templates ask for today's; a renderer is given one, once."""

    def strftime(self, format: str, /) -> str: ...


class _Refusal(Exception):
    """A template called ``raise_exception``."""


class Yielding(list[T]):
    """A list from which other threads are let in at every entry."""

    def __iter__(self) -> Iterator[T]:
        yield from super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


class Template:
    """A chat template with what its conventions promise it: filters, functions, names of tokens."""

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", today: Dated | None = None
    ) -> None:
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment = minijinja.Environment(
            filters={"tojson": _to_json},
            globals={"raise_exception": _refuse},
            fuel=_FUEL,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=_never_escape,
            debug=False,
        )
        if today is not None:
            self._environment.add_global("strftime_now", today.strftime)
        try:
            self._environment.add_template("chat", _without_generation(source))
        except minijinja.TemplateError as error:
            raise TemplateError(f"The chat template cannot be parsed: {_first_line(error)}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Write a conversation. ``InvalidRequest``: the template does not."""
        try:
            return self._environment.render_template(
                "chat",
                messages=Yielding(messages),
                tools=Yielding(tools) if tools is not None else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except _Refusal as refusal:
            said = str(refusal)[:_LONGEST]
            raise InvalidRequest(f"The model's template refuses this conversation: {said}") from None
        except Exception as error:  # its own, or whatever a method raises that it calls wrongly
            said = _first_line(error)
            raise InvalidRequest(f"The model's template cannot write this conversation: {said}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:_LONGEST]


def _never_escape(name: str) -> bool:
    return False


def _refuse(message: object = "") -> NoReturn:
    raise _Refusal(str(message))


def _without_generation(source: str) -> str:
    """``{% generation %}`` marks what to train on; to write it is to write what it holds."""

    def plain(found: re.Match[str]) -> str:
        left, end, right = found.groups()
        return f"{{%{left} {'endif' if end else 'if true'} {right}%}}"

    return _GENERATION.sub(plain, source)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates expect it: Jinja's own filter would escape it for HTML."""
    item, key = separators if separators is not None else (", " if indent is None else ",", ": ")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=(item, key), sort_keys=sort_keys
    )
