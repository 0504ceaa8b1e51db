"""What a GGUF file says about its model: vocabulary, merges, template, context length.

Reads the metadata at the beginning of the file and nothing of the tensors. Works on bytes that somebody else
has opened; every length in them is checked, because the file comes from anywhere.
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


class GgufError(ValueError):
    """The bytes are not the metadata of a GGUF file."""


def read_metadata(data: memoryview) -> dict[str, Any]:
    """All key-value pairs of a GGUF file. ``data`` begins with the file and holds at least its metadata."""
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
    """A position in the bytes."""

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
        code = _SCALARS.get(kind)
        if code is None:
            return [self.value(kind) for _ in range(count)]
        packed = self.take(count * struct.calcsize(code))
        return [value for (value,) in struct.iter_unpack(code, packed)]
