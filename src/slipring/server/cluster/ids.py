"""New ids. An id of a response also tells which node made it, to the nodes."""

import re
import secrets
from collections.abc import Callable

from slipring.core.chain.item_ids import RESPONSE

_NODE_DIGITS = 8
_MADE_BY_A_NODE = re.compile(RESPONSE + "[0-9a-f]{32}")


def mint(prefix: str) -> str:
    """A new id: 128 random bits, so that ids can be neither guessed nor met twice."""
    return f"{prefix}_{secrets.token_hex(16)}"


def new_node_id() -> str:
    """A name for this process. It is part of the ids that it makes, and says nothing about it."""
    return secrets.token_hex(_NODE_DIGITS // 2)


def minter(node_id: str) -> Callable[[str], str]:
    """Mint ids as a node: those of responses begin with its name, and 96 bits of them are random."""

    def mint_here(prefix: str) -> str:
        if f"{prefix}_" == RESPONSE:
            return f"{RESPONSE}{node_id}{secrets.token_hex(16 - _NODE_DIGITS // 2)}"
        return mint(prefix)

    return mint_here


def node_of(response_id: str) -> str | None:
    """The node that made a response, if the id is one that a node has made."""
    # Exactly such an id: it becomes part of a URL at which the node is asked.
    return response_id[len(RESPONSE) :][:_NODE_DIGITS] if _MADE_BY_A_NODE.fullmatch(response_id) else None
