"""Short first events: what begins a response leaves out instructions and tools, for clients that ask."""

import json
from typing import Any

import pytest

from tests.harness import TERMINAL, PuppetEngine, Running, Socket, read_sse, serve
from tests.server.transports.test_steering_wire import created, steered

Json = dict[str, Any]
ASKED = {"OpenAI-Beta": "slipring_short_events=v1"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
BODY: Json = {"input": "hi", "instructions": "Be kind. " * 50, "tools": [TOOL], "tool_choice": "none"}
OPENING = ("response.created", "response.in_progress")
LONG = ("instructions", "tools")


async def stream(server: Running, headers: dict[str, str], **body: Any) -> list[Json]:
    sent = {"Authorization": "Bearer test-key", **headers}
    async with server.http.post(
        f"{server.url}/responses", json={**body, "stream": True}, headers=sent
    ) as answer:
        assert answer.status == 200
        return read_sse(await answer.text())


def is_short(event: Json) -> bool:
    """Whether the response of an event lacks instructions and tools; it must have both or none."""
    response = event["response"]
    if (response["instructions"], response["tools"]) == (None, []):
        return True
    assert response["instructions"] == BODY["instructions"]
    assert [tool["name"] for tool in response["tools"]] == ["f"]
    return False


def check(events: list[Json], *, short: bool) -> Json:
    """Check which events of a response are short; returns the response of the last one, which never is."""
    *opening, last = [event for event in events if event["type"] in (*OPENING, *TERMINAL)]
    assert [event["type"] for event in opening] == [*OPENING]
    assert [is_short(event) for event in opening] == [short, short]
    assert not is_short(last)
    response: Json = last["response"]
    return response


@pytest.mark.parametrize("short", [True, False])
async def test_every_response_of_a_socket_begins_as_its_upgrade_asked(short: bool) -> None:
    async with serve() as server, server.connect(headers=ASKED if short else {}) as socket:
        first = check(await socket.turn(**BODY), short=short)
        check(await socket.turn(**BODY, previous_response_id=first["id"], stream_id="a"), short=short)


@pytest.mark.parametrize("short", [True, False])
async def test_a_stream_over_http_begins_as_its_request_asked(short: bool) -> None:
    async with serve() as server:
        check(await stream(server, ASKED if short else {}, **BODY), short=short)
        check(await server.stream(**BODY), short=False)  # the header holds for its request


async def test_the_fields_that_stay_are_those_of_the_whole_events() -> None:
    async def opening(socket: Socket) -> Json:
        event = next(e for e in await socket.turn(**BODY, metadata={"a": "b"}) if e["type"] == OPENING[0])
        changing = ("id", "created_at")
        return {key: value for key, value in event["response"].items() if key not in (*changing, *LONG)}

    async with serve() as server, server.connect(headers=ASKED) as one, server.connect() as other:
        assert await opening(one) == await opening(other)


async def test_a_warmup_has_one_short_event() -> None:
    async with serve() as server, server.connect(headers=ASKED) as socket:
        begun, ended = await socket.turn(**BODY, generate=False)
        assert (begun["type"], is_short(begun), is_short(ended)) == ("response.created", True, False)


async def test_a_steered_response_and_its_successor_begin_short() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect(headers=ASKED) as socket:
        target = await created(socket, **BODY)
        first = await engine.next()
        first.say("One")
        await socket.until("response.output_text.delta")
        await steered(socket, target)
        first.say(" two.")
        assert not is_short((await socket.until(*TERMINAL))[-1])
        second = await engine.next()
        second.say("Yes.")
        second.finish()
        check(await socket.until(*TERMINAL), short=True)


async def test_what_is_stored_is_whole() -> None:
    async with serve() as server:
        last = check(await stream(server, ASKED, **BODY), short=True)
        async with server.http.get(
            f"{server.url}/responses/{last['id']}", headers={"Authorization": "Bearer test-key"}
        ) as answer:
            assert await answer.json() == last


async def test_a_plain_post_is_answered_with_the_whole_response() -> None:
    async with serve() as server:
        server.http.headers.update(ASKED)
        status, response = await server.post(**BODY)
        assert (status, is_short({"response": response})) == (200, False)


async def replayed(server: Running, response_id: str, headers: dict[str, str], after: int) -> list[Json]:
    url = f"{server.url}/responses/{response_id}?stream=true&starting_after={after}"
    sent = {"Authorization": "Bearer test-key", **headers}
    async with server.http.get(url, headers=sent) as answer:
        lines = (await answer.text()).split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


async def test_the_events_of_a_background_response_are_recorded_whole_for_all_who_stream_them() -> None:
    async with serve() as server:
        events = await stream(server, ASKED, **BODY, background=True)
        kinds = ("response.created", "response.queued", "response.in_progress", *TERMINAL)
        assert [is_short(event) for event in events if event["type"] in kinds] == [False] * 4
        for headers in (ASKED, {}):
            assert await replayed(server, events[0]["response"]["id"], headers, 0) == events[1:]
