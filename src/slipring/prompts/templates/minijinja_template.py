"""Runs a chat template with minijinja, which is fast and counts its steps but is not quite Jinja.

A template can reach the values that it is given and their plain methods, nothing else of Python. minijinja
keeps the GIL while a template runs. So templates get their lists as ``YieldingList``: fetching an entry runs
Python code, during which the interpreter can switch to other threads.
"""

from collections.abc import Mapping
from typing import Any

import minijinja

from slipring.prompts.templates.template_values import (
    FUEL,
    OutOfFuel,
    SupportsStrftime,
    TemplateError,
    TemplateFailed,
    TemplateRefused,
    raise_exception,
    to_json,
    without_generation,
)


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
