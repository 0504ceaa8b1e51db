"""Reads what files say about a model: tokenizer directories as Hugging Face lays them out, and GGUF files."""

import json
import mmap
import os
import re
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from slipring.base.errors import StartupError, UnusableModel
from slipring.engines.tokens.sampling import Sampling
from slipring.prompts.tokenization.gguf_metadata import GgufError, read_metadata
from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary

# One text is tokenized at a time, so the library needs no thread pool.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""``OWNER/MODEL``, as model hubs name a model."""
_TOKEN_LIKE = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\]")
_CONTROL_TYPES = (3, 4)
"""GGUF token types: control, and user defined."""


END_OF_GENERATION = (
    *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<EOT>"),
    *(
        "<end_of_turn>",
        "<turn|>",
        "<|return|>",
        "<|call|>",
        "<|end_of_msg|>",
        "<｜end▁of▁sentence｜>",
        "</s>",
    ),
)
"""Names of tokens at which llama.cpp ends an answer, whatever the metadata says."""


class ModelInfo(Struct, frozen=True):
    """A model's chat template, special tokens and recommended sampling."""

    template: str = ""
    bos: str = ""
    eos: str = ""
    control: tuple[str, ...] = ()
    """Names of control tokens."""
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    """Ids that end an answer, as the files name them."""
    response_template: dict[str, Any] | None = None
    """The model's own description of its answers, if it has one."""
    family: str = ""
    """The architecture, as the model's ``config.json`` names it."""

    @classmethod
    def from_tokenizer_config(cls, config: dict[str, Any]) -> "ModelInfo":
        """From the content of a ``tokenizer_config.json``, which some servers return too."""
        template = config.get("chat_template") or ""
        if isinstance(template, list):
            named = {each["name"]: each["template"] for each in template}
            template = named.get("default") or next(iter(named.values()), "")
        added = (config.get("added_tokens_decoder") or {}).values()
        return cls(
            str(template),
            _token_name(config.get("bos_token")),
            _token_name(config.get("eos_token")),
            tuple(filter(None, map(_token_name, added))),
            response_template=_object(config.get("response_template")),
        )

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any]) -> "ModelInfo":
        tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])

        def id_of(role: str) -> int | None:
            id = metadata.get(f"tokenizer.ggml.{role}_token_id")
            return id if isinstance(id, int) and 0 <= id < len(tokens) else None

        def token(role: str) -> str:
            id = id_of(role)
            return tokens[id] if id is not None else ""

        control = control_tokens(metadata)
        named = (id_of(role) for role in ("eos", "eot", "eom"))
        known = (control.get(name) for name in END_OF_GENERATION)
        return cls(
            str(metadata.get("tokenizer.chat_template", "")),
            token("bos"),
            token("eos"),
            sampling=Sampling.from_gguf(metadata),
            stop_ids=tuple(sorted({id for id in (*named, *known) if id is not None})),
            family=str(metadata.get("general.architecture", "")),
        )

    def token_names(self) -> set[str]:
        """Texts that may be the name of a control token."""
        return {self.bos, self.eos, *self.control, *_TOKEN_LIKE.findall(self.template)} - {""}


def _token_name(token: object) -> str:
    """A token's name; some files wrap it in an object."""
    return str(token.get("content") or "") if isinstance(token, dict) else str(token or "")


def read_tokenizer(kind: str, path: str) -> tuple[Tokenizer, ModelInfo]:
    """Read a ``tokenizer.json``, or a directory with one and the files that describe its model.

    ``kind`` is the engine's, for messages. Raises ``StartupError``, and ``UnusableModel`` for a vocabulary of
    an unknown kind.
    """
    place = Path(path)
    if _HUB_NAME.fullmatch(path) and not place.exists():
        raise StartupError(
            f"--engine {kind}: there is no directory {path}; the tokenizer must be a directory that holds"
            f" tokenizer.json (hf download {path} --include '*.j*' --local-dir {place.name} creates it in"
            f" {place.name})"
        )
    try:
        if not place.is_dir():
            return Tokenizer.from_json(place.read_text(encoding="utf-8")), ModelInfo()
        tokenizer = Tokenizer.from_json((place / "tokenizer.json").read_text(encoding="utf-8"))
        return tokenizer, _read_directory(place)
    except UnknownVocabulary as error:
        raise UnusableModel(f"--engine {kind}: cannot use the tokenizer {path}: {error}") from None
    except OSError as error:
        missing = "" if place == Path(error.filename or path) else f"{Path(error.filename).name}: "
        reason = f"{missing}{error.strerror}"
        raise StartupError(f"--engine {kind}: cannot use the tokenizer {path}: {reason}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StartupError(f"--engine {kind}: cannot use the tokenizer {path}: {error}") from None


def unnamed_tokenizer(kind: str, url: str, root: str) -> StartupError:
    """That the tokenizer of a server's model has to be named. ``root``: what the server says that its model
    was loaded from; empty if it does not say."""
    if _HUB_NAME.fullmatch(root):
        how = f"name the model's tokenizer: {kind}:{url},tokenizer={root}"
    else:
        where = f"the server's is {root}, which is not here" if root else "the server names none"
        how = f"name the model's tokenizer with tokenizer= ({where})"
    return StartupError(f"--engine {kind}: {how}")


def _read_directory(directory: Path) -> ModelInfo:
    config = _read_object(directory / "tokenizer_config.json")
    template = directory / "chat_template.jinja"
    if template.exists():
        config["chat_template"] = template.read_text(encoding="utf-8")
    info = ModelInfo.from_tokenizer_config(config)
    generation = _read_object(directory / "generation_config.json")
    return structs.replace(
        info,
        sampling=Sampling.from_generation_config(generation),
        stop_ids=_ids(generation.get("eos_token_id")),
        family=str(_read_object(directory / "config.json").get("model_type") or ""),
    )


def _ids(value: object) -> tuple[int, ...]:
    """One id, or a list of ids."""
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in values if isinstance(each, int) and not isinstance(each, bool))


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no file."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not an object")
    return content


def read_gguf(kind: str, path: str) -> dict[str, Any]:
    """Read the metadata of a GGUF file. ``kind`` is the engine's, for messages. Raises ``StartupError``."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return read_metadata(view)
    except OSError as error:
        raise StartupError(
            f"--engine {kind}: cannot read {path}: {error.strerror}; a model is named by the path of its GGUF"
            " file"
        ) from None
    except (ValueError, GgufError) as error:
        raise StartupError(f"--engine {kind}: cannot read {path}: {error}") from None


def control_tokens(metadata: dict[str, Any]) -> dict[str, int]:
    """The control tokens of a GGUF file's vocabulary, by name."""
    tokens, types = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    typed = enumerate(zip(tokens, types, strict=False))
    return {token: id for id, (token, kind) in typed if kind in _CONTROL_TYPES}
