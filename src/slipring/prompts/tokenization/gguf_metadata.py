"""Reads the metadata of a GGUF file: vocabulary, merges, chat template, context length.

Reads bytes that the caller has mapped, only the metadata at their beginning, no tensors. Checks every length,
because the file may come from an untrusted source.
"""

import struct
from typing import Any

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


class GgufError(ValueError):
    """The bytes are not valid GGUF metadata."""


def read_metadata(data: memoryview) -> dict[str, Any]:
    """Return all key-value pairs. ``data`` is the beginning of the file, including all of its metadata."""
    reader = _Reader(data)
    if bytes(reader.take(4)) != _MAGIC:
        raise GgufError("not a GGUF file")
    version = reader.scalar("<I")
    if version not in _VERSIONS:
        raise GgufError(f"GGUF version {version} is not supported")
    reader.scalar("<Q")  # number of tensors
    entries = reader.scalar("<Q")
    if entries > _MAX_ENTRIES:
        raise GgufError(f"{entries} metadata entries are too many")
    return {reader.string(): reader.value(reader.scalar("<I")) for _ in range(entries)}


class _Reader:
    """Reads values from the bytes, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> memoryview:
        end = self._at + count
        if end > len(self._data):
            raise GgufError("the file ends within its metadata")
        taken = self._data[self._at : end]
        self._at = end
        return taken

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
        code = _SCALARS.get(kind)
        if code is None:
            raise GgufError(f"unknown metadata type {kind}")
        return self.scalar(code)

    def _array(self) -> list[Any]:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count > _MAX_ARRAY or kind == _ARRAY:
            raise GgufError("an array in the metadata is too large or nested")
        if kind == _STRING:
            return self._strings(count)
        code = _SCALARS.get(kind)
        if code is None:
            raise GgufError(f"unknown metadata type {kind}")
        packed = self.take(count * struct.calcsize(code))
        return [value for (value,) in struct.iter_unpack(code, packed)]

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
