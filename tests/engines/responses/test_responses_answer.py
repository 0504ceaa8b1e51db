"""Translation of events into deltas, for upstreams that differ in what they send."""

import json
from typing import Any

import pytest
from msgspec import Raw

from slipring.base.errors import ApiError, InvalidRequest, RateLimited, ServerError
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Capabilities,
    Delta,
    Finished,
    Hosting,
    Job,
    Model,
    RefusalText,
    Settings,
    Text,
    Thought,
    ThoughtSummary,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.engines.remote.retries_and_breaker import Retryable
from slipring.engines.responses.answer import ResponsesAnswer
from slipring.engines.responses.events import decode_event
from slipring.engines.responses.reported_errors import ContextLost, LanesUnsupported
from slipring.protocol import events, wire
from slipring.protocol.items.items import Item
from slipring.protocol.responses import Logprob, TopLogprob
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset

MESSAGE = {"type": "message", "id": "m"}
TOOLS = Toolset.read(
    wire.raw(
        [
            *({"type": "function", "name": name} for name in "abf"),
            {
                **{"type": "namespace", "name": "n", "description": "d"},
                "tools": [{"type": "custom", "name": "sh"}],
            },
            {"type": "tool_search", "execution": "client"},
        ]
    )
)
DONE = Finished("stop", input_tokens=0, cached_tokens=0, output_tokens=0)


def answer(hosting: Hosting = "here") -> ResponsesAnswer:
    model = Model(name="m", owner="o", capabilities=Capabilities(), hosted_tools=hosting)
    return ResponsesAnswer(Job("r", "t", model, Head(None, TOOLS), None, (), Offer(), Settings()))


def deltas_of(answer: ResponsesAnswer, *events: dict[str, Any]) -> list[Delta]:
    deltas: list[Delta] = []
    for event in events:
        deltas += answer.take(decode_event(json.dumps(event)))
    return deltas


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def call(index: int, name: str, **fields: Any) -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc{index}", "call_id": f"c{index}", "name": name, **fields}
    return {"output_index": index, "item": item}


def test_items_streamed_in_parallel_are_emitted_one_after_the_other() -> None:
    answered = answer()
    assert deltas_of(
        answered,
        event("output_item.added", **call(0, "a")),
        event("output_item.added", **call(1, "b")),
        event("function_call_arguments.delta", output_index=1, delta="{1"),
        event("function_call_arguments.delta", output_index=0, delta="{0"),
    ) == [CallStarted("function", "a"), CallArguments("{0")]
    assert deltas_of(
        answered,
        event("function_call_arguments.delta", output_index=1, delta="}"),
        event("output_item.done", **call(0, "a", arguments="{0")),
    ) == [CallEnded(), CallStarted("function", "b"), CallArguments("{1"), CallArguments("}")]
    assert deltas_of(answered, event("completed", response={"id": "up"})) == [CallEnded(), DONE]
    assert (answered.call_ids, answered.upstream_id) == (["c0", "c1"], "up")


def test_a_call_that_the_upstream_did_not_complete_is_incomplete() -> None:
    cut = {"response": {"id": "up", "incomplete_details": {"reason": "max_output_tokens"}}}
    done = call(0, "a", arguments="{")
    done["item"]["status"] = "incomplete"
    begun = [
        event("output_item.added", **call(0, "a")),
        event("function_call_arguments.delta", output_index=0, delta="{"),
    ]
    for end in ([event("output_item.done", **done)], []):
        *deltas, finished = deltas_of(answer(), *begun, *end, event("incomplete", **cut))
        assert deltas == [CallStarted("function", "a"), CallArguments("{"), CallEnded(False)]
        assert isinstance(finished, Finished)


def test_parts_that_come_only_in_done_events_are_emitted_then() -> None:
    parts = [{"type": "output_text", "text": "hi"}, {"type": "refusal", "refusal": "no"}]
    custom = {
        "type": "custom_tool_call",
        "id": "c",
        "call_id": "x",
        "name": "sh",
        "input": "ls",
        "namespace": "n",
    }
    thought = {
        **{"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "hm"}]},
        "summary": [{"type": "summary_text", "text": "s"}],
    }
    assert deltas_of(
        answer(),
        event("output_item.done", output_index=0, item=thought),
        event("output_item.done", output_index=1, item={**MESSAGE, "content": parts}),
        event("output_item.done", output_index=2, item=call(2, "f", arguments="{}")["item"]),
        event("output_item.done", output_index=3, item=custom),
        event("completed", response={}),
    ) == [
        ThoughtSummary("s"),
        Thought("hm"),
        Text("hi"),
        RefusalText("no"),
        CallStarted("function", "f"),
        CallArguments("{}"),
        CallEnded(),
        CallStarted("custom", "sh", "n"),
        CallArguments("ls"),
        CallEnded(),
        DONE,
    ]


def test_texts_without_deltas_are_emitted_once() -> None:
    place = {"output_index": 0, "content_index": 0}
    assert deltas_of(
        answer(),
        event("output_item.added", output_index=0, item=MESSAGE),
        event("output_text.done", **place, text="hi"),
        event(
            "output_item.done",
            output_index=0,
            item={**MESSAGE, "content": [{"type": "output_text", "text": "hi"}]},
        ),
        event("completed", response={}),
    ) == [Text("hi"), DONE]


def test_items_that_come_only_in_the_last_event_are_emitted() -> None:
    item = {**MESSAGE, "content": [{"type": "output_text", "text": "hi"}]}
    assert deltas_of(answer(), event("completed", response={"output": [item]})) == [Text("hi"), DONE]


def test_events_without_indexes_are_matched_by_item_id() -> None:
    first, second = call(0, "a")["item"], call(1, "b")["item"]
    assert deltas_of(
        answer(),
        event("output_item.added", item=MESSAGE),
        event("output_text.delta", item_id="m", delta="hi"),
        event("output_item.done", item=MESSAGE),
        event("output_item.added", item=first),
        event("output_item.added", item=second),
        event("function_call_arguments.delta", item_id="fc1", delta="2"),
        event("function_call_arguments.delta", item_id="fc0", delta="1"),
        event("completed", response={}),
    ) == [
        Text("hi"),
        CallStarted("function", "a"),
        CallArguments("1"),
        CallEnded(),
        CallStarted("function", "b"),
        CallArguments("2"),
        CallEnded(),
        DONE,
    ]


def test_summaries_of_consecutive_reasoning_items_are_parts_of_one_item() -> None:
    def reasoning(index: int, *texts: str) -> list[dict[str, Any]]:
        item = {"type": "reasoning", "id": f"r{index}", "summary": []}
        streamed = [
            event("reasoning_summary_text.delta", output_index=index, summary_index=part, delta=text)
            for part, text in enumerate(texts)
        ]
        added = event("output_item.added", output_index=index, item=item)
        return [added, *streamed, event("output_item.done", output_index=index, item=item)]

    assert deltas_of(answer(), *reasoning(0, "a", "b"), *reasoning(1, "c")) == [
        ThoughtSummary("a", 0),
        ThoughtSummary("b", 1),
        ThoughtSummary("c", 2),
    ]


def test_logprobs_without_bytes_get_those_of_their_text() -> None:
    likely = {"token": "é", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -1}]}
    place = {"output_index": 0, "item_id": "m", "content_index": 0}
    assert deltas_of(answer(), event("output_text.delta", **place, delta="é", logprobs=[likely])) == [
        Text("é", [Logprob("é", -0.5, [195, 169], [TopLogprob("a", -1.0, [97])])])
    ]


def test_usage_and_finish_reasons_are_translated() -> None:
    usage = {
        **{"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 6},
        **{"output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 15},
    }
    for reason, expected in {
        "max_output_tokens": "max_output_tokens",
        "content_filter": "content_filter",
        "steered": "max_output_tokens",
    }.items():
        response = {"id": "u", "usage": usage, "incomplete_details": {"reason": reason}}
        assert deltas_of(answer(), event("incomplete", response=response)) == [Finished(expected, 9, 4, 6, 2)]  # type: ignore[arg-type]


def test_items_without_a_delta_are_skipped() -> None:
    search = {"type": "web_search_call", "id": "ws"}
    assert not deltas_of(
        answer(),
        event("output_item.added", output_index=0, item=search),
        event("web_search_call.searching", output_index=0, item_id="ws"),
        event("output_item.done", output_index=0, item=search),
        {"type": "codex.rate_limits", "delta": {}},
        {"type": ""},
    )
    request = {"type": "mcp_approval_request", "id": "a"}
    with pytest.raises(ServerError, match="approval"):
        deltas_of(answer(), event("output_item.added", output_index=0, item=request))


def passed(item: dict[str, Any]) -> Item:
    return Item(item["type"], json.dumps(item).encode(), item.get("id"), item.get("call_id"))


@pytest.mark.parametrize("hosting", ["here", "upstream", "refuse"])
def test_calls_of_the_clients_own_tools_pass_through(hosting: Hosting) -> None:
    shell = {"type": "shell_call", "id": "s", "call_id": "c", "action": {"commands": ["ls"]}}
    answered = answer(hosting)
    assert deltas_of(
        answered,
        event("output_item.added", output_index=0, item={**shell, "status": "in_progress"}),
        event("output_item.done", output_index=0, item=shell),
    ) == [
        UpstreamItemStarted(0, passed({**shell, "status": "in_progress"})),
        UpstreamItemEnded(0, passed(shell)),
    ]
    assert answered.call_ids == []


MCP_CALL = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "arguments": "{}"}


def test_an_item_that_passes_through_keeps_no_other_waiting() -> None:
    begun, whole = {**MCP_CALL, "arguments": ""}, {**MCP_CALL, "output": "3"}
    assert deltas_of(
        answer("upstream"),
        event("output_item.added", output_index=0, item=MESSAGE),
        event("output_item.added", output_index=1, item=begun),
        event("mcp_call_arguments.delta", output_index=1, item_id="mcp_1", delta="{}"),
        event("output_text.delta", output_index=0, delta="a"),
        event("output_item.done", output_index=0, item=MESSAGE),
        event("mcp_call_arguments.done", output_index=1, item_id="mcp_1", arguments="{}"),
        event("output_item.added", output_index=2, item={**MESSAGE, "id": "n"}),
        event("output_text.delta", output_index=2, delta="b"),
        event("mcp_call.completed", output_index=1, item_id="mcp_1"),
        event("output_item.done", output_index=1, item=whole),
        event("output_text.delta", output_index=2, delta="c"),
    ) == [
        Text("a"),
        UpstreamItemStarted(1, passed(begun)),
        UpstreamItemEvent(1, events.McpCallArgumentsDelta, {"delta": "{}"}),
        UpstreamItemEvent(1, events.McpCallArgumentsDone, {"arguments": "{}"}),
        Text("b"),
        UpstreamItemEvent(1, events.McpCallCompleted, {}),
        UpstreamItemEnded(1, passed(whole)),
        Text("c"),
    ]


def test_an_item_that_is_valid_only_at_its_end_begins_there() -> None:
    assert deltas_of(
        answer("upstream"),
        event("output_item.added", output_index=0, item={"type": "mcp_call", "id": "mcp_1"}),
        event("mcp_call.in_progress", output_index=0, item_id="mcp_1"),
        event("output_item.added", output_index=1, item=MESSAGE),
        event("output_text.delta", output_index=1, delta="b"),
        event("output_item.done", output_index=0, item=MCP_CALL),
    ) == [UpstreamItemStarted(0, passed(MCP_CALL)), UpstreamItemEnded(0, passed(MCP_CALL)), Text("b")]
    with pytest.raises(ServerError, match="cannot be read"):
        deltas_of(answer("upstream"), event("output_item.done", output_index=0, item={"type": "mcp_call"}))


def test_malformed_events_about_items_that_pass_through_are_skipped() -> None:
    item = {"type": "code_interpreter_call", "id": "ci", "code": None}
    assert deltas_of(
        answer("upstream"),
        event("code_interpreter_call.in_progress", output_index=0, item_id="ci"),
        event("output_item.added", output_index=0, item=item),
        event("code_interpreter_call_code.done", output_index=0, item_id="ci", code=7),
        event("code_interpreter_call_code.delta", output_index=0, item_id="ci", delta=7),
        event("code_interpreter_call_code.done", output_index=0, item_id="ci", code="1+1"),
    ) == [
        UpstreamItemStarted(0, passed(item)),
        UpstreamItemEvent(0, events.CodeInterpreterCallCodeDone, {"code": "1+1"}),
    ]


def test_items_that_pass_through_in_the_last_event_alone() -> None:
    response = {"id": "u", "output": [MCP_CALL]}
    assert deltas_of(answer("upstream"), event("completed", response=response)) == [
        UpstreamItemStarted(0, passed(MCP_CALL)),
        UpstreamItemEnded(0, passed(MCP_CALL)),
        DONE,
    ]


@pytest.mark.parametrize(
    ("reported", "fault", "status"),
    [
        (
            {"type": "error", "status": 400, "error": {"code": "previous_response_not_found"}},
            ContextLost,
            503,
        ),
        ({"type": "error", "error": {"code": "websocket_connection_limit_reached"}}, ContextLost, 503),
        (
            {"type": "error", "status": 400, "error": {"code": "websocket_stream_limit_reached"}},
            ContextLost,
            503,
        ),
        (
            {"type": "error", "status": 400, "error": {"code": "x", "param": "stream_id"}},
            LanesUnsupported,
            503,
        ),
        ({"type": "error", "status": 400, "error": {"code": "x", "message": "bad"}}, InvalidRequest, 400),
        ({"type": "error", "status": 422, "error": {"message": "bad"}}, InvalidRequest, 422),
        ({"type": "error", "status": 503, "error": {"code": None}}, Retryable, 503),
        ({"type": "error", "status": 401, "error": {"message": "sk-1"}}, ServerError, 500),
        (
            {"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None},
            RateLimited,
            429,
        ),
        ({"type": "error", "code": "invalid_prompt", "message": "bad", "param": None}, InvalidRequest, 400),
        ({"type": "error", "message": "?"}, Retryable, 503),
        (event("failed", response={"error": {"code": "server_error"}}), Retryable, 503),
        (event("failed", response={"error": {"code": "rate_limit_exceeded"}}), RateLimited, 429),
        (event("failed", response={"error": {"code": "context_length_exceeded"}}), InvalidRequest, 400),
        (event("failed", response={"error": None}), Retryable, 503),
        (event("output_item.added", item=7), ServerError, 500),
        ({"type": "error", "error": 7}, ServerError, 500),
    ],
)
def test_reported_failures_become_errors_for_clients(
    reported: dict[str, Any], fault: type[ApiError], status: int
) -> None:
    with pytest.raises(ApiError) as raised:
        deltas_of(answer(), reported)
    assert isinstance(raised.value, fault)
    assert isinstance(raised.value, Retryable) is issubclass(fault, Retryable)
    assert raised.value.status == status


@pytest.mark.parametrize("place", ["event", "error"])
def test_a_busy_upstreams_retry_after_is_kept(place: str) -> None:
    headers = {"headers": {"retry-after": 7}}
    error = {"code": "rate_limit_exceeded", "message": "slow", **(headers if place == "error" else {})}
    reported = {"type": "error", "status": 429, "error": error, **(headers if place == "event" else {})}
    with pytest.raises(RateLimited) as raised:
        deltas_of(answer(), reported)
    assert (raised.value.retry_after_s, raised.value.message) == (7.0, "slow")


@pytest.mark.parametrize("indexes", [[1, 1], [1, 2]])
def test_indexes_that_do_not_restart_per_item_duplicate_nothing(indexes: list[int]) -> None:
    place = {"output_index": 1, "item_id": "m"}
    pieces = [
        event("output_text.delta", **place, content_index=index, delta=delta)
        for index, delta in zip(indexes, ("Hel", "lo"), strict=True)
    ]
    answered = deltas_of(
        answer(),
        event("output_item.added", output_index=0, item={"type": "reasoning", "id": "r"}),
        event("reasoning_text.delta", output_index=0, item_id="r", content_index=0, delta="hm"),
        event("output_item.done", output_index=0, item={"type": "reasoning", "id": "r"}),
        event("output_item.added", output_index=1, item=MESSAGE),
        *pieces,
        event("output_text.done", **place, content_index=indexes[-1], text="Hello"),
        event(
            "output_item.done",
            output_index=1,
            item={**MESSAGE, "content": [{"type": "output_text", "text": "Hello"}]},
        ),
    )
    assert "".join(delta.text for delta in answered if isinstance(delta, Text)) == "Hello"


def test_the_call_id_of_the_done_event_is_final() -> None:
    answered = answer()
    added, done = call(0, "f"), call(0, "f", arguments="{}")
    del added["item"]["call_id"]
    done["item"]["call_id"] = "c9"
    deltas_of(answered, event("output_item.added", **added), event("output_item.done", **done))
    assert answered.call_ids == ["c9"]


def test_reasoning_between_two_joined_messages_is_placed_before_them() -> None:
    answered = answer()
    text = {"content": [{"type": "output_text", "text": "a"}]}
    deltas_of(
        answered,
        event("output_item.done", output_index=0, item={**MESSAGE, **text}),
        event(
            "output_item.done",
            output_index=1,
            item={"type": "reasoning", "id": "r", "encrypted_content": "x"},
        ),
        event("output_item.done", output_index=2, item={**MESSAGE, "id": "m2", **text}),
    )
    assert [place for place, _ in answered.thoughts] == [0]


def test_a_search_for_tools_is_a_call_whose_arguments_come_at_once() -> None:
    item = {"type": "tool_search_call", "id": "ts", "call_id": "c", "execution": "client", "arguments": {}}
    answered = answer()
    assert deltas_of(
        answered,
        event("output_item.added", output_index=0, item=item),
        event("output_item.done", output_index=0, item={**item, "arguments": {"query": "x"}}),
    ) == [CallStarted("tool_search", "tool_search"), CallArguments('{"query":"x"}'), CallEnded()]
    assert answered.call_ids == ["c"]


def test_a_search_that_the_upstream_runs_is_skipped() -> None:
    item: dict[str, Any] = {
        "type": "tool_search_call",
        "id": "ts",
        "call_id": None,
        "execution": "server",
        "arguments": {},
    }
    found = {"type": "tool_search_output", "id": "to", "execution": "server", "tools": []}
    answered = answer()
    assert (
        deltas_of(
            answered,
            event("output_item.done", output_index=0, item=item),
            event("output_item.done", output_index=1, item=found),
        )
        == []
    )


def test_annotations_are_emitted_once_with_or_without_events() -> None:
    source = {"type": "url_citation", "url": "https://a.example", "title": "A"}
    other = {"type": "file_citation", "file_id": "f"}
    part = {"type": "output_text", "text": "hi", "annotations": [source, other]}
    deltas = deltas_of(
        answer(),
        event("output_item.added", output_index=0, item=MESSAGE),
        event("output_text.delta", output_index=0, delta="hi"),
        event("output_text.annotation.added", output_index=0, annotation_index=0, annotation=source),
        event("output_item.done", output_index=0, item={**MESSAGE, "content": [part]}),
    )
    assert deltas[0] == Text("hi")
    emitted = [delta.annotation for delta in deltas[1:] if isinstance(delta, Annotated)]
    assert [json.loads(bytes(Raw(raw))) for raw in emitted] == [source, other]


def test_an_annotation_without_an_item_is_skipped() -> None:
    assert deltas_of(answer(), event("output_text.annotation.added", item_id="m", annotation={})) == []


@pytest.mark.parametrize(("name", "namespace"), [("ff", None), ("sh", None), ("g", "n")])
def test_a_call_of_a_tool_that_was_not_sent_says_so(name: str, namespace: str | None) -> None:
    fields = {} if namespace is None else {"namespace": namespace}
    (started, *_) = deltas_of(answer(), event("output_item.added", **call(0, name, **fields)))
    assert started == CallStarted("function", name, namespace, is_offered=False)


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}], **fields}


def test_items_whose_end_comes_in_the_last_event_alone_are_emitted() -> None:
    """Without deltas, without a done event, or without any event of their own."""
    first, second, third = said("one", id="m1"), call(1, "a", arguments="{}")["item"], said("two", id="m2")
    end = event("completed", response={"id": "up", "output": [first, second, third]})
    whole = [
        Text("one"),
        CallStarted("function", "a"),
        CallArguments("{}"),
        CallEnded(),
        Text("two"),
        DONE,
    ]
    added = event("output_item.added", output_index=0, item={"type": "message", "id": "m1", "content": []})
    assert deltas_of(answer(), added, end) == whole
    assert deltas_of(answer(), event("output_item.done", output_index=0, item=first), end) == whole
    streamed = event("output_text.delta", output_index=0, item_id="m1", delta="one")
    assert deltas_of(answer(), added, streamed, end) == whole
    unnumbered = [event("output_item.done", item={**each, "id": None}) for each in (first, second, third)]
    assert deltas_of(answer(), *unnumbered, end) == whole
    renumbered = [
        event("output_item.done", output_index=number + 5, item=each)
        for number, each in enumerate((first, second, third))
    ]
    assert deltas_of(answer(), *renumbered, end) == whole


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_completed_event_of_a_failed_response_is_a_failure(status: str) -> None:
    failed = {"id": "up", "status": status, "error": {"code": "server_error", "message": "x"}}
    with pytest.raises(ApiError):
        deltas_of(answer(), event("completed", response=failed))


def test_a_completed_event_of_an_incomplete_response_is_incomplete() -> None:
    cut = {"id": "up", "status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    [finished] = deltas_of(answer(), event("completed", response=cut))
    assert isinstance(finished, Finished)
    assert finished.reason == "content_filter"


def test_answers_that_are_not_streamed_are_read() -> None:
    whole = {"object": "response", "id": "up", "status": "completed", "output": [said("hi")]}
    assert deltas_of(answer(), whole) == [Text("hi"), DONE]
    with pytest.raises(RateLimited, match="slow"):
        deltas_of(answer(), {"error": {"message": "slow", "code": "rate_limit_exceeded"}})
    with pytest.raises(Retryable):
        deltas_of(answer(), {"error": "oops"})
    assert deltas_of(answer(), {"object": "ping"}) == []


def test_items_in_odd_forms_fail_no_answer() -> None:
    unknown = {"type": "novelty", "id": "n", "content": {"a": 1}, "name": 7}
    plain = {"type": "message", "id": "m", "content": "hi"}
    done = [event("output_item.done", output_index=n, item=item) for n, item in enumerate((unknown, plain))]
    usage = {"input_tokens": 7.0, "output_tokens": None, "input_tokens_details": []}
    deltas = deltas_of(answer(), *done, event("completed", response={"id": "up", "usage": usage}))
    assert deltas[0] == Text("hi")
    assert isinstance(deltas[-1], Finished)
    assert (deltas[-1].input_tokens, deltas[-1].output_tokens) == (7, 0)
    with pytest.raises(ServerError):
        deltas_of(answer(), event("output_item.done", output_index=0, item={"type": "message", "content": 7}))


def test_items_of_the_final_response_are_recognised_under_other_ids_and_numbers() -> None:
    done = [
        event("output_item.done", **{**call(0, "a", arguments="{}"), "output_index": 1}),
        event("output_item.done", **{**call(1, "b", arguments="{}"), "output_index": 2}),
    ]
    output = [{**call(number, name, arguments="{}")["item"], "id": name} for number, name in enumerate("ab")]
    deltas = deltas_of(answer(), *done, event("completed", response={"id": "r", "output": output}))
    assert [delta.name for delta in deltas if isinstance(delta, CallStarted)] == ["a", "b"]


def test_an_item_that_ends_twice_is_one() -> None:
    done = event("output_item.done", **call(0, "a", arguments="{}"))
    another = event("output_item.done", **call(0, "a", arguments="{}", call_id="other"))
    deltas = deltas_of(answer(), done, done, another)
    assert [type(delta) for delta in deltas].count(CallStarted) == 2


def test_fields_without_a_value_may_be_null() -> None:
    nothing = dict.fromkeys(("call_id", "name", "arguments", "input", "summary", "encrypted_content"))
    parts = [{"type": "output_text", "text": "hi", "refusal": None}, {"type": "refusal", "text": None}]
    message = {**MESSAGE, **nothing, "content": parts}
    called = {**call(1, "a", arguments="{}", input=None, content=None)["item"]}
    deltas = deltas_of(
        answer(),
        event("created", response={"id": None}),
        event("output_item.done", output_index=0, item=message),
        event("output_item.done", output_index=1, item=called),
        event("completed", response={"id": None, "output": None, "usage": None}),
    )
    assert deltas == [Text("hi"), CallStarted("function", "a"), CallArguments("{}"), CallEnded(), DONE]
