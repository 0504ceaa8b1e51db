"""What each mode sends."""

from typing import Any

import pytest
from aiohttp import web

from slipring.commands.bench.measure.modes import MODES
from tests.commands.bench.faulty import Faulty, Json, running
from tests.commands.bench.stage import faults, measured, tiny


async def test_what_each_mode_sends() -> None:
    sent = {}
    for mode in MODES:
        faulty = Faulty()
        async with running(faulty) as url:
            await measured(url, modes=(mode,), lanes=1)
        requests = faulty.requests[-3:]
        sent[mode] = [len(request["input"]) for request in requests]
        creates = [request for request in requests if request.get("type") != "response.append"]
        assert len(creates) == (1 if mode == "rollout" else 3)
        assert all(create["tools"] == tiny().tools for create in creates)
        assert all(create["store"] is (mode == "http-chained") for create in creates)
        assert faulty.connections == (
            0 if mode.startswith("http") else 2
        )  # one of the probe, one of the loop
    assert sent["http-full"] == sent["http-full-newconn"] == [1, 3, 5]
    for mode in ("http-chained", "websocket", "websocket-lanes", "rollout"):
        assert sent[mode] == [1, 1, 1]


class Reasons(Faulty):
    """Adds reasoning to each answer, encrypted if the request asks for it."""

    refuses = False

    def _step(self, made: Any, events: list[Json]) -> list[Json]:
        item = {"type": "reasoning", "id": f"rs_{self._number}", "summary": []}
        if "reasoning.encrypted_content" in made.create.get("include", []):
            item["encrypted_content"] = f"sealed {self._number}"
        place = {"output_index": len(made.output), "item": item}
        events += [{"type": f"response.output_item.{stage}", **place} for stage in ("added", "done")]
        made.output.append(item)
        return super()._step(made, events)

    def _context(self, create: Json) -> list[Json]:
        return [item for item in super()._context(create) if item.get("type") != "reasoning"]

    async def post(self, request: web.Request) -> web.StreamResponse:
        if self.refuses and "include" in await request.json():
            return web.json_response({"error": {"message": "Unknown parameter: 'include'."}}, status=400)
        return await super().post(request)


@pytest.mark.parametrize("refuses", [False, True])
async def test_reasoning_is_sent_back_if_the_endpoint_returns_it(refuses: bool) -> None:
    faulty = Reasons()
    faulty.refuses = refuses
    async with running(faulty) as url:
        record = await measured(url, modes=("http-full", "http-chained"))
    assert faults(record) == []
    assert record.skipped == {}
    full = [request for request in faulty.requests if not request["store"]][-3:]
    kinds = [[item["type"] for item in request["input"]] for request in full]
    turn = (
        ["function_call", "function_call_output"]
        if refuses
        else [*("reasoning", "function_call", "function_call_output")]
    )
    assert kinds == [["message"], ["message", *turn], ["message", *turn, *turn]]
    assert all("include" not in request for request in faulty.requests if request["store"])
    if not refuses:
        (sent,) = (item for item in full[1]["input"] if item["type"] == "reasoning")
        assert sent["encrypted_content"].startswith("sealed ")
        assert sent["id"].startswith("rs_")


def test_modes_that_send_the_history() -> None:
    assert [mode.name for mode in MODES.values() if mode.description.sends_history] == [
        *("http-full", "http-full-newconn")
    ]
