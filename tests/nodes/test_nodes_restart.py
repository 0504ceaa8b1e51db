"""Two nodes behind a balancer, restarted one after the other under load: no stored turn fails."""

import asyncio
import json
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from tests.nodes.pairs import Relay, node_of, relay, until
from tests.test_cli import Process, launched

ENGINE = ("--engine", "simulated:tokens_per_s=500,output_tokens=40")
MOVED = 2
"""Answers that every client gets between two steps."""
GONE = (aiohttp.ClientError, ConnectionError)


class Failed(Exception):
    """A turn that had begun did not come to its end."""


class Again(Exception):
    """The turn was not begun: it may be asked for again."""


class Client(ABC):
    """Asks one thing after the other, each until it is answered."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url
        self.answers: list[dict[str, Any]] = []
        self.repeated = 0

    async def run(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            text = f"turn {len(self.answers)}"
            async with asyncio.timeout(30):
                self.answers.append(await self._until_answered(text))
        await self.close()

    async def _until_answered(self, text: str) -> dict[str, Any]:
        while True:
            try:
                return await self.ask(text)
            except (Again, *GONE):
                self.repeated += 1
                await self.close()
                await asyncio.sleep(0.01)  # as any client would: not at once

    @property
    def previous(self) -> str | None:
        return self.answers[-1]["id"] if self.answers else None

    @abstractmethod
    async def ask(self, text: str) -> dict[str, Any]:
        """Get an answer; raises ``Again`` or an error of the connection if there is none yet."""

    async def close(self) -> None:
        """Leave the node that one is connected to, if any."""
        return


class SocketClient(Client):
    """One socket for as long as it lasts."""

    ws: aiohttp.ClientWebSocketResponse | None = None

    async def ask(self, text: str) -> dict[str, Any]:
        if self.ws is None:
            self.ws = await self.http.ws_connect(f"{self.url}/responses")
        create = {"type": "response.create", "input": text, "previous_response_id": self.previous}
        await self.ws.send_json(create)
        began = False
        while True:
            message = await self.ws.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise Failed("a socket was closed over a running turn") if began else Again
            began = True
            response = read(json.loads(message.data))
            if response is not None:
                return response

    async def close(self) -> None:
        ws, self.ws = self.ws, None
        if ws is not None:
            await ws.close()


class PostClient(Client):
    async def ask(self, text: str) -> dict[str, Any]:
        async with self.http.post(f"{self.url}/responses", json=self.body(text)) as answer:
            body: dict[str, Any] = await answer.json()
            if answer.status != 200:
                raise refusal(body["error"])
            return body

    def body(self, text: str) -> dict[str, Any]:
        return {"input": text, "previous_response_id": self.previous}


class ConversationClient(PostClient):
    conversation = ""

    def body(self, text: str) -> dict[str, Any]:
        return {"input": text, "conversation": self.conversation}


class StreamClient(PostClient):
    async def ask(self, text: str) -> dict[str, Any]:
        body = {**self.body(text), "stream": True}
        async with self.http.post(f"{self.url}/responses", json=body) as answer:
            if answer.status != 200:
                raise refusal((await answer.json())["error"])
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    response = read(json.loads(line.removeprefix(b"data: ")))
                    if response is not None:
                        return response
            raise Failed("a stream ended before its response")


def read(event: dict[str, Any]) -> dict[str, Any] | None:
    """The response, once it is completed."""
    if event["type"] == "error":
        raise refusal(event["error"])
    if event["type"] in ("response.failed", "response.incomplete"):
        raise Failed(event)
    return event["response"] if event["type"] == "response.completed" else None


def refusal(error: dict[str, Any]) -> Exception:
    return Again() if error["code"] == "server_shutting_down" else Failed(error)


class Fleet:
    """Two nodes that can be stopped and started, behind one port."""

    def __init__(self, stack: AsyncExitStack, door: Relay, store: str) -> None:
        self._stack = stack
        self._door = door
        self._store = store
        self.nodes: list[Process] = []

    async def start(self, place: int) -> None:
        node = await self._stack.enter_async_context(launched(*ENGINE, "--store", self._store))
        self.nodes[place:] = [node, *self.nodes[place + 1 :]]
        self._door.targets = [port_of(each) for each in self.nodes]


def port_of(node: Process) -> int:
    return int(node.url.removesuffix("/v1").rpartition(":")[2])


@asynccontextmanager
async def fleet(store: str) -> AsyncIterator[tuple[Fleet, str]]:
    async with AsyncExitStack() as stack:
        door = await stack.enter_async_context(relay())
        nodes = Fleet(stack, door, store)
        for place in range(2):
            await nodes.start(place)
        yield nodes, f"{door.url}/v1"


async def stop_during_a_turn(node: Process, http: aiohttp.ClientSession) -> None:
    """Tell a node to stop while it answers: that turn finishes, and then its socket is closed with 1001."""
    ws = await http.ws_connect(f"{node.url}/responses")
    await ws.send_json({"type": "response.create", "input": "before the signal"})
    assert (await ws.receive_json(timeout=60))["type"] == "response.created"
    stopped = asyncio.create_task(node.stop(signal.SIGTERM))
    kinds = []
    while not kinds or kinds[-1] != "error":
        kinds.append((await ws.receive_json(timeout=60))["type"])
    assert kinds[-2:] == ["response.completed", "error"]
    await ws.receive(timeout=60)
    assert ws.close_code == 1001
    assert await stopped == 0


async def progress(clients: list[Client], work: list[asyncio.Task[None]]) -> None:
    """Every client gets some more answers, whichever nodes there are."""
    wanted = [len(client.answers) + MOVED for client in clients]

    def is_done() -> bool:
        for task in work:
            if task.done():
                task.result()  # it ends only by failing
        return all(len(client.answers) >= count for client, count in zip(clients, wanted, strict=True))

    await until(is_done)


async def said(http: aiohttp.ClientSession, url: str) -> list[str]:
    """The texts of the user in a list of items, oldest first."""
    texts: list[str] = []
    after = ""
    while True:
        async with http.get(f"{url}?order=asc&limit=100{after}") as answer:
            page = await answer.json()
        texts += [item["content"][0]["text"] for item in page["data"] if item["role"] == "user"]
        if not page["has_more"]:
            return texts
        after = f"&after={page['last_id']}"


async def test_a_rolling_restart_fails_no_stored_turn(postgres_url: str) -> None:
    async with (
        fleet(postgres_url) as (nodes, url),
        # A connection of its own for each request, as a balancer should have it.
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
    ):
        talker = ConversationClient(http, url)
        async with http.post(f"{url}/conversations", json={}) as answer:
            talker.conversation = (await answer.json())["id"]
        clients: list[Client] = [*(SocketClient(http, url) for _ in range(4)), talker]
        clients += [PostClient(http, url), StreamClient(http, url)]
        stopped = asyncio.Event()
        work = [asyncio.create_task(client.run(stopped)) for client in clients]
        await progress(clients, work)
        for place in range(2):
            await stop_during_a_turn(nodes.nodes[place], http)
            await progress(clients, work)
            await nodes.start(place)
            await progress(clients, work)
        stopped.set()
        await asyncio.gather(*work)
        for client in clients:
            expected = [f"turn {number}" for number in range(len(client.answers))]
            assert await said(http, f"{url}/responses/{client.previous}/input_items") == expected
            # All nodes that there ever were have made some of it, or at least one before and one after.
            assert len({node_of(answer) for answer in client.answers}) >= 2
        assert sum(client.repeated for client in clients) > 0, "somebody had to move"
        items = f"{url}/conversations/{talker.conversation}/items"
        assert await said(http, items) == [f"turn {number}" for number in range(len(talker.answers))]
