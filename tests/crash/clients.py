"""Clients that talk to a server until it is gone, each in a manner of its own."""

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
_TERMINAL = ("response.completed", "response.failed", "response.incomplete")
GONE = (aiohttp.ClientError, ConnectionError, TimeoutError)
"""How a client finds out that its server was killed."""


class Broken(Exception):
    """The server said what it must not say."""


class Refused(Exception):
    """The server could not do what was asked for, and said so."""


class Crowd:
    """The clients of one round."""

    def __init__(self, url: str, ledger: Ledger, random: Random, on_answer: Callable[[], None]) -> None:
        self.url = url
        self.ledger = ledger
        self.random = random
        self.may_refuse = False
        """Whether the store is being killed too, so that turns may fail."""
        self._on_answer = on_answer

    async def run(self) -> None:
        """Until every client has lost its server."""
        manners = [self._socket] * 4 + [self._post, self._sse] + [self._talk] * 3 + [self._background] * 3
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await asyncio.gather(*(self._until_gone(manner, http) for manner in manners))

    async def _until_gone(self, manner: Callable[[aiohttp.ClientSession], Any], http: Any) -> None:
        while True:
            try:
                await manner(http)
            except GONE:
                return
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
        if response["status"] not in ("completed", "failed"):
            raise Broken(f"turn {turn.number} ended as {response['status']}: {response}")
        self.ledger.acknowledge(turn, response)
        self._on_answer()
        check_count(turn)

    # How they ask.

    async def _socket(self, http: aiohttp.ClientSession) -> None:
        """A chain with forks on one socket; some of it is not stored."""
        async with http.ws_connect(f"{self.url}/responses") as ws:
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

    async def _post(self, http: aiohttp.ClientSession) -> None:
        """A chain, answer by answer. Now and then something that nothing needs is deleted."""
        tip = self._parent()
        while True:
            tip = await self._ask(http, self.ledger.ask(parent=tip))
            if self.random.random() < 0.1 and not any(turn.parent is tip for turn in self.ledger.turns):
                await self._delete(http, tip)
                tip = self._parent()
            elif tip.depth >= _LONGEST_CHAIN:
                tip = None

    async def _sse(self, http: aiohttp.ClientSession) -> None:
        tip = self._parent()
        while True:
            turn = self.ledger.ask(parent=tip)
            async with self._posting(http, {**self._body(turn), "stream": True}) as answer:
                await self._follow(turn, answer)
            tip = turn if turn.depth < _LONGEST_CHAIN else None

    async def _talk(self, http: aiohttp.ClientSession) -> None:
        """A conversation. Stored or not, a turn adds its items; now and then one is added by hand."""
        async with self._posting(http, {}, "/conversations") as answer:
            talk = Talk((await _json(answer))["id"])
        self.ledger.talks.append(talk)
        while len(talk.entries) < _LONGEST_TALK:
            if self.random.random() < 0.2:
                await self._add(http, talk)
            else:
                await self._ask(http, self.ledger.ask(talk=talk, is_stored=self.random.random() < 0.8))

    async def _background(self, http: aiohttp.ClientSession) -> None:
        """A run that somebody asks about, or follows, to its end."""
        turn = self.ledger.ask(parent=self._parent(), is_background=True)
        async with self._posting(http, self._body(turn)) as answer:
            turn.id = (await _json(answer))["id"]
        if self.random.random() < 0.5:
            async with http.get(f"{self.url}/responses/{turn.id}?stream=true") as answer:
                return await self._follow(turn, answer)
        while not turn.is_acknowledged:
            async with http.get(f"{self.url}/responses/{turn.id}") as answer:
                response = await _json(answer)
            if response["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.02)
            else:
                self._ended(turn, response)

    async def _ask(self, http: aiohttp.ClientSession, turn: Turn) -> Turn:
        async with self._posting(http, self._body(turn)) as answer:
            self._ended(turn, await _json(answer))
        return turn

    async def _add(self, http: aiohttp.ClientSession, talk: Talk) -> None:
        note = Note(f"note {len(self.ledger.turns)} of {talk.id}")
        talk.entries.append(note)
        talk.is_settled = False
        items = [{"role": "user", "content": note.text}]
        async with self._posting(http, {"items": items}, f"/conversations/{talk.id}/items") as answer:
            await _json(answer)
        note.is_acknowledged = talk.is_settled = True

    async def _delete(self, http: aiohttp.ClientSession, turn: Turn) -> None:
        turn.deletion = "asked"
        async with http.delete(f"{self.url}/responses/{turn.id}") as answer:
            await _json(answer)
        turn.deletion = "done"

    async def _follow(self, turn: Turn, answer: aiohttp.ClientResponse) -> None:
        if answer.status != 200:
            await _json(answer)
        async for line in answer.content:
            if line.startswith(b"data: {") and self._told(turn, json.loads(line[6:])):
                return
        raise ConnectionError("the stream ended early")

    @asynccontextmanager
    async def _posting(
        self, http: aiohttp.ClientSession, body: Json, path: str = "/responses"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with http.post(f"{self.url}{path}", json=body) as answer:
            yield answer


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
