"""A whole chain as bytes, for another node."""

import msgspec
from msgspec import Struct

from slipring.core.chain.head import Head
from slipring.core.chain.state import Positions, ResponseState
from slipring.stores.sql import response_rows
from slipring.stores.sql.response_rows import Record


class _Chain(Struct):
    heads: dict[bytes, tuple[bytes | None, bytes]]
    """By digest."""
    records: list[Record]
    """The oldest first."""


_chain = msgspec.msgpack.Decoder(_Chain)
_pack = msgspec.msgpack.Encoder().encode


def pack_chain(state: ResponseState, positions: Positions | None) -> bytes:
    nodes = list(reversed(list(state.chain())))
    heads = {response_rows.digest(node.head): response_rows.head_columns(node.head) for node in nodes}
    return _pack(_Chain(heads, [response_rows.record(node, positions) for node in nodes]))


def unpack_chain(data: bytes, positions: Positions | None) -> ResponseState | None:
    """The newest response of a chain. Raises ``ValueError`` for bytes that are none."""
    chain = _chain.decode(data)
    heads: dict[bytes, Head] = {}
    state: ResponseState | None = None
    for record in chain.records:
        if record.head not in heads:
            near = state.head if state is not None else None
            heads[record.head] = response_rows.read_head(*chain.heads[record.head], near)
        state = response_rows.rebuild(record, state, heads[record.head], positions)
    return state
