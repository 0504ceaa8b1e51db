"""A whole chain as bytes, for another node."""

import msgspec
from msgspec import Struct

from slipring.core.head import Head
from slipring.core.state import Positions, ResponseState
from slipring.stores import records
from slipring.stores.records import Record


class _Chain(Struct):
    heads: dict[bytes, tuple[bytes | None, bytes]]
    """By digest."""
    records: list[Record]
    """The oldest first."""


_chain = msgspec.msgpack.Decoder(_Chain)
_pack = msgspec.msgpack.Encoder().encode


def pack_chain(state: ResponseState, positions: Positions | None) -> bytes:
    nodes = list(reversed(list(state.chain())))
    heads = {records.digest(node.head): records.head_columns(node.head) for node in nodes}
    return _pack(_Chain(heads, [records.record(node, positions) for node in nodes]))


def unpack_chain(data: bytes, positions: Positions | None) -> ResponseState | None:
    """The newest response of a chain. Raises ``ValueError`` for bytes that are none."""
    chain = _chain.decode(data)
    heads: dict[bytes, Head] = {}
    state: ResponseState | None = None
    for record in chain.records:
        if record.head not in heads:
            near = state.head if state is not None else None
            heads[record.head] = records.read_head(*chain.heads[record.head], near)
        state = records.rebuild(record, state, heads[record.head], positions)
    return state
