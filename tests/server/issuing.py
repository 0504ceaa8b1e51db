"""Servers on a SQLite file, and keys in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.engines.base import Engine
from slipring.server.process import server as server_process
from slipring.stores.keys import Key, Token
from slipring.stores.store import Store, open_store
from tests.harness import FAST, Running, serve

NOW = 4_102_444_800.0 + 15
"""A quarter past a minute, at the beginning of a day that is far away: no window ends while a test runs."""


def stored(path: Path) -> Store:
    return open_store(f"sqlite:{path / 'slipring.db'}", Limits())


@asynccontextmanager
async def serve_stored(path: Path, engine: str | Engine = FAST, **settings: Any) -> AsyncIterator[Running]:
    """A server on the store of this directory. The clock of its quotas does not advance, and it exchanges key
    usage with the store only when a test calls ``sync_keys``, and when it stops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "EXCHANGE_INTERVAL_S", 3600.0)
        async with serve(engine, store=stored(path), **settings) as server:
            server.service.quotas.now = lambda: NOW
            yield server


async def issue(server: Running, tenant: str = "team", **fields: Any) -> str:
    """A new key in the server's store, as its holder writes it."""
    token = Token.generate()
    await server.service.store.keys.create(
        Key(id=token.id, tenant=tenant, digest=token.digest, created_at=1, **fields)
    )
    return token.reveal()


async def revoke(server: Running, key: str) -> None:
    token = Token.parse(key)
    assert token is not None
    assert await server.service.store.keys.revoke(token.id, 2)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
