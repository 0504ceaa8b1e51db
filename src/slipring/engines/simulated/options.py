"""The options of the simulated engine: ``simulated:tokens_per_s=1000,ttft_ms=0,…``."""

import dataclasses
import math
from dataclasses import dataclass

from slipring.errors import StartupError


@dataclass(frozen=True, slots=True)
class Options:
    """How the simulated engine behaves. A rate of 0 is unlimited."""

    tokens_per_s: float = 1000.0
    """Speed of the answer."""
    ttft_ms: float = 0.0
    """Time before the first token, on top of the prefill."""
    prefill_tokens_per_s: float = 0.0
    """Speed at which tokens are read that the prefix cache does not hold."""
    prefix_cache: bool = True
    """Whether contexts that were seen before need no prefill again."""
    output_tokens: int = 60
    """Length of an answer, and of a call's arguments (padded with white space)."""
    tool_calls: int = 3
    """Tool outputs in the context from which on it answers with text instead of calling a tool."""
    parallel_calls: int = 1
    """Calls made in one response, where the request allows several."""
    script: str = ""
    """A file of scripted answers, played in order instead of planned ones."""


def read_options(text: str) -> Options:
    """Read ``name=value,…``; what cannot be used is named in one line."""
    fields = {field.name: field for field in dataclasses.fields(Options)}
    values: dict[str, object] = {}
    for pair in filter(None, text.split(",")):
        name, separator, value = pair.partition("=")
        if name not in fields:
            raise StartupError(f"--engine simulated: unknown option '{name}' (known: {', '.join(fields)})")
        if not separator:
            raise StartupError(f"--engine simulated: option '{name}' needs a value, as in {name}=1")
        values[name] = _convert(name, value, fields[name].type)
    return Options(**values)  # type: ignore[arg-type]


def _convert(name: str, value: str, kind: object) -> object:
    if kind is str:
        return value
    if kind is bool:
        if value not in ("true", "false"):
            raise StartupError(f"--engine simulated: option '{name}' must be true or false, not '{value}'")
        return value == "true"
    try:
        number = int(value) if kind is int else float(value)
    except ValueError:
        number = -1
    if number < 0 or not math.isfinite(number):
        raise StartupError(f"--engine simulated: option '{name}' must be a number >= 0, not '{value}'")
    return number
