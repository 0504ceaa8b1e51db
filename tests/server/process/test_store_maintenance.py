"""Periodic maintenance of the store."""

import asyncio
from pathlib import Path

import pytest

from slipring.server.process import server as server_process
from tests.harness import serve


async def test_expired_rows_are_deleted_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "PRUNE_INTERVAL_S", 0.01)
    async with serve(store=f"sqlite:{tmp_path / 'slipring.db'}", retention_days=1e-6) as server:
        assert (await server.post(input="expires"))[0] == 200
        database = server.service.store._database
        async with asyncio.timeout(300):
            for rows in ("slipring_responses", "slipring_heads"):
                while await database.read(f"SELECT tenant FROM {rows}"):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
