"""Which projector a model gets, with which it sees images: of the hub, or beside the model's file.

One of another model is not taken: it has the model's name in its own, or all other files there are of this
model.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import structs

from slipring.engines.hub.quantization_and_memory import (
    PROJECTOR,
    SUFFIX,
    HubFile,
    Variant,
    gigabytes,
    model_name,
    quantization_of,
)

_PREFERRED = ("F16", "BF16", "F32", "Q8_0")
"""Formats of projectors in the order in which they are taken. Every machine computes with F16, and with the
others a model sees no better."""


def with_projector(
    variant: Variant, variants: Sequence[Variant], files: Iterable[HubFile], memory: int | None
) -> Variant:
    """The variant with the projector that the repository has for it, or with that left out if ``memory`` does
    not hold both."""
    found = [file for file in files if _is_projector(file.path)]
    models = (each.files[0].path for each in variants)
    suited = _suited(variant.files[0].path, [file.path for file in found], models)
    if not suited:
        return variant
    projector = min((file for file in found if file.path in suited), key=_rank)
    seeing = structs.replace(variant, projector=projector)
    is_fitting = memory is None or seeing.needed <= memory
    return seeing if is_fitting else structs.replace(variant, left_out=projector)


def projector_beside(path: str) -> str:
    """The path of the projector beside a model's file; empty if there is none."""
    beside = sorted(map(str, Path(path).parent.glob(f"*{SUFFIX}")))
    projectors = [each for each in beside if _is_projector(each)]
    return next(iter(_suited(path, projectors, (each for each in beside if each not in projectors))), "")


def _is_projector(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    return PROJECTOR in name and name.endswith(SUFFIX)


def _suited(model: str, projectors: list[str], models: Iterable[str]) -> list[str]:
    """The projectors for the model in a file."""
    name = model_name(model)
    named = [each for each in projectors if name and name in each.rpartition("/")[2].lower()]
    return named or (projectors if all(model_name(each) == name for each in models) else [])


def _rank(file: HubFile) -> tuple[int, int, str]:
    kind = quantization_of(file.path).replace("FP", "F")
    return _PREFERRED.index(kind) if kind in _PREFERRED else len(_PREFERRED), file.size, file.path


def why_blind(variant: Variant, memory: int | None) -> str:
    """Why the model will not see images although the repository has a projector for it; empty if it will, or
    if there is none."""
    if variant.left_out is None:
        return ""
    needed = gigabytes(structs.replace(variant, projector=variant.left_out).needed)
    return (
        f"images are not available: {variant.label} with {variant.left_out} needs {needed} of"
        f" memory, {gigabytes(memory or 0)} are available"
    )
