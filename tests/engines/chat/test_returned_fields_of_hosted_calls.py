"""What a server wants back with its calls, where slipring runs some of them itself."""

import json
from typing import Any

import pytest

from tests.engines.fakes.chat import FakeChatServer, Send
from tests.harness import WEATHER, serve
from tests.mcp.fakes import FakeServer, serving

Json = dict[str, Any]
NAMES = {"hosted": ("fake__add", '{"a":1,"b":2}'), "own": ("get_weather", '{"city":"Rome"}')}


def calls(*kinds: str) -> Send:
    """A stream of calls; each is signed with its kind and its number."""
    pieces = [
        {
            "index": number,
            "id": f"id-{number}",
            "function": {"name": NAMES[kind][0], "arguments": NAMES[kind][1]},
            "extra_content": {"signature": f"{kind} {number}"},
        }
        for number, kind in enumerate(kinds)
    ]
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    return Send(*chunks, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})


def signatures(request: Json) -> list[tuple[str, str | None]]:
    return [
        (call["function"]["name"], call.get("extra_content", {}).get("signature"))
        for message in request["messages"]
        for call in message.get("tool_calls", ())
    ]


@pytest.mark.parametrize("kinds", [("hosted", "own"), ("own", "hosted"), ("hosted", "hosted", "own")])
async def test_each_call_keeps_its_own_fields(kinds: tuple[str, ...]) -> None:
    backend = FakeChatServer()
    await backend.start()
    try:
        async with (
            serving(FakeServer(modern=True)) as fake,
            serve(backend.engine(), mcp_urls="any") as server,
            server.connect() as socket,
        ):
            hosted = {"type": "mcp", "server_label": "fake", "server_url": fake.url}
            asked = {"tools": [{**hosted, "require_approval": "never"}, WEATHER], "store": False}
            backend.script(calls("hosted", "hosted"))  # type: ignore[arg-type]
            backend.script(calls(*kinds))  # type: ignore[arg-type]
            first = await socket.response(input="go", **asked)
            assert "signature" not in json.dumps(first)
            (own,) = (item for item in first["output"] if item["type"] == "function_call")
            output = {"type": "function_call_output", "call_id": own["call_id"], "output": "sunny"}
            await socket.response(input=[output], previous_response_id=first["id"], **asked)
            first_step = [("fake__add", "hosted 0"), ("fake__add", "hosted 1")]
            assert signatures(backend.requests[1]) == first_step
            expected = [(NAMES[kind][0], f"{kind} {number}") for number, kind in enumerate(kinds)]
            sent = signatures(backend.requests[-1])
            assert sent[:2] == first_step
            assert sorted(sent[2:]) == sorted(expected)
    finally:
        await backend.close()
