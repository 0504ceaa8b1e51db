"""Names that docs/stability.md promises to keep: none may go without a decision.

``python -m tests.test_stability`` adds the present names to the file. A name is removed from it by hand, with
a line in the changelog.
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipring.commands.cli import build_parser
from slipring.commands.completion import _choices, _flags, _paths
from slipring.commands.openapi import document
from slipring.config.settings import SETTINGS
from slipring.config.toml_schema import schema
from slipring.engines.catalog import KINDS
from slipring.engines.chat.options import ChatOptions
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.responses.options import ResponsesOptions
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.tokens.server_options import TokenServerOptions, VllmOptions
from slipring.observation.metric_table import METRICS
from slipring.protocol import events

FILE = Path(__file__).with_name("stable_names.json")
_OPTIONS = {
    "chat": ChatOptions,
    "llama": LlamaOptions,
    "responses": ResponsesOptions,
    "sglang": TokenServerOptions,
    "simulated": SimulatedOptions,
    "vllm": VllmOptions,
}
_METHODS = ("delete", "get", "head", "post")


def present() -> dict[str, list[str]]:
    """The names of this tree, by kind."""
    found = {
        "commands and flags": _command_line(),
        "variables": (setting.variable for setting in SETTINGS),
        "keys of the TOML file": _keys(schema()),
        "engines and options": (
            f"{kind} {option.name}" for kind in KINDS for option in fields(_OPTIONS[kind])
        ),
        "metrics and labels": (
            name
            for metric in METRICS
            for name in (metric.name, *(f"{metric.name} {each}" for each in metric.label_names))
        ),
        "paths": (
            f"{method} {path}"
            for path, operations in document()["paths"].items()
            for method in operations
            if method in _METHODS
        ),
        "events": _event_types(),
        "plugins": (
            f"{group} {point.name}"
            for group in ("console_scripts", "vllm.endpoint_plugins", "vllm.general_plugins")
            for point in entry_points(group=group)
            if point.value.startswith("slipring.")
        ),
    }
    return {kind: sorted(set(names)) for kind, names in found.items()}


def _command_line() -> Iterator[str]:
    for path, parser in _paths(build_parser()):
        prefix = " ".join(("slipring", *path))
        yield from (f"{prefix} {word}" for word in (*_choices(parser), *_flags(parser)))


def _keys(table: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in table.get("properties", {}).items():
        yield f"{path}{key}"
        yield from _keys(value, f"{path}{key}.")
    for inner in ("items", "additionalProperties"):
        if isinstance(table.get(inner), dict):
            yield from _keys(table[inner], f"{path}*.")


def _event_types() -> Iterator[str]:
    for value in vars(events).values():
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            tag = str(value.__struct_config__.tag)
            if "." in tag or tag == "error":  # others are bases of events
                yield tag


@pytest.mark.parametrize("kind", present())
def test_no_stable_name_is_gone(kind: str) -> None:
    gone = set(json.loads(FILE.read_text())[kind]) - set(present()[kind])
    assert not gone, f"docs/stability.md promises these: {sorted(gone)}"


def test_the_file_has_names_of_every_kind() -> None:
    stable = json.loads(FILE.read_text())
    assert stable.keys() == present().keys()
    assert all(stable.values())


if __name__ == "__main__":
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    names = {kind: sorted({*kept.get(kind, ()), *now}) for kind, now in present().items()}
    FILE.write_text(json.dumps(names, indent=1) + "\n")
