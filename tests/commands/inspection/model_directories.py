"""Directories of tokenizer files, made from the chat templates of model families and a small vocabulary."""

import json
from pathlib import Path
from typing import Any

from tests.prompts.templates.family_templates import control_tokens_of, source_of
from tests.prompts.vocabulary import small

ENDS = {
    "gemma_4": "<turn|>",
    "glm_4_7": "<|user|>",
    "gpt_oss": "<|return|>",
    "kimi_k2": "<|im_end|>",
    "llama_3_1": "<|eot_id|>",
    "mistral_nemo": "</s>",
    "qwen3": "<|im_end|>",
    "qwen3_5": "<|im_end|>",
    "qwen3_coder": "<|im_end|>",
}
"""The token that ends answers, by family."""


def write_family(path: Path, family: str, **config: Any) -> str:
    """Write the files of a model of this family. ``config`` overrides what ``tokenizer_config.json`` says."""
    return write_directory(path, source_of(family), **{"eos_token": ENDS.get(family, "</s>"), **config})


def write_directory(path: Path, template: str, **config: Any) -> str:
    """Write the files of a model with this template. Its vocabulary has the template's control tokens."""
    path.mkdir()
    described = json.loads(small()._backend.to_str())
    names = {*control_tokens_of(template), str(config.get("eos_token", ""))} - {""}
    first = 1 + max(described["model"]["vocab"].values())
    described["added_tokens"] = [
        {"id": first + number, "content": name, "special": True} for number, name in enumerate(sorted(names))
    ]
    (path / "tokenizer.json").write_text(json.dumps(described))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    return str(path)
