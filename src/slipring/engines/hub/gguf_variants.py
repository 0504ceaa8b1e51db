"""The quantizations of a GGUF model that a repository offers, and which of them to serve. Does no I/O."""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from slipring.base.errors import StartupError, suggestion

_SUFFIX = ".gguf"
_PROJECTOR = "mmproj"
"""In the names of projectors, which turn images into what a language model reads."""
_OTHER_PARTS = ("imatrix", "mtp-")
"""Beginnings of names of other GGUF files that are no language model: calibration data, draft heads."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|F16|FP16|F32))(?=$|[-./])",
    re.IGNORECASE,
)
_PREFERRED = (
    *(
        "MXFP4",
        "MXFP4_MOE",
        "Q4_K_M",
        "UD-Q4_K_XL",
        "Q4_K_XL",
        "Q4_K_L",
        "Q4_K_S",
        "Q4_0",
        "IQ4_NL",
        "IQ4_XS",
    ),
    *("Q5_K_M", "UD-Q5_K_XL", "Q5_K_S", "Q5_0", "Q6_K", "UD-Q6_K_XL", "Q8_0"),
)
"""Quantizations in the order in which they are taken. Four bits lose little, and a CPU writes tokens about as
fast as it reads the weights from memory. Models that are offered in MXFP4 were trained with it."""
_PREFERRED_PROJECTORS = ("F16", "BF16", "F32", "Q8_0")
"""Formats of projectors in the order in which they are taken. Every machine computes with F16, and with the
others a model sees no better."""
WORKING_BYTES = 1 << 30
"""Memory that llama.cpp and slipring need beside the weights and the KV cache."""


class HubFile(Struct, frozen=True):
    """A file of a repository."""

    path: str
    size: int
    sha256: str = ""
    """Empty if the hub does not state it."""


class Variant(Struct, frozen=True):
    """One quantization of a model: a file, or the parts of one in order."""

    quantization: str
    """Empty if the file's name does not contain one."""
    files: tuple[HubFile, ...]
    projector: HubFile | None = None
    """With which the model sees images. It is fetched and loaded beside the files."""
    left_out: HubFile | None = None
    """A projector for which there is not enough memory."""

    @property
    def loaded(self) -> tuple[HubFile, ...]:
        return self.files if self.projector is None else (*self.files, self.projector)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.loaded)

    @property
    def needed(self) -> int:
        """Bytes of memory with which the model can be served at all."""
        return self.size + WORKING_BYTES

    @property
    def label(self) -> str:
        return self.quantization or self.files[0].path

    def __str__(self) -> str:
        named = f"{self.label} ({gigabytes(sum(file.size for file in self.files))})"
        return named if self.projector is None else f"{named} with {_named_file(self.projector)}"


def gigabytes(size: int) -> str:
    """``4.7 GB``: units of a thousand, as hubs use them."""
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"


def _named_file(file: HubFile) -> str:
    return f"{file.path} ({gigabytes(file.size)})"


def variants_of(files: Iterable[HubFile]) -> list[Variant]:
    """The variants among the files of a repository, smallest first. One of which a part is missing is left
    out."""
    parts: dict[str, dict[int, HubFile]] = {}
    counts: dict[str, int] = {}
    for file in files:
        name = file.path.rpartition("/")[2].lower()
        if not name.endswith(_SUFFIX) or _PROJECTOR in name or name.startswith(_OTHER_PARTS):
            continue
        stem = file.path[: -len(_SUFFIX)]
        part = _PART.search(stem)
        key = stem[: part.start()] if part else stem
        parts.setdefault(key, {})[int(part[1]) if part else 1] = file
        counts[key] = int(part[2]) if part else 1
    whole = (
        Variant(quantization_of(key), tuple(found[number] for number in sorted(found)))
        for key, found in parts.items()
        if sorted(found) == list(range(1, counts[key] + 1))
    )
    return sorted(whole, key=lambda variant: (variant.size, variant.label))


def quantization_of(path: str) -> str:
    """The quantization in the name of a file, in capitals; empty if there is none."""
    found = _QUANTIZATION.findall(path.removesuffix(_SUFFIX))
    return found[-1].upper() if found else ""


def choose(repository: str, variants: Sequence[Variant], wanted: str, memory: int | None) -> Variant:
    """The variant to serve: the ``wanted`` one, else the first preferred one that fits ``memory``, else the
    largest that fits. Raises ``StartupError``. ``memory``: in bytes; None: not known, everything fits."""
    if not variants:
        raise StartupError(
            f"{repository} has no GGUF file; many models have a second repository with them, often called"
            f" {repository.rpartition('/')[2].removesuffix('-GGUF')}-GGUF"
        )
    if wanted:
        return _named(repository, variants, wanted)
    fitting = [variant for variant in variants if memory is None or variant.needed <= memory]
    if not fitting:
        least = variants[0]
        raise StartupError(
            f"{repository}: the smallest of its files, {least}, needs {gigabytes(least.needed)} of memory;"
            f" {gigabytes(memory or 0)} are available ({repository}:{least.label} loads it all the same)"
        )
    by_name = {variant.quantization: variant for variant in reversed(fitting)}
    return next((by_name[name] for name in _PREFERRED if name in by_name), fitting[-1])


def with_projector(
    variant: Variant, variants: Sequence[Variant], files: Iterable[HubFile], memory: int | None
) -> Variant:
    """The variant with the projector that the repository has for it, or with that left out if ``memory`` does
    not hold both. One of another model is not taken: it has the model's name in its own, or all ``variants``
    are of this model."""
    names = {file: file.path.rpartition("/")[2].lower() for file in files}
    found = [file for file, name in names.items() if _PROJECTOR in name and name.endswith(_SUFFIX)]
    model = _model_name(variant)
    suited = [file for file in found if model in names[file]]
    if not suited and all(_model_name(each) == model for each in variants):
        suited = found
    if not suited:
        return variant
    projector = min(suited, key=_projector_rank)
    seeing = structs.replace(variant, projector=projector)
    is_fitting = memory is None or seeing.needed <= memory
    return seeing if is_fitting else structs.replace(variant, left_out=projector)


def _projector_rank(file: HubFile) -> tuple[int, int, str]:
    kind = quantization_of(file.path).replace("FP", "F")
    order = _PREFERRED_PROJECTORS
    return order.index(kind) if kind in order else len(order), file.size, file.path


def _model_name(variant: Variant) -> str:
    """The name of a variant's file up to its quantization, without its part."""
    stem = _PART.sub("", variant.files[0].path.rpartition("/")[2][: -len(_SUFFIX)]).lower()
    end = stem.rfind(variant.quantization.lower()) if variant.quantization else -1
    return stem if end < 0 else stem[:end].rstrip("-._")


def why_blind(variant: Variant, memory: int | None) -> str:
    """Why the model will not see images although the repository has a projector for it; empty if it will, or
    if there is none."""
    if variant.left_out is None:
        return ""
    needed = gigabytes(structs.replace(variant, projector=variant.left_out).needed)
    return (
        f"images are not available: {variant.label} with {_named_file(variant.left_out)} needs {needed} of"
        f" memory, {gigabytes(memory or 0)} are available"
    )


def _named(repository: str, variants: Sequence[Variant], wanted: str) -> Variant:
    for variant in variants:
        stem = variant.files[0].path.rpartition("/")[2].lower()
        if wanted.lower() in (variant.quantization.lower(), stem, stem.removesuffix(_SUFFIX)):
            return variant
    labels = [variant.label for variant in variants]
    raise StartupError(
        f"{repository} has no quantization {wanted}{suggestion(wanted.upper(), labels)}; it has"
        f" {', '.join(map(str, variants))}"
    )
