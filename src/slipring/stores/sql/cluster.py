"""What the nodes on one store know of each other."""

from slipring.stores import base
from slipring.stores.base import Node
from slipring.stores.databases.database import Database, Statement

_ANNOUNCE = """
INSERT INTO slipring_nodes (id, url, seen_at) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET url = excluded.url, seen_at = excluded.seen_at
"""
_LEAVE = "DELETE FROM slipring_nodes WHERE id = $1"
_FIND = "SELECT id, url, seen_at FROM slipring_nodes WHERE id = $1"
_PROPOSE = "INSERT INTO slipring_secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_SECRET = "SELECT value FROM slipring_secrets WHERE name = $1"


class SqlCluster(base.Cluster):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def announce(self, node: Node) -> None:
        await self._database.write(Statement(_ANNOUNCE, (node.id, node.url, float(node.seen_at))))

    async def leave(self, node_id: str) -> None:
        await self._database.write(Statement(_LEAVE, (node_id,)))

    async def find(self, node_id: str) -> Node | None:
        rows = await self._database.read(_FIND, node_id)
        return Node(id=rows[0][0], url=rows[0][1], seen_at=rows[0][2]) if rows else None

    async def secret(self, name: str, proposal: bytes) -> bytes:
        _, rows = await self._database.write(
            Statement(_PROPOSE, (name, proposal)), Statement(_SECRET, (name,), must=True)
        )
        value: bytes = rows[0][0]
        return value
