"""A call whose arguments the model did not finish is answered, and the conversation goes on, by every API and
whatever the model's template takes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from tests.chat_api import Chat
from tests.clients.family_server import family_server
from tests.clients.test_families import TOOLS
from tests.engines.fakes.families import Answer, FakeFamilyServer
from tests.harness import Running, serve
from tests.messages_api import MessagesApi

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
CUT = {
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nBerg",
    "qwen3": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berg',
}
"""A call that breaks off in its first argument: of a family whose template refuses arguments that are text,
and of one whose template takes them."""
TEXT = "It rains."
BOTH_WAYS = pytest.mark.parametrize("recognised_s", [0, 600])
"""A history that is rendered as a whole, and one that continues the chain."""
EVERY_TEMPLATE = pytest.mark.parametrize("family", CUT)


@asynccontextmanager
async def serving(
    path: Path, family: str, recognised_s: int = 0
) -> AsyncIterator[tuple[FakeFamilyServer, Running]]:
    """A slipring in front of a model that first breaks off in a call."""
    cut, last = Answer(written=CUT[family], is_cut=True), Answer(text=TEXT)
    async with (
        family_server(path, family, cut, last) as fake,
        serve(
            fake.engine(retries=0, structural_tags=False), limits=Limits(recognised_s=recognised_s)
        ) as server,
    ):
        yield fake, server


def read_last(fake: FakeFamilyServer) -> str:
    """What the model last read."""
    tokenizer = fake._tokenizer
    names = {tokenizer.control(name): name for name in tokenizer.control_tokens()}
    ids = fake.prompts[-1]
    return b"".join(names[id].encode() if id in names else tokenizer.bytes_of(id) for id in ids).decode()


@BOTH_WAYS
@EVERY_TEMPLATE
async def test_a_call_that_was_cut_off_is_answered(family: str, recognised_s: int, tmp_path: Path) -> None:
    question = {"type": "message", "role": "user", "content": "What is the weather?"}
    more = {"type": "message", "role": "user", "content": "Again, please."}
    async with serving(tmp_path, family, recognised_s) as (fake, server), server.connect() as socket:
        broken = await socket.response(input=[question], tools=TOOLS)
        assert broken["status"] == "incomplete"
        (call,) = broken["output"]
        assert call["arguments"].endswith("Berg")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "no valid call"}
        done = await socket.response(input=[question, call, output, more], tools=TOOLS)
        assert done["status"] == "completed"
        read = read_last(fake)
        assert read.index("Berg") < read.index("no valid call") < read.index("Again, please.")


@EVERY_TEMPLATE
async def test_a_broken_call_in_a_history_of_chat_completions_is_answered(
    family: str, tmp_path: Path
) -> None:
    tools = [{"type": "function", "function": {"name": tool["name"]}} for tool in TOOLS]
    function = {"name": "get_weather", "arguments": '{"city": "Berg'}
    called = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    async with serving(tmp_path, family) as (fake, server):
        fake.answers.popleft()
        answer = await Chat(server).message(
            {"role": "user", "content": "What is the weather?"},
            called,
            {"role": "tool", "tool_call_id": "c1", "content": "no valid call"},
            {"role": "user", "content": "Again, please."},
            tools=tools,
        )
        assert answer["content"] == TEXT
        read = read_last(fake)
        assert read.index("Berg") < read.index("no valid call") < read.index("Again, please.")


@BOTH_WAYS
@EVERY_TEMPLATE
async def test_a_call_that_was_cut_off_is_answered_by_messages(
    family: str, recognised_s: int, tmp_path: Path
) -> None:
    """There the input of a call is an object."""
    tools = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in TOOLS]
    async with serving(tmp_path, family, recognised_s) as (fake, server):
        api = MessagesApi(server)
        broken = await api.create("What is the weather?", tools=tools)
        (call,) = broken["content"]
        assert (call["type"], call["input"]) == ("tool_use", {})
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "no valid call"}
        content = [result, {"type": "text", "text": "Again, please."}]
        done = await api.create(
            "What is the weather?",
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": content},
            tools=tools,
        )
        assert [each["text"] for each in done["content"]] == [TEXT]
        read = read_last(fake)
        assert read.index("no valid call") < read.index("Again, please.")
