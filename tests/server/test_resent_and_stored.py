"""A history that is sent again and stored: its row has the items, and not the ids of the whole context, which
the client would have stored with every turn."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.vllm import fake_vllm
from tests.harness import Running, serve
from tests.server.test_resent_chat import reports_of

pytestmark = pytest.mark.usefixtures("compiled_here")

LONG = "word " * 500
Json = dict[str, Any]


async def kept_ids(server: Running, response_id: str) -> int:
    """How many bytes the row of a response has for the position of its engine."""
    rows = await server.service.store.responses._database.read(
        "SELECT LENGTH(position) FROM slipring_responses WHERE id = ?1", response_id
    )
    return int(rows[0][0] or 0)


async def test_ids_are_stored_of_chains_and_not_of_histories_that_come_again(tmp_path: Path) -> None:
    async with fake_vllm() as fake:
        for words in ("One.", "Two.", "Three.", "Four."):
            fake.script(Say((words,)), Stop())
        async with serve(fake.engine(retries=0), store=f"sqlite:{tmp_path / 'slipring.db'}") as server:
            _, first = await server.post(input=LONG)
            history: list[Json] = [{"role": "user", "content": LONG}, *first["output"]]
            history.append({"role": "user", "content": "and?"})
            reports = reports_of(server)
            _, resent = await server.post(input=history)
            assert reports[0].recognised_items == 2
            assert await kept_ids(server, first["id"]) > 2_000
            assert await kept_ids(server, resent["id"]) == 0
        async with serve(fake.engine(retries=0), store=f"sqlite:{tmp_path / 'slipring.db'}") as server:
            # After a restart, it is rendered from its items, and the next one has all ids.
            _, third = await server.post(input="more", previous_response_id=resent["id"])
            assert await kept_ids(server, third["id"]) > 2_000
        async with serve(fake.engine(retries=0), store=f"sqlite:{tmp_path / 'slipring.db'}") as server:
            reports = reports_of(server)
            _, fourth = await server.post(input="more", previous_response_id=third["id"])
            assert fourth["status"] == "completed"
            assert reports[0].tokens is not None
            assert reports[0].tokens.rendered < 30, "by delta"
        prompts = fake.prompts
        assert all(later[: len(before)] == before for before, later in pairwise(prompts))


async def test_a_chain_that_begins_with_a_history_is_stored_by_delta(tmp_path: Path) -> None:
    """As after a reconnect: the history comes once, and then a chain continues it."""
    async with fake_vllm() as fake:
        async with serve(fake.engine(retries=0), store=f"sqlite:{tmp_path / 'slipring.db'}") as server:
            _, first = await server.post(input=LONG)
            history = [
                {"role": "user", "content": LONG},
                *first["output"],
                {"role": "user", "content": "and?"},
            ]
            _, resent = await server.post(input=history)
            _, third = await server.post(input="more", previous_response_id=resent["id"])
            _, fourth = await server.post(input="more", previous_response_id=third["id"])
            assert await kept_ids(server, third["id"]) > 2_000
            assert await kept_ids(server, fourth["id"]) < 500
        async with serve(fake.engine(retries=0), store=f"sqlite:{tmp_path / 'slipring.db'}") as server:
            reports = reports_of(server)
            await server.post(input="more", previous_response_id=fourth["id"])
            assert reports[0].tokens is not None
            assert reports[0].tokens.rendered < 30
