"""What a server does beside serving."""

import asyncio
from pathlib import Path

import pytest

from slipring.server.cluster import maintenance
from tests.harness import serve


async def test_what_has_expired_is_removed_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_PRUNE_INTERVAL_S", 0.01)
    async with serve(store=f"sqlite:{tmp_path / 'slipring.db'}", retention_days=1e-6) as server:
        assert (await server.post(input="soon gone"))[0] == 200
        database = server.service.store._database
        async with asyncio.timeout(60):
            for rows in ("slipring_responses", "slipring_heads"):
                while await database.read(f"SELECT tenant FROM {rows}"):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
