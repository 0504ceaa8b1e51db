"""API keys, as clients send them (``sk-slip-ID.SECRET``) and as the store keeps them, and their usage."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from slipring.protocol import wire
from slipring.stores.databases.database import Database, Row, Statement

_PREFIX = "sk-slip-"
_ID_BYTES = 8
_SECRET_BYTES = 32
_FORM = re.compile(_PREFIX + r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
_NAMED = re.compile(rf"(?:{_PREFIX})?([0-9a-f]{{16}})(?:\..*)?")


def digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret. Bytes that are not UTF-8 are hashed as they were received."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Token(Struct, frozen=True):
    """The two parts of a key. The repr omits the secret."""

    id: str
    secret: str

    @classmethod
    def generate(cls) -> "Token":
        """Return a new random key."""
        return cls(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> "Token | None":
        """Return the parts of a key, or None if the text does not have the form of a stored key."""
        match = _FORM.fullmatch(text)
        return cls(*match.groups()) if match is not None else None

    @staticmethod
    def id_in(text: str) -> str | None:
        """Return the id in what a person gives to name a key: the id itself, or the key, whole or cut off.
        None if there is no id in the text."""
        match = _NAMED.fullmatch(text.strip())
        return match.group(1) if match is not None else None

    @property
    def digest(self) -> bytes:
        return digest(self.secret)

    def reveal(self) -> str:
        """Return the complete key, which is shown only when it is created."""
        return f"{_PREFIX}{self.id}.{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.id!r})"


class Key(Struct, frozen=True):
    """An API key: its limits and the digest of its secret."""

    id: str
    tenant: str
    digest: bytes
    """SHA-256 of the secret."""
    created_at: int
    name: str = ""
    models: tuple[str, ...] = ()
    """The models that the key may use; empty: all."""
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    images_per_minute: int | None = None
    mcp_servers: tuple[str, ...] | None = None
    """The registered MCP servers that the key may use, by name; None: all, and what ``mcp_urls`` allows."""
    mcp_tools: tuple[str, ...] = ()
    """Tools as ``SERVER.TOOL``: of a server that is named here, the key may use only these."""
    revoked_at: int | None = None

    @property
    def limits_mcp(self) -> bool:
        """Whether it may not use every MCP server and tool."""
        return self.mcp_servers is not None or bool(self.mcp_tools)


class Usage(Struct, frozen=True):
    """The requests, tokens and images of one key in one time window."""

    key_id: str
    window: str
    """The name of the window, such as ``minute:29384756``. The caller chooses it; the store only compares
    it."""
    requests: int = 0
    tokens: int = 0
    images: int = 0
    expires_at: float = 0.0
    """When the row may be deleted."""


# In the order of the fields of ``Key``.
_COLUMNS = (
    "id, tenant, digest, created_at, name, models, requests_per_minute, tokens_per_day,"
    " images_per_minute, mcp_servers, mcp_tools, revoked_at"
)
_PLACES = ", ".join(f"${number}" for number in range(1, _COLUMNS.count(",") + 2))
_CREATE = f"INSERT INTO slipring_keys ({_COLUMNS}) VALUES ({_PLACES})"
_FIND = f"SELECT {_COLUMNS} FROM slipring_keys WHERE id = $1"
_LIST = f"SELECT {_COLUMNS} FROM slipring_keys ORDER BY created_at, id"
_REVOKE = "UPDATE slipring_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING id"
_EXIST = "SELECT 1 FROM slipring_keys LIMIT 1"
_SPEND = """
INSERT INTO slipring_usage (key_id, period, requests, tokens, images, expires_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (key_id, period) DO UPDATE SET
    requests = slipring_usage.requests + excluded.requests,
    tokens = slipring_usage.tokens + excluded.tokens,
    images = slipring_usage.images + excluded.images,
    expires_at = excluded.expires_at
RETURNING requests, tokens, images
"""

_names = msgspec.json.Decoder(tuple[str, ...])


def _key(row: Row) -> Key:
    names = [None if packed is None else _names.decode(packed) for packed in (row[5], row[9], row[10])]
    models, servers, tools = names
    fields: list[Any] = [*row[:5], models or (), *row[6:9], servers, tools or (), row[11]]
    return Key(*fields)


class Keys:
    """API keys and their usage."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, key: Key) -> None:
        identity = (key.id, key.tenant, key.digest, key.created_at, key.name, wire.encode(key.models))
        limits = (
            key.requests_per_minute,
            key.tokens_per_day,
            key.images_per_minute,
            wire.encode(key.mcp_servers) if key.mcp_servers is not None else None,
            wire.encode(key.mcp_tools) if key.mcp_tools else None,
        )
        await self._database.write(Statement(_CREATE, (*identity, *limits, key.revoked_at)))

    async def find(self, key_id: str) -> Key | None:
        """Return a key by its id, even if it is revoked."""
        rows = await self._database.read(_FIND, key_id)
        return _key(rows[0]) if rows else None

    async def revoke(self, key_id: str, now: int) -> bool:
        """Revoke a key as of ``now``. False: there is no such key, or it is revoked already."""
        (rows,) = await self._database.write(Statement(_REVOKE, (key_id, now)))
        return bool(rows)

    async def exist(self) -> bool:
        """Return whether any key exists, revoked ones included: revoking the last key must not disable
        authentication."""
        return bool(await self._database.read(_EXIST))

    async def spend(self, spent: Sequence[Usage]) -> list[Usage]:
        # Rows are locked in a fixed order, so that two nodes cannot deadlock.
        """Add usage to its windows; return the totals, in the same order. Adding 0 reads a total."""
        order = sorted(range(len(spent)), key=lambda index: (spent[index].key_id, spent[index].window))
        written = await self._database.write(*(_spend(spent[index]) for index in order))
        totals = dict(zip(order, written, strict=True))
        return [
            Usage(each.key_id, each.window, *total)
            for index, each in enumerate(spent)
            for total in totals[index]
        ]

    async def list(self) -> list[Key]:
        """Return all keys, oldest first."""
        return [_key(row) for row in await self._database.read(_LIST)]


def _spend(spent: Usage) -> Statement:
    amounts = (spent.requests, spent.tokens, spent.images)
    return Statement(_SPEND, (spent.key_id, spent.window, *amounts, float(spent.expires_at)))
