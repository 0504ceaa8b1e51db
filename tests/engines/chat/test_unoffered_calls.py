"""A model behind a Chat Completions server calls a tool of an MCP server that is not on offer: the client
gets no call that it could not answer, and the model reads why."""

from typing import Any

import pytest

from slipring.core.turn.output.rejected_calls import LIMIT_REACHED, NOT_OFFERED
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.server import Call, Say, Stop
from tests.harness import WEATHER, serve
from tests.mcp.fakes import ADD, FakeServer, serving

Json = dict[str, Any]
ARGUMENTS = '{"a":1,"b":2}'
WEATHER_ONLY = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "get_weather"}],
}


def outputs(request: Json) -> list[str]:
    """The outputs of calls that a model reads."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("called", "of_server", "of_request", "read"),
    [
        (["fake__addd"], {}, {}, [NOT_OFFERED]),
        (["fake__sub"], {"allowed_tools": ["add"]}, {}, [NOT_OFFERED]),
        (["fake__sub"], {"allowed_tools": {"tool_names": ["add"]}}, {}, [NOT_OFFERED]),
        (["fake__add"], {}, {"tool_choice": WEATHER_ONLY}, [NOT_OFFERED]),
        (["fake__add", "fake__add"], {}, {"max_tool_calls": 1}, ["3", LIMIT_REACHED]),
    ],
    ids=[
        "misspelt",
        "outside allowed_tools",
        "outside a filter",
        "outside tool_choice",
        "over max_tool_calls",
    ],
)
async def test_a_call_of_a_tool_that_is_not_on_offer_is_no_item(
    called: list[str], of_server: Json, of_request: Json, read: list[str]
) -> None:
    backend = FakeChatServer()
    mcp = FakeServer(modern=True)
    mcp.tools = [ADD, {**ADD, "name": "sub"}]
    await backend.start()
    try:
        async with (
            serving(mcp),
            serve(backend.engine(), mcp_urls="any") as server,
            server.connect() as socket,
        ):
            hosted = {"type": "mcp", "server_label": "fake", "server_url": mcp.url, **of_server}
            tools = [{**hosted, "require_approval": "never"}, WEATHER]
            for name in called:
                backend.script(Call(name, ARGUMENTS), Stop())
            backend.script(Say(("done",)), Stop())
            response = await socket.response(input="go", tools=tools, store=False, **of_request)
            kinds = [item["type"] for item in response["output"]]
            assert kinds == ["mcp_list_tools", *["mcp_call"] * (len(called) - 1), "message"]
            assert outputs(backend.requests[-1]) == read
            assert mcp.count("tools/call") == len(called) - 1
    finally:
        await backend.close()


async def test_no_model_is_asked_while_a_list_fails_and_the_failed_list_is_fetched_again() -> None:
    backend, mcp = FakeChatServer(), FakeServer(modern=True)
    listing = mcp.on.pop("tools/list")
    await backend.start()
    try:
        async with (
            serving(mcp),
            serve(backend.engine(), mcp_urls="any") as server,
            server.connect() as socket,
        ):
            hosted = {
                "type": "mcp",
                "server_label": "fake",
                "server_url": mcp.url,
                "require_approval": "never",
            }
            asked: Json = {"tools": [hosted, WEATHER], "store": False}
            failed = await socket.response(input="go", **asked)
            assert (failed["status"], len(backend.requests)) == ("failed", 0)
            resent = [*failed["output"], {"role": "user", "content": "again"}]
            failed = await socket.response(input=resent, **asked)
            assert (failed["status"], len(backend.requests)) == ("failed", 0)
            mcp.on["tools/list"] = listing
            backend.script(Call("fake__add", ARGUMENTS), Stop())
            backend.script(Say(("done",)), Stop())
            response = await socket.response(input=resent, **asked)
            assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    finally:
        await backend.close()
