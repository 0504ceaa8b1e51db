"""Writes GGUF files for tests."""

import struct
from math import prod
from pathlib import Path
from typing import Any

_ALIGNMENT = 32
_WIDTH = 32
_PARAMETERS = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 256,
    "llama.embedding_length": _WIDTH,
    "llama.feed_forward_length": _WIDTH,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": _WIDTH,
}
_VECTORS = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def write_hollow_model(path: Path, metadata: dict[str, Any]) -> None:
    """Write a model of one layer with all weights zero, for the tokenizer of llama.cpp.

    The zeros are a hole in a sparse file, which takes no more disk space than the metadata.
    """
    shapes = {"token_embd": (_WIDTH, len(metadata["tokenizer.ggml.tokens"]))}
    shapes |= dict.fromkeys(_VECTORS, (_WIDTH,))
    shapes |= {f"blk.0.{name}": (_WIDTH, _WIDTH) for name in _MATRICES}
    entries = [_any_entry(key, value) for key, value in (_PARAMETERS | metadata).items()]
    tensors, size = [], 0
    for name, shape in shapes.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        tensors.append(string(f"{name}.weight") + dimensions + struct.pack("<IQ", 0, size))
        size += 4 * prod(shape)
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join([*entries, *tensors])
    with path.open("wb") as file:
        file.write(data)
        file.truncate(-(-len(data) // _ALIGNMENT) * _ALIGNMENT + size)


def _any_entry(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return entry(key, 8, string(value))
    if isinstance(value, int):
        return entry(key, 4, struct.pack("<I", value))
    if isinstance(value, float):
        return entry(key, 6, struct.pack("<f", value))
    if isinstance(value[0], str):
        return entry(key, 9, array(8, len(value), b"".join(map(string, value))))
    return entry(key, 9, array(5, len(value), struct.pack(f"<{len(value)}i", *value)))
