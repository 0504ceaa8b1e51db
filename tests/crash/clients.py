"""Clients that talk to servers until all of them are gone, each in a manner of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp

from tests.crash.ledger import Json, Ledger, Note, Talk, Turn

_LONGEST_CHAIN = 12
_LONGEST_TALK = 8
_LONGEST_WAIT_S = 0.1
"""Before a run is cancelled: by then it may be over."""
_TERMINAL = ("response.completed", "response.failed", "response.incomplete")
GONE = (aiohttp.ClientError, ConnectionError, TimeoutError)
"""How a client finds out that its server was killed."""


class Broken(Exception):
    """The server said what it must not say."""


class Refused(Exception):
    """The server could not do what was asked for, and said so."""


class Door:
    """The way to one server."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: Json | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.http.request(method, f"{self.url}{path}", json=body) as answer:
            yield answer

    async def tell(self, method: str, path: str, body: Json | None = None) -> Json:
        async with self.ask(method, path, body) as answer:
            return await _json(answer)


class Crowd:
    """The clients of one round."""

    def __init__(
        self, urls: list[str], ledger: Ledger, random: Random, on_answer: Callable[[], None]
    ) -> None:
        self.urls = urls
        """The servers that live. Whoever loses another one has found an error."""
        self.ledger = ledger
        self.random = random
        self.may_refuse = False
        """Whether the store is being killed too, so that turns may fail."""
        self._on_answer = on_answer

    async def run(self) -> None:
        """Until no server is left."""
        manners = [self._socket] * 4 + [self._post, self._sse] + [self._talk] * 3 + [self._background] * 3
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await asyncio.gather(*(self._until_gone(manner, http) for manner in manners))

    async def _until_gone(self, manner: Callable[[Door], Any], http: aiohttp.ClientSession) -> None:
        while self.urls:
            door = Door(http, self.random.choice(self.urls))
            try:
                await manner(door)
            except GONE as error:
                if door.url in self.urls:
                    raise Broken("a server that lives has dropped its client") from error
            except Refused:
                if not self.may_refuse:
                    raise
                await asyncio.sleep(0.05)  # a store that is being killed needs a moment

    # What they ask for.

    def _parent(self) -> Turn | None:
        """Something to go on from: nothing, or whatever anybody was told is stored."""
        known = self.ledger.acknowledged()
        if not known or self.random.random() < 0.2:
            return None
        turn = self.random.choice(known[-50:] if self.random.random() < 0.8 else known)
        return turn if turn.depth < _LONGEST_CHAIN and turn.talk is None else None

    def _body(self, turn: Turn) -> Json:
        body: Json = {"input": turn.text, "store": turn.is_stored, "metadata": {"turn": str(turn.number)}}
        if turn.parent is not None:
            body["previous_response_id"] = turn.parent.id
        if turn.talk is not None:
            body["conversation"] = turn.talk.id
        if turn.is_background:
            body["background"] = True
        return body

    def _told(self, turn: Turn, event: Json) -> bool:
        """Take note of an event; whether it was the last."""
        if event["type"] == "error":
            raise (Refused if event["status"] >= 500 else Broken)(event)
        if event["type"] == "response.created":
            turn.id = event["response"]["id"]
        if event["type"] not in _TERMINAL:
            return False
        self._ended(turn, event["response"])
        return True

    def _ended(self, turn: Turn, response: Json) -> None:
        if response["status"] == "failed" and not turn.is_background:
            raise Refused(response["error"])
        if response["status"] not in ("completed", "failed", "cancelled" if turn.is_cancelled else ""):
            raise Broken(f"turn {turn.number} ended as {response['status']}: {response}")
        self.ledger.acknowledge(turn, response)
        self._on_answer()
        check_count(turn)

    # How they ask.

    async def _socket(self, door: Door) -> None:
        """A chain with forks on one socket; some of it is not stored."""
        async with door.http.ws_connect(f"{door.url}/responses") as ws:
            tip = self._parent()
            while True:
                if tip is not None and tip.depth >= _LONGEST_CHAIN:
                    tip = None
                elif self.random.random() < 0.1:
                    tip = self._parent()
                turn = self.ledger.ask(parent=tip, is_stored=self.random.random() < 0.8)
                await ws.send_json({"type": "response.create", **self._body(turn)})
                while not self._told(turn, await _next_event(ws)):
                    pass
                tip = turn

    async def _post(self, door: Door) -> None:
        """A chain, answer by answer. Now and then something that nothing needs is deleted."""
        tip = self._parent()
        while True:
            tip = await self._ask(door, self.ledger.ask(parent=tip))
            if self.random.random() < 0.1 and not any(turn.parent is tip for turn in self.ledger.turns):
                await self._delete(door, tip)
                tip = self._parent()
            elif tip.depth >= _LONGEST_CHAIN:
                tip = None

    async def _sse(self, door: Door) -> None:
        tip = self._parent()
        while True:
            turn = self.ledger.ask(parent=tip)
            async with door.ask("POST", "/responses", {**self._body(turn), "stream": True}) as answer:
                await self._follow(turn, answer)
            tip = turn if turn.depth < _LONGEST_CHAIN else None

    async def _talk(self, door: Door) -> None:
        """A conversation. Stored or not, a turn adds its items; now and then one is added by hand."""
        talk = Talk((await door.tell("POST", "/conversations", {}))["id"])
        self.ledger.talks.append(talk)
        while len(talk.entries) < _LONGEST_TALK:
            if self.random.random() < 0.2:
                await self._add(door, talk)
            else:
                await self._ask(door, self.ledger.ask(talk=talk, is_stored=self.random.random() < 0.8))

    async def _background(self, door: Door) -> None:
        """A run that somebody asks about, or follows, to its end, or cancels, by whichever server."""
        turn = self.ledger.ask(parent=self._parent(), is_background=True)
        turn.id = (await door.tell("POST", "/responses", self._body(turn)))["id"]
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.uniform(0, _LONGEST_WAIT_S))
            door.url = self.random.choice(self.urls or [door.url])
            turn.is_cancelled = True
            return self._ended(turn, await door.tell("POST", f"/responses/{turn.id}/cancel"))
        if self.random.random() < 0.5:
            async with door.ask("GET", f"/responses/{turn.id}?stream=true") as answer:
                return await self._follow(turn, answer)
        while not turn.is_acknowledged:
            response = await door.tell("GET", f"/responses/{turn.id}")
            if response["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.02)
            else:
                self._ended(turn, response)

    async def _ask(self, door: Door, turn: Turn) -> Turn:
        self._ended(turn, await door.tell("POST", "/responses", self._body(turn)))
        return turn

    async def _add(self, door: Door, talk: Talk) -> None:
        note = Note(f"note {len(self.ledger.turns)} of {talk.id}")
        talk.entries.append(note)
        talk.is_settled = False
        items = [{"role": "user", "content": note.text}]
        await door.tell("POST", f"/conversations/{talk.id}/items", {"items": items})
        note.is_acknowledged = talk.is_settled = True

    async def _delete(self, door: Door, turn: Turn) -> None:
        turn.deletion = "asked"
        await door.tell("DELETE", f"/responses/{turn.id}")
        turn.deletion = "done"

    async def _follow(self, turn: Turn, answer: aiohttp.ClientResponse) -> None:
        if answer.status != 200:
            await _json(answer)
        async for line in answer.content:
            if line.startswith(b"data: {") and self._told(turn, json.loads(line[6:])):
                return
        raise ConnectionError("the stream ended early")


def check_count(turn: Turn) -> None:
    """That the engine was given the whole history."""
    response = turn.response
    assert response is not None
    if response["status"] == "completed" and response["usage"]["input_tokens"] != turn.input_tokens():
        found = response["usage"]["input_tokens"]
        raise Broken(f"turn {turn.number} was made from {found} tokens, not {turn.input_tokens()}")


async def _next_event(ws: aiohttp.ClientWebSocketResponse) -> Json:
    message = await ws.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionError("the socket was closed")
    event: Json = json.loads(message.data)
    return event


async def _json(answer: aiohttp.ClientResponse) -> Json:
    body: Json = json.loads(await answer.read())
    if answer.status >= 500:
        raise Refused(body)
    if answer.status != 200:
        raise Broken(f"{answer.method} {answer.url.path}: {answer.status} {body}")
    return body
