"""Turns, lanes, chains and errors over a WebSocket."""

import json
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import WSMsgType

from slipring.base.errors import RateLimited, ServerError
from slipring.core.generation import (
    CallArguments,
    CallStarted,
    Delta,
    Emit,
    Job,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
    deliver,
)
from slipring.core.limits import Limits
from tests.harness import FAST, TERMINAL, WEATHER, Performance, PuppetEngine, Socket, serve

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
TOOLS = "simulated:tokens_per_s=0,tool_calls=2"
ONE_CALL = "simulated:tokens_per_s=0,tool_calls=1"
KEYS = ("a:key-a", "b:key-b")
SECRET = "the engine's own secret"
NOT_FOUND = "previous_response_not_found"


def kinds(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def answer_to(call: Json, output: str = "sunny") -> Json:
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}


async def played(socket: Socket, engine: PuppetEngine, *deltas: Delta, **fields: Any) -> list[Json]:
    """The events of a turn in which the engine emits these deltas."""
    await socket.create(input="hello", **fields)
    performance = await engine.next()
    performance.emit(*deltas)
    performance.finish()
    return await socket.until(*TERMINAL)


def texts(performance: Performance) -> str:
    """All texts of a job's context."""
    return b"\n".join(item.raw for item in performance.job.context()).decode()


# One turn.


async def test_events_of_a_text_answer_arrive_in_the_canonical_order() -> None:
    async with serve() as server, server.connect() as socket:
        events = await socket.turn(model="simulated", input="hello")
        assert kinds(events) == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            *["output_text.delta"] * 5,
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        (message,) = events[-1]["response"]["output"]
        assert message["content"][0]["text"] == "This is a simulated answer"
        assert message == events[-2]["item"]


async def test_a_tool_loop_sends_only_new_items() -> None:
    async with serve(TOOLS) as server, server.connect() as socket:
        response = await socket.response(model="simulated", input="weather?", tools=[WEATHER], store=False)
        for _ in range(2):
            (call,) = response["output"]
            assert call["type"] == "function_call"
            response = await socket.response(
                model="simulated",
                previous_response_id=response["id"],
                input=[answer_to(call)],
                tools=[WEATHER],
                store=False,
            )
        assert response["output"][0]["type"] == "message"
        assert response["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_reasoning_is_a_separate_item_before_the_answer() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        events = await played(socket, engine, Thought("Let me "), Thought("think."), Text("Yes."))
        assert kinds(events)[2:9] == [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
        ]
        reasoning, message = events[-1]["response"]["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me think."}]
        assert message["content"][0]["text"] == "Yes."


async def test_a_reasoning_summary_is_streamed_in_parts() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        deltas = ThoughtSummary("One"), ThoughtSummary("Two", index=1), ThoughtSummary(".", index=1)
        events = await played(socket, engine, *deltas)
        assert kinds(events)[2:-1] == [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
        ]
        (reasoning,) = events[-1]["response"]["output"]
        assert [part["text"] for part in reasoning["summary"]] == ["One", "Two."]


async def test_a_refusal_is_a_part_of_the_message() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        events = await played(socket, engine, RefusalText("I will "), RefusalText("not."))
        assert kinds(events)[3:8] == [
            "content_part.added",
            "refusal.delta",
            "refusal.delta",
            "refusal.done",
            "content_part.done",
        ]
        (message,) = events[-1]["response"]["output"]
        assert message["content"] == [{"type": "refusal", "refusal": "I will not."}]


async def test_a_custom_call_streams_its_input_and_is_answered() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        events = await played(
            socket, engine, CallStarted("custom", "shell"), CallArguments("ls "), CallArguments("-l")
        )
        assert kinds(events)[2:-1] == [
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
        ]
        (call,) = events[-1]["response"]["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "shell", "ls -l")
        await socket.create(
            previous_response_id=events[-1]["response"]["id"], input=[answer_to(call, "total 0")]
        )
        performance = await engine.next()
        assert "total 0" in texts(performance)
        performance.finish()
        await socket.until(*TERMINAL)


async def test_calls_side_by_side_name_their_namespaces() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        events = await played(
            socket,
            engine,
            Text("Both."),
            CallStarted("function", "read", "files"),
            CallArguments('{"path":"a"}'),
            CallStarted("function", "read"),
            CallArguments("{}"),
        )
        message, inner, outer = events[-1]["response"]["output"]
        assert message["type"] == "message"
        assert (inner["namespace"], inner["arguments"]) == ("files", '{"path":"a"}')
        assert "namespace" not in outer
        assert inner["call_id"] != outer["call_id"]


async def test_a_warmup_generates_no_output() -> None:
    async with serve() as server, server.connect() as socket:
        events = await socket.turn(
            input="a long story", instructions="Be brief.", generate=False, store=False
        )
        assert kinds(events) == ["created", "completed"]
        warm = events[-1]["response"]
        assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
        assert warm["usage"]["input_tokens"] > 0
        response = await socket.response(
            input=[], instructions="Be brief.", previous_response_id=warm["id"], store=False
        )
        assert response["usage"]["input_tokens"] == warm["usage"]["input_tokens"]
        assert response["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_a_warmup_reaches_the_engine_and_may_follow_an_answer() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        first = (await played(socket, engine, Text("Hi.")))[-1]["response"]
        await socket.create(
            previous_response_id=first["id"], input="next", prompt_cache_options={"prewarm": True}
        )
        performance = await engine.next()
        assert performance.job.generate is False
        performance.finish(output_tokens=0)
        assert kinds(await socket.until(*TERMINAL)) == ["created", "completed"]


async def test_an_answer_that_reaches_its_limit_is_incomplete_and_can_be_continued() -> None:
    async with serve() as server, server.connect() as socket:
        events = await socket.turn(input="hello", max_output_tokens=3, store=False)
        cut = events[-1]["response"]
        assert events[-1]["type"] == "response.incomplete"
        assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
        assert cut["output"][0]["status"] == "incomplete"
        assert cut["usage"]["output_tokens"] == 3
        assert (await socket.response(input="go on", previous_response_id=cut["id"], store=False))["output"]


# Lanes.


async def test_lanes_run_side_by_side() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="one", stream_id="a")
        await socket.create(input="two", stream_id="b")
        first, second = await engine.next(), await engine.next()
        for performance, lane in [(first, "a"), (second, "b"), (first, "a"), (second, "b")]:
            performance.say(f"text on {lane}")
            delta = (await socket.until("response.output_text.delta", lane=lane))[-1]
            assert delta["delta"] == f"text on {lane}"
        second.finish()
        await socket.until(*TERMINAL, lane="b")
        first.finish()
        await socket.until(*TERMINAL, lane="a")
        assert ["one" in texts(first), "two" in texts(second)] == [True, True]


@pytest.mark.parametrize("lane", [{}, {"stream_id": "a"}])
async def test_a_lane_takes_its_turns_in_order(lane: Json) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        for text in ("first", "second", "third"):
            await socket.create(input=text, **lane)
        await socket.create(input="aside", stream_id="b")
        performance, aside = await engine.next(), await engine.next()
        assert "aside" in texts(aside)  # so the other two have been received, and wait
        for text in ("first", "second", "third"):
            assert text in texts(performance)
            performance.finish()
            events = await socket.until(*TERMINAL, lane=lane.get("stream_id"))
            assert kinds(events) == ["created", "in_progress", "completed"]
            if text != "third":
                performance = await engine.next()
        aside.finish()
        await socket.until(*TERMINAL, lane="b")


async def test_an_error_keeps_its_place_in_the_lane() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="first", stream_id="a")
        await socket.create(input="second", stream_id="a", temperature=9)
        await socket.create(input="third", stream_id="a")
        (await engine.next()).finish()
        (await engine.next()).finish()
        events = await socket.until("error", lane="a")
        assert kinds(events) == ["created", "in_progress", "completed", "error"]
        assert kinds(await socket.until(*TERMINAL, lane="a")) == ["created", "in_progress", "completed"]


async def test_events_name_their_lane_unless_it_is_the_default_lane() -> None:
    async with serve() as server, server.connect() as socket:
        named = await socket.turn(input="hello", stream_id="Lane_1.a-b")
        named.append(await socket.error(input="hello", stream_id="Lane_1.a-b", model="other"))
        assert {event["stream_id"] for event in named} == {"Lane_1.a-b"}
        for fields in ({}, {"stream_id": None}):
            default = await socket.turn(input="hello", **fields)
            default.append(await socket.error(input="hello", model="other", **fields))
            assert not any("stream_id" in event for event in default)


async def test_sixteen_responses_run_at_once_and_the_next_waits() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        lanes = [None, *(f"lane-{number}" for number in range(1, 17))]
        for lane in lanes:
            await socket.create(input="hello", stream_id=lane)
        running = [await engine.next() for _ in range(16)]
        await socket.send(type="are you still reading?")
        seen = [await socket.receive()]
        while seen[-1]["type"] != "error":
            seen.append(await socket.receive())
        assert kinds(seen).count("created") == 16
        assert "lane-16" not in {event.get("stream_id") for event in seen}
        running[3].finish()
        waited = await engine.next()
        await socket.until("response.in_progress", lane="lane-16")
        for performance in [*running[:3], *running[4:], waited]:
            performance.finish()
        while len(socket.order.responses) < len(lanes):
            await socket.receive()


async def test_the_thirty_third_lane_is_refused_and_the_others_continue() -> None:
    async with serve() as server, server.connect() as socket:
        for number in range(32):
            await socket.response(input="hello", stream_id=f"lane-{number}")
        refused = await socket.error(input="hello", stream_id="lane-32")
        assert refused["status"] == 400
        assert refused["stream_id"] == "lane-32"
        assert refused["error"] == {
            "type": "invalid_request_error",
            "code": "websocket_stream_limit_reached",
            "message": "This WebSocket connection has reached its maximum number of distinct stream IDs (32)."
            " Reuse an existing stream_id or open a new WebSocket connection.",
            "param": "stream_id",
        }
        await socket.response(input="hello", stream_id="lane-31")
        await socket.response(input="hello")


@pytest.mark.parametrize("lane", ["", 123, True, ["a"], "x" * 257, "bad name!", "ünïcode", "a\n"])
async def test_an_invalid_lane_name_is_refused_without_repeating_it(lane: object) -> None:
    async with serve() as server, server.connect() as socket:
        await socket.create(input="hello", stream_id=lane)
        refused = await socket.receive()
        assert (refused["type"], refused["error"]["code"]) == ("error", "invalid_stream_id")
        assert refused["error"]["param"] == "stream_id"
        assert "stream_id" not in refused
        await socket.response(input="hello", stream_id="x" * 256)


async def test_a_create_beyond_the_queue_limit_is_refused_on_its_lane() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_queued=1)) as server, server.connect() as socket:
        for text in ("runs", "waits", "is too much"):
            await socket.create(input=text, stream_id="a")
        refused = (await socket.until("error", lane="a"))[-1]
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        for text in ("runs", "waits"):
            performance = await engine.next()
            assert text in texts(performance)
            performance.finish()
            await socket.until(*TERMINAL, lane="a")


# Chains, forks, and access to them.


async def test_a_chain_holds_all_items_in_order() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        previous = None
        for number in range(3):
            await socket.create(input=f"question {number}", previous_response_id=previous, store=False)
            performance = await engine.next()
            performance.say(f"answer {number}")
            performance.finish()
            previous = (await socket.until(*TERMINAL))[-1]["response"]["id"]
        found = texts(performance)
        order = [
            found.index(text) for text in ("question 0", "answer 0", "question 1", "answer 1", "question 2")
        ]
        assert all(earlier < later for earlier, later in pairwise(order))


async def test_a_create_without_a_previous_response_starts_a_new_chain() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await played(socket, engine, Text("Hi."))
        await socket.create(input="something else")
        performance = await engine.next()
        assert "Hi." not in texts(performance)
        performance.finish()
        await socket.until(*TERMINAL)


async def test_a_fork_and_its_source_continue_from_the_same_response() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        first = (await played(socket, engine, Text("The trunk.")))[-1]["response"]
        await socket.create(input="fork", previous_response_id=first["id"], stream_id="fork", store=False)
        fork = await engine.next()
        await socket.until("response.in_progress", lane="fork")
        await socket.create(input="source", previous_response_id=first["id"], store=False)
        source = await engine.next()
        for performance in (fork, source):
            assert "The trunk." in texts(performance)
        source.say("on the source")
        source.finish()
        advanced = (await socket.until(*TERMINAL))[-1]["response"]
        fork.say("on the fork")
        fork.finish()
        branched = (await socket.until(*TERMINAL, lane="fork"))[-1]["response"]
        await socket.create(input="on", previous_response_id=branched["id"], stream_id="fork")
        performance = await engine.next()
        assert "on the fork" in texts(performance)
        assert "on the source" not in texts(performance)
        performance.finish()
        await socket.until(*TERMINAL, lane="fork")
        await socket.create(input="on", previous_response_id=advanced["id"])
        performance = await engine.next()
        assert "on the source" in texts(performance)
        performance.finish()
        await socket.until(*TERMINAL)


async def test_a_queued_fork_keeps_its_parent() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        first = (await played(socket, engine, Text("The trunk."), store=False))[-1]["response"]
        await socket.create(input="busy", stream_id="fork", store=False)
        busy = await engine.next()
        await socket.create(input="fork", previous_response_id=first["id"], stream_id="fork", store=False)
        await socket.create(input="source", previous_response_id=first["id"], store=False)
        (await engine.next()).fail(ServerError("The source fails."))
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.failed"
        gone = await socket.error(input="source", previous_response_id=first["id"], store=False)
        assert gone["error"]["code"] == NOT_FOUND
        busy.finish()
        fork = await engine.next()
        assert "The trunk." in texts(fork)
        fork.finish()
        for _ in range(2):
            assert (await socket.until(*TERMINAL, lane="fork"))[-1]["type"] == "response.completed"


async def test_a_refused_continuation_evicts_its_parent() -> None:
    async with serve() as server, server.connect() as socket:
        first = await socket.response(input="hello", store=False)
        orphan = {"type": "function_call_output", "call_id": "call_none", "output": ""}
        refused = await socket.error(input=[orphan], previous_response_id=first["id"], store=False)
        assert refused["error"]["message"] == (
            "No tool call found for function call output with call_id call_none."
        )
        gone = await socket.error(input="again", previous_response_id=first["id"], store=False)
        assert gone["error"]["code"] == NOT_FOUND
        assert (await socket.response(input="anew", store=False))["status"] == "completed"


async def test_a_failed_continuation_evicts_its_parent() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        first = (await played(socket, engine, Text("Hi."), store=False))[-1]["response"]
        await socket.create(input="again", previous_response_id=first["id"], store=False)
        (await engine.next()).fail(ServerError())
        await socket.until("response.failed")
        gone = await socket.error(input="again", previous_response_id=first["id"], store=False)
        assert gone["error"]["code"] == NOT_FOUND


async def test_a_stored_parent_survives_a_failed_continuation() -> None:
    async with serve() as server, server.connect() as socket:
        first = await socket.response(input="hello", store=True)
        await socket.error(input="again", previous_response_id=first["id"], model="other")
        assert (await socket.response(input="again", previous_response_id=first["id"]))["output"]


async def test_a_failed_fork_does_not_evict_its_parent() -> None:
    async with serve() as server, server.connect() as socket:
        first = await socket.response(input="hello", store=False)
        await socket.error(input="x", previous_response_id=first["id"], stream_id="fork", model="other")
        assert (await socket.response(input="on", previous_response_id=first["id"], store=False))["output"]


async def test_an_unstored_response_can_be_continued_on_its_own_socket_only() -> None:
    async with serve() as server, server.connect() as socket, server.connect() as other:
        first = await socket.response(input="hello", store=False)
        refused = await other.error(input="again", previous_response_id=first["id"], stream_id="a")
        assert refused == {
            "type": "error",
            "status": 400,
            "sequence_number": 0,
            "stream_id": "a",
            "error": {
                "type": "invalid_request_error",
                "code": NOT_FOUND,
                "message": f"Previous response with id '{first['id']}' not found.",
                "param": "previous_response_id",
            },
        }
        status, body = await server.post(input="again", previous_response_id=first["id"])
        assert (status, body["error"]["code"]) == (400, NOT_FOUND)
        assert (await other.response(input="anew"))["status"] == "completed"
        assert (await socket.response(input="again", previous_response_id=first["id"]))["output"]


async def test_a_stored_response_can_be_continued_from_anywhere() -> None:
    async with serve() as server, server.connect() as socket, server.connect() as other:
        first = await socket.response(input="hello")
        second = await other.response(input="again", previous_response_id=first["id"])
        status, third = await server.post(input="and again", previous_response_id=second["id"])
        assert status == 200
        fourth = await socket.response(input="back", previous_response_id=third["id"], store=False)
        tokens = [response["usage"]["input_tokens"] for response in (first, second, third, fourth)]
        assert tokens == sorted(set(tokens))


async def test_a_response_of_another_tenant_is_not_found() -> None:
    async with serve(api_key=KEYS) as server:
        async with server.connect(key="key-a") as socket:
            theirs = await socket.response(input="mine")
        async with server.connect(key="key-b") as socket:
            foreign = await socket.error(input="yours?", previous_response_id=theirs["id"])
            missing = await socket.error(input="yours?", previous_response_id="resp_none")
            assert json.dumps(foreign).replace(theirs["id"], "resp_none") == json.dumps(missing)
            reference = {"type": "item_reference", "id": theirs["output"][0]["id"]}
            foreign = await socket.error(input=[reference])
            missing = await socket.error(input=[{"type": "item_reference", "id": "msg_none"}])
            assert json.dumps(foreign).replace(reference["id"], "msg_none") == json.dumps(missing)
        foreign_status, foreign = await server.post(
            key="key-b", input="yours?", previous_response_id=theirs["id"]
        )
        missing_status, missing = await server.post(
            key="key-b", input="yours?", previous_response_id="resp_none"
        )
        assert foreign_status == missing_status == 400
        assert json.dumps(foreign).replace(theirs["id"], "resp_none") == json.dumps(missing)
        status, _ = await server.post(key="key-a", input="again", previous_response_id=theirs["id"])
        assert status == 200


# Invalid frames.

BAD_FRAMES = [
    ("{", "invalid_json", None),
    ("", "invalid_json", None),
    ("nonsense", "invalid_json", None),
    ("[DONE]", "invalid_json", None),
    ("[]", "invalid_json", None),
    ("null", "invalid_json", None),
    ('"text"', "invalid_json", None),
    ('{"type": "response.create"} {}', "invalid_json", None),
    ('{"type": "response.create", "input": ' + "[" * 100_000, "invalid_json", None),
    ("{}", "unsupported_event_type", "type"),
    ('{"type": null}', "unsupported_event_type", "type"),
    ('{"type": 5}', "unsupported_event_type", "type"),
    ('{"type": {"a": 1}}', "unsupported_event_type", "type"),
    ('{"type": "response.cancel"}', "unsupported_event_type", "type"),
    ('{"type": "session.update", "stream_id": "a"}', "unsupported_event_type", "type"),
    ('{"type": "response.create", "model": 5}', "invalid_type", "model"),
    ('{"type": "response.create", "input": 5}', "invalid_type", "input"),
    ('{"type": "response.create", "input": [5]}', "invalid_type", "input[0]"),
    ('{"type": "response.create"}', "missing_required_parameter", "input"),
    ('{"type": "response.create", "input": "x", "stream": false}', "unsupported_parameter", "stream"),
    ('{"type": "response.create", "input": "x", "background": true}', "unsupported_parameter", "background"),
    ('{"type": "response.create", "input": "x", "tools": {}}', "invalid_type", "tools"),
]


@pytest.mark.parametrize(("frame", "code", "param"), BAD_FRAMES)
async def test_an_invalid_frame_gets_an_error_and_the_socket_stays_open(
    frame: str, code: str, param: str | None
) -> None:
    async with serve() as server, server.connect() as socket:
        await socket.ws.send_str(frame)
        error = await socket.receive()
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["type"] == "invalid_request_error"
        assert (error["error"]["code"], error["error"]["param"]) == (code, param)
        assert "stream_id" not in error
        assert (await socket.response(input="hello"))["status"] == "completed"


async def test_a_background_response_on_a_socket_is_refused_with_where_it_is_possible() -> None:
    async with serve() as server, server.connect() as socket:
        error = (await socket.error(input="x", background=True))["error"]
        assert error["message"].endswith("'background' is supported by POST /v1/responses only.")


async def test_an_invalid_frame_does_not_disturb_running_turns() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="hello", stream_id="a")
        performance = await engine.next()
        await socket.ws.send_str("nonsense")
        await socket.until("error")
        performance.finish()
        assert (await socket.until(*TERMINAL, lane="a"))[-1]["type"] == "response.completed"


async def test_an_acknowledgement_is_ignored() -> None:
    async with serve() as server, server.connect() as socket:
        await socket.send(type="response.processed", response_id="resp_1")
        assert (await socket.response(input="hello"))["status"] == "completed"
        assert socket.order.errors == []


async def test_json_in_a_binary_frame_is_served_and_answered_as_text() -> None:
    async with serve() as server, server.connect() as socket:
        await socket.ws.send_bytes('{"type": "response.create", "input": "é"}'.encode())
        message = await socket.ws.receive(timeout=300)
        assert message.type is WSMsgType.TEXT
        socket.order.see(json.loads(message.data))
        await socket.until(*TERMINAL)


@pytest.mark.parametrize("frame", [b"\xff", b'{"type": "response.create", "input": "\xff"}', b"", b"{"])
async def test_a_binary_frame_that_is_not_json_gets_an_error(frame: bytes) -> None:
    async with serve() as server, server.connect() as socket:
        await socket.ws.send_bytes(frame)
        assert (await socket.receive())["error"]["code"] == "invalid_json"
        assert (await socket.response(input="hello"))["status"] == "completed"


async def test_an_unknown_model_is_refused_and_the_served_ones_are_named() -> None:
    async with serve(model=("small", "large")) as server, server.connect() as socket:
        refused = await socket.error(model="other", input="hello")
        assert (refused["status"], refused["error"]["code"]) == (404, "model_not_found")
        assert "'small', 'large'" in refused["error"]["message"]
        assert (await socket.response(model="large", input="hello"))["model"] == "large"
        assert (await socket.response(input="hello"))["model"] == "small"


# Engines that fail.


async def test_an_engine_error_ends_the_response_with_its_message() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="hello", stream_id="a")
        performance = await engine.next()
        performance.say("half an ans")
        performance.fail(RateLimited("Please try again in 2s."))
        events = await socket.until(*TERMINAL, lane="a")
        assert kinds(events)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "failed"]
        failed = events[-1]["response"]
        assert failed["error"] == {"code": "rate_limit_exceeded", "message": "Please try again in 2s."}
        assert failed["output"][0]["status"] == "incomplete"
        events = await played(socket, engine, Text("Better."))
        assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("output", [[], ["half an ans"]])
async def test_an_unexpected_exception_fails_the_response_without_its_text(
    output: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="hello")
        performance = await engine.next()
        performance.say(*output)
        performance.fail(RuntimeError(SECRET))
        events = await socket.until(*TERMINAL)
        assert kinds(events).count("failed") == 1
        assert events[-1]["response"]["error"]["code"] == "server_error"
        assert SECRET not in json.dumps(events)
        assert SECRET in caplog.text
        events = await played(socket, engine, Text("Better."))
        assert events[-1]["type"] == "response.completed"


class Unfinished(PuppetEngine):
    """Ends without a ``Finished``."""

    async def generate(self, job: Job, emit: Emit) -> None:
        await deliver(emit, [Text("and then")])


class Confused(PuppetEngine):
    """Emits arguments for a call that it has not started."""

    async def generate(self, job: Job, emit: Emit) -> None:
        await deliver(emit, [])
        await deliver(emit, [Text("Hm."), CallArguments("{}")])


@pytest.mark.parametrize("engine", [Unfinished, Confused])
async def test_an_engine_that_breaks_its_contract_fails_the_response(engine: type[PuppetEngine]) -> None:
    async with serve(engine()) as server, server.connect() as socket:
        for _ in range(2):
            events = await socket.turn(input="hello")
            assert kinds(events).count("failed") == 1
            assert events[-1]["response"]["error"]["code"] == "server_error"


async def test_a_failed_response_cannot_be_continued() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="hello")
        (await engine.next()).fail(ServerError())
        failed = (await socket.until(*TERMINAL))[-1]["response"]
        refused = await socket.error(input="again", previous_response_id=failed["id"])
        assert refused["error"]["code"] == NOT_FOUND


async def test_a_failed_load_refuses_the_create_without_the_error_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def load(*_: object) -> None:
        raise RuntimeError(SECRET)

    async with serve() as server, server.connect() as socket:
        monkeypatch.setattr(server.service.store.responses, "load", load)
        refused = await socket.error(input="hello", previous_response_id="resp_1", stream_id="a")
        assert (refused["status"], refused["error"]["code"]) == (500, "server_error")
        assert refused["stream_id"] == "a"
        assert SECRET not in json.dumps(refused)
        assert (await socket.response(input="hello"))["status"] == "completed"


# What clients send.


async def test_tools_of_ignored_types_are_accepted_and_echoed() -> None:
    foreign = {"type": "acme_gizmo", "power": 11}
    tools = [{"type": "web_search"}, foreign, WEATHER]
    types = frozenset({"acme_gizmo"})
    async with (
        serve(TOOLS, ignored_tool=("web_search", "acme_gizmo")) as server,
        server.connect(foreign_tool_types=types) as socket,
    ):
        response = await socket.response(input="hello", tools=tools)
        assert response["tools"] == tools
        assert response["output"][0]["name"] == "get_weather"


async def test_fields_that_clients_send_beyond_the_protocol_are_accepted() -> None:
    async with serve() as server, server.connect() as socket:
        response = await socket.response(
            input="hello",
            stream=True,
            stream_options={"reasoning_summary_delivery": "sequential_cutoff"},
            client_metadata={"session_id": "s", "turn": 1},
            something_new={"a": [1]},
        )
        assert response["status"] == "completed"


async def test_a_coding_agent_s_session_runs() -> None:
    """The frames of Codex: a warmup, a turn on top of it, a tool's output; never stored, no instructions."""
    metadata = dict.fromkeys(("session_id", "thread_id", "turn_id", "x-codex-window-id"), "x")
    exec_command = {
        "type": "function",
        "name": "exec_command",
        "description": "Runs a command",
        "strict": False,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
    }
    agents = {"type": "namespace", "name": "multi_agent_v1", "description": "", "tools": [exec_command]}
    frame = {
        "model": "simulated",
        "stream": True,
        "tools": [exec_command, agents, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "client_metadata": metadata,
    }

    def message(role: str, text: str) -> Json:
        content = [{"type": "input_text", "text": text}]
        return {"type": "message", "id": f"msg_{role}", "role": role, "content": content}

    headers = {"OpenAI-Beta": "responses_websockets=2026-02-06", "originator": "codex_exec"}
    types = frozenset({"web_search", "namespace"})
    async with serve(ONE_CALL) as server, server.connect(headers=headers, foreign_tool_types=types) as socket:
        warm = await socket.response(
            **frame, input=[message("developer", "You are a coding agent")], generate=False
        )
        asked = await socket.response(
            **frame,
            input=[message("developer", "Be careful"), message("user", "say hi")],
            previous_response_id=warm["id"],
        )
        (call,) = asked["output"]
        assert (call["type"], call["name"]) == ("function_call", "exec_command")
        assert "cmd" in json.loads(call["arguments"])
        output = {**answer_to(call, "Process exited with code 0\nhi\n"), "id": "fco_1"}
        done = await socket.response(**frame, input=[output], previous_response_id=asked["id"])
        assert done["output"][0]["type"] == "message"
        cached = done["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached > asked["usage"]["input_tokens"]


async def test_many_sockets_do_not_mix() -> None:
    async with serve(FAST) as server, server.connect() as one, server.connect() as two:
        await one.create(input="hello", stream_id="a", metadata={"who": "one"})
        await two.create(input="hello", stream_id="a", metadata={"who": "two"})
        for socket, who in ((one, "one"), (two, "two")):
            response = (await socket.until(*TERMINAL, lane="a"))[-1]["response"]
            assert response["metadata"] == {"who": who}
