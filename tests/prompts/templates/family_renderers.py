"""Renderers for the families' templates, over a small vocabulary with the control tokens that they write."""

import datetime
import re
from functools import cache
from typing import Any

from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.templates.family_templates import NAMES, source_of
from tests.prompts.vocabulary import small_metadata

_TOKEN = re.compile(
    r"<[|｜][^<>\s'\"{}+]{1,40}[|｜]?>|<[^<>\s'\"{}+|]{1,40}\|>|\[/?[A-Z_]{3,30}\]"
    r"|\]~!?b[\]\[]|\[e~\[|\]<\]minimax\[>\[|<\|\"\|>|</?(?:think|tool_call|arg_key|arg_value|seed:[a-z_]+)>"
)
TODAY = datetime.date(2026, 11, 16)
EOS = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "gemma_4": "<turn|>",
    "gpt_oss": "<|return|>",
    "granite_4": "<|end_of_text|>",
    "llama_3_1": "<|eot_id|>",
    "llama_4": "<|eot|>",
    "minimax_m2": "[e~[",
    "minimax_m3": "[e~[",
    "kimi_k3": "<|end_of_msg|>",
    "seed_oss": "<seed:eos>",
    **dict.fromkeys(("glm_4_5", "glm_4_7"), "<|endoftext|>"),
    **dict.fromkeys(("ministral_3", "mistral_nemo", "mistral_small"), "</s>"),
    **dict.fromkeys(("deepseek_v3_1", "deepseek_v3_2", "deepseek_v4"), "<｜end▁of▁sentence｜>"),
}
"""The token that ends an answer; ``<|im_end|>`` for families that are not listed."""


@cache
def vocabulary() -> Tokenizer:
    sources = "".join(map(source_of, NAMES))
    metadata = small_metadata()
    known = metadata["tokenizer.ggml.tokens"]
    names = {*_TOKEN.findall(sources), *EOS.values(), "<s>", "<bos>"}.difference(known)
    metadata["tokenizer.ggml.tokens"] = [*known, *sorted(names)]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *(3 for _ in names)]
    return Tokenizer.from_gguf(metadata)


@cache
def family_renderer(family: str, **options: Any) -> TemplateRenderer:
    model = ModelTemplate(source=source_of(family), bos_token="<s>", eos_token=EOS.get(family, "<|im_end|>"))
    return TemplateRenderer(model, vocabulary(), today=TODAY, **options)
