"""Runs a model's chat template in a sandbox: minijinja, with the conventions of Hugging Face's libraries.

A template can reach the values it is given and their plain methods, nothing else of Python. ``_FUEL`` limits
its steps. It counts instead of measuring time, so that the same conversation always renders or always fails.

minijinja keeps the GIL while a template runs. So templates get their lists as ``YieldingList``: fetching an
entry runs Python code, during which the interpreter can switch to other threads.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import minijinja

from slipring.errors import InvalidRequest

T = TypeVar("T")
_FUEL = 2_000_000
"""Steps of one render. 200 messages of a tool loop take about 10,000; an endless loop ends in about 1 s."""
_MAX_MESSAGE_CHARS = 300  # a template's error message may repeat the client's whole text
_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class TemplateError(ValueError):
    """The template is unusable: it cannot be parsed, or cannot render a single user message."""


class SupportsStrftime(Protocol):
    """A date, such as a ``datetime.date``, for the template function ``strftime_now``."""

    def strftime(self, format: str, /) -> str: ...


class _TemplateRaised(Exception):
    """A template called ``raise_exception``."""


class YieldingList(list[T]):
    """A list whose entries are fetched by Python code, so that other threads can run in between."""

    def __iter__(self) -> Iterator[T]:
        yield from super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


class Template:
    """A compiled chat template with the filters, functions and variables that templates expect."""

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", today: SupportsStrftime | None = None
    ) -> None:
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment = minijinja.Environment(
            filters={"tojson": _to_json},
            globals={"raise_exception": _raise_exception},
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
        """Render a conversation. Raises ``InvalidRequest`` if the template fails or refuses it."""
        try:
            return self._environment.render_template(
                "chat",
                messages=YieldingList(messages),
                tools=YieldingList(tools) if tools is not None else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except _TemplateRaised as error:
            reason = str(error)[:_MAX_MESSAGE_CHARS]
            raise InvalidRequest(f"The model's template refuses this conversation: {reason}") from None
        except Exception as error:  # minijinja's own, or one that a called method raised
            reason = _first_line(error)
            raise InvalidRequest(f"The model's template cannot write this conversation: {reason}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:_MAX_MESSAGE_CHARS]


def _never_escape(name: str) -> bool:
    return False


def _raise_exception(message: object = "") -> NoReturn:
    raise _TemplateRaised(str(message))


def _without_generation(source: str) -> str:
    """Replace ``{% generation %}``, which marks training targets and renders its content."""

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
    """The filter ``tojson`` as templates expect it: Jinja's own would escape for HTML."""
    item, key = separators if separators is not None else (", " if indent is None else ",", ": ")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=(item, key), sort_keys=sort_keys
    )
