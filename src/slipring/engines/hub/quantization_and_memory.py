"""Which quantization of a GGUF model is served, and how much context and how many slots fit the memory.

Memory is what is available on this machine and in its control group. No network is used.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from slipring.base.errors import StartupError, suggestion

SUFFIX = ".gguf"
PROJECTOR = "mmproj"
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
WORKING_BYTES = 1 << 30
"""Memory that llama.cpp and slipring need beside the weights and the KV cache."""
_USED_SHARE = 0.85
"""Of the memory that is available: other programs go on."""
_MOST_SLOTS = 4
_WIDE_CONTEXT = 65_536
"""Tokens of context that agents rarely exceed: with more memory, there are more slots instead."""
_ENOUGH_CONTEXT = 32_768
"""Below this, one slot is of more use to an agent than two: a second serves its side requests."""
_LEAST_CONTEXT = 4_096
_CONTEXT_STEP = 1_024
_CELL_BYTES = 2
"""The KV cache has 16 bits a value."""
_MEMORY_TABLE = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


class HubFile(Struct, frozen=True):
    """A file of a repository."""

    path: str
    size: int
    sha256: str = ""
    """Empty if the hub does not state it."""

    def __str__(self) -> str:
        return f"{self.path} ({gigabytes(self.size)})"


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
        return named if self.projector is None else f"{named} with {self.projector}"


def variants_of(files: Iterable[HubFile]) -> list[Variant]:
    """The variants among the files of a repository, smallest first. One of which a part is missing is left
    out."""
    parts: dict[str, dict[int, HubFile]] = {}
    counts: dict[str, int] = {}
    for file in files:
        name = file.path.rpartition("/")[2].lower()
        if not name.endswith(SUFFIX) or PROJECTOR in name or name.startswith(_OTHER_PARTS):
            continue
        stem = file.path[: -len(SUFFIX)]
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


def choose_variant(repository: str, variants: Sequence[Variant], wanted: str, memory: int | None) -> Variant:
    """The variant to serve: the ``wanted`` one, else the first preferred one that fits ``memory``, else the
    largest that fits. Raises ``StartupError``. ``memory``: in bytes; None: not known, everything fits."""
    if not variants:
        raise StartupError(
            f"{repository} has no GGUF file; many models have a second repository with them, often called"
            f" {repository.rpartition('/')[2].removesuffix('-GGUF')}-GGUF"
        )
    if wanted:
        return _variant_named(repository, variants, wanted)
    fitting = [variant for variant in variants if memory is None or variant.needed <= memory]
    if not fitting:
        least = variants[0]
        raise StartupError(
            f"{repository}: the smallest of its files, {least}, needs {gigabytes(least.needed)} of memory;"
            f" {gigabytes(memory or 0)} are available ({repository}:{least.label} loads it all the same)"
        )
    by_name = {variant.quantization: variant for variant in reversed(fitting)}
    return next((by_name[name] for name in _PREFERRED if name in by_name), fitting[-1])


def _variant_named(repository: str, variants: Sequence[Variant], wanted: str) -> Variant:
    for variant in variants:
        stem = variant.files[0].path.rpartition("/")[2].lower()
        if wanted.lower() in (variant.quantization.lower(), stem, stem.removesuffix(SUFFIX)):
            return variant
    labels = [variant.label for variant in variants]
    raise StartupError(
        f"{repository} has no quantization {wanted}{suggestion(wanted.upper(), labels)}; it has"
        f" {', '.join(map(str, variants))}"
    )


def model_name(path: str) -> str:
    """The name of a model's file up to its quantization, without its part."""
    name = path.rpartition("/")[2]
    stem = _PART.sub("", name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) else name)
    kind = quantization_of(stem)
    end = stem.upper().rfind(kind) if kind else -1
    return (stem if end < 0 else stem[:end].rstrip("-._")).lower()


def quantization_of(path: str) -> str:
    """The quantization in the name of a file, in capitals; empty if there is none."""
    found = _QUANTIZATION.findall(path.removesuffix(SUFFIX))
    return found[-1].upper() if found else ""


class Fit(Struct, frozen=True):
    """Slots and the tokens of each that fit the memory."""

    context: int
    slots: int
    bytes_per_token: int

    def __str__(self) -> str:
        size = gigabytes(self.context * self.slots * self.bytes_per_token)
        slots = "one slot" if self.slots == 1 else f"{self.slots} slots"
        return f"{slots} of {self.context:,} tokens ({size} of KV cache)"


def fit(metadata: dict[str, Any], size: int, memory: int | None) -> Fit | None:
    """Slots and context for a model whose file has ``size`` bytes; None if the file or the machine does not
    tell, so that defaults apply. As wide a context as agents need comes first, then more slots."""
    each = bytes_per_token(metadata)
    trained = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if not each or memory is None or not isinstance(trained, int):
        return None
    tokens = int((memory * _USED_SHARE - size - WORKING_BYTES) // each)
    wide = min(trained, _WIDE_CONTEXT)
    slots = min(_MOST_SLOTS, tokens // wide)
    if slots >= 2:
        return Fit(wide, slots, each)
    slots = 2 if tokens // 2 >= min(wide, _ENOUGH_CONTEXT) else 1
    context = tokens // slots // _CONTEXT_STEP * _CONTEXT_STEP
    return Fit(min(wide, max(context, _LEAST_CONTEXT)), slots, each)


def bytes_per_token(metadata: dict[str, Any]) -> int:
    """Bytes of KV cache that a token takes, by a GGUF file's metadata; 0 if that does not tell.

    Layers with a window or a state of fixed size need less, so that more fits than is used.
    """
    family = metadata.get("general.architecture")

    def number(name: str) -> int:
        value = metadata.get(f"{family}.{name}")
        return value if isinstance(value, int) else 0

    layers, heads = number("block_count"), number("attention.head_count")
    in_layers = metadata.get(f"{family}.attention.head_count_kv")
    if isinstance(in_layers, list):
        kv_heads = sum(each for each in in_layers if isinstance(each, int))
    else:
        kv_heads = layers * (in_layers if isinstance(in_layers, int) else heads)
    width = number("embedding_length") // heads if heads else 0
    key, value = number("attention.key_length") or width, number("attention.value_length") or width
    return kv_heads * (key + value) * _CELL_BYTES


def available_memory() -> int | None:
    """Bytes that a new process can use, within the limit of its control group; None if not known."""
    found = [size for size in (_machine_memory(), _group_memory()) if size is not None]
    return min(found, default=None)


def _machine_memory() -> int | None:
    try:
        lines = _MEMORY_TABLE.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:  # no Linux: three quarters of what the machine has
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    except (OSError, ValueError, AttributeError):
        return None


def _group_memory() -> int | None:
    try:
        limit = int((_GROUP / "memory.max").read_text())
        return max(0, limit - int((_GROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # "max": no limit
        return None


def gigabytes(size: int) -> str:
    """``4.7 GB``: units of a thousand, as hubs use them."""
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"
