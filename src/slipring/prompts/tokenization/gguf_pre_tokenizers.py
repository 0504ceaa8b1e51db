"""How the pre-tokenizers of GGUF files split text into words, by their names in the metadata.

For a GGUF file the ids of llama.cpp count, so the patterns are those of llama.cpp. They are not always those
that a model was published with: where llama.cpp cannot match by case outside ASCII (``gpt-4o``, ``tekken``)
it counts such letters as upper and lower case at once, and it knows Han characters by their ranges
(``kimi-k2``).
"""

from msgspec import Struct

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_MARKS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_LLAMA3 = rf"{_SUFFIXES}|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}|{_MARKS}"
_QWEN2 = rf"{_SUFFIXES}|{_PREFIX}\p{{L}}+|\p{{N}}|{_MARKS}"
_QWEN35 = rf"{_SUFFIXES}|{_PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[^\P{L}a-z]", r"[^\P{L}A-Z]"
_TEKKEN = (
    rf"{_PREFIX}{_UPPER}*{_LOWER}+|{_PREFIX}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"{_PREFIX}{_UPPER}*{_LOWER}+{_SUFFIXES}?|{_PREFIX}{_UPPER}+{_LOWER}*{_SUFFIXES}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
HAN = (
    r"\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}"
    r"\x{2a700}-\x{2ebef}\x{2f800}-\x{2fa1f}"
)
_KIMI = rf"[{HAN}]+|{_PREFIX}[^\P{{L}}{HAN}]+{_SUFFIXES}?|\p{{N}}{{1,3}}|{_MARKS}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")
_MINICPM5 = (r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+"))
_SEED_CODER = _QWEN2.replace(_MARKS, rf" ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}")
_BAILING = _QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]")
NEWLINES = r"[^\n]+|\n+"


class PreTokenizer(Struct, frozen=True):
    """The patterns that split a text, one after the other, each what the ones before have left."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """Whether a word of the vocabulary is one token although no merges produce it."""


def _named(names: str, *patterns: str, ignore_merges: bool = False) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), PreTokenizer(patterns, ignore_merges))


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **_named("gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum trillion granite-docling exaone4", GPT2),
    **_named("smollm refact starcoder codeshell command-r exaone minerva-7b mellum2", r"\p{N}", GPT2),
    **_named(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 chatglm-bpe",
        _LLAMA3,
        ignore_merges=True,
    ),
    **_named("dbrx smaug-bpe", _LLAMA3),
    **_named("qwen2 deepseek-r1-qwen hunyuan stablelm2 megrez solar-open grok-2 kormo", _QWEN2),
    **_named("qwen35", _QWEN35),
    **_named("gpt-4o llama4 minimax-m2 kanana2", _GPT4O),
    **_named("tekken", _TEKKEN, ignore_merges=True),
    **_named("kimi-k2", _KIMI),
    **_named("deepseek-v3 hunyuan-dense joyai-llm", *_DEEPSEEK3),
    **_named("falcon", *_FALCON),
    **_named("minicpm5", *_MINICPM5, ignore_merges=True),
    **_named("seed-coder", _SEED_CODER),
    **_named("bailingmoe bailingmoe2 llada-moe", _BAILING),
}
"""By name. To support another one, add its patterns here and, if long texts can be split, its alternatives to
``windowed_encoder``."""
