"""Large requests are decoded in a thread, in order, and refused early if they are too large."""

import gc
import json
import sys
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Raw

from slipring.base.errors import ApiError
from slipring.core.betas import NO_BETAS
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.resent_history import KnownItems
from slipring.core.session import client_events
from slipring.protocol import wire
from slipring.protocol.endpoints.translation import RESPONSES
from slipring.protocol.items.items import MOST_ITEMS, MOST_PARTS
from slipring.protocol.tools.tool_choice import ToolChoice
from slipring.protocol.tools.tool_types import MOST_TOOLS
from slipring.server.request_decoding import RequestDecoder
from tests.api import Api
from tests.core.connection import Connection
from tests.harness import serve

LARGE = "large " * 20_000
TINY = {"type": "message", "role": "user", "content": "x"}
PART = {"type": "input_text", "text": "x"}
NESTED = "[" + "[]," * 40_000 + "[]]"


def tool(number: int) -> dict[str, Any]:
    return {"type": "function", "name": f"f{number}", "parameters": {"type": "object"}, "strict": False}


def frame(**fields: Any) -> bytes:
    return json.dumps({"type": "response.create", **fields}).encode()


def raw(name: str, value: str) -> bytes:
    return f'{{"type":"response.create","stream_id":"lane","{name}":{value}}}'.encode()


def refusal(sent: bytes) -> ApiError:
    """The error of a frame, which is the same for both ways to decode it."""
    errors = []
    for asked in (client_events.read(sent, NO_BETAS), client_events.read_ahead(sent, NO_BETAS)):
        assert isinstance(asked, client_events.Create | client_events.Refused)
        try:
            if isinstance(asked, client_events.Create) and asked.error is None:
                _ = asked.request.items
            errors.append(asked.error)
        except ApiError as error:
            errors.append(error)
    first, second = errors
    assert first is not None
    assert second is not None
    assert (first.message, first.param, first.code) == (second.message, second.param, second.code)
    return first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", NESTED),
        ("previous_response_id", NESTED),
        ("include", json.dumps(["file_search_call.results"] * 5000)),
        ("metadata", json.dumps({str(number): "x" for number in range(20_000)})),
        ("client_metadata", json.dumps({str(number): "x" for number in range(20_000)})),
        ("context_management", json.dumps([{"type": "compaction"}] * 5000)),
        ("prompt", NESTED),
        ("moderation", NESTED),
    ],
)
def test_oversized_fields_are_refused_without_decoding(name: str, value: str) -> None:
    sent = raw(name, value)
    if name == "type":
        sent = f'{{"type":{value}}}'.encode()
    error = refusal(sent)
    assert error.param == name
    if name != "previous_response_id":
        assert error.message == f"Invalid '{name}': more than 65536 bytes."


def test_a_field_of_the_maximum_size_is_accepted() -> None:
    fitting = '"' + "x" * (65_536 - 2) + '"'
    asked = client_events.read(raw("prompt", fitting), NO_BETAS)
    assert isinstance(asked, client_events.Create)
    assert asked.request.prompt == "x" * 65_534
    assert refusal(raw("prompt", fitting[:-1] + 'x"')).param == "prompt"


def test_a_frame_with_a_large_field_is_refused_on_its_lane() -> None:
    asked = client_events.read(
        raw("metadata", json.dumps({str(number): "x" for number in range(20_000)})), NO_BETAS
    )
    assert isinstance(asked, client_events.Create)
    assert asked.request.stream_id == "lane"
    assert asked.error is not None


def test_a_large_choice_of_tools_is_refused_by_name() -> None:
    named = [{"type": "function", "name": "f"}]
    for count, fits in ((8000, True), (9000, False)):
        sent = Raw(wire.encode({"type": "allowed_tools", "mode": "auto", "tools": named * count}))
        assert (len(sent) <= 256 * 1024) is fits
        if fits:
            ToolChoice.read(sent)
        else:
            with pytest.raises(ApiError) as refused:
                ToolChoice.read(sent)
            assert refused.value.param == "tool_choice"


@pytest.mark.parametrize("size", [40, 400])
def test_the_number_of_items_is_limited(size: int) -> None:
    item = {**TINY, "content": "x" * size}
    asked = client_events.read_ahead(frame(input=[item] * MOST_ITEMS), NO_BETAS)
    assert isinstance(asked, client_events.Create)
    assert len(asked.request.items) == MOST_ITEMS
    error = refusal(frame(input=[item] * (MOST_ITEMS + 1)))
    assert (error.param, error.message) == ("input", f"Invalid 'input': more than {MOST_ITEMS} items.")


def test_the_first_invalid_item_is_refused() -> None:
    assert refusal(frame(input=[1] * 200_000)).param == "input[0]"


@pytest.mark.parametrize(("kind", "field"), [("message", "content"), ("function_call_output", "output")])
def test_the_number_of_parts_is_limited(kind: str, field: str) -> None:
    fixed = {"role": "user"} if kind == "message" else {"call_id": "c"}
    item = {"type": kind, **fixed, field: [PART] * MOST_PARTS}
    asked = client_events.read_ahead(frame(input=[item]), NO_BETAS)
    assert isinstance(asked, client_events.Create)
    assert asked.error is None
    error = refusal(frame(input=[TINY, {**item, field: [PART] * (MOST_PARTS + 1)}]))
    assert error.param == f"input[1].{field}"
    assert error.message.endswith(f"more than {MOST_PARTS} parts.")


async def test_the_number_of_tools_is_limited() -> None:
    async with serve() as server:
        status, _ = await server.post(
            input="x", tools=[tool(n) for n in range(MOST_TOOLS)], tool_choice="none"
        )
        assert status == 200
        for tools, param in (
            ([tool(n) for n in range(MOST_TOOLS + 1)], "tools"),
            (
                [{"type": "namespace", "name": "n", "description": "d", "tools": [tool(0)] * 9000}],
                "tools[0].tools",
            ),
        ):
            status, error = await server.post(input="x", tools=tools)
            assert (status, error["error"]["param"]) == (400, param)


async def test_large_and_small_frames_are_answered_in_order() -> None:
    async with serve() as server, server.connect() as ws:
        await ws.create(input=LARGE)
        await ws.create(input=[TINY] * (MOST_ITEMS + 1))
        await ws.create(input="small")
        (first,) = [
            event for event in await ws.until("response.completed") if event["type"] == "response.completed"
        ]
        refused = await ws.receive()
        assert (refused["type"], refused["error"]["param"]) == ("error", "input")
        last = (await ws.until("response.completed"))[-1]
        assert first["response"]["usage"]["input_tokens"] > 10_000
        assert last["response"]["usage"]["input_tokens"] < 100


async def test_every_endpoint_accepts_large_bodies() -> None:
    many = [{"role": "user", "content": ""}] * (MOST_ITEMS + 1)
    large = [{**TINY, "content": LARGE}]
    async with serve() as server:
        api = Api(server)
        status, response = await server.post(input=LARGE)
        assert (status, response["status"]) == (200, "completed")
        _, counted = await api.call("POST", "/responses/input_tokens", json={"input": LARGE})
        assert counted["input_tokens"] == response["usage"]["input_tokens"]
        status, window = await server.compact(model="simulated", input=LARGE)
        assert status == 200, window
        _, conversation = await api.call("POST", "/conversations", json={"items": large})
        items = f"/conversations/{conversation['id']}/items"
        _, page = await api.call("GET", items)
        assert page["data"][0]["content"][0]["text"] == LARGE
        for path, body, param in (
            ("/responses", {"input": many}, "input"),
            ("/responses/input_tokens", {"input": many}, "input"),
            ("/responses/compact", {"model": "simulated", "input": many}, "input"),
            ("/conversations", {"items": many}, "items"),
            (items, {"items": many}, "items"),
        ):
            status, error = await api.call("POST", path, json=body)
            assert (status, error["error"]["param"]) == (400, param), path


async def test_an_input_far_beyond_the_context_is_refused_without_counting() -> None:
    engine = "simulated:vocabulary=smollm2,context_tokens=1000"
    async with serve(engine=engine) as server:
        api = Api(server)
        body = {"input": "7" * 1900}
        status, counted = await api.call("POST", "/responses/input_tokens", json=body)
        assert (status, counted["input_tokens"]) == (200, 1930)
        for text in ("7" * 2100, "7" * 900_000):
            status, error = await api.call("POST", "/responses/input_tokens", json={"input": text})
            assert (status, error["error"]["code"]) == (400, "context_length_exceeded")
            status, error = await server.post(input=text)
            assert (status, error["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "sent", ["x" * 200_000, '{"type": "response.create", "temperature": "hot", "input": "' + LARGE * 2 + '"}']
)
async def test_nothing_holds_a_refused_request_until_garbage_is_collected(sent: str) -> None:
    """A client could otherwise have the server hold any number of large requests."""
    decoder = RequestDecoder(Ledger(2**30, 2**30), KnownItems(0.0, 0), digests=False)
    text, body = sent + " ", sent.encode()
    before = sys.getrefcount(text), sys.getrefcount(body)
    gc.disable()
    try:
        frame = await decoder.frame("t", text, NO_BETAS)
        assert isinstance(frame, client_events.Create | client_events.Refused)
        Connection().receive(frame)
        with suppress(ApiError):
            await decoder.create("t", body, RESPONSES.read)
        await decoder.in_thread("t", len, "")  # the thread has forgotten its last call by now
        assert (sys.getrefcount(text), sys.getrefcount(body)) == before
    finally:
        gc.enable()
