"""The options of token engines that say how contexts are written."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from slipring.base.errors import StartupError
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
    )


def variables_option() -> Any:
    return option("", "further variables of the model's template, as in `name:value;name:value`")


def keeps_thoughts(kind: str, options: RenderingOptions) -> bool:
    """Whether earlier thoughts stay in contexts. ``kind`` is the engine's, for messages."""
    if options.thinking not in (TEMPLATE, KEEP):
        raise StartupError(
            f"--engine {kind}: option 'thinking' must be {TEMPLATE} or {KEEP}, not '{options.thinking}'"
        )
    return options.thinking == KEEP


def read_variables(kind: str, options: RenderingOptions) -> Mapping[str, Any]:
    """The variables for the template. A value is JSON, or else text."""
    variables: dict[str, Any] = {}
    for pair in filter(None, options.variables.split(";")):
        name, separator, value = pair.partition(":")
        if not separator or not name.isidentifier():
            raise StartupError(
                f"--engine {kind}: option 'variables' is written as name:value;name:value, not '{pair}'"
            )
        try:
            variables[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            variables[name] = value
    return variables
