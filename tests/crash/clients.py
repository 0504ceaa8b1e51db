"""Clients that send requests until all servers are killed, each over its own transport and endpoints."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import ClassVar

import aiohttp

from tests.crash.ledger import Json, Ledger, Note, Talk, Turn, as_line

_LONGEST_CHAIN = 12
_LONGEST_TALK = 8
_LONGEST_WAIT_S = 0.1
"""Pause before a run is cancelled. The run may have ended by then."""
_PAUSE_S = 0.05
_TERMINAL = ("response.completed", "response.failed", "response.incomplete")
CONNECTION_LOST = (aiohttp.ClientError, ConnectionError, TimeoutError)
"""Exceptions by which a client notices that its server was killed."""


class WrongAnswer(Exception):
    """The server's answer is wrong."""


class RequestRefused(Exception):
    """The server answered with an error."""


class ServerClient:
    """An HTTP client of one server."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: Json | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.http.request(method, f"{self.url}{path}", json=body) as answer:
            yield answer

    async def call(self, method: str, path: str, body: Json | None = None) -> Json:
        async with self.request(method, path, body) as answer:
            return await _json(answer)


class Counts:
    """Checks by its token counts that the simulated engine has received the whole history of a turn."""

    ending = "completed"
    """How the engine's answers end."""
    settings: ClassVar[Json] = {}
    """Fields of every request."""

    def check(self, turn: Turn) -> None:
        response = turn.response
        assert response is not None
        if turn.is_complete and response["usage"]["input_tokens"] != turn.input_tokens():
            found = response["usage"]["input_tokens"]
            raise WrongAnswer(f"turn {turn.number} was made from {found} tokens, not {turn.input_tokens()}")

    def check_output(self, response: Json) -> None:
        """Check that a stored answer is complete."""
        (item,) = response["output"]
        assert item["status"] == "completed"
        assert len(as_line(item)[1].split()) == response["usage"]["output_tokens"]


Behaviour = Callable[[ServerClient], Awaitable[None]]
"""One kind of client: sends requests to a server until it loses the connection."""


class Crowd:
    """All clients of one round."""

    def __init__(
        self,
        urls: list[str],
        ledger: Ledger,
        random: Random,
        on_answer: Callable[[], None],
        counts: Counts,
    ) -> None:
        self.urls = urls
        """The servers that have not been killed. Losing the connection to one of them is an error."""
        self.ledger = ledger
        self.random = random
        self.may_refuse = False
        """Whether something that the servers need is broken, so that turns may fail."""
        self.may_drop = False
        """Whether processes of the servers are killed, so that connections may be lost."""
        self.refusals = 0
        self.on_event: Callable[[Turn, Json], None] = lambda turn, event: None
        """Called with every event of a stream, before the client looks at it."""
        self.behaviours: list[Behaviour] = [
            *([self.socket] * 4 + [self.post, self.sse]),
            *([self.talk] * 3 + [self.background] * 3),
        ]
        self.on_answer = on_answer
        self._counts = counts

    async def run(self) -> None:
        """Run until no server is left."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            clients = [
                asyncio.create_task(self._until_killed(behaviour, http)) for behaviour in self.behaviours
            ]
            try:
                await asyncio.gather(*clients)
            finally:
                for client in clients:
                    client.cancel()

    async def _until_killed(self, behaviour: Behaviour, http: aiohttp.ClientSession) -> None:
        while self.urls:
            server = ServerClient(http, self.random.choice(self.urls))
            try:
                await behaviour(server)
            except CONNECTION_LOST as error:
                if server.url in self.urls and not self.may_drop:
                    raise WrongAnswer("a server that was not killed has dropped its client") from error
                await asyncio.sleep(_PAUSE_S)
            except RequestRefused:
                self.refusals += 1
                if not self.may_refuse:
                    raise
                await asyncio.sleep(_PAUSE_S)  # what was killed needs a moment

    # Requests and their outcome.

    def choose_parent(self) -> Turn | None:
        """Choose a response to continue: none, or one that was acknowledged to any client."""
        known = self.ledger.acknowledged()
        if not known or self.random.random() < 0.2:
            return None
        turn = self.random.choice(known[-50:] if self.random.random() < 0.8 else known)
        return turn if turn.depth < _LONGEST_CHAIN and turn.talk is None else None

    def body(self, turn: Turn) -> Json:
        body: Json = {
            **self._counts.settings,
            "input": turn.text,
            "store": turn.is_stored,
            "metadata": {"turn": str(turn.number)},
        }
        if turn.parent is not None:
            body["previous_response_id"] = turn.parent.id
        if turn.talk is not None:
            body["conversation"] = turn.talk.id
        if turn.is_background:
            body["background"] = True
        return body

    def _record(self, turn: Turn, event: Json) -> bool:
        """Record an event; return whether it was the last."""
        self.on_event(turn, event)
        if event["type"] == "error":
            turn.failure = event["error"]["message"]
            raise (RequestRefused if event["status"] >= 500 else WrongAnswer)(event)
        if event["type"] == "response.created":
            turn.id = event["response"]["id"]
        if event["type"] not in _TERMINAL:
            return False
        self._ended(turn, event["response"])
        return True

    def _ended(self, turn: Turn, response: Json) -> None:
        if response["status"] == "failed" and not turn.is_background:
            turn.failure = response["error"]["message"]
            raise RequestRefused(response["error"])
        endings = (self._counts.ending, "failed", "cancelled" if turn.is_cancelled else "")
        if response["status"] not in endings:
            raise WrongAnswer(f"turn {turn.number} ended as {response['status']}: {response}")
        self.ledger.acknowledge(turn, response)
        self.on_answer()
        self._counts.check(turn)

    # One method for each kind of client.

    async def socket(self, server: ServerClient) -> None:
        """Create a chain with forks on one WebSocket; some responses are not stored."""
        async with server.http.ws_connect(f"{server.url}/responses") as ws:
            tip = self.choose_parent()
            while True:
                if tip is not None and tip.depth >= _LONGEST_CHAIN:
                    tip = None
                elif self.random.random() < 0.1:
                    tip = self.choose_parent()
                turn = self.ledger.ask(parent=tip, is_stored=self.random.random() < 0.8)
                await ws.send_json({"type": "response.create", **self.body(turn)})
                while not self._record(turn, await _next_event(ws)):
                    pass
                tip = turn

    async def post(self, server: ServerClient) -> None:
        """Create a chain with plain POSTs. Sometimes a response that no other continues is deleted."""
        tip = self.choose_parent()
        while True:
            tip = await self._create(server, self.ledger.ask(parent=tip))
            if self.random.random() < 0.1 and not any(turn.parent is tip for turn in self.ledger.turns):
                await self._delete(server, tip)
                tip = self.choose_parent()
            elif tip.depth >= _LONGEST_CHAIN:
                tip = None

    async def sse(self, server: ServerClient) -> None:
        tip = self.choose_parent()
        while True:
            turn = self.ledger.ask(parent=tip)
            async with server.request("POST", "/responses", {**self.body(turn), "stream": True}) as answer:
                await self._follow(turn, answer)
            tip = turn if turn.depth < _LONGEST_CHAIN else None

    async def talk(self, server: ServerClient) -> None:
        """Create turns in a conversation, stored or not. Sometimes an item is added directly."""
        talk = Talk((await server.call("POST", "/conversations", {}))["id"])
        self.ledger.talks.append(talk)
        while len(talk.entries) < _LONGEST_TALK:
            if self.random.random() < 0.2:
                await self._add(server, talk)
            else:
                await self._create(server, self.ledger.ask(talk=talk, is_stored=self.random.random() < 0.8))

    async def background(self, server: ServerClient) -> None:
        """Create a background run; then poll, stream or cancel it, on any server."""
        turn = self.ledger.ask(parent=self.choose_parent(), is_background=True)
        turn.id = (await server.call("POST", "/responses", self.body(turn)))["id"]
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.uniform(0, _LONGEST_WAIT_S))
            server.url = self.random.choice(self.urls or [server.url])
            turn.is_cancelled = True
            return self._ended(turn, await server.call("POST", f"/responses/{turn.id}/cancel"))
        if self.random.random() < 0.5:
            return await self._stream_run(server, turn)
        while not turn.is_acknowledged:
            response = await server.call("GET", f"/responses/{turn.id}")
            if response["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.02)
            else:
                self._ended(turn, response)

    async def _stream_run(self, server: ServerClient, turn: Turn) -> None:
        """Stream a run. A server that cannot read the store cuts the stream off; the client asks again."""
        while not turn.is_acknowledged:
            try:
                async with server.request("GET", f"/responses/{turn.id}?stream=true") as answer:
                    await self._follow(turn, answer)
            except CONNECTION_LOST:
                if not self.may_refuse or server.url not in self.urls:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def _create(self, server: ServerClient, turn: Turn) -> Turn:
        try:
            response = await server.call("POST", "/responses", self.body(turn))
        except RequestRefused as refused:
            turn.failure = str(refused)
            raise
        self._ended(turn, response)
        return turn

    async def _add(self, server: ServerClient, talk: Talk) -> None:
        # No entry before it has this text, by which the check finds it after a crash.
        note = Note(f"note {len(talk.entries)} of {talk.id}")
        talk.entries.append(note)
        talk.is_settled = False
        items = [{"role": "user", "content": note.text}]
        await server.call("POST", f"/conversations/{talk.id}/items", {"items": items})
        note.is_acknowledged = talk.is_settled = True

    async def _delete(self, server: ServerClient, turn: Turn) -> None:
        turn.deletion = "asked"
        await server.call("DELETE", f"/responses/{turn.id}")
        turn.deletion = "done"

    async def _follow(self, turn: Turn, answer: aiohttp.ClientResponse) -> None:
        if answer.status != 200:
            await _json(answer)
        async for line in answer.content:
            if line.startswith(b"data: {") and self._record(turn, json.loads(line[6:])):
                return
        raise ConnectionError("the stream ended early")


async def _next_event(ws: aiohttp.ClientWebSocketResponse) -> Json:
    message = await ws.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionError("the socket was closed")
    event: Json = json.loads(message.data)
    return event


async def _json(answer: aiohttp.ClientResponse) -> Json:
    body: Json = json.loads(await answer.read())
    if answer.status >= 500:
        raise RequestRefused(body)
    if answer.status != 200:
        raise WrongAnswer(f"{answer.method} {answer.url.path}: {answer.status} {body}")
    return body
