"""How contexts are written for a model: the renderer that fits its template, and tokenizers from files."""

import datetime
import json
import os
import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from slipring.errors import StartupError
from slipring.prompts.dialects.chatml import ChatMl
from slipring.prompts.dialects.dialect import Dialect
from slipring.prompts.dialects.dialect_renderer import FoldingRenderer
from slipring.prompts.dialects.llama3 import Llama3
from slipring.prompts.rendering import Renderer
from slipring.prompts.templates.jinja import TemplateError
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer, Vocabulary

# One text at a time is tokenized: a pool of threads would be woken for nothing.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_DIALECTS: dict[str, type[Dialect]] = {ChatMl.name: ChatMl, Llama3.name: Llama3}
_TEMPLATE = "template"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""``OWNER/MODEL``, as model hubs name a model."""
_TOKEN_LIKE = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\]")


class Manner(Struct, frozen=True):
    """A model's way of writing, as the files beside its tokenizer or its server tell it."""

    template: str = ""
    bos: str = ""
    eos: str = ""
    control: tuple[str, ...] = ()
    """Control tokens that are known by name."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Manner":
        """From a ``tokenizer_config.json``, or from a server that tells the same."""
        template = config.get("chat_template") or ""
        if isinstance(template, list):
            named = {each["name"]: each["template"] for each in template}
            template = named.get("default") or next(iter(named.values()), "")
        added = (config.get("added_tokens_decoder") or {}).values()
        return cls(
            str(template),
            _content(config.get("bos_token")),
            _content(config.get("eos_token")),
            tuple(filter(None, map(_content, added))),
        )

    def token_names(self) -> set[str]:
        """What may be the name of a control token."""
        return {self.bos, self.eos, *self.control, *_TOKEN_LIKE.findall(self.template)} - {""}


def _content(token: object) -> str:
    """A token's name, which may be wrapped."""
    return str(token.get("content") or "") if isinstance(token, dict) else str(token or "")


def make_renderer(kind: str, dialect: str, manner: Manner, vocabulary: Vocabulary) -> Renderer:
    """The renderer of the dialect that was named, of the one whose marks are in the model's template, or of
    the template itself. ``kind``: of the engine that is to be started."""
    known = (*_DIALECTS, _TEMPLATE)
    template = manner.template
    if dialect and dialect not in known:
        raise StartupError(f"--engine {kind}: unknown dialect '{dialect}' (known: {', '.join(known)})")
    if not dialect and "<|start_header_id|>" in template:
        dialect = Llama3.name
    elif not dialect and "<|im_start|>" in template:
        dialect = ChatMl.name
    if dialect in _DIALECTS:
        return FoldingRenderer(_DIALECTS[dialect](), vocabulary)
    if not template:
        raise StartupError(f"--engine {kind}: the model has no chat template; name its dialect with dialect=")
    try:
        today = datetime.date.today()
        return TemplateRenderer(template, vocabulary, bos_token=manner.bos, eos_token=manner.eos, today=today)
    except TemplateError as error:
        raise StartupError(f"--engine {kind}: the model's chat template cannot be used: {error}") from None


def read_tokenizer(kind: str, path: str) -> tuple[Tokenizer, Manner]:
    """A ``tokenizer.json``; of a directory also the files beside it that say how contexts are written."""
    place = Path(path)
    if _HUB_NAME.fullmatch(path) and not place.exists():
        raise StartupError(
            f"--engine {kind}: there is no directory {path}; the tokenizer must be a directory that holds"
            f" tokenizer.json (hf download {path} --include '*.j*' --local-dir {place.name} creates it in"
            f" {place.name})"
        )
    try:
        if not place.is_dir():
            return Tokenizer.from_json(place.read_text(encoding="utf-8")), Manner()
        tokenizer = Tokenizer.from_json((place / "tokenizer.json").read_text(encoding="utf-8"))
        return tokenizer, _read_manner(place)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StartupError(f"--engine {kind}: cannot use the tokenizer {path}: {error}") from None


def _read_manner(directory: Path) -> Manner:
    config: dict[str, Any] = {}
    if (directory / "tokenizer_config.json").exists():
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    beside = directory / "chat_template.jinja"
    if beside.exists():
        config["chat_template"] = beside.read_text(encoding="utf-8")
    return Manner.of(config)
