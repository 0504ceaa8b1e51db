"""Graceful stop: no new work, running responses finish, clients get an error and a close."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest

from slipring.core.limits import Limits
from slipring.server.access.auth import Caller
from tests.harness import TERMINAL, Performance, PuppetEngine, Running, Socket, serve
from tests.server.raw import connection_of, open_raw, open_tcp, until


@asynccontextmanager
async def stopping(server: Running) -> AsyncIterator[asyncio.Task[None]]:
    """Start to stop a server; it must have stopped by the end of the block."""
    task = asyncio.create_task(server.server.stop())
    await until(lambda: server.service.draining)
    yield task
    await asyncio.wait_for(task, 300)


async def start_response(socket: Socket, engine: PuppetEngine, lane: str | None = None) -> Performance:
    await socket.create(input="hello", stream_id=lane)
    performance = await engine.next()
    await socket.until("response.in_progress", lane=lane)
    return performance


async def assert_closed_with_notice(socket: Socket) -> None:
    notice = await socket.receive()
    assert (notice["type"], notice["status"]) == ("error", 503)
    assert notice["error"]["code"] == "server_shutting_down"
    assert "stream_id" not in notice
    assert await socket.closed() == 1001


async def test_an_idle_socket_gets_an_error_and_is_closed() -> None:
    async with serve() as server, server.connect() as one, server.connect() as two:
        await two.response(input="hello")
        async with stopping(server):
            for socket in (one, two):
                await assert_closed_with_notice(socket)
        assert server.service.clients == set()


async def test_a_server_without_clients_stops_at_once() -> None:
    async with serve() as server:
        await server.server.stop()


async def test_a_running_response_finishes_first() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        performance = await start_response(socket, engine)
        async with stopping(server) as stop:
            performance.say("to the end")
            await socket.until("response.output_text.delta")
            assert not stop.done()
            performance.finish()
            completed = (await socket.until(*TERMINAL))[-1]
            assert completed["type"] == "response.completed"
            assert completed["response"]["output"][0]["content"][0]["text"] == "to the end"
            await assert_closed_with_notice(socket)


async def test_waiting_and_late_turns_are_rejected_on_their_lanes() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        performance = await start_response(socket, engine, "a")
        await socket.create(input="waits", stream_id="a")
        await socket.send(type="unknown, to get an error once the frames before were read")
        await socket.until("error")
        async with stopping(server):
            await socket.create(input="late", stream_id="b")
            late = await socket.receive()
            assert (late["error"]["code"], late["stream_id"]) == ("server_shutting_down", "b")
            performance.finish()
            ended, waited = await socket.receive(), await socket.receive()
            assert (ended["type"], ended["stream_id"]) == ("response.completed", "a")
            assert (waited["error"]["code"], waited["stream_id"]) == ("server_shutting_down", "a")
            await assert_closed_with_notice(socket)


async def test_a_response_that_exceeds_the_deadline_fails() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(drain_timeout_s=0)) as server, server.connect() as socket:
        performance = await start_response(socket, engine)
        performance.say("half an ans")
        await socket.until("response.output_text.delta")
        async with stopping(server):
            await until(lambda: not server.server._runner.sites)
            connection_of(server).tick()
            failed = (await socket.until(*TERMINAL))[-1]
            assert failed["type"] == "response.failed"
            assert failed["response"]["error"]["code"] == "server_error"
            assert failed["response"]["output"][0]["status"] == "incomplete"
            await assert_closed_with_notice(socket)
            await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_new_connections_are_refused() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        performance = await start_response(socket, engine)
        async with stopping(server):
            await until(lambda: not server.server._runner.sites)
            with pytest.raises(aiohttp.ClientConnectorError):
                async with aiohttp.ClientSession() as http, http.get(f"{server.url}/models"):
                    pass
            performance.finish()
            await socket.until(*TERMINAL)
            await assert_closed_with_notice(socket)


async def test_a_request_on_an_open_http_connection_gets_a_503() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket, open_tcp(server) as raw:
        await raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await raw.read_head()).startswith(b"HTTP/1.1 200 ")
        performance = await start_response(socket, engine)
        async with stopping(server):
            await raw.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"server_shutting_down" not in answer:
                answer += await raw.receive()
            assert b"HTTP/1.1 503 " in answer
            performance.finish()
            await socket.until(*TERMINAL)
            await assert_closed_with_notice(socket)


async def test_a_post_in_flight_finishes() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        post = asyncio.create_task(server.post(input="hello"))
        performance = await engine.next()
        async with stopping(server) as stop:
            performance.say("to the end")
            assert not stop.done()
            performance.finish()
            status, response = await post
            assert (status, response["status"]) == (200, "completed")


async def test_a_stream_in_flight_finishes() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        stream = asyncio.create_task(server.stream(input="hello"))
        performance = await engine.next()
        async with stopping(server) as stop:
            performance.say("to the end")
            assert not stop.done()
            performance.finish()
            assert (await stream)[-1]["type"] == "response.completed"


async def test_a_request_that_exceeds_the_deadline_fails() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(drain_timeout_s=0)) as server:
        post = asyncio.create_task(server.post(input="hello"))
        first = await engine.next()
        stream = asyncio.create_task(server.stream(input="hello"))
        second = await engine.next()
        second.say("half an ans")
        async with stopping(server):
            await until(lambda: not server.server._runner.sites)
            for client in list(server.service.clients):
                client.tick()
            status, body = await post
            assert (status, body["error"]["code"]) == (500, "server_error")
            failed = (await stream)[-1]
            assert failed["type"] == "response.failed"
            for performance in (first, second):
                await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_a_client_that_does_not_answer_the_close_does_not_delay_the_stop() -> None:
    async with serve() as server, open_raw(server) as raw, open_raw(server), stopping(server):
        assert (await raw.receive_event())["error"]["code"] == "server_shutting_down"


async def test_a_client_that_disconnects_ends_the_wait() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect(abandoned=True) as socket:
        performance = await start_response(socket, engine)
        async with stopping(server):
            await socket.ws.close()
            await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_the_engine_is_closed_after_the_last_response() -> None:
    order = []

    class RecordingEngine(PuppetEngine):
        async def close(self) -> None:
            order.append("closed")

    engine = RecordingEngine()
    async with serve(engine) as server, server.connect() as socket:
        performance = await start_response(socket, engine)
        async with stopping(server):
            order.append("finished")
            performance.finish()
            await socket.until(*TERMINAL)
            await assert_closed_with_notice(socket)
        assert order == ["finished", "closed"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_whose_body_arrives_during_the_stop_is_rejected(stream: bool) -> None:
    body = json.dumps({"input": "hello", "stream": stream}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with serve() as server, open_tcp(server) as raw:
        admitted = asyncio.Event()
        admit = server.service.keyring.admit

        async def watched_admit(headers: Mapping[str, str]) -> Caller:
            admitted.set()
            caller: Caller = await admit(headers)
            return caller

        server.service.keyring.admit = watched_admit
        await raw.send(head + body[:5])
        await asyncio.wait_for(admitted.wait(), 300)
        server.service.draining = True
        await raw.send(body[5:])
        answer = await raw.read_head()
        assert answer.startswith(b"HTTP/1.1 503 ")
        server.service.draining = False
