"""Clients of every kind. Each behaviour is one visit of one client, which checks all that it receives."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp

from slipring.commands.bench.client.exchange import PAUSE, decode
from slipring.commands.bench.client.transports import SseParser
from tests.soak.chains import Chain, Json, Wrong, answer_of, message, output_of
from tests.soak.sockets import PATIENCE_S, Closed, Refused, Socket, connected, raw_connection

SHORT, LONG = "short", "long"
"""Models: answers of a few words, and ones that take long enough to be interrupted."""
KEYS = {"alpha": "soak-key-alpha-41", "beta": "soak-key-beta-77"}
MAX_FRAME_BYTES = 1024 * 1024
_ROLLOUT = {"OpenAI-Beta": "slipring_rollout=v1"}
_TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Look a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
HOSTED_SERVER = "mirror"
_HOSTED = {"type": "mcp", "server_label": HOSTED_SERVER, "require_approval": "never"}
_LARGE = "Read this carefully. " * 35_000
"""Instructions. Three events of each response repeat them, so that a few responses fill every buffer."""
_SLOW_LANES = 4
_REPEATED_S = 0.05
_PARKING_S = 10.0
"""How long after its end a dropped connection may still be open on the server."""
_WORDS = "amber basalt cedar dune ember fjord garnet heath iris jade kelp larch moss".split()

_BROKEN = (Wrong, Closed, Refused, aiohttp.ClientError, ConnectionError, TimeoutError)
"""What clients raise if they are not served as they should be."""

Behaviour = Callable[[], Awaitable[None]]


class Visitor:
    """One client at a time, of one tenant, with a choice of servers."""

    def __init__(self, urls: Sequence[str], random: Random, turns: Counter[str]) -> None:
        """``turns``: counts the answers that were checked, by kind of client."""
        self._urls = urls
        self._random = random
        self._turns = turns
        self._kind = ""
        self._tenant = "alpha"

    @property
    def behaviours(self) -> dict[str, Behaviour]:
        """What a client may do, by name."""
        return {
            "chat": self.chat,
            "lanes": self.lanes,
            "forks": self.forks,
            "queue": self.queue,
            "agent": self.agent,
            "rollout": self.rollout,
            "hosted": self.hosted,
            "steer": self.steer,
            "reconnect": self.reconnect,
            "old-socket": self.old_socket,
            "abort": self.abort,
            "slow-socket": self.slow_socket,
            "slow-stream": self.slow_stream,
            "sse": self.sse,
            "post": self.post,
            "resend": self.resend,
            "background": self.background,
            "conversation": self.conversation,
            "stranger": self.stranger,
            "bad-events": self.bad_events,
            "bad-frames": self.bad_frames,
            "bad-http": self.bad_http,
        }

    async def visit(self, kind: str) -> None:
        """Run one behaviour. Raises ``Wrong`` if a promise was broken."""
        self._kind, self._tenant = kind, self._random.choice(list(KEYS))
        try:
            await self.behaviours[kind]()
        except (ExceptionGroup, *_BROKEN) as error:
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):  # lanes fail together
                first = first.exceptions[0]
            if not isinstance(first, _BROKEN):
                raise
            raise Wrong(f"{kind}: {type(first).__name__} {first}"[:3000]) from error

    # What behaviours share.

    @property
    def _url(self) -> str:
        return self._random.choice(self._urls)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEYS[self._tenant]}"}

    def _text(self) -> str:
        words = self._random.choices(_WORDS, k=self._random.randint(1, 12))
        return f"{' '.join(words)} {self._random.randrange(10**9)}"

    def _message(self) -> Json:
        return message(self._text())

    def _chain(self, model: str = SHORT, **fields: Any) -> Chain:
        return Chain(model, f"Be brief. {self._text()}", **fields)

    async def _pause(self, longest_s: float = 0.3) -> None:
        await asyncio.sleep(self._random.uniform(0, longest_s))

    async def _turn(self, socket: Socket, chain: Chain, lane: str | None = None) -> None:
        """One turn of a chain, with an answer of text."""
        sent = [self._message()]
        chain.took(sent, await socket.turn(chain.create(*sent), lane), lane=lane)
        self._turns[self._kind] += 1

    def _connected(self, headers: dict[str, str] | None = None, **options: Any) -> Any:
        return connected(self._url, {**self._headers, **(headers or {})}, **options)

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[aiohttp.ClientSession]:
        timeout = aiohttp.ClientTimeout(total=2 * PATIENCE_S)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http:
            yield http

    async def _json(self, http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Json:
        async with http.request(method, f"{self._url}{path}", json=body) as answer:
            found: Json = await answer.json()
            if answer.status != 200:
                raise Refused(found["error"], answer.status)
            return found

    async def _stream(self, http: aiohttp.ClientSession, fields: Json) -> list[Json]:
        async with http.post(f"{self._url}/responses", json={**fields, "stream": True}) as answer:
            return [event async for event in _events(answer)]

    # WebSockets.

    async def chat(self) -> None:
        """A chain on one socket, perhaps after a warmup."""
        chain = self._chain(store=self._random.random() < 0.5)
        async with self._connected() as socket:
            if self._random.random() < 0.3:
                warmup = await socket.turn(chain.create(generate=False))
                chain.id = warmup[-1]["response"]["id"]
            for _ in range(self._random.randint(1, 8)):
                await self._turn(socket, chain)
                await self._pause()

    async def lanes(self) -> None:
        """Several chains on one socket at once, each on its lane."""

        async def run(socket: Socket, lane: str) -> None:
            chain = self._chain(self._random.choice((SHORT, LONG)), store=False)
            for _ in range(self._random.randint(1, 4)):
                await self._turn(socket, chain, lane)
                await self._pause()

        async with self._connected() as socket, asyncio.TaskGroup() as tasks:
            for number in range(self._random.randint(2, 5)):
                tasks.create_task(run(socket, f"lane-{number}"))

    async def forks(self) -> None:
        """One response, continued on several lanes at once, each its own way, and then from its own end."""

        async def run(socket: Socket, lane: str, fork: Chain) -> None:
            await self._turn(socket, fork, lane)
            await self._turn(socket, fork, lane)

        chain = self._chain(store=self._random.random() < 0.5)
        async with self._connected() as socket:
            await self._turn(socket, chain)
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._random.randint(2, 4)):
                    tasks.create_task(run(socket, f"fork-{number}", chain.copy()))
            await self._turn(socket, chain)

    async def queue(self) -> None:
        """Several creates sent at once on one lane: they are answered in order."""
        chains = [self._chain(store=False) for _ in range(self._random.randint(2, 5))]
        asked = [(chain, [self._message()]) for chain in chains]
        async with self._connected() as socket:
            for chain, sent in asked:
                await socket.create(chain.create(*sent))
            for chain, sent in asked:
                chain.took(sent, await socket.answer())
                self._turns[self._kind] += 1

    async def agent(self) -> None:
        """A loop of tool calls, each output in a create of its own."""
        chain = self._chain(store=self._random.random() < 0.5, tools=[_TOOL])
        sent = [self._message()]
        async with self._connected() as socket:
            for needs in ("call", "call", "text"):
                events = await socket.turn(chain.create(*sent))
                chain.took(sent, events, needs="call" if needs == "call" else "text")
                self._turns[self._kind] += 1
                sent = [output_of(call, self._text()) for call in answer_of(events) if "call_id" in call]
                await self._pause()

    async def rollout(self) -> None:
        """The same loop as one response, to which the outputs are appended."""
        chain = self._chain(store=self._random.random() < 0.5, tools=[_TOOL])
        sent = [self._message()]
        async with self._connected(_ROLLOUT) as socket:
            await socket.create(chain.create(*sent, rollout=True))
            events = step = await socket.answer()
            while step[-1]["type"] == PAUSE:
                calls = answer_of(step)
                chain.took_step(sent, events, calls)
                sent = [output_of(call, self._text()) for call in calls]
                await self._pause()
                own = step[-1]["response_id"]
                await socket.send({"type": "response.append", "response_id": own, "input": sent})
                step = await socket.answer()
                events = [*events, *step]
            chain.took(sent, events, answer=answer_of(step))
            self._turns[self._kind] += 1

    async def hosted(self) -> None:
        """Tools that the server calls itself: the results of an MCP server are part of the answer."""
        chain = self._chain(store=self._random.random() < 0.5, tools=[_HOSTED])
        async with self._connected() as socket:
            sent = [self._message()]
            events = await socket.turn(chain.create(*sent))
            called = [item for item in answer_of(events) if item["type"] == "mcp_call"]
            if not called or any(
                json.loads(call["output"]) != json.loads(call["arguments"]) for call in called
            ):
                raise Wrong(f"not what the tool answers: {events}"[:2000])
            read = [item for call in called for item in _as_read(call)]
            said = [item for item in answer_of(events) if item["type"] == "message"]
            chain.took([*sent, *read], events, answer=said)
            self._turns[self._kind] += 1
            await self._turn(socket, chain)

    async def steer(self) -> None:
        """Input for an answer that is being generated: it is cut, and a successor has read what there was."""
        chain = self._chain(LONG, store=self._random.random() < 0.5)
        sent, added = [self._message()], self._message()
        async with self._connected() as socket:
            await socket.create(chain.create(*sent))
            events = [await socket.event()]
            while events[-1]["type"] != "response.output_text.delta":
                events.append(await socket.event())
            await self._pause(0.05)
            own = events[0]["response"]["id"]
            await socket.send({"type": "response.steer", "previous_response_id": own, "input": [added]})
            chain.took(sent, [*events, *await socket.answer()], steered=True)
            self._turns[self._kind] += 1
            first = await socket.event()
            if first["type"] == "response.steer.failed":
                if first["error"]["code"] != "response_already_completed":
                    raise Wrong(f"the steer failed: {first}")
            else:
                chain.took([added], [first, *await socket.answer()])
                self._turns[self._kind] += 1
            await self._turn(socket, chain)

    async def reconnect(self) -> None:
        """A socket that drops, in the middle of an answer or between two; its chain goes on over others."""
        chain = self._chain(store=self._random.random() < 0.3)
        async with self._connected() as socket:
            await self._turn(socket, chain)
            if self._random.random() < 0.5:
                await socket.create(self._chain(LONG, store=False).create(self._message()), "other")
                await socket.event("other")
            await socket.drop()
        for _ in range(self._random.randint(1, 2)):
            async with self._connected() as socket:
                await self._again(socket, chain)
                await socket.drop()

    async def _again(self, socket: Socket, chain: Chain) -> None:
        """Continue a chain whose old connection the server may not have missed yet."""
        sent = [self._message()]
        async with asyncio.timeout(_PARKING_S):
            while True:
                try:
                    events = await socket.turn(chain.create(*sent))
                    break
                except Refused as error:
                    if error.code != "previous_response_not_found":
                        raise
                    await asyncio.sleep(_REPEATED_S)
        chain.took(sent, events)
        self._turns[self._kind] += 1

    async def old_socket(self) -> None:
        """A socket that is used until it reaches the age limit; then the chain goes on over another."""
        chain = self._chain(store=False)
        async with self._connected() as socket:
            try:
                while True:
                    await self._turn(socket, chain)
                    await self._pause(2.0)
            except Refused as error:
                if error.code != "websocket_connection_limit_reached":
                    raise
            except Closed as error:
                if error.code != 1000:
                    raise
        async with self._connected() as socket:
            await self._again(socket, chain)

    async def abort(self) -> None:
        """A client that leaves in the middle of an answer, over any transport."""
        create = self._chain(LONG, store=self._random.random() < 0.5).create(self._message())
        if self._random.random() < 0.5:
            async with self._connected() as socket:
                for lane in (None, "second"):
                    await socket.create(create, lane)
                for _ in range(self._random.randint(1, 12)):
                    await socket.event()
                await socket.drop()
            return
        async with self._http() as http:
            streamed = self._random.random() < 0.5
            asking = asyncio.ensure_future(
                self._stream(http, create) if streamed else self._json(http, "POST", "/responses", create)
            )
            await self._pause(0.2)
            asking.cancel()
            await asyncio.wait([asking])

    async def slow_socket(self) -> None:
        """A client that reads slowly gets everything."""
        async with (
            self._connected(pause_s=self._random.uniform(0.1, 0.4)) as socket,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(_SLOW_LANES):
                chain = Chain(SHORT, f"{_LARGE}{self._text()}", store=False)
                tasks.create_task(self._turn(socket, chain, f"slow-{number}"))

    # HTTP.

    async def slow_stream(self) -> None:
        """The same over a stream."""
        chain = Chain(SHORT, f"{_LARGE}{self._text()}", store=False)
        sent = [self._message()]
        fields = {**chain.create(*sent), "stream": True}
        async with self._http() as http, http.post(f"{self._url}/responses", json=fields) as answer:
            events = []
            async for event in _events(answer):
                events.append(event)
                await self._pause(0.1)
            chain.took(sent, events)
        self._turns[self._kind] += 1

    async def sse(self) -> None:
        """A stored chain of streams; each turn may reach another server."""
        chain = self._chain()
        async with self._http() as http:
            for _ in range(self._random.randint(1, 5)):
                sent = [self._message()]
                chain.took(sent, await self._stream(http, chain.create(*sent)))
                self._turns[self._kind] += 1
                await self._pause()

    async def post(self) -> None:
        """A stored chain of plain requests, whose responses can be read back until they are deleted."""
        chain = self._chain()
        async with self._http() as http:
            for _ in range(self._random.randint(1, 5)):
                sent = [self._message()]
                response = await self._json(http, "POST", "/responses", chain.create(*sent))
                chain.took_whole(sent, response)
                self._turns[self._kind] += 1
                if await self._json(http, "GET", f"/responses/{chain.id}") != response:
                    raise Wrong(f"another response is stored than {response}"[:2000])
            listed = await self._json(http, "GET", f"/responses/{chain.id}/input_items?limit=100&order=asc")
            if len(listed["data"]) != len(chain.items) - 1:
                raise Wrong(f"{len(listed['data'])} input items, not {len(chain.items) - 1}")
            await self._json(http, "DELETE", f"/responses/{chain.id}")
            await self._is_gone(http, f"/responses/{chain.id}")

    async def resend(self) -> None:
        """A client that keeps nothing at the server and sends its whole history each time."""
        chain = self._chain(store=False)
        async with self._http() as http:
            for _ in range(self._random.randint(2, 5)):
                sent = [self._message()]
                history = [_as_input(item) for item in chain.items] + sent
                fields = chain.create(*history, previous_response_id=None)
                if self._random.random() < 0.5:
                    chain.took(sent, await self._stream(http, fields), continues=None)
                else:
                    response = await self._json(http, "POST", "/responses", fields)
                    chain.took_whole(sent, response, continues=None)
                self._turns[self._kind] += 1
                await self._pause()

    async def background(self) -> None:
        """A response that runs by itself: it is polled, streamed or cancelled, over any server."""
        chain = self._chain(self._random.choice((SHORT, LONG)))
        sent = [self._message()]
        async with self._http() as http:
            run = await self._json(http, "POST", "/responses", chain.create(*sent, background=True))
            path = f"/responses/{run['id']}"
            what = self._random.choice(("poll", "stream", "cancel"))
            if what == "stream":
                async with http.get(f"{self._url}{path}?stream=true") as answer:
                    chain.took(sent, [event async for event in _events(answer)])
            elif what == "cancel":
                await self._pause(0.2)
                ended = await self._json(http, "POST", f"{path}/cancel")
                if ended["status"] not in ("cancelled", "completed"):
                    raise Wrong(f"cancelled, and then {ended}"[:2000])
            else:
                chain.took_whole(sent, await self._ended(http, path))
            self._turns[self._kind] += what != "cancel"

    async def _ended(self, http: aiohttp.ClientSession, path: str) -> Json:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                run = await self._json(http, "GET", path)
                if run["status"] not in ("queued", "in_progress"):
                    return run
                await asyncio.sleep(_REPEATED_S)

    async def conversation(self) -> None:
        """A conversation, over any server: its items are those of its turns, until it is deleted."""
        chain = self._chain(store=self._random.random() < 0.5)
        async with self._http() as http:
            talk = await self._json(http, "POST", "/conversations", {})
            path = f"/conversations/{talk['id']}"
            for _ in range(self._random.randint(1, 3)):
                sent = [self._message()]
                fields = chain.create(*sent, previous_response_id=None, conversation=talk["id"])
                if self._random.random() < 0.5:
                    chain.took(sent, await self._stream(http, fields), continues=None)
                else:
                    response = await self._json(http, "POST", "/responses", fields)
                    chain.took_whole(sent, response, continues=None)
                self._turns[self._kind] += 1
            listed = await self._json(http, "GET", f"{path}/items?limit=100&order=asc")
            if len(listed["data"]) != len(chain.items):
                raise Wrong(f"{len(listed['data'])} items, not {len(chain.items)}: {listed}"[:2000])
            await self._json(http, "DELETE", path)
            await self._is_gone(http, path)

    async def _is_gone(self, http: aiohttp.ClientSession, path: str) -> None:
        try:
            found = await self._json(http, "GET", path)
        except Refused as error:
            if error.status != 404:
                raise
        else:
            raise Wrong(f"deleted, and still there: {found}"[:2000])

    # Clients that do what they should not.

    async def stranger(self) -> None:
        """A tenant gets nothing of another's chain, whether it is stored or in the memory of a connection."""
        chain = self._chain(store=self._random.random() < 0.5)
        async with self._connected() as socket:
            await self._turn(socket, chain)
            self._tenant = "beta" if self._tenant == "alpha" else "alpha"
            async with self._connected() as other:
                try:
                    stolen = await other.turn(chain.create(self._message()))
                except Refused as error:
                    if error.code != "previous_response_not_found":
                        raise
                else:
                    raise Wrong(f"another tenant continued {chain.id}: {stolen}"[:2000])
            async with self._http() as http:
                await self._is_gone(http, f"/responses/{chain.id}")

    async def bad_events(self) -> None:
        """Events that are refused by name, after which the connection serves as before."""
        chain = self._chain(store=False)
        async with self._connected() as socket:
            await self._turn(socket, chain)
            for text, kind, code in self._random.sample(_BAD_EVENTS, 3):
                await socket.send_text(text)
                event = await socket.event()
                found = event.get("error", {}).get("code")
                if event["type"] != kind or found != code:
                    raise Wrong(f"{text[:200]!r} was answered with {event}, not {kind} {code}"[:2000])
            await self._turn(socket, chain)

    async def bad_frames(self) -> None:
        """Frames that break the protocol close the connection, with the code for it."""
        what = self._random.choice(("utf-8", "large", "reserved", "cut"))
        if what in ("utf-8", "large"):
            text, code = (b'"\xff"', 1007) if what == "utf-8" else (b" " * (MAX_FRAME_BYTES + 1), 1009)
            async with self._connected() as socket:
                await socket.send_text(text)
                if (found := await socket.closed()) != code:
                    raise Wrong(f"{what}: closed with {found}, not {code}")
            return
        async with raw_connection(self._url) as raw:
            head = await raw.upgrade(KEYS[self._tenant])
            if " 101 " not in head:
                raise Wrong(f"no upgrade: {head}")
            if what == "reserved":
                await raw.send(b"\x83\x81\x00\x00\x00\x00x")
                rest = await raw.rest()
                if b"\x03\xea" not in rest:  # 1002
                    raise Wrong(f"a reserved opcode was answered with {rest[:200]!r}")
            else:
                await raw.send(b"\x81\xfe\x10")  # a frame that never ends

    async def bad_http(self) -> None:
        """Requests that are no HTTP, or are not finished."""
        async with raw_connection(self._url) as raw:
            what = self._random.choice(("garbage", "unfinished", "body", "key"))
            if what == "garbage":
                await raw.send(bytes(self._random.randrange(128, 256) for _ in range(60)) + b"\r\n\r\n")
                wanted = " 400 "
            elif what == "unfinished":
                await raw.send(b"POST /v1/responses HTTP/1.1\r\nHost: soak\r\n")
                return
            elif what == "body":
                await raw.send(_head(KEYS[self._tenant], 100) + b'{"input":')
                return
            else:
                await raw.send(_head("no-such-key", 2) + b"{}")
                wanted = " 401 "
            if wanted not in (head := await raw.head()):
                raise Wrong(f"{what} was answered with {head!r}")


def _head(key: str, length: int) -> bytes:
    return (
        f"POST /v1/responses HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def _as_read(call: Json) -> list[Json]:
    """What a model reads of a hosted call."""
    asked = {"type": "function_call", "name": call["name"], "arguments": call["arguments"]}
    return [asked, {"type": "function_call_output", "output": call["output"]}]


def _as_input(item: Json) -> Json:
    """An item of an answer, as a client sends it again."""
    if item["type"] == "message" and item["role"] == "assistant":
        return {"type": "message", "role": "assistant", "content": item["content"]}
    return item


def _create(**fields: object) -> bytes:
    return json.dumps({"type": "response.create", "model": SHORT, "input": "go", **fields}).encode()


_BAD_EVENTS: list[tuple[bytes, str, str]] = [
    (b"{", "error", "invalid_json"),
    (b"[]", "error", "invalid_json"),
    (b"[" * 5000, "error", "invalid_json"),
    (b'{"type": "response.nonsense"}', "error", "unsupported_event_type"),
    (b'{"no": "type"}', "error", "unsupported_event_type"),
    (_create(stream_id=""), "error", "invalid_stream_id"),
    (_create(input=5), "error", "invalid_type"),
    (_create(model="no-such-model"), "error", "model_not_found"),
    (_create(previous_response_id="resp_nothing"), "error", "previous_response_not_found"),
    (_create(max_output_tokens=0), "error", "integer_below_min_value"),
    (
        b'{"type": "response.steer", "previous_response_id": "resp_nothing", "input": "more"}',
        "response.steer.failed",
        "response_not_found",
    ),
]


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    """The events of a stream. Raises ``Refused``."""
    if answer.status != 200:
        raise Refused((await answer.json())["error"], answer.status)
    parser = SseParser()
    async for chunk in answer.content.iter_any():
        for data in parser.feed(chunk):
            yield decode(data)
