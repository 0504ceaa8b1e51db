"""Encodes a whole chain as bytes, to send it to another node."""

import msgspec
from msgspec import Struct

from slipring.core.chain.head import Head
from slipring.core.chain.state import Positions, ResponseState
from slipring.stores import response_codec
from slipring.stores.response_codec import Record


class _Chain(Struct):
    heads: dict[bytes, tuple[bytes | None, bytes]]
    """The columns of each head, by its digest."""
    records: list[Record]
    """Oldest response first."""


_chain = msgspec.msgpack.Decoder(_Chain)
_pack = msgspec.msgpack.Encoder().encode


def pack_chain(state: ResponseState, positions: Positions | None) -> bytes:
    """Encode a response with all its ancestors; engine positions only if ``positions`` can encode them."""
    nodes = list(reversed(list(state.chain())))
    heads = {node.head.digest: response_codec.head_columns(node.head) for node in nodes}
    return _pack(_Chain(heads, [response_codec.record(node, positions) for node in nodes]))


def unpack_chain(data: bytes, positions: Positions | None) -> ResponseState | None:
    """Return the newest response of an encoded chain, None for an empty one.

    Raises ``ValueError`` for bytes that do not encode a chain.
    """
    chain = _chain.decode(data)
    heads: dict[bytes, Head] = {}
    state: ResponseState | None = None
    for record in chain.records:
        if record.head not in heads:
            previous = state.head if state is not None else None
            heads[record.head] = response_codec.read_head(*chain.heads[record.head], previous)
        state = response_codec.rebuild(record, state, heads[record.head], positions)
    return state
