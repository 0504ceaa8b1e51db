"""``slipring models``: lists the models of a hub that are on this machine."""

import argparse
from datetime import UTC, datetime

import msgspec

from slipring.base.standard_streams import print_encoded, table
from slipring.engines.hub.model_hub import HeldModel, ModelHub
from slipring.engines.hub.quantization_and_memory import available_memory, gigabytes

_EXAMPLE = "Qwen/Qwen3-4B-GGUF"
_EXAMPLE_SIZE = "2.5 GB"
_COLUMNS = ("MODEL", "SIZE", "LAST USED")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document, with the paths")


def list_models(arguments: argparse.Namespace) -> int:
    """Print what the hub's cache has. Returns the exit code. Raises ``StartupError``."""
    held = ModelHub().held()
    if arguments.json:
        print_encoded(msgspec.json.format(msgspec.json.encode(held)))
        return 0
    if not held:
        print(
            f"No models of the hub are on this machine{_available()}. 'slipring serve --model"
            f" {_EXAMPLE}' fetches one ({_EXAMPLE_SIZE}); docs/local-models.md names models for agents."
        )
        return 0
    print(table([_COLUMNS, *map(_row, held)]))
    print(f"\n'slipring serve --model MODEL' serves one{_available()}.")
    return 0


def _available() -> str:
    memory = available_memory()
    return "" if memory is None else f"; {gigabytes(memory)} of memory are available"


def _row(model: HeldModel) -> tuple[str, str, str]:
    return model.name, gigabytes(model.size), f"{datetime.fromtimestamp(model.used_at, UTC):%Y-%m-%d}"
