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
_PICTURE = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
_SIDE, _PATCH = 32, 8
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


def write_vocabulary(
    directory: Path,
    context: int,
    template: str = "hermes",
    shape: Shape = TINY,
    further: tuple[str, ...] = (),
) -> None:
    """Write the tokenizer and the configuration of a model for vLLM. ``weights.py`` writes the rest.
    ``template``: one of those of the tests. ``further``: more control tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    metadata = qwen2_metadata()
    kinds = metadata["tokenizer.ggml.token_type"]
    words = [
        word for word, kind in zip(metadata["tokenizer.ggml.tokens"], kinds, strict=True) if kind == _NORMAL
    ]
    added = [
        {
            **{"id": len(words) + number, "content": content, "special": content not in _VISIBLE},
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for number, content in enumerate((*CHATML_CONTROL, *_VISIBLE, *further))
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


def write_seeing_vocabulary(directory: Path, context: int) -> None:
    """The same for a model that sees, of Idefics 3's form: a picture takes seven tokens, whatever its size.
    vLLM loads it without torchvision."""
    write_vocabulary(directory, context, "../seeing/qwen_vl", further=_PICTURE)
    text = json.loads((directory / "config.json").read_text())
    described = json.loads((directory / "tokenizer_config.json").read_text())
    written = "<|vision_start|><|image_pad|><|vision_end|>"
    described["chat_template"] = described["chat_template"].replace(written, _PICTURE[0])
    added = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    ids = {each["content"]: each["id"] for each in added}
    config = {
        **{"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3"},
        **{"torch_dtype": text["torch_dtype"], "image_token_id": ids[_PICTURE[0]], "scale_factor": 2},
        **{"tie_word_embeddings": False, "pad_token_id": ids[CHATML_CONTROL[0]]},
        "text_config": {**text, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        "vision_config": {
            **{"model_type": "idefics3_vision", "hidden_size": TINY.width, "intermediate_size": TINY.width},
            **{"num_hidden_layers": 1, "num_attention_heads": 1, "image_size": _SIDE, "patch_size": _PATCH},
        },
    }
    processing = {
        **{"image_processor_type": "Idefics3ImageProcessor", "processor_class": "Idefics3Processor"},
        **{"do_resize": True, "size": {"longest_edge": _SIDE}, "max_image_size": {"longest_edge": _SIDE}},
        **{"do_image_splitting": False, "do_pad": True, "do_convert_rgb": True, "resample": 1},
        **{"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True},
        **{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    }
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": (_SIDE // _PATCH) ** 2 // 4}
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", described),
        ("preprocessor_config.json", processing),
        ("processor_config.json", processor),
    ):
        (directory / name).write_text(json.dumps(content))


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
