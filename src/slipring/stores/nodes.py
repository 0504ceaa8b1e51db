"""The nodes that share a store: announced, found, and removed when unseen; and their shared secrets."""

from msgspec import Struct

from slipring.stores.databases.database import Database, Statement


class Node(Struct, frozen=True):
    """A server process that shares the store with others."""

    id: str
    url: str
    seen_at: float


_ANNOUNCE = """
INSERT INTO slipring_nodes (id, url, seen_at) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET url = excluded.url, seen_at = excluded.seen_at
"""
_LEAVE = "DELETE FROM slipring_nodes WHERE id = $1"
_REMOVE_UNSEEN = "DELETE FROM slipring_nodes WHERE seen_at <= $1 RETURNING 1"
_UNSEEN_S = 86_400.0
"""A node that has not announced itself for this long is removed: a restarted one has a new id."""
_FIND = "SELECT id, url, seen_at FROM slipring_nodes WHERE id = $1"
_PROPOSE = "INSERT INTO slipring_secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_SECRET = "SELECT value FROM slipring_secrets WHERE name = $1"


class Cluster:
    """The nodes that use one store, and the secrets that they share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def announce(self, node: Node) -> None:
        """Record a node's URL and the time at which it was last alive."""
        await self._database.write(Statement(_ANNOUNCE, (node.id, node.url, float(node.seen_at))))

    async def leave(self, node_id: str) -> None:
        await self._database.write(Statement(_LEAVE, (node_id,)))

    async def find(self, node_id: str) -> Node | None:
        rows = await self._database.read(_FIND, node_id)
        return Node(*rows[0]) if rows else None

    async def secret(self, name: str, proposal: bytes) -> bytes:
        """Return the secret of this name. The first proposal becomes the secret; later ones are ignored."""
        _, rows = await self._database.write(
            Statement(_PROPOSE, (name, proposal)), Statement(_SECRET, (name,), requires_row=True)
        )
        value: bytes = rows[0][0]
        return value


def removal_of_unseen(now: float) -> Statement:
    """What removes the nodes that have not announced themselves for long."""
    return Statement(_REMOVE_UNSEEN, (float(now) - _UNSEEN_S,))
