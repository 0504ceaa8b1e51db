"""Loops by the Messages and Chat Completions APIs: what the bench sends, and how it reads the answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipring.commands.bench import results
from slipring.commands.bench.client.exchange import (
    MalformedAnswer,
    RefusedByServer,
    TurnExchange,
    TurnFailed,
    encode,
)
from slipring.commands.bench.client.translated_apis import (
    ChatHistory,
    ChatReader,
    MessagesHistory,
    MessagesReader,
    returned,
)
from slipring.commands.bench.client.transports import Access, Api
from slipring.commands.bench.measure.modes import modes_of
from slipring.commands.bench.verification import Expectation, find_faults
from slipring.commands.bench.workloads.catalogue import CODING_CALLS
from slipring.commands.bench.workloads.plan import message
from slipring.commands.cli import main
from tests.commands.bench.process import FAST
from tests.harness import serve

Json = dict[str, Any]
TOOL: Json = {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}}
EVERY = pytest.mark.parametrize("api", ["messages", "chat"])


@EVERY
def test_a_loop_is_measured_and_its_history_verified(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    code = main(["bench", "--api", api, "--repeats", "1", "--json", str(path), *FAST])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    record = results.read(path)
    assert record.endpoint.api == api
    assert [mode.name for mode in record.modes] == ["http-full", "http-full-newconn"]
    for loop in record.loops:
        assert loop.faults == []
        assert loop.history_checked == "digest"
        assert len(loop.turns) == CODING_CALLS + 1
        assert all(turn.first_token_ms is not None for turn in loop.turns)
        assert all(0 <= turn.cached_tokens < turn.input_tokens for turn in loop.turns)
    assert {"messages": "by the Messages API", "chat": "by the Chat Completions API"}[api] in out


@EVERY
def test_a_load_is_generated(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--connections", "2", "--hold-s", "0.3", "--ramp-s", "0", "--think-ms", "0")
    code = main(["bench", "load", "--api", api, *few, "--slo-ttft-ms", "60000", "--slo-pace", "0", *FAST])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    assert {"messages": "by the Messages API", "chat": "by the Chat Completions API"}[api] in out


@EVERY
@pytest.mark.parametrize("command", [("bench",), ("bench", "load")])
def test_a_mode_that_an_api_does_not_have_is_refused(
    api: Api, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--api", api, "--mode", "websocket"]) == 2
    error = capsys.readouterr().err
    assert f"--mode websocket cannot be used with --api {api}" in error
    assert "http-full, http-full-newconn" in error


def test_messages_are_sent_as_agents_send_them() -> None:
    history = MessagesHistory()
    head = {"model": "m", "instructions": "Be kind.", "tools": [TOOL], "tool_choice": "required"}
    first = history.request(head, [message("look")])
    exchange = TurnExchange()
    exchange.record(
        {
            "type": "response.output_item.done",
            "item": {
                "type": "reasoning",
                "content": [{"type": "reasoning_text", "text": "hm"}],
                "encrypted_content": "seal",
            },
        },
        0,
    )
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"a": 1}'}
    exchange.record({"type": "response.output_item.done", "item": call}, 0)
    history.learn(exchange)
    fork = history.fork()
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    second = json.loads(encode(history.request(head, [output, message("go on"), message("so", "developer")])))
    assert json.loads(encode(first)) == {
        "model": "m",
        "max_tokens": 4096,
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "messages": [{"role": "user", "content": [_marked("look")]}],
    }
    assert second["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "seal"},
                {"type": "tool_use", "id": "c", "name": "look", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "x"},
                {"type": "text", "text": "go on"},
            ],
        },
        {"role": "system", "content": [_marked("so")]},
    ]
    other = fork.request({"model": "m", "max_output_tokens": 7}, [output])
    assert (len(other["messages"]), other["max_tokens"]) == (3, 7)
    assert returned([call])[0]["arguments"] == '{"a":1}'


def _marked(text: str) -> Json:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def test_chat_messages_are_sent_as_clients_send_them() -> None:
    history = ChatHistory()
    head = {"model": "m", "instructions": "Be kind.", "tools": [TOOL], "max_output_tokens": 7}
    history.request(head, [message("look")])
    reader = ChatReader()
    exchange = _read(
        reader,
        _chunk(role="assistant", content=""),
        _chunk(reasoning_content="hm"),
        _chunk(content="I "),
        _chunk(content="look."),
        _chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "look", "arguments": ""}}]),
        _chunk(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
        _chunk("tool_calls"),
        {
            "id": "chatcmpl-1",
            "choices": [],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        },
    )
    assert find_faults(exchange.events, exchange.answer, Expectation(needs="call")) is None
    history.learn(exchange)
    sent = history.request(head, [{"type": "function_call_output", "call_id": "c", "output": "x"}])
    assert sent["messages"][2:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    assert sent["max_completion_tokens"] == 7
    assert exchange.response is not None
    assert exchange.response["usage"]["input_tokens_details"] == {"cached_tokens": 4}
    assert history.fork().request(head, [])["messages"] == sent["messages"]


def _chunk(reason: str | None = None, **delta: Any) -> Json:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _read(reader: ChatReader | MessagesReader, *events: Json) -> TurnExchange:
    exchange = TurnExchange()
    for event in events:
        reader.see(event)
    reader.finish()
    for event in reader.take():
        exchange.record(event, 0)
    return exchange


def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    exchange = _read(ChatReader(), _chunk(content="so"), _chunk("length"))
    assert exchange.response is not None
    assert exchange.response["status"] == "incomplete"
    start = {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 3}}}
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so"}}
    end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}}
    exchange = _read(MessagesReader(), start, {"type": "ping"}, text, {"type": "content_block_stop"}, end)
    assert exchange.response is not None
    assert (exchange.response["status"], exchange.response["usage"]["input_tokens"]) == ("incomplete", 3)
    assert not _read(ChatReader(), _chunk(content="so")).can_continue, "the stream broke off"


@pytest.mark.parametrize("history", [MessagesHistory, ChatHistory])
def test_what_an_api_does_not_have_ends_the_loop(history: Callable[[], Any]) -> None:
    with pytest.raises(TurnFailed, match="no item of the type shell_call"):
        history().request({"model": "m"}, [{"type": "shell_call"}])
    with pytest.raises(TurnFailed, match="no tool of the type custom"):
        history().request({"model": "m", "tools": [{"type": "custom", "name": "c"}]}, [message("x")])


@EVERY
async def test_a_refusal_says_why(api: Api) -> None:
    mode = modes_of(api)["http-full"]
    async with serve() as server, mode.open(Access(server.url, "", timeout_s=60, api=api)) as transport:
        with pytest.raises(RefusedByServer, match=r"404: .*nothing") as found:
            await transport.turn(mode.context().request({"model": "nothing"}, [message("x")]))
        assert found.value.status == 404


STREAMS = {
    "messages": (
        '{"type":"error","error":{"type":"api_error","message":"broken"}}',
        '{"type":"message_start"}',
    ),
    "chat": ('{"error":{"message":"broken","code":"x"}}', '{"choices":[]}'),
}


@EVERY
async def test_errors_and_nonsense_in_a_stream_end_the_turn(api: Api) -> None:
    mode = modes_of(api)["http-full"]
    streams = iter(STREAMS[api])

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"data: {next(streams)}\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server:
        access = Access(str(server.make_url("/")), "key", timeout_s=60, api=api)
        async with mode.open(access) as transport:
            for error in (RefusedByServer, MalformedAnswer):
                with pytest.raises(error):
                    await transport.turn(mode.context().request({"model": "m"}, [message("x")]))
