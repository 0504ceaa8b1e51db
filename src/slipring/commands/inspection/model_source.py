"""Opens what ``slipring inspect`` is given: a GGUF file, a directory of tokenizer files, or a running
server, whose vocabulary is then spelled byte by byte.
"""

import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from slipring.base.errors import StartupError, suggestion
from slipring.engines.addresses_and_options import (
    RenderingOptions,
    dialect_option,
    read_pairs,
    thinking_option,
    variables_option,
)
from slipring.engines.catalog import KINDS, open_engine
from slipring.engines.llama.options import LlamaOptions, read_options
from slipring.engines.llama.packaged_model import PACKAGED_SAMPLING, packaged_model
from slipring.engines.llama.served_model import ask_server, file_of, name_of, projector_of
from slipring.engines.remote.http_client import HttpClient
from slipring.engines.tokens.model_files import ModelInfo, control_tokens, read_gguf, read_tokenizer
from slipring.engines.tokens.sampling import Sampling
from slipring.engines.tokens.token_server import TokenServer
from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget
from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary, Vocabulary

_FIRST = 2**24
"""The id of byte 0: above the ids of all real vocabularies."""


class SpelledVocabulary(Vocabulary):
    """The control tokens of a real vocabulary, and an id of its own for every byte of a text."""

    is_local = False

    def __init__(self, names: Collection[str], find: Callable[[str], int | None]) -> None:
        """``names``: of the control tokens. ``find`` returns the id of one, also of those without a name in
        ``names``; None if the vocabulary has none."""
        self._names = names
        self._find = find
        self.fingerprint = "spelled"

    @classmethod
    def like(cls, vocabulary: Vocabulary) -> "SpelledVocabulary":
        """One with the control tokens of another vocabulary."""

        def find(name: str) -> int | None:
            return vocabulary.control(name) if vocabulary.has_control(name) else None

        return cls(vocabulary.control_tokens(), find)

    def encode(self, text: str, budget: TokenBudget = UNLIMITED) -> list[int]:
        return [_FIRST + byte for byte in text.encode()]

    def least_tokens(self, text: str) -> int:
        return len(text)

    def control(self, token: str) -> int:
        found = self._find(token)
        if found is None:
            raise KeyError(token)
        return found

    def has_control(self, token: str) -> bool:
        return self._find(token) is not None

    def control_tokens(self) -> Collection[str]:
        return self._names

    def bytes_of(self, id: int) -> bytes:
        return bytes([id - _FIRST]) if id >= _FIRST else b""


_TOKEN_KINDS = ("llama", "vllm", "sglang")
_URLS = ("http://", "https://")
_AS_TEXT, _BLIND = "beside text, everything in each turn", "none: the model does not see"


class ModelSource(Struct, frozen=True, kw_only=True):
    """A model as its files or its server describe it."""

    name: str
    engine: str
    """The kind of engine; empty for a directory."""
    place: str
    """The path or the URL."""
    info: ModelInfo
    vocabulary: Vocabulary
    options: RenderingOptions
    sampling: Sampling
    context: int | None = None
    """Tokens of context, as far as known: that of a file is what the model was trained for."""
    sessions: str | None = None
    """How turns use sessions of the server, in one line; None if it is no such server."""
    pictures: str | None = None
    """How pictures get to the model, in one line; None for a directory."""
    pre_tokenizer: str = ""
    """Its name in the metadata of a GGUF file."""
    unknown_vocabulary: str = ""
    """Why slipring cannot tokenize for a GGUF file in this process; empty if it can."""

    @property
    def kind(self) -> str:
        """The kind of engine, for messages."""
        return self.engine or "inspect"


@dataclass(frozen=True, slots=True)
class _DirectoryOptions:
    """The options that can follow the path of a directory."""

    dialect: str = dialect_option()
    thinking: str = thinking_option()
    variables: str = variables_option()


@asynccontextmanager
async def open_source(text: str) -> AsyncIterator[ModelSource]:
    """Open what ``text`` names: ``KIND:…`` as ``slipring serve --engine`` takes it, or a path, options after
    it. A source of a server can be asked until it is closed. Raises ``StartupError``."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        yield _read_path(text)
    elif kind == "llama":
        async with _open_llama(read_options(rest)) as source:
            yield source
    elif kind in _TOKEN_KINDS:
        async with _open_server(text) as source:
            yield source
    else:
        raise StartupError(
            f"{kind}: there is nothing to inspect, because this engine sends no token ids"
            f" (those that do: {', '.join(_TOKEN_KINDS)})"
        )


def _read_path(text: str) -> ModelSource:
    """Read a GGUF file, a directory or a ``tokenizer.json``."""
    if text.startswith(_URLS):
        raise StartupError(f"{text}: name the kind of the server, as in vllm:{text}")
    path, *pairs = text.split(",")
    if not os.path.exists(path):
        hint = suggestion(text.partition(":")[0], _TOKEN_KINDS)
        raise StartupError(f"there is no file or directory {path}{hint}")
    if os.path.isdir(path) or path.endswith(".json"):
        return _read_directory(path, pairs)
    values = read_pairs("llama", LlamaOptions, pairs)
    return _read_gguf(LlamaOptions(model=path, **values))


def _read_directory(path: str, pairs: list[str]) -> ModelSource:
    options = _DirectoryOptions(**read_pairs("inspect", _DirectoryOptions, pairs))
    vocabulary, info = read_tokenizer("inspect", path)
    return ModelSource(
        name=Path(path).resolve().name,
        engine="",
        place=path,
        info=info,
        vocabulary=vocabulary,
        options=options,
        sampling=info.sampling,
    )


@asynccontextmanager
async def _open_llama(options: LlamaOptions) -> AsyncIterator[ModelSource]:
    if not options.is_external:
        yield _read_gguf(options)
        return
    key = options.key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with HttpClient(options.model, headers) as client:
        found = await ask_server(options, client)
        yield ModelSource(
            name=found.name,
            engine="llama",
            place=options.model,
            info=found.info,
            vocabulary=found.vocabulary,
            options=options,
            sampling=found.sampling,
            context=found.context,
            pictures=_AS_TEXT if found.sees else _BLIND,
        )


def _read_gguf(options: LlamaOptions) -> ModelSource:
    path = file_of(options)
    metadata = read_gguf("llama", path)
    info = ModelInfo.from_gguf(metadata)
    unknown = ""
    projector = projector_of(options, path)
    try:
        vocabulary: Vocabulary = Tokenizer.from_gguf(metadata)
    except UnknownVocabulary as error:
        control = control_tokens(metadata)
        vocabulary, unknown = SpelledVocabulary(control.keys(), control.get), str(error)
    return ModelSource(
        name=name_of(path),
        engine="llama",
        place=path,
        info=info,
        vocabulary=vocabulary,
        options=options,
        sampling=PACKAGED_SAMPLING if path == packaged_model() else info.sampling,
        context=metadata.get(f"{info.family}.context_length"),
        pictures=f"{_AS_TEXT}; projector {projector}" if projector else f"{_BLIND}, it has no projector",
        pre_tokenizer=str(metadata.get("tokenizer.ggml.pre", "")),
        unknown_vocabulary=unknown,
    )


@asynccontextmanager
async def _open_server(text: str) -> AsyncIterator[ModelSource]:
    engine = open_engine(text)
    assert isinstance(engine, TokenServer)
    try:
        vocabulary, info = await engine.connect()
        await engine.ask_for_sessions()
        yield ModelSource(
            name=engine.served.name,
            engine=engine.name,
            place=engine.options.url,
            info=info,
            vocabulary=vocabulary,
            options=engine.options,
            sampling=info.sampling,
            context=engine.served.context,
            sessions=engine.session_use,
            pictures=await engine.picture_use(vocabulary, info),
        )
    finally:
        await engine.close()
