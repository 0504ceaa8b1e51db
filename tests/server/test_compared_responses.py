"""The response that a request is to be compared with may be out of reach: the turn does not need it."""

import pytest

from slipring.base.errors import Unavailable
from slipring.server.state_lookup import StateLookup
from tests.harness import serve


async def test_a_store_that_fails_for_the_compared_response_does_not_fail_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(states: StateLookup, tenant: str, response_id: str) -> None:
        raise Unavailable("The store cannot be reached.")

    async with serve() as server:
        _, first = await server.post(input="hello")
        compared = {"comparison_response_id": first["id"]}
        status, known = await server.post(input="hello", prompt_cache_options=compared)
        assert (status, known["prompt_cache_diagnostics"]["type"]) == (200, "cache_hit")
        monkeypatch.setattr(StateLookup, "find", fail)
        status, response = await server.post(input="hello", prompt_cache_options=compared)
        assert (status, response["status"]) == (200, "completed")
        assert response["prompt_cache_diagnostics"] == {"type": "unavailable"}
