"""Our tokenizer and llama.cpp's own: a real vocabulary, and every cut that we know.

A real vocabulary hides some of its cut: digits are cut one by one or by threes, but Qwen2 has no word of two.
So the cuts are compared on a vocabulary that merges any two bytes, where hardly one can move unseen. The real
vocabulary of SmolLM2 is compared in ``test_llama.py``.
"""

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from slipring.engines.llama.child_process import ChildProcess, ChildSettings
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.corpus import CORPUS
from tests.prompts.gguf_writer import write_hollow_model
from tests.prompts.vocabulary import qwen2, qwen2_metadata

CUTS = ("gpt-2", "smollm", "llama-bpe", "qwen2")
UNMERGED = ("hello", "Ġspaces", "return", "ĠĠĠ", "123", "====")
Encode = Callable[[str], Awaitable[list[int]]]


@cache
def cut_as(pre: str) -> dict[str, Any]:
    """All bytes, all pairs of them, and a few words that no merge makes: only Llama 3 looks those up."""
    letters = sorted(ByteLevel.alphabet())
    pairs = list(product(letters, letters))
    Random(7).shuffle(pairs)  # so that no order of letters decides what is merged first
    tokens = [*letters, *map("".join, pairs), *UNMERGED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": list(map(" ".join, pairs)),
    }


@asynccontextmanager
async def llama_cpp(metadata: dict[str, Any], path: Path) -> AsyncIterator[Encode]:
    """llama.cpp's tokenizer for a vocabulary."""
    write_hollow_model(path, metadata)
    settings = ChildSettings(path=str(path), context=64, slots=1, threads=1, chunk=32)
    process = ChildProcess(settings)
    await process.start()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {process.key}"}) as http:

        async def encode(text: str) -> list[int]:
            asked = {"content": text, "add_special": False, "parse_special": False}
            async with http.post(f"{process.url}/tokenize", json=asked) as answer:
                ids: list[int] = (await answer.json(content_type=None))["tokens"]
            return ids

        try:
            yield encode
        finally:
            await process.close()


async def test_a_real_vocabulary_gives_the_ids_of_llama_cpp(tmp_path: Path) -> None:
    async with llama_cpp(qwen2_metadata(), tmp_path / "hollow.gguf") as theirs:
        for text in CORPUS:
            assert qwen2().encode(text) == await theirs(text)


@pytest.mark.parametrize("pre", CUTS)
async def test_every_cut_is_where_llama_cpp_cuts(pre: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(cut_as(pre))
    async with llama_cpp(cut_as(pre), tmp_path / "hollow.gguf") as theirs:
        for text in CORPUS:
            assert tokenizer.encode(text) == await theirs(text)


def characters() -> list[str]:
    """Every character of Unicode 3.2, a set that stays as it is whichever Python and tables are newer."""
    known = unicodedata.ucd_3_2_0.category
    return [chr(code) for code in range(0x110000) if known(chr(code)) not in ("Cn", "Co", "Cs")]


@pytest.mark.slow
@pytest.mark.parametrize("pre", CUTS)
async def test_every_character_is_of_the_class_that_llama_cpp_gives_it(pre: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(cut_as(pre))
    every = [f"a{char}b {char}{char} 1{char}2\n {char}.a{char}'a{char}\n \n" for char in characters()]
    assert len(every) > 90_000
    async with llama_cpp(cut_as(pre), tmp_path / "hollow.gguf") as theirs:
        for start in range(0, len(every), 100):
            text = "".join(every[start : start + 100])
            assert tokenizer.encode(text) == await theirs(text)
