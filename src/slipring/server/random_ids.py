"""Mints ids. Response ids contain the id of the node that made the response."""

import re
import secrets
from collections.abc import Callable

from slipring.core.chain.item_ids import RESPONSE

_NODE_DIGITS = 8
_NODE_RESPONSE_ID = re.compile(RESPONSE + "[0-9a-f]{32}")


def mint(prefix: str) -> str:
    """A new id with 128 random bits, which can be neither guessed nor repeated."""
    return f"{prefix}_{secrets.token_hex(16)}"


def new_node_id() -> str:
    """A random id for this process."""
    return secrets.token_hex(_NODE_DIGITS // 2)


def minter(node_id: str) -> Callable[[str], str]:
    """A function that mints ids; response ids contain the node's id and 96 random bits."""

    def mint_here(prefix: str) -> str:
        if f"{prefix}_" == RESPONSE:
            return f"{RESPONSE}{node_id}{secrets.token_hex(16 - _NODE_DIGITS // 2)}"
        return mint(prefix)

    return mint_here


def node_of(response_id: str) -> str | None:
    """The id of the node that made a response; None if the response id does not have that form."""
    # The whole id must match: it becomes part of a URL.
    return response_id[len(RESPONSE) :][:_NODE_DIGITS] if _NODE_RESPONSE_ID.fullmatch(response_id) else None
