"""Sends an input to a server and judges what comes back.

An input is fine if the server answers or closes: after the input it answers a ping, or it has closed with a
code that blames the client. Every message of the server is JSON in UTF-8 with a type, and no error is the
server's own. On connections that are ``checked``, every message also has the API's types and order, and every
response ends.
"""

import asyncio
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import aiohttp
import msgspec
from yarl import URL

from slipring.base.errors import ServerError
from tests import api_answers, messages_wire, wire
from tests.fuzz.frames.inputs import Bytes, Input, Message, Request, Settle, Step, Text
from tests.fuzz.frames.raw_frames import BINARY, CLOSE, MOST_PADDING, PING, PONG, TEXT, frame, missing_bytes

PATIENCE_S = 300.0
"""How long an answer may take. The machine may be busy; a server that hangs does so for ever."""
_HOST = "127.0.0.1"
_SETTLE_S = 0.3
"""How long a client waits for an answer before it goes on without one: some creates get none at once."""
_INTERNAL_ERROR = 1011
_PLACEHOLDER = re.compile(rb"@(response|call|item|conversation)([0-9])@")
_ENDS = frozenset({"response.completed", "response.failed", "response.incomplete"})
_PAUSES = _ENDS | {"error", "response.done"}
_FAILURES = frozenset({"error", "response.failed"})
_UNEXPECTED = str(ServerError()).encode()
"""What clients are told of a fault that the server did not expect."""
_RETURNED = frozenset({"response.append.failed", "response.inject.failed"})
_TAIL = b"\x00\x00\xff\xff"
_MARKER = "fuzz-marker"


class Target(Protocol):
    """A server to send inputs to."""

    port: int

    def faults(self) -> list[str]:
        """What the server has logged since the last call that it must never log, or that it is gone."""


class Names:
    """The ids that a server has sent, latest last."""

    def __init__(self) -> None:
        self._known: dict[str, list[str]] = {"response": [], "call": [], "item": [], "conversation": []}

    def see(self, kind: str, value: object) -> None:
        known = self._known[kind]
        if isinstance(value, str) and value and (not known or known[-1] != value):
            known.append(value)

    def fill(self, data: bytes) -> bytes:
        """Replace the placeholders; those of unknown ids stay."""
        return _PLACEHOLDER.sub(self._named, data) if b"@" in data else data

    def _named(self, found: re.Match[bytes]) -> bytes:
        known = self._known[found[1].decode()]
        back = int(found[2]) + 1
        return known[-back].encode() if back <= len(known) else found[0]

    def see_item(self, item: object) -> None:
        if isinstance(item, dict):
            self.see("item", item.get("id"))
            self.see("call", item.get("call_id"))


def decoded(data: bytes) -> wire.Json:
    """A JSON object of the server; raises if it is none."""
    text = data.decode()
    try:
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        # What a client sent is returned as it was, also numbers that few decoders can hold.
        return wire.parse(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _without_echo(event: wire.Json) -> wire.Json | None:
    """A message without what slipring returns as the client sent it, which may be anything: its tools, the
    outputs of its tools in a rollout, input that could not be used. None if nothing else is in it."""
    if _is_echo(event.get("item")):
        return None
    if event["type"] in _RETURNED:
        return {**event, "input": []}
    if "input" in event.get("steer", ()):
        return {**event, "steer": {**event["steer"], "input": ""}}
    response = event.get("response")
    if not isinstance(response, dict):
        return event
    return {**event, "response": _own_part(response)}


def _own_part(response: wire.Json) -> wire.Json:
    output = [item for item in response["output"] if not _is_echo(item)]
    return {**response, "tools": [], "output": output}


def _is_echo(item: object) -> bool:
    return isinstance(item, dict) and item["type"].endswith("_output")


class Judge:
    """Judges the messages of one connection."""

    def __init__(self, *, checked: bool) -> None:
        self.faults: list[str] = []
        self.names = Names()
        self.begun = 0
        self.open = 0
        """Responses that have begun and not ended."""
        self.pauses = 0
        """Answers after which a client can go on."""
        self.seen = 0
        self.refused = 0
        """Requests that came too often."""
        self.completed = 0
        self.marked = False
        self._order = wire.Order() if checked else None

    def fault(self, text: str, data: bytes = b"") -> None:
        self.faults.append(f"{text}: {data[:600]!r}" if data else text)

    def see(self, data: bytes) -> None:
        """Judge a message of the server."""
        try:
            event = decoded(data)
            kind = event["type"]
        except (AssertionError, ValueError, KeyError) as error:
            return self.fault(f"the server sent what is no event ({error})", data)
        self.seen += 1
        self._note(event, kind)
        if kind in _FAILURES and _UNEXPECTED in data:
            self.fault("an internal error", data)
        if self._order is not None:
            try:
                if (shown := _without_echo(event)) is not None:
                    wire.check_frame(msgspec.json.encode(shown))
                self._order.see(event)
            except AssertionError as error:
                self.fault(str(error)[:500], data)

    def _note(self, event: dict[str, Any], kind: str) -> None:
        if kind in _PAUSES:
            self.pauses += 1
        self.refused += kind == "error" and event.get("status") == 429
        if kind == "response.created":
            self.begun += 1
            self.open += 1
            self.names.see("response", event["response"]["id"])
        elif kind in _ENDS:
            self.open -= 1
            self.completed += kind == "response.completed"
            self.marked = self.marked or (event["response"]["metadata"] or {}).get(_MARKER) == _MARKER
        elif kind == "response.output_item.done":
            self.names.see_item(event["item"])

    def see_close(self, payload: bytes) -> None:
        code = int.from_bytes(payload[:2])
        if code == _INTERNAL_ERROR:
            self.fault("the server closed with an internal error", payload)


class Connection(asyncio.Protocol):
    """A WebSocket client that sends any bytes, and reads all that comes."""

    transport: asyncio.Transport

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.upgraded = False
        self.closed = False
        self.pongs: set[bytes] = set()
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._inflate: Any = None
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        """Send data, unless the server has closed."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self.upgraded and (end := received.find(b"\r\n\r\n")) >= 0:
            head = bytes(received[:end]).lower()
            self.upgraded = head.startswith(b"http/1.1 101")
            self._inflate = zlib.decompressobj(wbits=-15) if b"permessage-deflate" in head else None
            del received[: end + 4]
            if not self.upgraded:
                self._judge.fault("the upgrade was refused", head)
                self.transport.abort()
        if self.upgraded:
            self._read_frames()
        self._wake()

    def _read_frames(self) -> None:
        received, at = self._received, 0
        while len(received) - at >= 2:
            length, start = received[at + 1], at + 2
            if length >= 126:
                start = at + (4 if length == 126 else 10)
                if len(received) < start:
                    break
                length = int.from_bytes(received[at + 2 : start])
            if len(received) < start + length:
                break
            self._see(received[at], bytes(received[start : start + length]))
            at = start + length
        del received[:at]

    def _see(self, first: int, payload: bytes) -> None:
        opcode = first & 0x0F
        if opcode in (TEXT, BINARY, 0):
            self._parts.append(payload)
            if first & 0x80:
                data, self._parts = b"".join(self._parts), []
                self._judge.see(self._inflate.decompress(data + _TAIL) if first & 0x40 else data)
        elif opcode == PING:
            self.write(frame(PONG, payload))
        elif opcode == PONG:
            self.pongs.add(payload)
        elif opcode == CLOSE:
            self._judge.see_close(payload)
            self.write(frame(CLOSE, payload))
            self.transport.close()
            self.closed = True

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def until(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Wait until something holds or the connection is closed; return False if the server has sent no
        message for so long before."""
        loop = asyncio.get_running_loop()
        seen = self._judge.seen
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s) as bound:
                while not holds() and not self.closed:
                    if self._judge.seen > seen:
                        seen = self._judge.seen
                        bound.reschedule(loop.time() + within_s)
                    self._waiter = loop.create_future()
                    await self._waiter
        return self.closed or holds()


def _upgrade(key: str, given: Input) -> bytes:
    lines = [
        "GET /v1/responses HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {key}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ]
    if given.betas:
        lines.append(f"OpenAI-Beta: {given.betas}")
    if given.compress:
        lines.append("Sec-WebSocket-Extensions: permessage-deflate")
    return "\r\n".join([*lines, "", ""]).encode()


def _encoded(step: Text | Message, names: Names) -> bytes:
    if isinstance(step, Text):
        return frame(TEXT, names.fill(step.text.encode()))
    return frame(BINARY if step.binary else TEXT, bytes.fromhex(step.hex))


class Client:
    """Sends inputs to one server."""

    def __init__(self, target: Target, key: str, *, patience_s: float = PATIENCE_S) -> None:
        self._target = target
        self._key = key
        self._patience_s = patience_s
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def run(self, given: Input, *, checked: bool = True) -> list[str]:
        """Send an input; return its faults, without those in the server's log."""
        if given.level == "http":
            return await self._run_http(given, checked=checked)
        judge = Judge(checked=checked)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(judge), _HOST, self._target.port)
        except OSError as error:
            return [f"cannot connect: {error}"]
        try:
            await self._converse(given, connection, judge, checked=checked)
        finally:
            self._leave(connection, given)
        return judge.faults

    async def _converse(self, given: Input, connection: Connection, judge: Judge, *, checked: bool) -> None:
        connection.write(_upgrade(self._key, given))
        if not await connection.until(lambda: connection.upgraded, self._patience_s):
            return judge.fault("the upgrade was not answered")
        await self._send(given.steps, connection, judge)
        if given.level == "raw" and not self._complete(given, connection):
            return
        connection.write(frame(PING, b"the end"))
        if not await connection.until(lambda: b"the end" in connection.pongs, self._patience_s):
            return judge.fault("neither closed nor answered a ping")
        if checked and not connection.closed and given.level != "raw":
            await self._see_ends(connection, judge)

    async def _send(self, steps: tuple[Step, ...], connection: Connection, judge: Judge) -> None:
        waiting: list[bytes] = []
        for step in steps:
            if connection.closed:
                return
            if isinstance(step, Text | Message):
                waiting.append(_encoded(step, judge.names))
            elif isinstance(step, Bytes):
                connection.write(bytes.fromhex(step.hex))
                await asyncio.sleep(0)
            elif isinstance(step, Settle):
                connection.write(b"".join(waiting))
                waiting.clear()
                await self._settle(step, connection, judge)
        connection.write(b"".join(waiting))

    @staticmethod
    async def _settle(step: Settle, connection: Connection, judge: Judge) -> None:
        begun, pauses = judge.begun, judge.pauses
        if step.until == "begun":
            await connection.until(lambda: judge.begun > begun or judge.pauses > pauses, _SETTLE_S)
        else:
            await connection.until(lambda: judge.pauses > pauses, _SETTLE_S)

    @staticmethod
    def _complete(given: Input, connection: Connection) -> bool:
        """Complete the last frame; return False if too much of it is missing."""
        stream = b"".join(bytes.fromhex(step.hex) for step in given.steps if isinstance(step, Bytes))
        while missing := missing_bytes(stream):
            if missing > MOST_PADDING:
                return False
            stream += bytes(missing)
            connection.write(bytes(missing))
        return True

    async def _see_ends(self, connection: Connection, judge: Judge) -> None:
        """Require that all responses end, and that one more can be made."""
        if not await connection.until(lambda: not judge.open, self._patience_s):
            return judge.fault(f"{judge.open} responses did not end")
        marker = {"type": "response.create", "input": "hello", "metadata": {_MARKER: _MARKER}, "store": False}
        while not judge.marked and not connection.closed:
            refused = judge.refused
            connection.write(frame(TEXT, msgspec.json.encode(marker)))
            # It waits behind the others of its lane, and is sent again if their number was too large.
            if not await connection.until(
                lambda refused=refused: judge.marked or judge.refused > refused,  # type: ignore[misc]
                self._patience_s,
            ):
                return judge.fault("no further response was made")

    @staticmethod
    def _leave(connection: Connection, given: Input) -> None:
        """Disconnect in one of three ways, by the size of the input."""
        kind = len(given.steps) % 3
        if kind == 0 or connection.closed:
            connection.transport.abort()
            return
        if kind == 1:
            connection.write(frame(CLOSE, b"\x03\xe8"))
        connection.transport.close()

    # HTTP.

    async def stay(self, pause_s: float, is_over: Callable[[], bool]) -> list[str]:
        """Behave: make one response after the other on one connection, and require that each completes.
        Returns what went wrong."""
        judge = Judge(checked=True)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(judge), _HOST, self._target.port)
        connection.write(_upgrade(self._key, Input("events", ())))
        while not is_over() and not judge.faults:
            done = judge.completed
            turn = {"type": "response.create", "input": "hello", "store": False}
            connection.write(frame(TEXT, msgspec.json.encode(turn)))
            await connection.until(lambda done=done: judge.completed > done, self._patience_s)  # type: ignore[misc]
            if judge.completed == done:
                judge.fault("the connection that behaves got no answer")
            await asyncio.sleep(pause_s)
        connection.transport.abort()
        return judge.faults

    async def _run_http(self, given: Input, *, checked: bool) -> list[str]:
        if self._http is None:
            self._http = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self._key}"})
        judge = Judge(checked=checked)
        for step in given.steps:
            if isinstance(step, Request):
                await self._request(self._http, step, judge)
        return judge.faults

    async def _request(self, http: aiohttp.ClientSession, step: Request, judge: Judge) -> None:
        path = judge.names.fill(step.path.encode()).decode()
        url = URL(f"http://{_HOST}:{self._target.port}{path}", encoded=True)
        body = step.body if step.body is None else judge.names.fill(step.body)
        headers = {"Content-Type": "application/json", **step.headers}
        timeout = aiohttp.ClientTimeout(total=self._patience_s)
        try:
            async with http.request(
                step.method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                data = await answer.read()
        except TimeoutError:
            return judge.fault(f"{step.method} {path} was not answered")
        except aiohttp.ClientError as error:
            return judge.fault(f"{step.method} {path} failed ({type(error).__name__}: {error})")
        _judge_answer(judge, path, answer, data)


def _judge_answer(judge: Judge, path: str, answer: aiohttp.ClientResponse, data: bytes) -> None:
    if answer.status == 500 and _UNEXPECTED in data:
        return judge.fault("an internal error", data)
    try:
        if api_answers.is_translated(path):
            api_answers.check(path.partition("?")[0], answer.status, answer.content_type, data)
        elif answer.content_type == "text/event-stream":
            _judge_stream(judge, data)
        elif answer.status >= 400 and answer.headers.get("request-id"):
            messages_wire.check_error(decoded(data))
        elif answer.status >= 400:
            wire.check_http_error(decoded(data))
        else:
            _judge_body(judge, decoded(data))
    except (AssertionError, ValueError, KeyError, TypeError) as error:
        judge.fault(f"{path}: {answer.status}: {str(error)[:500]}", data)


def _judge_stream(judge: Judge, data: bytes) -> None:
    for line in data.splitlines():
        if line.startswith(b"data: {"):
            event = decoded(line.removeprefix(b"data: "))
            if event["type"] == "response.created":
                judge.names.see("response", event["response"]["id"])


def _judge_body(judge: Judge, body: wire.Json) -> None:
    kind = body.get("object")
    if kind in ("response", "conversation"):
        judge.names.see(kind, body.get("id"))
    if kind == "response" and "output" in body:
        wire.check_response(_own_part(body))
    for item in body.get("output") or body.get("data") or ():
        judge.names.see_item(item)
