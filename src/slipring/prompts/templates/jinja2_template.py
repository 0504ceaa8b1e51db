"""Runs a chat template with Jinja2's sandbox, configured as Hugging Face's libraries do it.

Jinja2 is what the authors of templates test with. It does not count steps, so this module does: access to an
attribute or an entry, calls, and steps of loops over lists and ranges spend fuel. A template that exceeds it
is stopped. The count makes no use of the clock: the same conversation always renders or always fails.
"""

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from slipring.prompts.templates.template_values import (
    FUEL,
    MAX_CHARS,
    OutOfFuel,
    SupportsStrftime,
    TemplateError,
    TemplateFailed,
    TemplateRefused,
    YieldingList,
    raise_exception,
    to_json,
    without_generation,
)

_MAX_RANGE = 100_000


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
