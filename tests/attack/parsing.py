"""Frames and bodies of up to 16 MiB that are slow to parse, or that become large once they are parsed."""

import asyncio
import json
from typing import Any

from tests.attack.limits import LARGE_EVENT_MS, MIB
from tests.attack.sockets import GONE, TEXT, Json, Socket, frame_head
from tests.attack.stage import Registry, Stage

attack = Registry("parsing")
_LARGEST = 16 * MIB


def filled(start: bytes, unit: bytes, end: bytes, size: int = _LARGEST - 100) -> bytes:
    """Return as many units between a start and an end as fit into the size limit."""
    return start + b",".join([unit] * ((size - len(start) - len(end)) // (len(unit) + 1))) + end


def _create(fields: bytes) -> tuple[bytes, bytes]:
    """Return a create as the body of a POST, and as a frame."""
    return b'{"store":false,' + fields, b'{"type":"response.create","store":false,' + fields


async def _both(stage: Stage, fields: bytes, *, refused: bool = True, param: str = "") -> None:
    """Send a create by POST and on a WebSocket."""
    body, payload = _create(fields)
    answers: list[Any] = [await stage.post(body)]
    socket = await stage.websocket()
    try:
        async with asyncio.timeout(30):
            await socket.send_frame(TEXT, payload)
            answers.append(await socket.until("response.completed", "response.failed", "response.incomplete"))
    except GONE:
        answers.append(None)
    finally:
        socket.reset()
    for answer in answers:
        if refused:
            stage.refused(answer, (400, 413, 429), param=param)
        else:
            stage.answered(answer)


@attack()
async def tiny_items(stage: Stage) -> None:
    """500,000 messages of one letter in one frame are refused by their field."""
    await _both(stage, filled(b'"input":[', b'{"role":"user","content":"a"}', b"]}"), param="input")


@attack(event_ms=LARGE_EVENT_MS)
async def tiny_parts(stage: Stage) -> None:
    """400,000 parts within one message are refused by their field, or answered."""
    start = b'"input":[{"role":"user","content":['
    await _both(stage, filled(start, b'{"type":"input_text","text":"a"}', b"]}]}"), refused=False)


@attack(quick=True)
async def deep_json(stage: Stage) -> None:
    """Millions of nested brackets are refused as JSON."""
    await _both(stage, b'"input":' + b"[" * (8 * MIB) + b"]" * (8 * MIB - 100) + b"}")


@attack()
async def deep_json_in_raw_fields(stage: Stage) -> None:
    """Nesting in fields that are kept undecoded, each deeper than the last, is refused or answered."""
    for depth in (500, 1000, 5000, 100_000):
        nested = b"[" * depth + b"]" * depth
        for start, end in (
            (b'"input":"a","tools":[{"type":"function","name":"a","parameters":{"x":', b"}}]}"),
            (b'"input":"a","client_metadata":{"x":', b"}}"),
            (b'"input":[{"type":"reasoning","summary":[],"x":', b"}]}"),
        ):
            stage.answered(await stage.post(_create(start + nested + end)[0]))


@attack()
async def many_tools(stage: Stage) -> None:
    """100,000 tools in one frame are refused by their field, or answered."""
    tools = b",".join(
        b'{"type":"function","name":"t%d","parameters":{"type":"object","properties":{}}}' % number
        for number in range(100_000)
    )
    await _both(stage, b'"input":"a","tools":[' + tools + b"]}", refused=False)


@attack()
async def many_conversation_items(stage: Stage) -> None:
    """50,000 items for a new conversation, and for one that exists, are refused by their field, or taken."""
    items = [{"role": "user", "content": "a"}] * 50_000
    stage.answered(await stage.post({"items": items}, "/conversations"))
    made = await stage.post({}, "/conversations")
    if made is None or made.status != 200:
        stage.check(False, "a conversation cannot be made")
        return
    path = f"/conversations/{json.loads(made.body)['id']}/items"
    stage.answered(await stage.post({"items": items}, path))


@attack()
async def many_references(stage: Stage) -> None:
    """100,000 references to items that do not exist are refused by their field."""
    items = b",".join(b'{"type":"item_reference","id":"msg_%032x"}' % number for number in range(100_000))
    await _both(stage, b'"input":[' + items + b"]}", param="input")


@attack()
async def references_through_a_chain(stage: Stage) -> None:
    """References to items that a long chain does not have, one frame after the other: each is refused."""
    socket = await stage.websocket()
    previous = None
    for number in range(30):
        event = await stage.turn(socket, input=f"turn {number}", previous_response_id=previous, store=False)
        if event is None or event["type"] == "error":
            stage.check(False, f"a chain broke: {event}")
            return
        previous = event["response"]["id"]
    items = [{"type": "item_reference", "id": f"msg_{number:032x}"} for number in range(2000)]
    for _ in range(5):
        stage.refused(await stage.turn(socket, input=items, previous_response_id=previous), (400, 404))
    socket.close()


@attack(event_ms=LARGE_EVENT_MS)
async def escapes(stage: Stage) -> None:
    """16 MiB of escaped characters and of surrogates are answered or refused."""
    for unit in (b"\\u00e9", b"\\ud83d\\ude00", b"\\ud800"):
        text = unit * ((_LARGEST - 200) // len(unit))
        stage.answered(await stage.post(_create(b'"input":"' + text + b'"}')[0]))


@attack(event_ms=LARGE_EVENT_MS)
async def many_keys(stage: Stage) -> None:
    """An object with a million unknown keys is answered or refused, at the top and within an item."""
    keys = b",".join(b'"k%d":0' % number for number in range(1_000_000))
    stage.answered(await stage.post(_create(b'"input":"a",' + keys + b"}")[0]))
    item = b'{"role":"user","content":"a",' + keys + b"}"
    stage.answered(await stage.post(_create(b'"input":[' + item + b"]}")[0]))


@attack()
async def large_numbers(stage: Stage) -> None:
    """Numbers with a million digits are refused or answered."""
    digits = b"9" * 1_000_000
    for fields in (
        b'"input":"a","seed":' + digits + b"}",
        b'"input":[{"role":"user","content":' + digits + b"}]}",
    ):
        stage.answered(await stage.post(_create(fields)[0]))


@attack(quick=True)
async def largest_body(stage: Stage) -> None:
    """A body and a message of one byte more than `max_frame_bytes` are refused with 413 and 1009."""
    body = b'{"input":"' + b"a" * (_LARGEST - 11) + b'"}'
    assert len(body) == _LARGEST + 1
    stage.refused(await stage.post(body), (413,), code="request_too_large")
    socket = await stage.websocket()
    try:
        async with asyncio.timeout(30):
            await socket.send(frame_head(TEXT, _LARGEST + 1))
            event = await socket.until("close")
            stage.check(event.get("code") == 1009, f"expected close 1009, got {event}")
    except GONE:
        stage.check(False, "a message that is too large is closed with 1009; it was closed without a code")
    finally:
        socket.reset()


@attack(quick=True)
async def too_many_lanes(stage: Stage) -> None:
    """One lane more than a connection may have is refused, and the others are answered."""
    socket = await stage.websocket()
    for lane in range(33):
        await socket.create(input="go", stream_id=f"lane-{lane}", store=False, max_output_tokens=1)
    ends = []
    async with asyncio.timeout(30):
        while len(ends) < 33:
            ends.append(await socket.until("response.completed", "response.incomplete"))
    refusals = [event for event in ends if event["type"] == "error"]
    stage.check(len(refusals) == 1, f"{len(refusals)} lanes were refused")
    for refusal in refusals:
        stage.refused(refusal, (400,), code="websocket_stream_limit_reached", param="stream_id")
    socket.close()


@attack(quick=True)
async def too_many_queued(stage: Stage) -> None:
    """200 creates at once on one lane: those beyond the limit are refused with 429, the others answered."""
    socket = await stage.websocket()
    for _ in range(200):
        await socket.create(input="go", store=False, max_output_tokens=1)
    ends = []
    async with asyncio.timeout(30):
        while len(ends) < 200:
            ends.append(await socket.until("response.completed", "response.incomplete"))
    refusals = [event for event in ends if event["type"] == "error"]
    stage.check(0 < len(refusals) < 200, f"{len(refusals)} of 200 were refused")
    for refusal in refusals[:3]:
        stage.refused(refusal, (429,), code="rate_limit_exceeded")
    socket.close()


@attack(peak_mib=768, event_ms=LARGE_EVENT_MS)
async def large_queued(stage: Stage) -> None:
    """Five WebSockets queue 15 MiB creates behind a running one until some are refused: all memory is
    released."""
    payload = _create(b'"input":"' + b"a" * (15 * MIB) + b'"}')[1]
    sockets = [await stage.websocket() for _ in range(5)]

    async def queue(socket: Socket) -> int:
        refusals = 0
        try:
            await socket.create(input="go", store=False)
            for _ in range(3):
                await socket.send_frame(TEXT, payload)
            for _ in range(4):
                event = await socket.until("response.completed", "response.incomplete", "response.failed")
                refusals += event["type"] in ("error", "close")
        except GONE:
            refusals += 1
        return refusals

    try:
        # At once: one after the other, a server may answer them as fast as they come.
        async with asyncio.timeout(40):
            refusals = sum(await asyncio.gather(*map(queue, sockets)))
    finally:
        for socket in sockets:
            socket.reset()
    stage.note(f"{refusals} refused")
    stage.check(refusals, "75 MiB were queued and nothing was refused")


@attack(peak_mib=1024, event_ms=LARGE_EVENT_MS)
async def largest_frames(stage: Stage) -> None:
    """Ten WebSockets send a 15 MiB create each and disconnect: their memory is released."""
    payload = _create(b'"input":"' + b"a b " * (15 * MIB // 4) + b'"}')[1]

    async def once() -> None:
        socket = await stage.websocket()
        try:
            async with asyncio.timeout(30):
                await socket.send_frame(TEXT, payload)
                stage.answered(await socket.until("response.completed", "response.incomplete"))
        except GONE as error:
            stage.check(False, f"a 15 MiB create was cut off: {type(error).__name__}")
        finally:
            socket.reset()

    for _ in range(5):
        await asyncio.gather(once(), once())


@attack(quick=True)
async def wrong_types(stage: Stage) -> None:
    """Every field of a create with a value of another type is refused by its field, and nothing breaks."""
    fields = ("input", "instructions", "tools", "tool_choice", "metadata", "text", "reasoning", "include")
    more = (
        "previous_response_id",
        "conversation",
        "max_output_tokens",
        "temperature",
        "stream",
        "background",
    )
    for field in (*fields, *more):
        for value in (0.5, {"a": [1]}, [[]], "\u0000" * 10_000, -1):
            create: Json = {"input": "go", "store": False, "max_output_tokens": 1, field: value}
            answer = await stage.post(json.dumps(create).encode())
            stage.answered(answer)
            if answer is not None and answer.status >= 500:
                stage.check(False, f"{field}: {str(value)[:20]} is answered {answer.status}")
