"""What is made once for all tests of a process, because it does not change and is expensive to make."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec
import pytest

from slipring.commands.inspection import model_source
from slipring.engines.constraints import llama_grammar
from slipring.engines.llama import served_model
from slipring.engines.simulated import tokenized
from slipring.engines.tokens.model_files import read_gguf
from slipring.prompts.templates import probed_template
from slipring.prompts.templates.jinja_engines import ChatTemplate
from slipring.prompts.tokenization.tokenizer import Tokenizer


@contextmanager
def made_once() -> Iterator[None]:
    """While the block runs, make each tokenizer, model file's metadata, chat template and grammar once."""
    with pytest.MonkeyPatch.context() as patch:
        _build_tokenizers_once(patch)
        _read_model_files_once(patch)
        # Renderers of the same chat template share it: it is rendered dozens of times while it is made. Tests
        # of ``ChatTemplate`` make their own.
        patch.setattr(probed_template, "ChatTemplate", cache(ChatTemplate))
        # Trying takes most of the time of compiling, its result depends on the text only, and the same few
        # schemas are part of the grammars of most tests.
        patch.setattr(llama_grammar, "_grammar_error", cache(llama_grammar._grammar_error))
        yield


def _build_tokenizers_once(patch: pytest.MonkeyPatch) -> None:
    """Engines with the same vocabulary share one tokenizer: building it takes as long as a hundred turns."""
    from_json, from_gguf = Tokenizer.from_json, Tokenizer.from_gguf
    built: dict[object, Tokenizer] = {}

    def json_once(text: str) -> Tokenizer:
        if text not in built:
            built[text] = from_json(text)
        return built[text]

    def gguf_once(metadata: Mapping[str, Any]) -> Tokenizer:
        described = [entry for entry in metadata.items() if entry[0].startswith("tokenizer.ggml.")]
        key = msgspec.msgpack.encode(sorted(described))
        if key not in built:
            built[key] = from_gguf(metadata)
        return built[key]

    patch.setattr(Tokenizer, "from_json", json_once)
    patch.setattr(Tokenizer, "from_gguf", gguf_once)


def _read_model_files_once(patch: pytest.MonkeyPatch) -> None:
    """Read the metadata of a GGUF file again only if the file has changed. Most tests with a vocabulary use
    the same file, and reading it takes a tenth of a second."""
    read: dict[object, dict[str, Any]] = {}

    def read_once(kind: str, path: str) -> dict[str, Any]:
        try:
            status = os.stat(path)
        except OSError:
            return read_gguf(kind, path)  # raises, with a message
        key = path, status.st_ino, status.st_size, status.st_mtime_ns
        if key not in read:
            read[key] = read_gguf(kind, path)
        return dict(read[key])

    for module in (served_model, tokenized, model_source):
        patch.setattr(module, "read_gguf", read_once)
