"""A model hub that has the tokenizer of the guides' model."""

from pathlib import Path

from tests.engines.fakes.hub import FakeHub
from tests.engines.fakes.tokens import tokenizer_directory

MODEL = "Qwen/Qwen3-8B"


def hub_environment(hub: FakeHub, directory: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(directory / "hub")}


def tokenizer_hub() -> FakeHub:
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    files = {name: (Path(tokenizer_directory()) / name).read_bytes() for name in names}
    return FakeHub({MODEL: files})
