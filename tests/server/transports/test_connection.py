"""WebSocket connections: pings, limits, slow readers, and every way to end."""

import asyncio
import json
from collections import Counter
from itertools import count
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from slipring.core.chain.state import ResponseState
from slipring.core.limits import Limits
from slipring.core.session.session import Session
from slipring.server.transports import websocket
from tests.harness import FAST, TERMINAL, Performance, PuppetEngine, Running, Socket, serve
from tests.server.raw import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    connection_of,
    fill,
    frame,
    gone,
    narrow,
    only_client,
    open_raw,
    open_tcp,
    stop_clock,
    until,
)

AT_ONCE = -1.0
"""A limit that is exceeded at any time."""
PLENTY = ["x" * 65536] * 40
"""More than all small buffers between an engine and a client can hold."""
SLOW = Limits(send_buffer_bytes=1024, send_timeout_s=1e-9)


async def started(socket: Socket, engine: PuppetEngine, **fields: object) -> Performance:
    """A running turn whose ``response.created`` the client has received."""
    await socket.create(input="hello", **fields)
    performance = await engine.next()
    await socket.until("response.in_progress", lane=fields.get("stream_id"))  # type: ignore[arg-type]
    return performance


async def stopped(performance: Performance) -> None:
    await asyncio.wait_for(performance.stopped.wait(), 300)


async def stalled(performance: Performance) -> int:
    """Wait until the server stops pulling the engine; returns how much is left."""
    left, quiet = performance.cues.qsize(), 0
    while left and quiet < 1000:
        await asyncio.sleep(0)
        quiet = quiet + 1 if left == performance.cues.qsize() else 0
        left = performance.cues.qsize()
    return left


async def start_slow(server: Running, raw: RawSocket, engine: PuppetEngine) -> Performance:
    """Start a turn whose events the client does not read."""
    await raw.create(input="hello")
    performance = await engine.next()
    narrow(server)
    performance.say(*PLENTY)
    assert await stalled(performance) > 0
    return performance


async def ticked_away(server: Running) -> None:
    """Call ``tick`` until no client is being served."""

    async def tick() -> None:
        while server.service.clients:
            only_client(server).tick()
            server.service.connections.tick()
            await asyncio.sleep(0)

    await asyncio.wait_for(tick(), 300)


# Pings.


async def test_a_ping_is_answered_during_a_response() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect(autoping=False) as socket:
        performance = await started(socket, engine)
        await socket.ws.ping(b"there?")
        answer = await socket.ws.receive(timeout=300)
        assert (answer.type, answer.data) == (WSMsgType.PONG, b"there?")
        performance.finish()
        await socket.until(*TERMINAL)


async def test_a_silent_client_is_pinged_and_stays_connected_if_it_answers() -> None:
    limits = Limits(ping_interval_s=AT_ONCE)
    async with serve(limits=limits) as server, server.connect(autoping=False) as socket:
        stop_clock(server)
        for _ in range(3):
            connection_of(server).tick()
            assert (await socket.ws.receive(timeout=300)).type is WSMsgType.PING
            await socket.ws.pong()
        assert (await socket.response(input="hello"))["status"] == "completed"


async def test_a_client_that_answers_no_ping_is_closed() -> None:
    limits = Limits(ping_interval_s=AT_ONCE, pong_timeout_s=AT_ONCE)
    async with serve(limits=limits) as server, server.connect(autoping=False) as socket:
        stop_clock(server)
        connection_of(server).tick()
        assert await socket.closed() == 1011
        await gone(server)


async def test_a_ping_timeout_cancels_running_responses() -> None:
    engine = PuppetEngine()
    limits = Limits(ping_interval_s=AT_ONCE, pong_timeout_s=AT_ONCE)
    async with serve(engine, limits=limits) as server:
        stop_clock(server)
        async with open_raw(server) as raw:
            await raw.create(input="hello")
            performance = await engine.next()
            connection_of(server).tick()
            assert await raw.closed() == 1011
            await stopped(performance)
            await gone(server)


async def test_pings_can_be_switched_off() -> None:
    limits = Limits(ping_interval_s=0, pong_timeout_s=AT_ONCE)
    async with serve(limits=limits) as server, server.connect(autoping=False) as socket:
        stop_clock(server)
        connection_of(server).tick()
        assert (await socket.response(input="hello"))["status"] == "completed"


# Clients that disconnect.


async def test_closing_the_socket_stops_the_engine() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            performance = await started(socket, engine)
            await socket.ws.close()
        await stopped(performance)
        await gone(server)


async def test_a_dropped_connection_stops_the_engine() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with open_raw(server) as raw:
            await raw.create(input="hello")
            performance = await engine.next()
            raw.drop()
            await stopped(performance)
        await gone(server)


async def test_a_connection_that_just_ends_stops_the_engine() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with open_raw(server) as raw:
            await raw.create(input="hello")
            performance = await engine.next()
        await stopped(performance)
        await gone(server)


async def test_a_disconnect_cancels_all_lanes_and_queued_creates() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            performances = [await started(socket, engine, stream_id=lane) for lane in ("a", "b")]
            await socket.create(input="waits", stream_id="a")
            await socket.ws.close()
        for performance in performances:
            await stopped(performance)
        await gone(server)
        async with server.connect() as socket:
            performance = await started(socket, engine)
            assert b'"hello"' in performance.job.input[0].raw
            performance.finish()
            await socket.until(*TERMINAL)


async def test_disconnecting_from_an_sse_stream_stops_the_engine() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        body = {"input": "hello", "stream": True}
        async with server.http.post(f"{server.url}/responses", json=body) as answer:
            assert await answer.content.readline() == b"event: response.created\n"
            performance = await engine.next()
            answer.close()
        await stopped(performance)
        await gone(server)


async def test_disconnecting_from_a_plain_post_stops_the_engine() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        post = asyncio.create_task(server.post(input="hello"))
        performance = await engine.next()
        post.cancel()
        await stopped(performance)
        await gone(server)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dropped_http_connection_stops_the_engine(stream: bool) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, open_tcp(server) as raw:
        body = json.dumps({"input": "hello", "stream": stream})
        head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        await raw.send((head + body).encode())
        performance = await engine.next()
        raw.drop()
        await stopped(performance)
        await gone(server)


async def test_a_disconnect_during_an_upload_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serve() as server:
        async with open_tcp(server) as raw:
            head = "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
            await raw.send(head.encode())
            raw.drop()
        assert (await server.post(input="hello"))[0] == 200
    assert not caplog.records


async def test_a_closed_connection_leaves_no_memory() -> None:
    async with serve() as server:
        scopes = [*server.service.scopes.of("default"), server.service.scopes.process]
        async with server.connect() as socket:
            first = await socket.response(input="one", store=False, stream_id="a")
            await socket.response(input="two", store=False, previous_response_id=first["id"])
            assert all(scope.used_bytes > 0 for scope in scopes)
            assert server.service.sockets == 1
        await gone(server)
        assert server.service.clients == set()
        assert server.service.sockets == 0
        assert [scope.used_bytes for scope in scopes] == [0] * len(scopes)


async def test_a_save_completes_although_the_client_disconnects() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            performance = await started(socket, engine, store=True)
            performance.finish()
            created = performance.job.response_id
            await socket.until(*TERMINAL)
        await gone(server)
        assert await server.service.store.responses.load("default", created) is not None


@pytest.mark.parametrize("ends", ["client drops", "send timeout", "shutdown"])
async def test_a_finished_response_is_saved_although_its_client_does_not_read_the_end(ends: str) -> None:
    """The last events repeat the whole text: they fill all buffers before the response is saved."""
    engine = PuppetEngine()
    limits = Limits(send_buffer_bytes=1024, send_timeout_s=1e-9 if ends == "send timeout" else 60)
    saved: list[str] = []
    async with serve(engine, limits=limits) as server:
        save = server.service.store.responses.save

        async def record_save(tenant: str, state: ResponseState, **options: Any) -> None:
            await save(tenant, state, **options)
            saved.append(state.id)

        server.service.store.responses.save = record_save
        async with open_raw(server, small_buffers=True) as raw:
            stop_clock(server)
            await raw.create(input="hello", store=True)
            performance = await engine.next()
            narrow(server)
            for text in PLENTY:
                performance.say(text)
                while (await raw.receive_event())["type"] != "response.output_text.delta":
                    pass
            performance.finish()
            await until(lambda: only_client(server)._http.unsent_bytes > 0)
            if ends == "client drops":
                raw.drop()
                await gone(server)
            elif ends == "send timeout":
                await ticked_away(server)
            else:
                server.server.stop_request.immediate.set()
                await server.server.stop()
        assert saved == [performance.job.response_id]


# Clients that do not read.


async def test_a_client_that_does_not_read_stops_the_engine_from_being_pulled() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(send_buffer_bytes=1024)) as server:
        async with open_raw(server, small_buffers=True) as raw:
            performance = await start_slow(server, raw, engine)
            await stalled(performance)
            assert not performance.stopped.is_set()
        await stopped(performance)


async def test_a_client_that_reads_late_gets_everything_in_order() -> None:
    engine = PuppetEngine()
    limits = Limits(send_buffer_bytes=1024)
    async with serve(engine, limits=limits) as server, open_raw(server, small_buffers=True) as raw:
        performance = await start_slow(server, raw, engine)
        performance.finish()
        deltas = 0
        for number in count():
            event = await raw.receive_event()
            assert event["sequence_number"] == number
            deltas += event["type"] == "response.output_text.delta"
            if event["type"] in TERMINAL:
                break
        assert event["type"] == "response.completed"
        assert deltas == len(PLENTY)
        (turn,) = only_client(server).recent
        assert turn.report.send_ms > 0, "the time spent waiting for the client is reported"


async def test_a_client_that_does_not_read_for_too_long_is_disconnected() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SLOW) as server:
        stop_clock(server)
        async with open_raw(server, small_buffers=True) as raw:
            performance = await start_slow(server, raw, engine)
            await ticked_away(server)
            await stopped(performance)


async def test_an_sse_client_that_does_not_read_pauses_the_engine_and_is_disconnected() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SLOW) as server:
        stop_clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            body = json.dumps({"input": "hello", "stream": True})
            head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            await raw.send((head + body).encode())
            performance = await engine.next()
            narrow(server)
            performance.say(*PLENTY)
            assert await stalled(performance) > 0
            await ticked_away(server)
            await stopped(performance)


async def test_lanes_of_a_slow_client_pause_and_resume_together() -> None:
    engine = PuppetEngine()
    limits = Limits(send_buffer_bytes=1024)
    async with serve(engine, limits=limits) as server, open_raw(server, small_buffers=True) as raw:
        await raw.create(input="hello", stream_id="slow")
        slow = await engine.next()
        narrow(server)
        slow.say(*PLENTY)
        assert await stalled(slow) > 0
        await raw.create(input="hello", stream_id="other")
        other = await engine.next()
        other.say(*PLENTY)
        assert await stalled(other) > 0
        slow.finish()
        other.finish()
        ended = set()
        while len(ended) < 2:
            event = await raw.receive_event()
            if event["type"] in TERMINAL:
                ended.add((event["stream_id"], event["type"]))
        assert ended == {("slow", "response.completed"), ("other", "response.completed")}


async def test_a_client_that_sends_without_reading_is_not_read() -> None:
    frames = 100
    limits = Limits(send_buffer_bytes=1024, max_queued=frames)
    warmup = {"type": "response.create", "generate": False, "store": False, "instructions": "x" * 100_000}
    framed = [frame(TEXT, json.dumps({**warmup, "stream_id": lane}).encode()) for lane in "abcdefgh"]
    async with serve(limits=limits) as server, open_raw(server, small_buffers=True) as raw:
        narrow(server)
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < frames:
                await raw.send(framed[sent % len(framed)])
                sent += 1

        sending = asyncio.create_task(send())
        seen, quiet = 0, 0
        while quiet < 1000:
            await asyncio.sleep(0)
            seen, quiet = sent, quiet + 1 if sent == seen else 0
        assert sent < frames
        counts = Counter([(await raw.receive_event())["type"] for _ in range(2 * frames)])
        assert counts == {"response.created": frames, "response.completed": frames}
        await sending


async def test_a_connection_at_its_age_limit_ends_although_its_client_does_not_read() -> None:
    engine = PuppetEngine()
    limits = Limits(send_buffer_bytes=1024, send_timeout_s=0.2, max_age_s=AT_ONCE, age_grace_s=0)
    async with serve(engine, limits=limits) as server:
        stop_clock(server)
        async with open_raw(server, small_buffers=True) as raw:
            performance = await start_slow(server, raw, engine)
            await ticked_away(server)
            await stopped(performance)


async def test_an_idle_connection_ends_although_its_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.1)
    async with serve(limits=Limits(send_timeout_s=0.2, max_age_s=AT_ONCE)) as server:
        stop_clock(server)
        async with open_raw(server, small_buffers=True):
            narrow(server)
            fill(server, 2**20)
            await ticked_away(server)


async def test_events_before_the_close_frame_reach_a_slow_client() -> None:
    async with serve(limits=Limits(max_age_s=AT_ONCE)) as server:
        stop_clock(server)
        async with open_raw(server, small_buffers=True) as raw:
            narrow(server)
            fill(server, 2**20)
            connection_of(server).tick()
            assert len((await raw.receive_frame())[1]) == 2**20
            assert (await raw.receive_event())["error"]["code"] == "websocket_connection_limit_reached"
            assert await raw.closed() == 1000
            await gone(server)


# Frames.


def padded(size_bytes: int) -> str:
    """A create frame of this size in bytes."""
    frame = json.dumps({"type": "response.create", "input": "é", "user": ""}, ensure_ascii=False)
    return frame.replace('"user": ""', '"user": "' + "x" * (size_bytes - len(frame.encode())) + '"')


async def test_a_frame_of_the_maximum_size_is_served() -> None:
    async with serve(limits=Limits(max_frame_bytes=2000)) as server, server.connect() as socket:
        assert len(padded(2000).encode()) == 2000
        await socket.ws.send_str(padded(2000))
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"


async def test_a_frame_one_byte_larger_closes_with_1009() -> None:
    async with serve(limits=Limits(max_frame_bytes=2000)) as server, server.connect() as socket:
        await socket.ws.send_str(padded(2001))
        assert await socket.closed() == 1009
        await gone(server)


async def test_a_frame_that_is_too_large_cancels_running_turns() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_frame_bytes=2000)) as server:
        async with server.connect(abandoned=True) as socket:
            performance = await started(socket, engine)
            await socket.ws.send_str(padded(2001))
            assert await socket.closed() == 1009
        await stopped(performance)


async def test_fragments_are_joined_wherever_they_are_cut() -> None:
    frame = padded(200).encode()
    cut = frame.index("é".encode()) + 1
    async with serve() as server, open_raw(server) as raw:
        await raw.send_frame(TEXT, frame[:cut], final=False)
        await raw.send_frame(PING, b"between")
        assert await raw.receive_frame() == (PONG, b"between")
        await raw.send_frame(CONTINUATION, frame[cut : cut + 1], final=False)
        await raw.send_frame(CONTINUATION, frame[cut + 1 :])
        assert (await raw.receive_event())["type"] == "response.created"


async def test_fragments_beyond_the_limit_in_total_are_refused() -> None:
    frame = padded(2001).encode()
    async with serve(limits=Limits(max_frame_bytes=2000)) as server, open_raw(server) as raw:
        await raw.send_frame(TEXT, frame[:1500], final=False)
        await raw.send_frame(CONTINUATION, frame[1500:])
        assert await raw.closed() == 1009


async def test_invalid_utf8_closes_with_1007() -> None:
    async with serve() as server, open_raw(server) as raw:
        await raw.send_frame(TEXT, b'{"type": "\xff"}')
        assert await raw.closed() == 1007


async def test_an_internal_error_closes_the_connection_without_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def receive(*_: object) -> None:
        raise RuntimeError("a secret")

    engine = PuppetEngine()
    async with serve(engine) as server, server.connect(abandoned=True) as socket, server.connect() as other:
        performance = await started(socket, engine)
        with monkeypatch.context() as patch:
            patch.setattr(Session, "receive", receive)
            await socket.create(input="hello")
            assert await socket.closed() == 1011
        await stopped(performance)
        assert "a secret" in caplog.text
        performance = await started(other, engine)
        performance.finish()
        await other.until(*TERMINAL)


async def test_a_close_frame_of_the_client_is_answered() -> None:
    async with serve() as server, open_raw(server) as raw:
        await raw.send_frame(CLOSE, b"\x03\xe8")
        assert await raw.closed() == 1000
        assert await raw.ended() == b""
        await gone(server)


# Compression.


@pytest.mark.parametrize("configured", [False, True])
async def test_compression_is_used_only_if_configured(configured: bool) -> None:
    async with serve(compression=configured) as server, server.connect(compress=15) as socket:
        assert bool(socket.ws.compress) is configured
        first = await socket.response(input="hello " * 10_000)
        second = await socket.response(input="again", previous_response_id=first["id"])
        assert second["status"] == "completed"


async def test_compression_is_used_only_if_the_client_offers_it() -> None:
    async with serve(compression=True) as server, server.connect() as socket:
        assert not socket.ws.compress
        assert (await socket.response(input="hello"))["status"] == "completed"


async def test_the_size_limit_applies_to_the_decompressed_frame() -> None:
    limits = Limits(max_frame_bytes=2000)
    async with serve(compression=True, limits=limits) as server, server.connect(compress=15) as socket:
        await socket.ws.send_str(padded(2000))
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"
        await socket.ws.send_str(padded(2100))
        assert await socket.closed() == 1009


# Age and idleness.


async def test_a_connection_at_its_age_limit_gets_an_error_and_is_closed() -> None:
    async with serve(limits=Limits(max_age_s=AT_ONCE)) as server, server.connect() as socket:
        stop_clock(server)
        connection_of(server).tick()
        notice = await socket.receive()
        assert (notice["type"], notice["status"]) == ("error", 400)
        assert notice["error"]["code"] == "websocket_connection_limit_reached"
        assert "stream_id" not in notice
        assert await socket.closed() == 1000
        await gone(server)


async def test_the_age_limit_error_names_the_limit() -> None:
    async with serve(limits=Limits(max_age_s=AT_ONCE)) as server, server.connect() as socket:
        stop_clock(server)
        connection_of(server).tick()
        message = (await socket.receive())["error"]["message"]
        assert message.startswith("Responses websocket connection limit reached (")
        assert message.endswith(" minutes). Create a new websocket connection to continue.")
        assert await socket.closed() == 1000


async def test_a_running_response_may_outlast_the_age_limit() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_age_s=AT_ONCE)) as server:
        stop_clock(server)
        async with server.connect() as socket:
            performance = await started(socket, engine, stream_id="a")
            connection_of(server).tick()
            await socket.create(input="too late", stream_id="b")
            refused = await socket.receive()
            assert refused["error"]["code"] == "websocket_connection_limit_reached"
            assert refused["stream_id"] == "b"
            performance.finish()
            assert (await socket.until(*TERMINAL, lane="a"))[-1]["type"] == "response.completed"
            assert "stream_id" not in await socket.receive()
            assert await socket.closed() == 1000


async def test_a_response_is_cancelled_when_the_age_grace_ends() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_age_s=AT_ONCE, age_grace_s=0)) as server:
        stop_clock(server)
        async with server.connect() as socket:
            performance = await started(socket, engine)
            performance.say("half an ans")
            await socket.until("response.output_text.delta")
            connection_of(server).tick()
            connection_of(server).tick()
            failed = (await socket.until(*TERMINAL))[-1]
            assert failed["type"] == "response.failed"
            assert failed["response"]["output"][0]["status"] == "incomplete"
            assert (await socket.receive())["error"]["code"] == "websocket_connection_limit_reached"
            assert await socket.closed() == 1000
            await stopped(performance)


async def test_an_idle_connection_is_closed() -> None:
    async with serve(limits=Limits(idle_timeout_s=AT_ONCE)) as server, server.connect() as socket:
        stop_clock(server)
        await socket.response(input="hello")
        connection_of(server).tick()
        assert await socket.closed() == 1000
        await gone(server)


async def test_a_connection_with_a_running_response_is_not_idle() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(idle_timeout_s=AT_ONCE)) as server:
        stop_clock(server)
        async with server.connect() as socket:
            performance = await started(socket, engine)
            connection_of(server).tick()
            performance.finish()
            assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"


# Number of connections.


async def refused_upgrade(server: Running) -> int:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with server.connect():
            pass
    return refused.value.status


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with serve(FAST, limits=Limits(max_connections=2)) as server, server.connect() as first:
        async with server.connect() as second:
            assert await refused_upgrade(server) == 503
            assert (await first.response(input="hello"))["status"] == "completed"
            assert (await second.response(input="hello"))["status"] == "completed"
            assert (await server.post(input="one too many"))[0] == 503
        await until(lambda: server.service.sockets == 1)
        assert (await server.post(input="there is a place again"))[0] == 200
        async with server.connect() as third:
            assert (await third.response(input="hello"))["status"] == "completed"
