"""Hosted calls inside responses, over real sockets: a scripted model, and MCP servers in this process."""

import json
from pathlib import Path
from typing import Any

from tests.harness import serve
from tests.mcp.fakes import FakeServer, serving
from tests.server.hosted_tools.running import registered

Json = dict[str, Any]


def scripted(folder: Path, *answers: list[Json]) -> str:
    """An engine that plays these answers."""
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"simulated:script={path}"


def call(name: str = "add", label: str = "fake", **arguments: Any) -> Json:
    return {"function_call": {"name": name, "namespace": label, "arguments": arguments}}


def server(label: str = "fake", **fields: Any) -> Json:
    return {"type": "mcp", "server_label": label, "require_approval": "never", **fields}


def types(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


async def test_a_call_runs_inside_one_response(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPERATOR_KEY", "key-of-the-operator")
    engine = scripted(tmp_path, [{"text": "Let me see."}, call(a=1, b=2)], [{"text": "It is 3."}])
    async with (
        serving(FakeServer(modern=True)) as fake,
        serve(engine, mcp=(registered(fake),)) as running,
        running.connect() as socket,
    ):
        events = await socket.turn(input="1 + 2?", tools=[server()])
    assert types(events)[2:6] == [
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
    ]
    response = events[-1]["response"]
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["mcp_list_tools", "message", "mcp_call", "message"]
    assert (response["output"][2]["output"], response["output"][2]["status"]) == ("3", "completed")
