"""What a store has found for a turn."""

from msgspec import Struct

from slipring.core.chain.state import ResponseState
from slipring.protocol.items import Item


class Joined(Struct, frozen=True):
    """The conversation that a turn is part of, as it was found."""

    conversation_id: str
    version: int
    items: tuple[Item, ...] = ()
    """What it holds beyond the context of the turn's parent."""


class Loaded(Struct, frozen=True):
    """What the store had: the response that was asked for, the items, the conversation."""

    state: ResponseState | None = None
    """For a conversation, the response that it goes on from, where there is one."""
    items: dict[str, Item] = {}
    joined: Joined | None = None
