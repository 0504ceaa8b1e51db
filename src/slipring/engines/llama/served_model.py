"""The model that is served and its renderer: from a GGUF file, or from what a llama-server answers."""

import asyncio
import importlib.util
import re
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from slipring.base.errors import StartupError
from slipring.core.generation import Defaults
from slipring.engines.hub.projectors import projector_beside
from slipring.engines.llama.api import describe, understands_llguidance
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.llama.packaged_model import (
    MODEL_COMMAND,
    PACKAGED_MAX_OUTPUT_TOKENS,
    PACKAGED_SAMPLING,
    packaged_model,
)
from slipring.engines.remote.http_client import HttpClient
from slipring.engines.tokens.model_files import (
    END_OF_GENERATION,
    ModelInfo,
    control_tokens,
    read_gguf,
    read_tokenizer,
)
from slipring.engines.tokens.remote_vocabulary import LlamaVocabulary, Query
from slipring.engines.tokens.sampling import Sampling
from slipring.engines.tokens.template_choice import make_serving_renderer
from slipring.prompts.rendering import Renderer
from slipring.prompts.templates.chat_messages import INLINE_PICTURES
from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary, Vocabulary

_QUANTIZATION = re.compile(r"[-._]i?q\d\w*$|[-._](f16|f32|bf16)$")


class ServedModel(Struct, frozen=True):
    """A model and what is known about it before it generates."""

    name: str
    path: str
    """Of its file, if slipring loads it."""
    context: int
    """Tokens that a slot can hold."""
    slots: int
    renderer: Renderer
    llguidance: bool
    """Whether the engine takes grammars of llguidance."""
    sampling: Sampling = Sampling()
    max_output_tokens: int | None = None
    """For requests that name no maximum."""
    sees: bool = False
    """Whether it sees pictures."""

    @property
    def defaults(self) -> Defaults:
        return structs.replace(self.sampling.defaults(), max_output_tokens=self.max_output_tokens)


def from_file(options: LlamaOptions, query: Query) -> ServedModel:
    """The model of a GGUF file. ``query`` reaches the server that will load it, once that runs."""
    path = _loadable_file(options)
    metadata = read_file(path)
    try:
        vocabulary: Vocabulary = Tokenizer.from_gguf(metadata)
    except UnknownVocabulary:
        name = f"{path} {metadata.get('general.name')}"
        vocabulary = LlamaVocabulary(query, name, control_tokens(metadata))
    info = ModelInfo.from_gguf(metadata)
    is_packaged = path == packaged_model()
    sees = bool(projector_of(options, path))
    return ServedModel(
        name=name_of(path),
        path=path,
        context=_context(options, metadata),
        slots=options.slots,
        renderer=make_serving_renderer(
            "llama", options, info, vocabulary, (INLINE_PICTURES,) if sees else ()
        ),
        llguidance=True,
        sampling=PACKAGED_SAMPLING if is_packaged else info.sampling,
        max_output_tokens=PACKAGED_MAX_OUTPUT_TOKENS if is_packaged else None,
        sees=sees,
    )


def locate(options: LlamaOptions) -> tuple[str, int]:
    """The path of a model's file and the tokens that a slot can hold, for a process that only runs it."""
    path = _loadable_file(options)
    return path, _context(options, read_file(path))


def _context(options: LlamaOptions, metadata: dict[str, Any]) -> int:
    trained: int = metadata.get(f"{metadata.get('general.architecture')}.context_length", options.context)
    return min(options.context, trained)


class ServersModel(Struct, frozen=True):
    """What a running llama-server says about its model."""

    name: str
    context: int
    slots: int
    info: ModelInfo
    vocabulary: Vocabulary
    sampling: Sampling
    sees: bool = False


async def from_server(options: LlamaOptions, client: HttpClient) -> ServedModel:
    """The model of a running llama-server. Raises ``StartupError``."""
    found = await ask_server(options, client)
    return ServedModel(
        name=found.name,
        path="",
        context=found.context,
        slots=found.slots,
        renderer=await asyncio.to_thread(
            make_serving_renderer,
            "llama",
            options,
            found.info,
            found.vocabulary,
            (INLINE_PICTURES,) if found.sees else (),
        ),
        llguidance=await understands_llguidance(client),
        sampling=found.sampling,
        sees=found.sees,
    )


async def ask_server(options: LlamaOptions, client: HttpClient) -> ServersModel:
    """Ask a running llama-server for its model. Raises ``StartupError``."""
    described = await describe(client)
    try:
        model, settings = described["model"], described["default_generation_settings"]
        path = str(described.get("model_path") or model["id"])
        info = ModelInfo.from_tokenizer_config(described)
        vocabulary: Vocabulary
        if options.tokenizer:
            vocabulary, _ = await asyncio.to_thread(read_tokenizer, "llama", options.tokenizer)
        else:
            name = f"{path} {model.get('meta', {}).get('n_vocab')}"
            vocabulary = remote = LlamaVocabulary(client.query_from_thread, name)
            await asyncio.to_thread(remote.learn_control, info.token_names())
        info = structs.replace(info, stop_ids=await asyncio.to_thread(_stop_ids, vocabulary))
        return ServersModel(
            name=name_of(str(described.get("model_alias") or path)),
            context=int(settings["n_ctx"]),
            slots=int(described["total_slots"]),
            info=info,
            vocabulary=vocabulary,
            sampling=Sampling.from_llama_server(settings.get("params") or {}),
            sees=bool((described.get("modalities") or {}).get("vision")),
        )
    except (LookupError, TypeError, ValueError):
        raise StartupError(f"--engine llama: {options.model} does not answer like a llama-server") from None


def _stop_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids at which llama.cpp ends an answer. May ask the server."""
    return tuple(vocabulary.control(name) for name in END_OF_GENERATION if vocabulary.has_control(name))


def name_of(path: str) -> str:
    """A model's name without its directory and the way it was quantized."""
    return _QUANTIZATION.sub("", Path(path).name.lower().removesuffix(".gguf"))


def _loadable_file(options: LlamaOptions) -> str:
    """Return the path of the GGUF file to load. Raises ``ModuleNotFoundError`` if nothing can load it."""
    if importlib.util.find_spec("xllamacpp") is None:  # imported later, by the child process
        raise ModuleNotFoundError(name="xllamacpp")
    return file_of(options)


def file_of(options: LlamaOptions) -> str:
    """Return the path of the model's GGUF file: the one that is named, else the packaged one."""
    path = options.model or packaged_model()
    if path is None:
        raise StartupError(
            f"--engine llama: the packaged model is not installed ({MODEL_COMMAND});"
            " or name a model of your own, as in --engine llama:/models/qwen3-8b.gguf"
        )
    return path


def projector_of(options: LlamaOptions, path: str) -> str:
    """The path of a model's projector: the one that is named, else the one beside its file; empty if there is
    none."""
    named = "" if options.mmproj == "none" else options.mmproj
    return named if options.mmproj else projector_beside(path)


def read_file(path: str) -> dict[str, Any]:
    """The metadata of a GGUF file."""
    return read_gguf("llama", path)
