"""The options of the simulated engine: ``simulated:tokens_per_s=1000,ttft_ms=0,…``."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from slipring.errors import StartupError


def _option(default: object, meaning: str) -> Any:
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True, slots=True)
class Options:
    """How the simulated engine behaves. A rate of 0 is unlimited."""

    tokens_per_s: float = _option(1000.0, "speed of the answer; 0: unlimited")
    ttft_ms: float = _option(0.0, "time before the first token, on top of the prefill")
    prefill_tokens_per_s: float = _option(
        0.0, "speed at which tokens are read that the prefix cache does not hold; 0: unlimited"
    )
    prefix_cache: bool = _option(True, "whether contexts that were seen before need no prefill again")
    output_tokens: int = _option(60, "length of an answer, and of the arguments of a call")
    tool_calls: int = _option(3, "tool outputs in the context from which on it answers with text")
    parallel_calls: int = _option(1, "calls made in one response, where the request allows several")
    script: str = _option("", "a file of scripted answers, played instead of planned ones")


def reference() -> str:
    """The options as a Markdown table, for the page that explains them."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in dataclasses.fields(Options):
        default = str(option.default).lower().removesuffix(".0") or "none"
        rows.append(f"| `{option.name}` | {default} | {option.metadata['help']} |")
    return "\n".join(rows)


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
