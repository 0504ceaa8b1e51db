"""Encodes token ids as copies of ranges of other ids, with new ids between them.

For contexts of templates that rewrite earlier turns: such a context leaves out some of its parent's ids and
keeps most of them, in their order, behind the place of the change too.
"""

from collections.abc import Sequence

_ID_BYTES = 4
_BLOCK = 32 * _ID_BYTES
"""Ranges are found by blocks of this size, so a shared range of twice the size is always found."""

Piece = bytes | tuple[int, int]
"""New ids, or the range of other ids that is copied: its first byte and its length in bytes."""


def shared(ids: bytes, source: bytes) -> list[Piece]:
    """``ids`` as pieces, copied from ``source`` where that has a long range of them. Takes time proportional
    to both."""
    pieces: list[Piece] = []
    start = common_bytes(ids, source)
    if start:
        pieces.append((0, start))
    last = len(source) // _BLOCK * _BLOCK - _BLOCK
    blocks = {source[at : at + _BLOCK]: at for at in range(last, -1, -_BLOCK)}
    new = at = start
    while at + _BLOCK <= len(ids):
        found = blocks.get(ids[at : at + _BLOCK])
        if found is None:
            at += _ID_BYTES
            continue
        while at > new and found and ids[at - _ID_BYTES : at] == source[found - _ID_BYTES : found]:
            at -= _ID_BYTES
            found -= _ID_BYTES
        if at > new:
            pieces.append(ids[new:at])
        length = common_bytes(ids, source, at, found)
        pieces.append((found, length))
        new = at = at + length
    if new < len(ids):
        pieces.append(ids[new:])
    return pieces


def joined(pieces: Sequence[Piece], source: bytes) -> bytes:
    """The ids that were written as ``pieces``. Raises ``ValueError`` for a range that ``source`` lacks."""
    parts: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            parts.append(piece)
            continue
        first, length = piece
        if first < 0 or length < 0 or first + length > len(source):
            raise ValueError("a range outside the other ids")
        parts.append(source[first : first + length])
    return b"".join(parts)


def common_tokens(one: bytes, other: bytes) -> int:
    """How many ids both begin with."""
    return common_bytes(one, other) // _ID_BYTES


def common_bytes(one: bytes, other: bytes, at: int = 0, found: int = 0) -> int:
    """Length of the whole ids that both have in common, from the place ``at`` of one and ``found`` of the
    other on."""
    most = min(len(one) - at, len(other) - found)
    length, size = 0, most
    while size >= _ID_BYTES:
        if (
            length + size <= most
            and one[at + length : at + length + size] == other[found + length : found + length + size]
        ):
            length += size
        else:
            size = size // (2 * _ID_BYTES) * _ID_BYTES
    return length
