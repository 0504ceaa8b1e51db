"""Writes GGUF files for tests."""

import re
import struct
from math import prod
from pathlib import Path
from random import Random
from typing import Any

_ALIGNMENT = 32
_F32, _Q8_0 = 0, 8
_WORD = re.compile("Ġ[a-z]{3,}")
_WIDTH = 32
_END_SCALE = 2.2 / 64
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
    """Write a model of one layer, all zeros. It cannot generate, but llama.cpp tokenizes with its vocabulary.

    The zeros are a hole in a sparse file, which takes no more disk space than the metadata.
    """
    _write_model(path, metadata, {})


def write_tiny_model(
    path: Path, metadata: dict[str, Any], *, attends: bool = True, ends: bool = False, context: int = 8192
) -> None:
    """Write a model of one layer that generates words, for tests that need a model and not its sense.
    Of the metadata of another model it takes the vocabulary and the template.

    The weights are random, and what attention adds outweighs the vector of the last token: greedy decoding
    depends on the tokens of the context and on their order, so equal answers come from equal contexts. Only
    words have a row in the output: no other token, an end least of all, is as likely as the likeliest word.
    With ``ends``, the end has a larger row than words have: about one token in twenty ends an answer.

    With ``attends`` false, a word depends on the one before alone. Answers soon repeat themselves, and the
    likeliest word is so far ahead of the next that it does not matter in which batches llama.cpp computes.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    random = Random(7)
    vectors = [random.randbytes(_WIDTH) for _ in tokens]
    output = [random.randbytes(_WIDTH) if _WORD.fullmatch(token) else bytes(_WIDTH) for token in tokens]
    output_scales = [1 / 64] * len(tokens)
    if ends:
        end = metadata["tokenizer.ggml.eos_token_id"]
        output[end], output_scales[end] = random.randbytes(_WIDTH), _END_SCALE
    ones = struct.pack("<f", 1.0) * _WIDTH
    _write_model(
        path,
        {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
        | {"llama.context_length": context},
        {
            "token_embd": _quantized(vectors, [1 / 256] * len(tokens)),
            "output": _quantized(output, output_scales),
            **dict.fromkeys(_VECTORS, ones),
            **(
                {f"blk.0.attn_{name}": _random_matrix(random) for name in ("q", "k", "v", "output")}
                if attends
                else {}
            ),
        },
    )


def _random_matrix(random: Random) -> bytes:
    """A matrix that multiplies the length of a vector by about 1.3."""
    return struct.pack(f"<{_WIDTH**2}f", *(random.uniform(-0.4, 0.4) for _ in range(_WIDTH**2)))


def _quantized(rows: list[bytes], scales: list[float]) -> bytes:
    """Rows of ``_WIDTH`` signed bytes as blocks of Q8_0: a scale, then the bytes."""
    return b"".join(struct.pack("<e", scale) + row for row, scale in zip(rows, scales, strict=True))


def write_projector(path: Path) -> None:
    """Write a projector (mmproj) for the model of ``write_tiny_model``: a picture becomes 16 vectors, one for
    each square of a grid of four by four, which depend on its colours."""
    random = Random(11)
    side, patch = 32, 8
    squares = (side // patch) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (patch, patch, 3, _WIDTH),
        "v.position_embd.weight": (_WIDTH, squares),
        "mm.0.weight": (_WIDTH, _WIDTH),
        "mm.0.bias": (_WIDTH,),
        "mm.2.weight": (_WIDTH, _WIDTH),
        "mm.2.bias": (_WIDTH,),
        # Layers before the last one are run: of a single layer, none.
        **{f"v.blk.0.{name}.weight": (_WIDTH, _WIDTH) for name in ("attn_out", "ffn_up", "ffn_down")},
    }
    weights = {
        name: struct.pack(f"<{prod(shape)}f", *(random.uniform(-0.4, 0.4) for _ in range(prod(shape))))
        for name, shape in shapes.items()
    }
    parameters = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,
        "clip.vision.image_size": side,
        "clip.vision.patch_size": patch,
        "clip.vision.embedding_length": _WIDTH,
        "clip.vision.feed_forward_length": _WIDTH,
        "clip.vision.block_count": 1,
        "clip.vision.projection_dim": _WIDTH,
        "clip.vision.attention.head_count": 1,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }
    _write_file(path, parameters, shapes, weights)


def _write_model(path: Path, metadata: dict[str, Any], weights: dict[str, bytes]) -> None:
    """Write a model. Tensors that ``weights`` does not name are zeros."""
    vocabulary = (_WIDTH, len(metadata["tokenizer.ggml.tokens"]))
    shapes: dict[str, tuple[int, ...]] = {"token_embd": vocabulary}
    shapes |= {"output": vocabulary} if "output" in weights else {}
    shapes |= dict.fromkeys(_VECTORS, (_WIDTH,))
    shapes |= {f"blk.0.{name}": (_WIDTH, _WIDTH) for name in _MATRICES}
    _write_file(
        path,
        _PARAMETERS | metadata,
        {f"{name}.weight": shape for name, shape in shapes.items()},
        {f"{name}.weight": values for name, values in weights.items()},
    )


def _write_file(
    path: Path, parameters: dict[str, Any], shapes: dict[str, tuple[int, ...]], weights: dict[str, bytes]
) -> None:
    """Write parameters and tensors. Those without weights are holes."""
    entries = [_any_entry(key, value) for key, value in parameters.items()]
    tensors, offsets, size = [], {}, 0
    for name, shape in shapes.items():
        bytes_needed = 4 * prod(shape)
        kind = _F32
        if name in weights and len(weights[name]) != bytes_needed:
            bytes_needed, kind = len(weights[name]), _Q8_0
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        tensors.append(string(name) + dimensions + struct.pack("<IQ", kind, size))
        offsets[name] = size
        size += -(-bytes_needed // _ALIGNMENT) * _ALIGNMENT
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join([*entries, *tensors])
    start = -(-len(data) // _ALIGNMENT) * _ALIGNMENT
    with path.open("wb") as file:
        file.write(data)
        for name, values in weights.items():
            file.seek(start + offsets[name])
            file.write(values)
        file.truncate(start + size)


def _any_entry(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return entry(key, 8, string(value))
    if isinstance(value, bool):
        return entry(key, 7, struct.pack("<?", value))
    if isinstance(value, int):
        return entry(key, 4, struct.pack("<I", value))
    if isinstance(value, float):
        return entry(key, 6, struct.pack("<f", value))
    if isinstance(value[0], str):
        return entry(key, 9, array(8, len(value), b"".join(map(string, value))))
    if isinstance(value[0], float):
        return entry(key, 9, array(6, len(value), struct.pack(f"<{len(value)}f", *value)))
    return entry(key, 9, array(5, len(value), struct.pack(f"<{len(value)}i", *value)))
