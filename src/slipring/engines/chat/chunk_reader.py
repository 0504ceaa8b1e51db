"""Decodes the chunks of a Chat Completions stream as tolerantly as servers differ, and finds errors in it."""

import json
from typing import Any

import msgspec
from msgspec import Struct

from slipring.base.surrogates import repaired
from slipring.engines.chat.chunks import Chunk
from slipring.engines.chat.odd_chunks import read_odd_chunk
from slipring.engines.remote.upstream_errors import reported

_SURROGATE = b"\\ud"
_OTHER_ERRORS = (b"[{", b'"')
"""How errors begin that are no object: a list of objects, a text."""


class _BareError(Struct):
    """What a payload without choices may be: an error that is not in a field of its own."""

    object: Any = None
    type: Any = None
    message: Any = None
    detail: Any = None
    error_message: Any = None

    @property
    def is_error(self) -> bool:
        return "error" in (self.object, self.type) or bool(self.message or self.detail or self.error_message)


_chunk = msgspec.json.Decoder(Chunk)
_outline = msgspec.json.Decoder(_BareError)


def _is_error(payload: bytes) -> bool:
    return _outline.decode(repaired(payload)).is_error


class ChunkReader:
    """Decodes the chunks of one answer."""

    __slots__ = ("_halves",)

    def __init__(self) -> None:
        self._halves: dict[str, str] = {}
        """The first halves of surrogate pairs that a server has split between two chunks, by their place
        in the chunk before."""

    def read(self, payload: bytes) -> Chunk:
        """Decode a chunk. Raises the error that comes in its place, or ``msgspec.DecodeError``."""
        try:
            chunk = _chunk.decode(payload)
            if self._halves:
                self._halves = {}
        except msgspec.DecodeError as error:
            chunk = self._read_odd(payload, error)
        if chunk.error or (not chunk.choices and chunk.usage is None and _is_error(payload)):
            raise reported(payload)
        return chunk

    def _read_odd(self, payload: bytes, error: msgspec.DecodeError) -> Chunk:
        """Read what is no chunk as it is: one with fields of other types or with half of a surrogate pair, or
        an error."""
        if isinstance(error, msgspec.ValidationError):
            if payload.startswith(_OTHER_ERRORS):
                raise reported(payload)
            return read_odd_chunk(payload)
        if _SURROGATE not in payload.lower():
            raise error
        earlier, self._halves = self._halves, {}
        try:
            parsed = json.loads(payload)
        except ValueError:
            raise error from None
        return read_odd_chunk(msgspec.json.encode(self._joined(parsed, "", earlier)))

    def _joined(self, value: Any, place: str, earlier: dict[str, str]) -> Any:
        """The same value without lone surrogates: halves that belong together are joined, others replaced.
        ``earlier``: the halves of the chunk before."""
        if isinstance(value, dict):
            return {name: self._joined(each, f"{place}.{name}", earlier) for name, each in value.items()}
        if isinstance(value, list):
            return [self._joined(each, f"{place}.{index}", earlier) for index, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = earlier.get(place, "") + value
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._halves[place] = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
