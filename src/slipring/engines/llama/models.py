"""Which model is served and how contexts are written for it: from a GGUF file, or as a server tells."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from slipring.engines.llama.options import Options
from slipring.engines.llama.remote import RemoteVocabulary, describe, understands_llguidance
from slipring.engines.tokens.gguf_models import (
    MODEL_COMMAND,
    control_tokens,
    manner_of,
    packaged_model,
    read_gguf,
)
from slipring.engines.tokens.renderers import Manner, make_renderer, read_tokenizer
from slipring.errors import StartupError
from slipring.prompts.rendering import Renderer
from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary, Vocabulary

_QUANTIZATION = re.compile(r"[-._]i?q\d\w*$|[-._](f16|f32|bf16)$")

Where = Callable[[], tuple[str, str]]
"""Address and key of the engine, once it runs."""


class ServedModel(Struct, frozen=True):
    """A model and what is known about it before anything is generated."""

    name: str
    path: str
    """Of its file, where it is ours to load."""
    context: int
    """Tokens that a slot can hold."""
    slots: int
    renderer: Renderer
    llguidance: bool
    """Whether the engine takes grammars of llguidance."""


def from_file(options: Options, where: Where) -> ServedModel:
    """The model of a GGUF file."""
    path = _file_of(options)
    metadata = read_file(path)
    try:
        vocabulary: Vocabulary = Tokenizer.from_gguf(metadata)
    except UnknownVocabulary:
        name = f"{path} {metadata.get('general.name')}"
        vocabulary = RemoteVocabulary(where, name, control_tokens(metadata))
    return ServedModel(
        name=name_of(path),
        path=path,
        context=_context(options, metadata),
        slots=options.slots,
        renderer=make_renderer("llama", options.dialect, manner_of(metadata), vocabulary),
        llguidance=True,
    )


def locate(options: Options) -> tuple[str, int]:
    """The path of a model's file and the tokens that a slot can hold, for one who only runs it."""
    path = _file_of(options)
    return path, _context(options, read_file(path))


def _context(options: Options, metadata: dict[str, Any]) -> int:
    trained: int = metadata.get(f"{metadata.get('general.architecture')}.context_length", options.context)
    return min(options.context, trained)


def from_server(options: Options, key: str) -> ServedModel:
    """The model of a llama-server that somebody else runs."""
    url = options.model
    told = describe(url, key)
    try:
        model, settings = told["model"], told["default_generation_settings"]
        path = str(told.get("model_path") or model["id"])
        manner = Manner.of(told)
        vocabulary: Vocabulary
        if options.tokenizer:
            vocabulary, _ = read_tokenizer("llama", options.tokenizer)
        else:
            asked = RemoteVocabulary(lambda: (url, key), f"{path} {model.get('meta', {}).get('n_vocab')}")
            asked.learn_control(manner.token_names())
            vocabulary = asked
        return ServedModel(
            name=name_of(str(told.get("model_alias") or path)),
            path="",
            context=int(settings["n_ctx"]),
            slots=int(told["total_slots"]),
            renderer=make_renderer("llama", options.dialect, manner, vocabulary),
            llguidance=understands_llguidance(url, key),
        )
    except (LookupError, TypeError, ValueError):
        raise StartupError(f"--engine llama: {url} does not answer like a llama-server") from None


def name_of(path: str) -> str:
    """A model's name without its directory and the way it was quantized."""
    return _QUANTIZATION.sub("", Path(path).name.lower().removesuffix(".gguf"))


def _file_of(options: Options) -> str:
    """Return the path of the GGUF file to load: the one that is named, else the packaged one."""
    if importlib.util.find_spec("xllamacpp") is None:  # imported later, by the child process
        raise ModuleNotFoundError(name="xllamacpp")
    path = options.model or packaged_model()
    if path is None:
        raise StartupError(
            f"--engine llama: the packaged model is not installed ({MODEL_COMMAND});"
            " or name a model of your own, as in --engine llama:/models/qwen3-8b.gguf"
        )
    return path


def read_file(path: str) -> dict[str, Any]:
    """The metadata of a GGUF file."""
    return read_gguf("llama", path)
