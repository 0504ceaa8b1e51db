"""One contract for every engine in front of a server, each against a fake of its server.

To add an engine: write its ``FakeServer`` and list it in ``FAKES``.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.chat_api import Chat
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.responses import FakeResponsesServer
from tests.engines.fakes.server import (
    Call,
    Deny,
    FakeServer,
    Garbage,
    HangUp,
    Refuse,
    Say,
    Stall,
    Stop,
    Think,
    in_front_of,
)
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.vllm import FakeVllm
from tests.harness import TERMINAL, WEATHER, Running
from tests.loop_clock import LoopClock
from tests.messages_api import MessagesApi

FAKES: dict[str, Callable[[], FakeServer]] = {
    "chat": FakeChatServer,
    "responses-sse": lambda: FakeResponsesServer("sse"),
    "responses-ws": lambda: FakeResponsesServer("websocket"),
    "sglang": FakeSglang,
    "vllm": FakeVllm,
}
EVERY = pytest.mark.parametrize("kind", FAKES)
ASK: dict[str, Any] = {"input": "hello", "store": False}
ARGUMENTS = '{"city": "Rome"}'


def running(kind: str, **options: Any) -> AbstractAsyncContextManager[tuple[FakeServer, Running]]:
    return in_front_of(FAKES[kind](), **options)


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


@EVERY
async def test_text_is_streamed_and_counted(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Say(("Hel", "lo", " you")), Stop(input_tokens=9, cached_tokens=4, output_tokens=3))
        events = await socket.turn(**ASK)
        assert [event["delta"] for event in events if event["type"].endswith("text.delta")] == [
            "Hel",
            "lo",
            " you",
        ]
        response = events[-1]["response"]
        assert text_of(response) == "Hello you"
        assert response["status"] == "completed"
        usage = response["usage"]
        assert usage["output_tokens"] == 3
        assert usage["input_tokens_details"]["cached_tokens"] == 4


@EVERY
async def test_the_prompt_is_counted_before_the_answer_where_ids_are_sent(kind: str) -> None:
    """In the Messages API, which tells it at the start."""
    async with running(kind) as (fake, server):
        for stops in (Stop(input_tokens=9, cached_tokens=0), Stop(input_tokens=9, cached_tokens=4)):
            fake.script(Say(("Hello",)), stops)
            events = await MessagesApi(server).stream("hello")
            start, end = events[0]["message"]["usage"], events[-2]["usage"]
            counted = end["input_tokens"] + end["cache_read_input_tokens"]
            assert start["input_tokens"] == (counted if kind in ("sglang", "vllm") else 0)
            assert (start["cache_read_input_tokens"], start["output_tokens"]) == (0, 0)


@EVERY
async def test_reasoning_becomes_a_reasoning_item(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        if not fake.can_think:
            pytest.skip("this wire has no reasoning")
        fake.script(Think(("let me", " see")), Say(("Yes",)), Stop())
        response = await socket.response(**ASK)
        reasoning, message = response["output"]
        assert reasoning["type"] == "reasoning"
        assert "let me see" in json.dumps(reasoning)
        assert text_of({"output": [message]}) == "Yes"


@EVERY
async def test_calls_are_emitted_one_by_one_and_their_outputs_are_sent_back(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Call("get_weather", ARGUMENTS), Call("get_weather", '{"city": "Oslo"}'), Stop())
        first = await socket.response(**ASK, tools=[WEATHER])
        assert [(item["type"], item["name"], item["arguments"]) for item in first["output"]] == [
            ("function_call", "get_weather", ARGUMENTS),
            ("function_call", "get_weather", '{"city": "Oslo"}'),
        ]
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": f"sunny {number}"}
            for number, item in enumerate(first["output"])
        ]
        fake.script(Say(("It is sunny.",)), Stop())
        second = await socket.response(
            input=outputs, previous_response_id=first["id"], tools=[WEATHER], store=False
        )
        assert text_of(second) == "It is sunny."


@EVERY
async def test_a_rollout_sends_what_separate_turns_send(kind: str) -> None:
    """Each step, and what follows on the last."""
    asked: list[list[str]] = []
    for rollout in (False, True):
        header = {"OpenAI-Beta": "slipring_rollout=v1"}
        async with running(kind) as (fake, server), server.connect(headers=header) as socket:
            fake.script(Call("get_weather", ARGUMENTS), Stop())
            fake.script(Say(("It is ", "sunny.")), Stop())
            fake.script(Say(("Bye.",)), Stop())
            await socket.create(**ASK, tools=[WEATHER], rollout=rollout)
            first = (await socket.until("response.done", *TERMINAL))[-1]
            calls = first["required_input"] if rollout else first["response"]["output"]
            outputs = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
                for call in calls
            ]
            if rollout:
                await socket.send(type="response.append", response_id=first["response_id"], input=outputs)
                second = (await socket.until(*TERMINAL))[-1]["response"]
            else:
                previous = first["response"]["id"]
                second = await socket.response(
                    input=outputs, previous_response_id=previous, tools=[WEATHER], store=False
                )
            assert text_of(second) == "It is sunny."
            last = await socket.response(
                input="Thanks.", previous_response_id=second["id"], tools=[WEATHER], store=False
            )
            assert text_of(last) == "Bye."
            assert not server.service.render_fallbacks
            texts = [json.dumps(request, sort_keys=True) for request in fake.requests]
            asked.append([re.sub(r'(id": )"[^"]+"', r'\1"…"', text) for text in texts])
    # Items that were sent to the client have a status.
    assert asked[0] == [
        text.replace('"output": "sunny", "status": "completed"', '"output": "sunny"') for text in asked[1]
    ]


@EVERY
async def test_an_answer_may_have_text_and_calls(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Say(("I will look.",)), Call("get_weather", ARGUMENTS), Stop())
        response = await socket.response(**ASK, tools=[WEATHER])
        assert [item["type"] for item in response["output"]] == ["message", "function_call"]


@EVERY
async def test_a_required_call_is_sent_as_such(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Call("get_weather", ARGUMENTS), Stop())
        response = await socket.response(**ASK, tools=[WEATHER], tool_choice="required")
        assert [item["type"] for item in response["output"]] == ["function_call"]
        forced = json.dumps(fake.requests[-1])
        fake.script(Say(("ok",)), Stop())
        await socket.response(**ASK, tools=[WEATHER])
        assert len(forced) > len(json.dumps(fake.requests[-1])), "the request says that a call is required"


@EVERY
async def test_a_format_reaches_the_server_as_a_schema(kind: str) -> None:
    schema = {"type": "object", "properties": {"zebra": {"type": "integer"}}, "required": ["zebra"]}
    format = {"type": "json_schema", "name": "z", "schema": {**schema, "additionalProperties": False}}
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Say(('{"zebra"', ": 1}")), Stop())
        response = await socket.response(**ASK, text={"format": {**format, "strict": True}})
        assert json.loads(text_of(response)) == {"zebra": 1}
        assert "zebra" in json.dumps(fake.requests[-1])


@EVERY
async def test_an_answer_that_is_cut_off_is_incomplete(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Say(("Hel", "lo")), Stop("length", output_tokens=2))
        response = await socket.response(**ASK, max_output_tokens=2)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@EVERY
async def test_a_client_that_leaves_cancels_the_request(kind: str) -> None:
    async with running(kind) as (fake, server):
        fake.script(Say(("one",)), Stall())
        async with server.connect(abandoned=True) as socket:
            await socket.create(**ASK)
            await socket.until("response.output_text.delta")
        await asyncio.wait_for(fake.left.wait(), 300)


@EVERY
async def test_a_steered_answer_ends_and_the_next_turn_contains_it(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        rest = asyncio.Event()
        fake.script(Say(("one ",) * 2000, rest=rest), Stop(output_tokens=2000))
        await socket.create(**ASK)
        target = (await socket.until("response.in_progress"))[-1]["response"]["id"]
        await socket.until("response.output_text.delta")
        await socket.send(type="response.steer", previous_response_id=target, input="two")
        await socket.until("response.steer.accepted")
        rest.set()
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        assert ended["incomplete_details"] == {"reason": "steered"}
        words = len(text_of(ended).split())
        assert 1 <= words < 2000
        assert ended["usage"]["input_tokens"] > 0
        assert words <= 2 * ended["usage"]["output_tokens"] <= 4 * words
        follows = (await socket.until(*TERMINAL))[-1]["response"]
        assert (follows["previous_response_id"], text_of(follows)) == (target, "ok")
        assert len(fake.requests) == 2
        last = await socket.response(input="three", previous_response_id=follows["id"], store=False)
        assert text_of(last) == "ok"
        assert not server.service.render_fallbacks


@EVERY
async def test_silence_fails_the_answer_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(kind, idle_timeout_s=600) as (fake, server), server.connect() as socket:
        clock = LoopClock(monkeypatch)
        fake.script(Say(("one",)), Stall())
        await socket.create(**ASK)
        await socket.until("response.output_text.delta")
        clock.advance(601)
        response = (await socket.until("response.failed"))[-1]["response"]
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert text_of(response) == "one"
        assert (await socket.response(**ASK))["status"] == "completed"


@EVERY
async def test_an_answer_that_never_begins_fails(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(kind, first_token_timeout_s=600) as (fake, server), server.connect() as socket:
        clock = LoopClock(monkeypatch)
        fake.script(Stall())
        await socket.create(**ASK)
        await asyncio.wait_for(fake.stalled.wait(), 300)
        clock.advance(601)
        response = (await socket.until("response.failed"))[-1]["response"]
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")


@EVERY
@pytest.mark.parametrize("fault", [Garbage(), HangUp()])
async def test_a_stream_that_breaks_fails_the_response_once(kind: str, fault: Any) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Say(("one", "two")), fault)
        response = await socket.response(**ASK)
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert (await socket.response(**ASK))["status"] == "completed"


@EVERY
async def test_a_step_that_breaks_is_repeated_alone(kind: str) -> None:
    """The next create continues the failed rollout from its last finished step: only outputs are rendered."""
    header = {"OpenAI-Beta": "slipring_rollout=v1"}
    async with running(kind) as (fake, server), server.connect(headers=header) as socket:
        fake.script(Call("get_weather", ARGUMENTS), Stop())
        fake.script(Say(("It ", "is")), HangUp())
        fake.script(Say(("It is sunny.",)), Stop())
        await socket.create(**ASK, tools=[WEATHER], rollout=True)
        done = (await socket.until("response.done"))[-1]
        output = {"call_id": done["required_input"][0]["call_id"], "output": "sunny"}
        appended = [{"type": "function_call_output", **output}]
        await socket.send(type="response.append", response_id=done["response_id"], input=appended)
        failed = (await socket.until(*TERMINAL))[-1]["response"]
        assert [item["type"] for item in failed["output"]] == ["function_call", "function_call_output"]
        again = await socket.response(
            input=[], previous_response_id=failed["id"], tools=[WEATHER], store=False
        )
        assert text_of(again) == "It is sunny."
        assert not server.service.render_fallbacks


@EVERY
@pytest.mark.parametrize("fault", [Refuse(503), HangUp()])
async def test_a_failure_before_the_first_token_is_retried(kind: str, fault: Any) -> None:
    async with running(kind, retries=2) as (fake, server), server.connect() as socket:
        fake.script(fault)
        fake.script(fault)
        fake.script(Say(("there",)), Stop())
        response = await socket.response(**ASK)
        assert (response["status"], text_of(response)) == ("completed", "there")
        assert len(fake.requests) >= 3


@EVERY
async def test_a_refusal_is_passed_on_with_its_message(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Refuse(400, "temperature must be cooler"))
        response = await socket.response(**ASK)
        assert (response["status"], response["error"]["code"]) == ("failed", "invalid_prompt")
        assert "temperature must be cooler" in response["error"]["message"]
        fake.script(Refuse(429, "slow down", {"Retry-After": "7"}))
        response = await socket.response(**ASK)
        assert (response["status"], response["error"]["code"]) == ("failed", "rate_limit_exceeded")


@EVERY
async def test_a_refused_server_key_is_a_server_error_for_clients(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Refuse(401, "Incorrect API key: sk-secret"))
        response = await socket.response(**ASK)
        assert response["error"]["code"] == "server_error"
        assert "sk-secret" not in json.dumps(response)


@EVERY
async def test_a_key_is_sent_and_never_shown_or_logged(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLIPRING_TEST_KEY", "sk-hush")
    caplog.set_level(logging.DEBUG)
    options = {"key_env": "SLIPRING_TEST_KEY", "failures_to_close": 3}
    async with running(kind, **options) as (fake, server), server.connect() as socket:
        responses = [await socket.response(**ASK)]
        for fault in (
            Refuse(401, "Incorrect API key: sk-hush"),
            Garbage(),
            HangUp(),
            Refuse(503),
            Refuse(503),
        ):
            fake.script(fault)
            responses.append(await socket.response(**ASK))
        assert [response["status"] for response in responses] == ["completed", *["failed"] * 5]
        assert {headers["authorization"] for headers in fake.headers} == {"Bearer sk-hush"}
        assert "refusing jobs until it answers" in caplog.text
        assert "sk-hush" not in caplog.text + json.dumps(responses)


@EVERY
async def test_an_engine_that_keeps_failing_refuses_jobs(kind: str) -> None:
    async with running(kind, failures_to_close=2) as (fake, server), server.connect() as socket:
        for _ in range(2):
            fake.script(Refuse(503))
            assert (await socket.response(**ASK))["status"] == "failed"
        refused = await socket.error(**ASK)
        assert refused["status"] == 503
        assert "retry-after" in refused["error"]["headers"]
        async with server.http.get(server.url.removesuffix("/v1") + "/health") as answer:
            assert (answer.status, (await answer.json())["status"]) == (503, "degraded")


@EVERY
async def test_jobs_past_max_waiting_are_refused_with_429(kind: str) -> None:
    bounds = {"max_jobs": 1, "max_waiting": 0}
    async with running(kind, **bounds) as (fake, server):
        fake.script(Say(("one",)), Stall())
        async with server.connect(abandoned=True) as first, server.connect() as second:
            await first.create(**ASK)
            await first.until("response.output_text.delta")
            refused = await second.error(**ASK)
            assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
            assert refused["error"]["headers"] == {"retry-after": "1"}
            status, _ = await server.post(**ASK)
            assert status == 429


@EVERY
async def test_each_chain_has_its_own_affinity_key(kind: str) -> None:
    async with running(kind, affinity="x-session-id;x-route") as (fake, server):
        async with server.connect() as socket:
            first = await socket.response(**ASK)
            await socket.response(input="more", previous_response_id=first["id"], store=False)
            await socket.response(**ASK)
            await socket.response(**ASK, prompt_cache_key="k")
            await socket.response(**ASK, prompt_cache_key="k")
        keys = [headers["x-session-id"] for headers in fake.headers]
        assert keys == [headers["x-route"] for headers in fake.headers]
        assert keys[0] == keys[1] != keys[2]
        assert keys[3] == keys[4] not in (keys[0], keys[2])


@EVERY
async def test_a_slow_reader_slows_the_engine_down_and_loses_nothing(kind: str) -> None:
    # Few words, and long ones: one of the engines repeats its whole text with every word.
    words = tuple(f"w{number} " + "x" * 10_000 for number in range(20))
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Say(words), Stop())
        await socket.create(**ASK)
        await socket.until("response.created")
        await asyncio.sleep(0)
        events = await socket.until("response.completed")
        assert text_of(events[-1]["response"]) == "".join(words)


@EVERY
async def test_a_long_context_is_replaced_by_a_summary(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        for text in ("Hello you", "they said hello", "Hello again", "Bye"):
            fake.script(Say((text,)), Stop())
        first = await socket.response(input="a word that is gone afterwards", store=False)
        asked = {"previous_response_id": first["id"], "store": False}
        managed = [{"type": "compaction", "compact_threshold": 20}]
        second = await socket.response(input="hi", context_management=managed, **asked)
        assert [item["type"] for item in second["output"]] == ["compaction", "message"]
        assert text_of(second) == "Hello again"
        last = await socket.response(input="bye", previous_response_id=second["id"], store=False)
        assert text_of(last) == "Bye"
        again = await socket.response(input=[*second["output"], user("bye")], store=False)
        assert again["status"] == "completed"
    whole = json.dumps(fake.requests[-1])
    assert "encrypted_content" not in whole
    if kind in ("chat", "responses-sse", "responses-ws"):
        assert "they said hello" in whole
        assert "a word that is gone" not in whole


def user(text: str) -> dict[str, str]:
    return {"type": "message", "role": "user", "content": text}


# What not every wire has in the same form.

SEARCH = {"type": "tool_search", "execution": "client"}
LATER = {**WEATHER, "defer_loading": True}
DIGITS = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
DIAL = {"type": "custom", "name": "dial", "format": DIGITS}


@EVERY
async def test_searched_tools_are_found_and_called(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        create = {"tools": [SEARCH, LATER], "store": False}
        fake.script(Call("tool_search", '{"query": "weather"}', "tool_search"), Stop())
        first = await socket.response(input="hello", **create)
        (search,) = first["output"]
        assert (search["type"], search["execution"]) == ("tool_search_call", "client")
        assert search["arguments"] == {"query": "weather"}
        found = {"type": "tool_search_output", "call_id": search["call_id"], "tools": [LATER]}
        fake.script(Call("get_weather", ARGUMENTS), Stop())
        second = await socket.response(input=[found], previous_response_id=first["id"], **create)
        assert [(item["type"], item["name"]) for item in second["output"]] == [
            ("function_call", "get_weather")
        ]


@EVERY
async def test_a_deferred_tool_is_not_called_before_it_was_found(kind: str) -> None:
    async with running(kind) as (_, server), server.connect() as socket:
        refused = await socket.error(
            **ASK, tools=[SEARCH, LATER], tool_choice={"type": "function", "name": "get_weather"}
        )
        assert refused["error"]["param"] == "tool_choice"


@EVERY
async def test_max_tool_calls_does_not_limit_the_calls_that_a_client_answers(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Call("get_weather", ARGUMENTS), Call("get_weather", "{}"), Stop())
        first = await socket.response(**ASK, tools=[WEATHER], max_tool_calls=1)
        assert [item["arguments"] for item in first["output"]] == [ARGUMENTS, "{}"]
        outputs = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
            for call in first["output"]
        ]
        fake.script(Say(("It is sunny.",)), Stop())
        second = await socket.response(
            input=outputs,
            previous_response_id=first["id"],
            tools=[WEATHER],
            store=False,
        )
        assert text_of(second) == "It is sunny."


@EVERY
@pytest.mark.parametrize(("text", "status"), [("112", "completed"), ("call me", "failed")])
async def test_the_input_of_a_custom_tool_fits_or_the_response_fails(
    kind: str, text: str, status: str
) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Call("dial", json.dumps({"input": text}), "custom"), Stop())
        events = await socket.turn(**ASK, tools=[DIAL])
        response = events[-1]["response"]
        assert response["status"] == status
        (item,) = response["output"]
        assert (item["type"], item["input"]) == ("custom_tool_call", text if status == "completed" else "")
        if status == "failed":
            assert response["error"]["code"] == "server_error"
            assert "grammar of the tool 'dial'" in response["error"]["message"]


@EVERY
async def test_a_refusal_of_the_model_is_its_own_part(kind: str) -> None:
    async with running(kind) as (fake, server), server.connect() as socket:
        if not fake.can_deny:
            pytest.skip("on this wire a refusal is text like any other")
        fake.script(Deny(("I will", " not.")), Stop())
        events = await socket.turn(**ASK)
        deltas = [event["delta"] for event in events if event["type"] == "response.refusal.delta"]
        assert deltas == ["I will", " not."]
        (item,) = events[-1]["response"]["output"]
        assert item["content"] == [{"type": "refusal", "refusal": "I will not."}]


@EVERY
async def test_logprobs_are_sent_with_the_text(kind: str) -> None:
    async with (
        running(kind, **FAKES[kind]().with_logprobs) as (fake, server),
        server.connect() as socket,
    ):
        fake.script(Say(("Yes",)), Stop(output_tokens=1))
        events = await socket.turn(**ASK, top_logprobs=1, include=["message.output_text.logprobs"])
        (delta,) = (event for event in events if event["type"] == "response.output_text.delta")
        (part,) = events[-1]["response"]["output"][0]["content"]
        for logprobs in (delta["logprobs"], part["logprobs"]):
            (likely,) = logprobs
            assert likely["logprob"] < 0
            assert len(likely["top_logprobs"]) == 1


@pytest.mark.parametrize("kind", [kind for kind in FAKES if kind.startswith("responses")])
async def test_annotations_are_passed_on(kind: str) -> None:
    cited = {
        "type": "url_citation",
        "url": "https://a.example",
        "title": "A",
        "start_index": 0,
        "end_index": 3,
    }
    async with running(kind) as (fake, server), server.connect() as socket:
        fake.script(Say(("Yes", "."), (cited,)), Stop())
        events = await socket.turn(**ASK)
        (added,) = (event for event in events if event["type"] == "response.output_text.annotation.added")
        assert added["annotation"] == cited
        (part,) = events[-1]["response"]["output"][0]["content"]
        assert (part["text"], part["annotations"]) == ("Yes.", [cited])
        fake.script(Say(("So it is.",)), Stop())
        again = {"previous_response_id": events[-1]["response"]["id"], "store": False}
        assert text_of(await socket.response(input="Sure?", **again)) == "So it is."


@EVERY
async def test_biases_of_tokens_reach_the_server_or_are_refused(kind: str) -> None:
    async with running(kind) as (fake, server):
        if kind.startswith("responses"):
            status, error = await Chat(server).error(logit_bias={"5": -100})
            assert (status, error["code"]) == (400, "unsupported_parameter")
            assert error["param"] == "logit_bias"
            return
        fake.script(Say(("Hello",)), Stop())
        await Chat(server).complete(logit_bias={"5": -100, "7": 1.5})
        body = fake.requests[-1]
        sent = body.get("sampling_params", body)["logit_bias"]
        assert sent == {"5": -100, "7": 1.5}
        if kind == "sglang":  # a server that would index beyond its logits
            status, error = await Chat(server).error(logit_bias={"2000000000": 1})
            assert (status, error["param"]) == (400, "logit_bias")
