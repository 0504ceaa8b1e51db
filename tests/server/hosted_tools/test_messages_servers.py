"""``mcp_servers`` of the Messages API beside tools of the client, and servers that may not be called."""

from pathlib import Path

import pytest

from tests.messages_api import MessagesApi, Refused
from tests.messages_wire import Json, message_of
from tests.server.hosted_tools.running import OPERATOR
from tests.server.hosted_tools.test_turns import hosting
from tests.server.hosted_tools.turns import call, scripted
from tests.server.test_resent_chat import reports_of

MINE: Json = {"name": "mine", "input_schema": {"type": "object"}}


@pytest.fixture(autouse=True)
def operator_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATOR)


def streamed(events: list[Json]) -> list[str]:
    """The types of the blocks of a stream."""
    return [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]


@pytest.mark.parametrize("order", [1, -1])
async def test_a_step_may_have_hosted_calls_and_calls_of_the_client(tmp_path: Path, order: int) -> None:
    step = [call(a=1, b=2), {"function_call": {"name": "mine", "arguments": {}}}][::order]
    async with hosting(scripted(tmp_path, step, step, [{"text": "both"}])) as (fake, server):
        api = MessagesApi(server)
        asked = {"mcp_servers": [{"type": "url", "name": "fake", "url": fake.url}], "tools": [MINE]}
        assert set(streamed(await api.stream("go", **asked))) == {
            "tool_use",
            "mcp_tool_use",
            "mcp_tool_result",
        }
        answer = await api.create("go", **asked)
        assert answer["stop_reason"] == "tool_use"
        (mine,) = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": mine, "content": "ok"}]}
        history = ({"role": "user", "content": "go"}, {"role": "assistant", "content": answer["content"]})
        reports = reports_of(server)
        ended = await api.create(*history, result, **asked)
        assert ended["content"] == [{"type": "text", "text": "both"}]
        # What the hosted call returned stands before the other call, and the model has not read it there.
        assert reports[0].recognised_items == 1


async def test_no_step_follows_a_stop_sequence(tmp_path: Path) -> None:
    """The call before it has its result, which the model does not read."""
    step = [call(a=1, b=2), {"text": "So it is. END And more."}]
    async with hosting(scripted(tmp_path, step, step, [{"text": "never"}])) as (fake, server):
        asked = {"mcp_servers": [{"type": "url", "name": "fake", "url": fake.url}], "stop_sequences": ["END"]}
        api = MessagesApi(server)
        events = await api.stream("go", **asked)
        for answer in (message_of(events), await api.create("go", **asked)):
            assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
            blocks = {block["type"]: block for block in answer["content"]}
            assert blocks.keys() == {"mcp_tool_use", "mcp_tool_result", "text"}
            assert not blocks["mcp_tool_result"]["is_error"]
            assert blocks["text"]["text"] == "So it is. "
        # A history with it can be continued.
        again = ("go", {"role": "assistant", "content": answer["content"]}, "and?")
        assert (await api.create(*again, **asked))["content"] == [{"type": "text", "text": "never"}]


async def test_a_call_of_the_client_before_a_stop_sequence_is_to_be_run(tmp_path: Path) -> None:
    step: list[Json] = [
        {"function_call": {"name": "mine", "arguments": {}}},
        {"text": "So it is. END And more."},
    ]
    async with hosting(scripted(tmp_path, step)) as (_, server):
        answer = await MessagesApi(server).create("go", tools=[MINE], stop_sequences=["END"])
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)


async def test_a_server_that_is_not_registered_is_refused_by_its_field(tmp_path: Path) -> None:
    async with hosting(scripted(tmp_path, [{"text": "x"}])) as (fake, server):
        unknown = {"type": "url", "name": "other", "url": "http://127.0.0.1:9/"}
        known = {"type": "url", "name": "fake", "url": fake.url}
        with pytest.raises(Refused) as refusal:
            await MessagesApi(server).create("x", mcp_servers=[known, unknown])
        assert refusal.value.message.startswith("mcp_servers.1.url: ")
