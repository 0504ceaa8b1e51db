"""Outputs of running tools over real sockets: what is read ahead, and what ends it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slipring.core.generation import Emit, Job, Prefill
from slipring.engines.simulated.engine import SimulatedEngine
from slipring.engines.simulated.options import read_options
from tests.harness import TERMINAL, WEATHER, Socket, serve
from tests.server.issuing import issue, serve_stored
from tests.server.raw import until

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
HEADER = {"OpenAI-Beta": "slipring_tool_output=v1, slipring_rollout=v1"}
ASK: Json = {"input": "How is the weather?", "tools": [WEATHER], "store": False}
LONG = "It is sunny in one more city.\n" * 20


class Reader(SimulatedEngine):
    """Calls a tool once. Counts the tokens of its prefills, or holds them until they are cancelled."""

    def __init__(self, *, holds: bool = False) -> None:
        super().__init__(read_options("tokens_per_s=0,output_tokens=4,tool_calls=1"))
        self.read_tokens = 0
        self.running = 0
        self.recognised = 0
        """Jobs that continue the context of another client."""
        self._holds = holds

    async def generate(self, job: Job, emit: Emit) -> None:
        self.recognised += job.recognised
        await super().generate(job, emit)

    async def prefill(self, prefill: Prefill) -> int:
        self.running += 1
        try:
            if self._holds:
                await asyncio.Event().wait()
            self.read_tokens = await super().prefill(prefill)
        finally:
            self.running -= 1
        return self.read_tokens


def target(response: Json) -> Json:
    (call,) = response["output"]
    return {"response_id": response["id"], "call_id": call["call_id"]}


def output(call_id: str, text: str = LONG) -> list[Json]:
    return [{"type": "function_call_output", "call_id": call_id, "output": text}]


async def called(socket: Socket) -> Json:
    """A call that waits for its output: what a piece of it names."""
    return target(await socket.response(**ASK))


async def answered(engine: Reader, streamed: str) -> Json:
    """An answer to a tool's output of which this part was streamed."""
    async with serve(engine) as server, server.connect(headers=HEADER) as socket:
        first = await called(socket)
        if streamed:
            await socket.send(type="response.tool_output.delta", **first, delta=streamed)
            await until(lambda: engine.read_tokens > 0 and not engine.running)
        ask = {**ASK, "input": output(first["call_id"])}
        return await socket.response(**ask, previous_response_id=first["response_id"])


async def test_an_output_that_was_streamed_counts_as_cached() -> None:
    engine = Reader()
    read, unread = await answered(engine, LONG[:300]), await answered(Reader(), "")
    assert read["usage"]["input_tokens"] == unread["usage"]["input_tokens"]
    assert read["output"][0]["content"] == unread["output"][0]["content"]
    cached = unread["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached < engine.read_tokens == read["usage"]["input_tokens_details"]["cached_tokens"]


async def test_an_output_may_differ_from_what_was_streamed() -> None:
    engine = Reader()
    async with serve(engine) as server, server.connect(headers=HEADER) as socket:
        first = await called(socket)
        await socket.send(type="response.tool_output.delta", **first, delta=LONG)
        await until(lambda: engine.read_tokens > 0 and not engine.running)
        ask = {**ASK, "input": output(first["call_id"], "It rains.")}
        answer = await socket.response(**ask, previous_response_id=first["response_id"])
    assert answer["status"] == "completed"
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] < engine.read_tokens


@pytest.mark.parametrize("tokens_per_day", [1, 10**6])
async def test_nothing_is_read_ahead_beyond_a_quota(tmp_path: Path, tokens_per_day: int) -> None:
    engine = Reader()
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server, tokens_per_day=tokens_per_day)
        async with server.connect(key=key, headers=HEADER) as socket:
            first = await called(socket)
            await socket.send(type="response.tool_output.delta", **first, delta=LONG)
            await socket.send(type="response.tool_output.done", **{**first, "call_id": "call_unknown"})
            await socket.until("response.tool_output.failed")
            await until(lambda: not server.service.prefills.running)
    assert (engine.read_tokens > 0) is (tokens_per_day > 1)


async def test_a_rollout_reads_ahead_while_it_waits() -> None:
    engine = Reader()
    async with serve(engine) as server, server.connect(headers=HEADER) as socket:
        await socket.create(**ASK, rollout=True)
        done = (await socket.until("response.done"))[-1]
        call = {"response_id": done["response_id"], "call_id": done["required_input"][0]["call_id"]}
        await socket.send(type="response.tool_output.delta", **call, delta=LONG)
        await socket.send(type="response.tool_output.done", **call)
        await until(lambda: engine.read_tokens > 0 and not engine.running)
        append = output(call["call_id"])
        await socket.send(type="response.append", response_id=done["response_id"], input=append)
        response = (await socket.until(*TERMINAL))[-1]["response"]
    assert response["usage"]["input_tokens_details"]["cached_tokens"] >= engine.read_tokens


async def test_a_continuation_ends_the_prefill() -> None:
    engine = Reader(holds=True)
    async with serve(engine) as server, server.connect(headers=HEADER) as socket:
        first = await called(socket)
        await socket.send(type="response.tool_output.delta", **first, delta=LONG)
        await until(lambda: engine.running == 1)
        ask = {**ASK, "input": output(first["call_id"])}
        answer = await socket.response(**ask, previous_response_id=first["response_id"])
        assert answer["status"] == "completed"
        assert engine.running == 0


async def test_the_same_question_of_another_client_leaves_the_prefill_alone() -> None:
    engine = Reader(holds=True)
    async with serve(engine) as server, server.connect(headers=HEADER) as socket:
        await socket.send(type="response.tool_output.delta", **await called(socket), delta=LONG)
        await until(lambda: engine.running == 1)
        async with server.connect() as other:
            await called(other)  # its context is recognised as that of the first
        assert engine.recognised == 1
        assert engine.running == 1


async def test_a_disconnect_ends_the_prefill() -> None:
    engine = Reader(holds=True)
    async with serve(engine) as server:
        async with server.connect(headers=HEADER) as socket:
            await socket.send(type="response.tool_output.delta", **await called(socket), delta=LONG)
            await until(lambda: engine.running == 1)
        await until(lambda: engine.running == 0)


async def test_a_server_that_stops_ends_the_prefill() -> None:
    engine = Reader(holds=True)
    async with serve(engine) as server, server.connect(headers=HEADER, abandoned=True) as socket:
        await socket.send(type="response.tool_output.delta", **await called(socket), delta=LONG)
        await until(lambda: engine.running == 1)
        await server.server.stop()
        assert engine.running == 0


@pytest.mark.parametrize("kind", ["response.tool_output.delta", "response.tool_output.done"])
async def test_pieces_need_their_header(kind: str) -> None:
    async with serve(Reader()) as server, server.connect() as socket:
        await socket.send(type=kind, response_id="resp_1", call_id="call_1", delta="It")
        error = (await socket.until("error"))[-1]["error"]
    assert error["code"] == "unsupported_event_type"
    assert "OpenAI-Beta: slipring_tool_output=v1" in error["message"]


async def test_a_piece_of_a_call_that_is_answered_is_refused() -> None:
    async with serve(Reader()) as server, server.connect(headers=HEADER) as socket:
        first = await called(socket)
        ask = {**ASK, "input": output(first["call_id"])}
        await socket.response(**ask, previous_response_id=first["response_id"])
        await socket.send(type="response.tool_output.delta", **first, delta="late")
        failed = await socket.receive()
    assert failed["type"] == "response.tool_output.failed"
    assert failed["error"]["code"] == "call_not_open"
    assert failed.items() >= first.items()
