"""The options of the llama engine: ``llama[:MODEL][,name=value…]``.

MODEL is the path of a GGUF file, or nothing: then it is the model that comes with the package.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

from slipring.errors import StartupError


def _option(default: object, meaning: str) -> Any:
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True, slots=True)
class Options:
    """Which model, and what it may use."""

    model: str = ""
    context: int = _option(8192, "tokens of context, for each slot")
    slots: int = _option(2, "contexts kept in the engine at once, and answers made at once")
    threads: int = _option(0, "threads; 0: as many as there are cores")
    gpu_layers: int = _option(0, "layers given to a GPU")
    chunk: int = _option(256, "tokens that are prefilled at a time: a cancel waits for one such chunk")
    dialect: str = _option(
        "", "how contexts are written: chatml or llama3; empty: as the model's template asks"
    )

    @property
    def thread_count(self) -> int:
        return self.threads or os.cpu_count() or 1


def read_options(text: str) -> Options:
    """Read what stands behind ``llama:``; what cannot be used is named in one line."""
    model, *pairs = text.split(",")
    if model.startswith(("http://", "https://")):
        raise StartupError("--engine llama: a llama-server elsewhere cannot be used yet; name a GGUF file")
    if "=" in model and not model.startswith(("/", ".")):
        model, pairs = "", [model, *pairs]
    fields = {option.name: option for option in dataclasses.fields(Options) if option.name != "model"}
    values: dict[str, Any] = {}
    for pair in filter(None, pairs):
        name, _, value = pair.partition("=")
        if name not in fields:
            raise StartupError(f"--engine llama: unknown option '{name}' (known: {', '.join(fields)})")
        values[name] = value if fields[name].type is str else _number(name, value)
    return Options(model=model, **values)


def _number(name: str, value: str) -> int:
    least = 0 if name in ("threads", "gpu_layers") else 1
    if not value.isdecimal() or int(value) < least:
        raise StartupError(
            f"--engine llama: option '{name}' must be a whole number >= {least}, not '{value}'"
        )
    return int(value)


def reference() -> str:
    """The options as a Markdown table, for the page that explains them."""
    rows = [
        f"| `{option.name}` | {option.default or 'none'} | {option.metadata['help']} |"
        for option in dataclasses.fields(Options)
        if option.name != "model"
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])
