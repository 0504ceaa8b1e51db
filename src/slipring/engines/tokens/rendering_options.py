"""The options that say how contexts are written for a model.

They are declared apart from what reads them, so that the simulated engine has them without the packages that
tokenize: it serves from an installation without extras.
"""

from typing import Any, Protocol

from slipring.engines.options import option

TEMPLATE, KEEP = "template", "keep"


class RenderingOptions(Protocol):
    """What the options of every token engine have."""

    @property
    def dialect(self) -> str: ...

    @property
    def thinking(self) -> str: ...

    @property
    def variables(self) -> str: ...


def dialect_option() -> Any:
    return option(
        "", "how contexts are written: template, or a format's name; empty: in the model's own format"
    )


def thinking_option() -> Any:
    return option(
        TEMPLATE,
        "thoughts of earlier turns when the user speaks: template (as the model's template says) or keep",
        choices=(TEMPLATE, KEEP),
    )


def variables_option() -> Any:
    return option("", "further variables of the model's template, as in `name:value;name:value`")
