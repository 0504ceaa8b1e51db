"""Writes the files of the tiny models that the engines serve: Qwen2's vocabulary, a template with tools, a
long context. Their weights are random, and they are small: a turn costs little beside what servers do.

Answers never end by themselves: every turn has as many tokens as it asks for.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from servers import ROOT

sys.path.insert(0, str(ROOT))  # the vocabulary and the writer of GGUF files belong to the tests

from tests.prompts.gguf_writer import write_tiny_model
from tests.prompts.vocabulary import CHATML_CONTROL, qwen2_metadata

_TEMPLATES = ROOT / "tests" / "prompts" / "templates" / "families"
_VISIBLE = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 splits text into words."""
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_NORMAL, _USER_DEFINED = 1, 4
_END = "<|im_end|>"


class Shape(NamedTuple):
    """How large a model is."""

    layers: int
    width: int
    middle: int
    heads: int
    kv_heads: int
    dtype: str = "bfloat16"


TINY = Shape(1, 32, 32, 1, 1, "float32")
SMALL = Shape(12, 1024, 2816, 16, 4)
"""0.3 billion weights beside those of the vocabulary."""
LARGE = Shape(28, 3584, 18_944, 28, 4)
"""As many as Qwen2.5-7B has."""


def write_vocabulary(directory: Path, context: int, template: str = "hermes", shape: Shape = TINY) -> None:
    """Write the tokenizer and the configuration of a model for vLLM. ``weights.py`` writes the rest.
    ``template``: one of those of the tests."""
    directory.mkdir(parents=True, exist_ok=True)
    metadata = qwen2_metadata()
    kinds = metadata["tokenizer.ggml.token_type"]
    words = [
        word for word, kind in zip(metadata["tokenizer.ggml.tokens"], kinds, strict=True) if kind == _NORMAL
    ]
    added = [
        {
            **{"id": len(words) + number, "content": content, "special": content in CHATML_CONTROL},
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for number, content in enumerate((*CHATML_CONTROL, *_VISIBLE))
    ]
    ids = {each["content"]: each["id"] for each in added}
    split = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": added},
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, _BYTES]},
        **{"post_processor": _BYTES, "decoder": _BYTES},
        "model": {
            "type": "BPE",
            "vocab": {word: id for id, word in enumerate(words)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }
    described = {
        **{"tokenizer_class": "Qwen2Tokenizer", "model_max_length": context, "eos_token": _END},
        **{"pad_token": CHATML_CONTROL[0], "bos_token": None, "add_prefix_space": False},
        "chat_template": template_text(template),
    }
    config = {
        **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": shape.dtype},
        **{"hidden_size": shape.width, "intermediate_size": shape.middle, "hidden_act": "silu"},
        **{"num_hidden_layers": shape.layers, "head_dim": shape.width // shape.heads, "rms_norm_eps": 1e-6},
        **{"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads},
        **{"max_position_embeddings": context, "rope_theta": 1e6, "tie_word_embeddings": False},
        **{"vocab_size": len(words) + len(added), "eos_token_id": ids[_END], "use_sliding_window": False},
    }
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", described),
        ("config.json", config),
        ("generation_config.json", {"eos_token_id": ids[_END]}),
    ):
        (directory / name).write_text(json.dumps(content, ensure_ascii=False))


def template_text(name: str) -> str:
    return (_TEMPLATES / f"{name}.jinja").read_text()


def write_gguf(path: Path, context: int, template: str = "hermes") -> None:
    """Write a model for llama-server."""
    metadata = qwen2_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    further = {
        "tokenizer.ggml.tokens": [*tokens, *_VISIBLE],
        "tokenizer.ggml.token_type": [
            *metadata["tokenizer.ggml.token_type"],
            *(_USER_DEFINED for _ in _VISIBLE),
        ],
        "tokenizer.chat_template": template_text(template),
        "tokenizer.ggml.eos_token_id": tokens.index(_END),
    }
    write_tiny_model(path, metadata | further, context=context)
