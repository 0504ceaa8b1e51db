"""Chat templates that slipring ships, for models that have code instead of a template, or one that lacks
something."""

from importlib import resources

from slipring.engines.tokens.model_files import ModelInfo
from slipring.prompts.tokenization.tokenizer import Vocabulary

HARMONY, DEEPSEEK_V3_1 = "harmony", "deepseek-v3.1"
DEEPSEEK_V3_2, DEEPSEEK_V4, DEEPSEEK_V4_1 = "deepseek-v3.2", "deepseek-v4", "deepseek-v4.1"
KIMI_K3, CHATML, LLAMA3 = "kimi-k3", "chatml", "llama3"
NAMES = (HARMONY, DEEPSEEK_V3_1, DEEPSEEK_V3_2, DEEPSEEK_V4, DEEPSEEK_V4_1, KIMI_K3, CHATML, LLAMA3)
_FAMILIES = {
    "deepseek_v32": DEEPSEEK_V3_2,
    "deepseek32": DEEPSEEK_V3_2,
    "deepseek_v4": DEEPSEEK_V4,
    "deepseek4": DEEPSEEK_V4,
    "deepseek_v41": DEEPSEEK_V4_1,
    "kimi_k3": KIMI_K3,
    "kimi-k3": KIMI_K3,
    "gpt_oss": HARMONY,
    "gpt-oss": HARMONY,
}
"""Names of architectures in ``config.json`` and in GGUF files, of models that may have no template."""
STOPS = {CHATML: ("<|endoftext|>",), LLAMA3: ("<|eom_id|>", "<|end_of_text|>")}
"""Tokens that end answers besides those that a template writes, for models whose files name none."""


def builtin_template(name: str) -> str:
    """The source of a built-in template."""
    file = f"{name.replace('-', '_').replace('.', '_')}.jinja"
    return (resources.files("slipring.prompts.templates") / "builtin" / file).read_text(encoding="utf-8")


def find_builtin(info: ModelInfo, vocabulary: Vocabulary) -> str | None:
    """The name of the built-in template that a model needs; None if its own will do, or if it has none and
    it is not certain which one it needs: an architecture that is not known may write tokens of a known one
    in another way, and several DeepSeek models that write calls differently have the token ``｜DSML｜``."""
    if "<|channel|>" in info.template and "<|start|>" in info.template and "analysis" in info.template:
        return HARMONY  # its own has one call per message, and no text beside thoughts and calls
    if "<｜tool▁calls▁begin｜>" in info.template and _is_deepseek_v3_1(info.template):
        return DEEPSEEK_V3_1  # its own writes no tools
    if info.template:
        return None
    if info.family:
        return _FAMILIES.get(info.family)
    if all(map(vocabulary.has_control, ("<|open|>", "<|sep|>", "<|end_of_msg|>"))):
        return KIMI_K3
    return HARMONY if all(map(vocabulary.has_control, ("<|channel|>", "<|message|>", "<|call|>"))) else None


def _is_deepseek_v3_1(template: str) -> bool:
    """Whether a template of the family is that of V3.1: the older ones write arguments in fenced blocks."""
    return "tools" not in template and "thinking" in template and "```json" not in template
