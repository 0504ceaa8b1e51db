"""Our tokenizer gives the ids of llama.cpp's: for real vocabularies, and for every supported pre-tokenizer.

A real vocabulary hides some of the splits of its pre-tokenizer: some split digits one by one, others by
threes, but Qwen2 has no token of two digits. So pre-tokenizers are compared on a vocabulary that merges any
two bytes, where nearly every difference changes the ids. The real vocabulary of SmolLM2 is compared in the
tests of the llama engine.
"""

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from slipring.engines.llama.child_process import ChildProcess, ChildSettings
from slipring.prompts.tokenization import gguf_pre_tokenizers
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.corpus import CORPUS
from tests.prompts.gguf_writer import write_hollow_model
from tests.prompts.vocabulary import VISIBLE, characters, characters_metadata, qwen2, qwen2_metadata

PRE_TOKENIZERS = (
    *("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "kimi-k2", "deepseek-v3"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("glm4", "tekken", "minimax-m2", "falcon", "minicpm5", "seed-coder", "bailingmoe", "dbrx")
    ),
)
"""Of each entry of ``gguf_pre_tokenizers`` one name or more. A comparison takes seconds, most of which
llama.cpp takes to start."""
UNMERGED = ("hello", "Ġspaces", "return", "ĠĠĠ", "123", "====")
Encode = Callable[[str], Awaitable[list[int]]]


@cache
def pair_vocabulary(pre: str, texts: tuple[str, ...] = ()) -> dict[str, Any]:
    """All bytes, all pairs of bytes, and a few tokens that no merge produces: only Llama 3 looks those up.

    ``texts``: only the pairs that occur in them. A pair that does not occur changes no ids, but makes the
    vocabulary larger."""
    letters = sorted(ByteLevel.alphabet())
    pairs = list(product(letters, letters))
    Random(7).shuffle(pairs)  # merge ranks must not follow the order of bytes
    if texts:
        whole = ByteLevel(add_prefix_space=False, use_regex=False)
        occurring = {pair for text in texts for pair in pairwise(whole.pre_tokenize_str(text)[0][0])}
        pairs = [pair for pair in pairs if pair in occurring]
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
    """Run llama.cpp with a vocabulary and no weights; yields its ``encode``."""
    write_hollow_model(path, metadata)
    settings = ChildSettings(path=str(path), context=64, slots=1, threads=1, chunk=32)
    process = ChildProcess(settings)
    await process.start()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {process.key}"}) as http:

        async def encode(text: str) -> list[int]:
            body = {"content": text, "add_special": False, "parse_special": False}
            async with http.post(f"{process.url}/tokenize", json=body) as answer:
                ids: list[int] = (await answer.json(content_type=None))["tokens"]
            return ids

        try:
            yield encode
        finally:
            await process.close()


@pytest.mark.slow
async def test_a_real_vocabulary_gives_the_ids_of_llama_cpp(tmp_path: Path) -> None:
    async with llama_cpp(qwen2_metadata(), tmp_path / "hollow.gguf") as encode:
        for text in CORPUS:
            assert qwen2().encode(text) == await encode(text)


async def test_a_vocabulary_of_characters_gives_the_ids_of_llama_cpp(tmp_path: Path) -> None:
    async with llama_cpp(characters_metadata(), tmp_path / "hollow.gguf") as encode:
        for text in [*CORPUS, *("\n" * count for count in range(40)), *(" " * count for count in range(40))]:
            # llama.cpp finds tokens of the type "user defined" in any text.
            plain = text.replace(VISIBLE, "")
            assert characters().encode(plain) == await encode(plain)


@pytest.mark.slow
@pytest.mark.parametrize("pre", [*gguf_pre_tokenizers.PRE_TOKENIZERS])
async def test_every_name_of_a_pre_tokenizer_is_known_to_llama_cpp(pre: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(pair_vocabulary(pre))
    text = "".join(CORPUS[:40])
    async with llama_cpp(pair_vocabulary(pre), tmp_path / "hollow.gguf") as encode:
        assert tokenizer.encode(text) == await encode(text)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
async def test_every_pre_tokenizer_splits_as_llama_cpp_does(pre: str, tmp_path: Path) -> None:
    vocabulary = pair_vocabulary(pre, tuple(filter(None, CORPUS)))
    tokenizer = Tokenizer.from_gguf(vocabulary)
    async with llama_cpp(vocabulary, tmp_path / "hollow.gguf") as encode:
        for text in CORPUS:
            assert tokenizer.encode(text) == await encode(text)


def all_characters() -> list[str]:
    """Every character of Unicode 3.2: a set that does not depend on the versions of Python and llama.cpp."""
    known = unicodedata.ucd_3_2_0.category
    return [chr(code) for code in range(0x110000) if known(chr(code)) not in ("Cn", "Co", "Cs")]


@pytest.mark.slow
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
async def test_every_character_has_the_class_that_llama_cpp_gives_it(pre: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(pair_vocabulary(pre))
    samples = [f"a{char}b {char}{char} 1{char}2\n {char}.a{char}'a{char}\n \n" for char in all_characters()]
    assert len(samples) > 90_000
    async with llama_cpp(pair_vocabulary(pre), tmp_path / "hollow.gguf") as encode:
        for start in range(0, len(samples), 100):
            text = "".join(samples[start : start + 100])
            assert tokenizer.encode(text) == await encode(text)
