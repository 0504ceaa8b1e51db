"""The two libraries that run chat templates, each in a sandbox, with the same filters, functions and limits.

Jinja2 is what the authors of templates test with, and runs all of them. minijinja is not quite Jinja: it
changes no list in place and knows no ``'%s' % x``. But with it a continuation takes 0.2 to 1.2 ms less, about
a tenth of the processor time of a turn in front of vLLM. ``ChatTemplate`` decides which one runs a template.

Both count steps and not time: the same conversation always renders or always fails. minijinja counts by
itself. For Jinja2, access to an attribute or an entry, calls, and steps of loops over lists and ranges spend
fuel. minijinja keeps the GIL while a template runs. So templates get their lists as ``YieldingList``: when it
fetches an entry, Python code runs, and the interpreter can switch to other threads.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NoReturn, Protocol

import jinja2
import minijinja
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from slipring.prompts.templates.chat_messages import YieldingList, to_json

FUEL: Final = 2_000_000
"""Steps of one render. 200 messages of a tool loop take about 10,000; an endless loop ends in about 1 s."""
MAX_CHARS: Final = 32 * 2**20
"""Length of what one render may write: several times what the largest accepted context holds."""
_MAX_RANGE = 100_000
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


def without_generation(source: str) -> str:
    """Replace ``{% generation %}``, which marks training targets and renders its content."""

    def plain(found: re.Match[str]) -> str:
        left, end, right = found.groups()
        return f"{{%{left} {'endif' if end else 'if true'} {right}%}}"

    return _GENERATION.sub(plain, source)


def raise_exception(message: object = "") -> NoReturn:
    """The function with which templates refuse a conversation."""
    raise TemplateRefused(str(message))


class MiniJinjaTemplate:
    """A template compiled by minijinja. Raises ``TemplateError`` if it cannot be parsed."""

    def __init__(self, source: str, today: SupportsStrftime | None) -> None:
        self._environment = minijinja.Environment(
            filters={"tojson": to_json},
            tests={"iterable": _is_iterable},
            globals={"raise_exception": raise_exception},
            fuel=FUEL,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=_never_escape,
            debug=False,
        )
        if today is not None:
            self._environment.add_global("strftime_now", today.strftime)
        try:
            self._environment.add_template("chat", without_generation(source))
        except minijinja.TemplateError as error:
            raise TemplateError(str(error)) from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render the template. Raises ``TemplateRefused`` or ``TemplateFailed``."""
        try:
            return self._environment.render_template("chat", **variables)
        except TemplateRefused:
            raise
        except Exception as error:  # minijinja's own, or one that a called method raised
            if "out of fuel" in str(error):
                raise OutOfFuel from None
            raise TemplateFailed(str(error)) from None


def _is_iterable(value: object) -> bool:
    """As Jinja has it; to minijinja, ``none`` is iterable too."""
    return hasattr(value, "__iter__")


def _never_escape(name: str) -> bool:
    return False


class Jinja2Template:
    """A template compiled by Jinja2. Raises ``TemplateError`` if it cannot be parsed."""

    def __init__(self, source: str, today: SupportsStrftime | None) -> None:
        self._environment = _Sandbox()
        if today is not None:
            self._environment.globals["strftime_now"] = today.strftime
        try:
            self._template = self._environment.from_string(without_generation(source))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(str(error)) from None

    def render(self, variables: Mapping[str, Any], fuel: int = FUEL) -> str:
        """Render the template. Raises ``TemplateRefused`` or ``TemplateFailed``."""
        meter = self._environment.meter
        meter.refill(fuel)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(_metered(variables, meter.spend)):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_CHARS:
                    raise TemplateFailed(f"it writes more than {MAX_CHARS} characters")
        except (TemplateRefused, TemplateFailed):
            raise
        except Exception as error:  # Jinja2's own, or one that a called method raised
            raise TemplateFailed(str(error) or type(error).__name__) from None
        return "".join(pieces)


class _Meter:
    """Counts the steps of the render that runs in this thread."""

    def __init__(self) -> None:
        self._fuel: ContextVar[int] = ContextVar("fuel", default=0)

    def refill(self, fuel: int) -> None:
        self._fuel.set(fuel)

    def spend(self) -> None:
        fuel = self._fuel.get() - 1
        if fuel < 0:
            raise OutOfFuel
        self._fuel.set(fuel)


class _Sandbox(SandboxedEnvironment):
    """Jinja2's sandbox with a meter.

    Templates may change the lists and dicts that they are given (Kimi's do): each render gets new ones.
    """

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.meter = _Meter()
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["range"] = self._range

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.meter.spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.meter.spend()
        return super().getitem(obj, argument)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.meter.spend()
        return super().call(context, function, *args, **kwargs)

    def _range(self, *bounds: int) -> "_MeteredList":
        numbers = range(*bounds)
        if len(numbers) > _MAX_RANGE:
            raise TemplateFailed(f"a range of more than {_MAX_RANGE} numbers")
        return _MeteredList(numbers, self.meter.spend)


class _MeteredList(YieldingList[Any]):
    """A list that spends fuel with each step of a loop over it, or over a slice of it."""

    def __init__(self, entries: Any, spend: Callable[[], None]) -> None:
        super().__init__(entries)
        self._spend = spend

    def __iter__(self) -> Iterator[Any]:
        for entry in super().__iter__():
            self._spend()
            yield entry

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _MeteredList(found, self._spend) if isinstance(at, slice) else found


def _metered(variables: Mapping[str, Any], spend: Callable[[], None]) -> dict[str, Any]:
    """The variables with metered lists: those over which templates loop."""
    return {
        name: _MeteredList(value, spend) if isinstance(value, list) else value
        for name, value in variables.items()
    }
