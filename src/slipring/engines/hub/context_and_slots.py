"""How much context a model can have on this machine: available memory, and the bytes that a token takes."""

import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from slipring.engines.hub.gguf_variants import WORKING_BYTES, gigabytes

_USED_SHARE = 0.85
"""Of the memory that is available: other programs go on."""
_MOST_SLOTS = 4
_WIDE_CONTEXT = 65_536
"""Tokens of context that agents rarely exceed: with more memory, there are more slots instead."""
_ENOUGH_CONTEXT = 32_768
"""Below this, one slot is of more use to an agent than two: a second serves its side requests."""
_LEAST_CONTEXT = 4_096
_STEP = 1_024
_CELL_BYTES = 2
"""The KV cache has 16 bits a value."""
_MEMORY_TABLE = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


class Fit(Struct, frozen=True):
    """Slots and the tokens of each that fit the memory."""

    context: int
    slots: int
    bytes_per_token: int

    def __str__(self) -> str:
        size = gigabytes(self.context * self.slots * self.bytes_per_token)
        slots = "one slot" if self.slots == 1 else f"{self.slots} slots"
        return f"{slots} of {self.context:,} tokens ({size} of KV cache)"


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
    context = tokens // slots // _STEP * _STEP
    return Fit(min(wide, max(context, _LEAST_CONTEXT)), slots, each)
