"""What a server wants back survives a restart, and other nodes have it: it is stored with the response."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.core.chain.instructions_and_tools import Head
from slipring.engines.chat.options import ChatOptions
from slipring.engines.chat.request_body import EMPTY_TOOLBOX, MessageWriter, Written
from slipring.engines.chat.returned_fields import (
    KeptFields,
    PositionCodec,
    ReturnedAnswer,
    ReturnedFields,
    StoredFields,
    linked,
)
from tests.engines.fakes.chat import FakeChatServer, Send
from tests.harness import WEATHER, Running, serve

Json = dict[str, Any]
HEAD = Head()
STOP = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}


def signed(number: int) -> Send:
    """An answer with details of its reasoning and a signed call."""
    details = [{"type": "reasoning.text", "index": 0, "text": f"thought {number}"}]
    call = {
        "index": 0,
        "id": f"id-{number}",
        "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
        "extra_content": {"signature": number},
        "provider_specific_fields": {"place": number},
    }
    choices = [{"delta": {"reasoning_details": details}}, {"delta": {"tool_calls": [call]}}]
    return Send(*({"choices": [each]} for each in choices), STOP)


@asynccontextmanager
async def backend() -> AsyncIterator[FakeChatServer]:
    fake = FakeChatServer()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.close()


async def step(server: Running, fake: FakeChatServer, parent: Json | None, answer: Send) -> Json:
    """One turn of a tool loop."""
    fields: Json = {"input": "go"}
    if parent is not None:
        output = {
            "type": "function_call_output",
            "call_id": parent["output"][-1]["call_id"],
            "output": "sunny",
        }
        fields = {"input": [output], "previous_response_id": parent["id"]}
    fake.script(answer)  # type: ignore[arg-type]
    async with server.connect() as socket:
        return await socket.response(tools=[WEATHER], **fields)


def signatures(request: Json) -> list[Any]:
    called = [message for message in request["messages"] if message.get("tool_calls")]
    return [
        (
            message["tool_calls"][0].get("extra_content", {}).get("signature"),
            message["tool_calls"][0].get("provider_specific_fields", {}).get("place"),
            message.get("reasoning_details", [{}])[0].get("text"),
        )
        for message in called
    ]


async def test_they_survive_restarts(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/store.db"
    last: Json | None = None
    async with backend() as fake, backend() as other:
        for number in (1, 2, 3):  # each step by another process, so to say
            async with serve(fake.engine(), store=store) as server:
                last = await step(server, fake, last, signed(number))
                if number == 3:
                    last = await step(server, fake, last, signed(4))
        all_of = [(number, number, f"thought {number}") for number in (1, 2, 3, 4)]
        for sent, request in enumerate(fake.requests):
            assert signatures(request) == all_of[:sent]
        assert "signature" not in json.dumps(last)
        # A server that did not write them gets none.
        async with serve(other.engine(), store=store) as server:
            await step(server, other, last, signed(5))
        assert signatures(other.requests[0]) == [(None, None, None)] * 4


WRITER = MessageWriter()


def field(text: str) -> ReturnedFields:
    return ReturnedFields(extra_content=json.dumps(text).encode())


def written(kept: KeptFields | None, writer: MessageWriter = WRITER) -> Written:
    return Written(writer, writer.extend(None, ()), EMPTY_TOOLBOX, ReturnedAnswer(field("own")), kept)


def test_a_position_is_stored_relative_to_its_parent() -> None:
    codec = PositionCodec(WRITER, ChatOptions(url="http://a"))
    first = linked(None, "msg_1", field("long " * 1000), {})
    second = linked(first, "msg_2", field("short"), {"call_2": field("called")})
    whole = codec.pack(written(second), None)
    part = codec.pack(written(second), written(first))
    assert whole is not None
    assert part is not None
    assert len(part) < 200 < len(whole)
    before = StoredFields(WRITER, first, ReturnedAnswer())
    for data, parent in ((whole, None), (whole, before), (part, before)):
        found = codec.unpack(data, parent, HEAD)
        assert found is not None
        assert found.returned == ReturnedAnswer(field("own"))
        assert found.kept is not None
        assert [(each.first, each.message, each.calls) for each in found.kept.lineage()] == [
            ("msg_2", field("short"), {"call_2": field("called")}),
            ("msg_1", field("long " * 1000), {}),
        ]
    assert found.unshared_bytes(before) < found.size_bytes == found.unshared_bytes(None)
    assert before.unshared_bytes(found) == before.size_bytes
    assert StoredFields(WRITER, None, ReturnedAnswer()).size_bytes == 0


def test_a_position_without_such_fields_is_not_stored() -> None:
    codec = PositionCodec(WRITER, ChatOptions(url="http://a"))
    assert codec.pack(Written(WRITER, WRITER.extend(None, ()), EMPTY_TOOLBOX), None) is None


@pytest.mark.parametrize("data", [b"", b"\x50", b"\x40" + b"\0" * 8, b"cut"])
def test_what_cannot_be_read_is_none(data: bytes) -> None:
    codec = PositionCodec(WRITER, ChatOptions(url="http://a"))
    packed = codec.pack(written(None), None)
    assert packed is not None
    assert codec.unpack(packed[:-2] if data == b"cut" else data, None, HEAD) is None
    assert PositionCodec(WRITER, ChatOptions(url="http://b")).unpack(packed, None, HEAD) is None
    assert codec.pack(written(None, MessageWriter()), None) is None


def test_a_chain_keeps_a_bounded_amount() -> None:
    kept: KeptFields | None = None
    for number in range(40):
        kept = linked(kept, f"msg_{number}", field("x" * 2**18), {})
    assert kept is not None
    assert kept.size_bytes <= 4 * 2**20
    assert next(kept.lineage()).first == "msg_39"
