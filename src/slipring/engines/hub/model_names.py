"""Replaces what a user calls a model by what an engine opens: a path, with context and slots that fit.

``ORG/REPO[:QUANTIZATION]`` names a GGUF model of the hub and ``FILE.gguf`` a file, each in place of an engine
or as the model of ``llama``; ``tokenizer=ORG/REPO`` names the tokenizer of ``vllm`` and ``sglang``.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from slipring.base.errors import StartupError
from slipring.engines.hub.model_hub import HubName, ModelHub, hub_name
from slipring.engines.hub.projectors import why_blind
from slipring.engines.hub.quantization_and_memory import available_memory, fit, gigabytes

log = logging.getLogger("slipring")

_EMBEDDED = "llama"
_WITH_TOKENIZER = ("vllm", "sglang")
_TOKENIZER = "tokenizer="
_PROJECTOR = "mmproj="
_SIZES = ("context=", "slots=", "gpu_layers=")
"""Options with which a user has decided on the memory: none of it is chosen here."""


class Fetch(Struct, frozen=True):
    """What ``opened_name`` would fetch for an engine."""

    what: str
    size: int
    """Bytes that the cache does not have yet."""
    needed_memory: int = 0
    """Bytes with which the model can be served at all; 0 for a tokenizer."""
    blind: str = ""
    """Why the model will not see images, if the repository has a projector that would not be fetched."""


def full_name(engine: str) -> str:
    """The engine with its kind: ``llama:`` before the name or the path of a GGUF model that stands alone."""
    model = engine.partition(",")[0]
    is_file = model.endswith(".gguf") and not model.startswith(f"{_EMBEDDED}:")
    return f"{_EMBEDDED}:{engine}" if is_file or hub_name(model) is not None else engine


def opened_name(engine: str, hub: ModelHub) -> str:
    """The engine with paths in place of hub names, fetched if need be, with the projector of a model of the
    hub and with the context and slots that fit the memory, where the user named none of these. Raises
    ``StartupError``."""
    kind, _, rest = full_name(engine).partition(":")
    if kind in _WITH_TOKENIZER:
        return f"{kind}:{','.join(_with_tokenizer(kind, part, hub) for part in rest.split(','))}"
    model, *pairs = rest.split(",")
    if kind != _EMBEDDED or not model or "=" in model or model.startswith(("http://", "https://")):
        return engine
    memory, chosen = available_memory(), []
    if (name := hub_name(model)) is not None:
        variant, model, projector = hub.fetch_gguf(name, memory, sees=_may_see(pairs))
        size = variant.size
        chosen.append(f"{name.repository} {variant}")
        blind = why_blind(variant, memory)
        if projector and not _is_for_images(projector):
            projector, blind = "", f"images are not available: {Path(projector).name} is not for images"
        if blind:
            log.warning("%s: %s", name.repository, blind)
        if projector or blind:
            pairs.append(f"{_PROJECTOR}{projector or 'none'}")
    else:
        size = Path(model).stat().st_size if Path(model).exists() else 0
    if size and not any(pair.startswith(_SIZES) for pair in pairs):
        fitting = fit(_metadata(model), size, memory)
        if fitting is not None:
            pairs += [f"context={fitting.context}", f"slots={fitting.slots}"]
            chosen.append(f"{fitting}, because {gigabytes(memory or 0)} of memory are available")
    if chosen:
        log.info("chosen: %s", "; ".join(chosen))
    return ",".join([f"{kind}:{model}", *pairs])


def model_of_flag(engine: str, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The engine and the names in the API, for an embedded engine whose model is given as the first of the
    names; others are returned as they are. Raises ``StartupError`` for a name that can only be meant as a
    path or an address: the packaged model would be served by that name."""
    kind, _, rest = engine.partition(":")
    if not names or kind != _EMBEDDED or (rest and "=" not in rest.partition(",")[0]):
        return engine, tuple(names)
    name = hub_name(names[0])
    if name is None:
        if "/" in names[0] or names[0].endswith(".gguf"):
            raise StartupError(
                f"--model {names[0]}: a model of the hub is named ORG/REPO or ORG/REPO:QUANTIZATION, and a"
                " file by --engine FILE.gguf"
            )
        return engine, tuple(names)
    in_api = dict.fromkeys((name.repository, *names))
    return f"{kind}:{names[0]}" + (f",{rest}" if rest else ""), tuple(in_api)


def names_hub_model(engine: str) -> bool:
    """Whether the engine's model is one of the hub, which cannot be opened before it is fetched."""
    kind, _, rest = full_name(engine).partition(":")
    return kind == _EMBEDDED and hub_name(rest.partition(",")[0]) is not None


def to_fetch(engine: str, hub: ModelHub) -> Fetch | None:
    """What ``opened_name`` would fetch; None if the cache has everything, or the engine names nothing of the
    hub. Fetches nothing. Raises ``StartupError``."""
    kind, _, rest = full_name(engine).partition(":")
    model, *pairs = rest.split(",")
    if kind == _EMBEDDED and (name := hub_name(model)) is not None:
        memory = available_memory()
        variant = hub.find_gguf(name, memory, sees=_may_see(pairs))
        size = hub.missing_bytes(name.repository, variant.loaded)
        found = Fetch(f"{name.repository} {variant}", size, variant.needed, why_blind(variant, memory))
        return found if size else None
    named = (_tokenizer_name(kind, pair) for pair in pairs)
    repositories = [each.repository for each in named if each is not None]
    for repository in repositories:
        size = hub.missing_bytes(repository, hub.find_tokenizer(repository))
        if size:
            return Fetch(f"the tokenizer of {repository}", size)
    return None


def inspected_name(text: str, hub: ModelHub) -> str:
    """What ``slipring inspect`` reads: hub names are replaced by the paths of what describes the model, which
    is its tokenizer's directory where the repository has one. Raises ``StartupError``."""
    model, comma, rest = text.removeprefix(f"{_EMBEDDED}:").partition(",")
    name = hub_name(model)
    if name is not None:
        return f"{hub.fetch_description(name)}{comma}{rest}"
    kind = text.partition(":")[0]
    return opened_name(text, hub) if kind in _WITH_TOKENIZER else text


def _may_see(pairs: Sequence[str]) -> bool:
    """Whether the options leave the projector to us."""
    return not any(pair.startswith(_PROJECTOR) for pair in pairs)


def _is_for_images(projector: str) -> bool:
    """Whether a projector is one for images: some are for sounds alone."""
    return bool(_metadata(projector).get("clip.has_vision_encoder"))


def _metadata(path: str) -> dict[str, Any]:
    # In front of other engines, what reads vocabularies need not be installed.
    from slipring.engines.tokens.model_files import read_gguf

    return read_gguf(_EMBEDDED, path)


def _with_tokenizer(kind: str, pair: str, hub: ModelHub) -> str:
    name = _tokenizer_name(kind, pair)
    return pair if name is None else f"{_TOKENIZER}{hub.fetch_tokenizer(name.repository)}"


def _tokenizer_name(kind: str, pair: str) -> HubName | None:
    """The name in ``tokenizer=ORG/REPO``."""
    is_named = kind in _WITH_TOKENIZER and pair.startswith(_TOKENIZER)
    return hub_name(pair.removeprefix(_TOKENIZER)) if is_named else None
