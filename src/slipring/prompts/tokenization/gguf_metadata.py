"""Reads the header of a GGUF file: its metadata (vocabulary, merges, chat template, context length), and the
places of its tensors.

Reads bytes that the caller has mapped, only the header at their beginning, no values of tensors. Checks every
length, because the file may come from an untrusted source.
"""

import struct
from math import prod
from typing import Any, NamedTuple

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_ENTRIES = 65_536
_MAX_ARRAY = 16_777_216
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_MAX_TENSORS = 65_536
_MAX_DIMENSIONS = 4
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 65_536
TYPE_AND_OFFSET = struct.Struct("<IQ")
"""The fields of a tensor that say how and where its values are stored."""


class GgufError(ValueError):
    """The bytes are not a valid GGUF file."""


class Tensor(NamedTuple):
    """A tensor of a GGUF file, without its values."""

    fields_at: int
    """Where ``TYPE_AND_OFFSET`` of this tensor begins, from the beginning of the file."""
    shape: tuple[int, ...]
    type: int
    offset: int
    """Where the values begin, from the beginning of the values of all tensors."""
    size: int
    """Bytes until the next tensor or the end of the file: the values, and what aligns the next ones."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Layout(NamedTuple):
    """Where the tensors of a GGUF file are."""

    header_size: int
    """Bytes before the values of the first tensor."""
    alignment: int
    """The values of each tensor begin at a multiple of it."""
    tensors: tuple[Tensor, ...]


def read_metadata(data: memoryview) -> dict[str, Any]:
    """Return all key-value pairs. ``data`` is the beginning of the file, including all of its metadata."""
    reader = _Reader(data)
    _, entries = reader.counts()
    return {reader.string(): reader.value(reader.scalar("<I")) for _ in range(entries)}


def read_layout(data: memoryview) -> Layout:
    """Return where the tensors are. ``data`` is the whole file. Takes a fraction of the time of
    ``read_metadata``: the vocabulary is skipped."""
    reader = _Reader(data)
    count, entries = reader.counts()
    alignment: object = _DEFAULT_ALIGNMENT
    for _ in range(entries):
        key, kind = reader.string(), reader.scalar("<I")
        if key == _ALIGNMENT_KEY:
            alignment = reader.value(kind)
        else:
            reader.skip(kind)
    # A power of two: no other bit than the highest is set.
    if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise GgufError(f"tensors cannot be aligned to {alignment}")
    if count > _MAX_TENSORS:
        raise GgufError(f"{count} tensors are too many")
    tensors = [reader.tensor() for _ in range(count)]
    header_size = aligned(reader.at, alignment)
    begins = sorted({tensor.offset for tensor in tensors})
    ends = dict(zip(begins, [*begins[1:], len(data) - header_size], strict=False))
    for tensor in tensors:
        if tensor.offset % alignment or tensor.offset > ends[tensor.offset]:
            raise GgufError("a tensor is outside the file or not aligned")
    sized = (tensor._replace(size=ends[tensor.offset] - tensor.offset) for tensor in tensors)
    return Layout(header_size, alignment, tuple(sized))


def aligned(size: int, alignment: int) -> int:
    """The first multiple of ``alignment`` that is not less than ``size``."""
    return -(-size // alignment) * alignment


class _Reader:
    """Reads values from the bytes, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        return self._at

    def counts(self) -> tuple[int, int]:
        """Read the beginning of a file: the number of tensors, and of entries of the metadata."""
        if bytes(self.take(4)) != _MAGIC:
            raise GgufError("not a GGUF file")
        version = self.scalar("<I")
        if version not in _VERSIONS:
            raise GgufError(f"GGUF version {version} is not supported")
        tensors, entries = self.scalar("<Q"), self.scalar("<Q")
        if entries > _MAX_ENTRIES:
            raise GgufError(f"{entries} metadata entries are too many")
        return tensors, entries

    def tensor(self) -> Tensor:
        """Read what describes a tensor; its size is not in it."""
        self.take(self.scalar("<Q"))  # its name
        dimensions = self.scalar("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise GgufError(f"a tensor of {dimensions} dimensions is not supported")
        shape = struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions))
        fields_at = self._at
        type, offset = TYPE_AND_OFFSET.unpack(self.take(TYPE_AND_OFFSET.size))
        return Tensor(fields_at, shape, type, offset, 0)

    def take(self, count: int) -> memoryview:
        end = self._at + count
        if end > len(self._data):
            raise GgufError("the file ends within its metadata")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def skip(self, kind: int) -> None:
        """Move behind a value without making it."""
        if kind == _STRING:
            self.take(self.scalar("<Q"))
        elif kind == _ARRAY:
            kind, count = self._array_type()
            if kind == _STRING:
                self._skip_strings(count)
            else:
                self.take(count * struct.calcsize(_code(kind)))
        else:
            self.take(struct.calcsize(_code(kind)))

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        return value

    def string(self) -> str:
        return bytes(self.take(self.scalar("<Q"))).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        return self.scalar(_code(kind))

    def _array(self) -> list[Any]:
        kind, count = self._array_type()
        if kind == _STRING:
            return self._strings(count)
        code = _code(kind)
        packed = self.take(count * struct.calcsize(code))
        return [value for (value,) in struct.iter_unpack(code, packed)]

    def _array_type(self) -> tuple[int, int]:
        """Read the type and the number of an array's values."""
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count > _MAX_ARRAY or kind == _ARRAY:
            raise GgufError("an array in the metadata is too large or nested")
        return kind, count

    def _strings(self, count: int) -> list[str]:
        """Read strings without a call for each part of each: a vocabulary has hundreds of thousands."""
        data, at, size = self._data, self._at, len(self._data)
        strings: list[str] = []
        for _ in range(count):
            start = at + _LENGTH.size
            end = start + _LENGTH.unpack_from(data, at)[0] if start <= size else start
            if end > size:
                raise GgufError("the file ends within its metadata")
            strings.append(str(data[start:end], "utf-8", "replace"))
            at = end
        self._at = at
        return strings

    def _skip_strings(self, count: int) -> None:
        data, at, size = self._data, self._at, len(self._data)
        for _ in range(count):
            start = at + _LENGTH.size
            at = start + _LENGTH.unpack_from(data, at)[0] if start <= size else start
            if at > size:
                raise GgufError("the file ends within its metadata")
        self._at = at


def _code(kind: int) -> str:
    """How ``struct`` reads a scalar of the metadata."""
    code = _SCALARS.get(kind)
    if code is None:
        raise GgufError(f"unknown metadata type {kind}")
    return code
