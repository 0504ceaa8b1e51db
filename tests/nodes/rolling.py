"""Two nodes behind a load balancer that are restarted one after the other, and the clients meanwhile."""

import asyncio
import json
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from tests.commands.test_cli import COMMAND, Process, launched
from tests.nodes.pairs import Relay, node_of, relay, until

ENGINE = ("--engine", "simulated:tokens_per_s=500,output_tokens=40")
ANSWERS_PER_STEP = 2
"""Answers that every client gets between two steps."""
DISCONNECTED = (aiohttp.ClientError, ConnectionError)


class TurnFailed(Exception):
    """A turn started and did not complete."""


class NotStarted(Exception):
    """The turn did not start, and may be repeated."""


class Client(ABC):
    """Makes turns one after the other, and repeats each until it is answered."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url
        self.answers: list[dict[str, Any]] = []
        self.repeated = 0

    async def run(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            text = f"turn {len(self.answers)}"
            async with asyncio.timeout(300):
                self.answers.append(await self._until_answered(text))
        await self.close()

    async def _until_answered(self, text: str) -> dict[str, Any]:
        while True:
            try:
                return await self.ask(text)
            except (NotStarted, *DISCONNECTED):
                self.repeated += 1
                await self.close()
                await asyncio.sleep(0.01)  # clients do not retry at once

    @property
    def previous(self) -> str | None:
        return self.answers[-1]["id"] if self.answers else None

    @abstractmethod
    async def ask(self, text: str) -> dict[str, Any]:
        """Make a turn. Raises ``NotStarted`` or a connection error if it must be repeated."""

    async def close(self) -> None:
        """Close the connection, if there is one."""
        return


class SocketClient(Client):
    """Uses one socket until the server closes it."""

    ws: aiohttp.ClientWebSocketResponse | None = None

    async def ask(self, text: str) -> dict[str, Any]:
        if self.ws is None:
            self.ws = await self.http.ws_connect(f"{self.url}/responses")
        create = {"type": "response.create", "input": text, "previous_response_id": self.previous}
        await self.ws.send_json(create)
        has_started = False
        while True:
            message = await self.ws.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise TurnFailed("the socket was closed during a turn") if has_started else NotStarted
            has_started = True
            response = completed_response(json.loads(message.data))
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
                raise error_of(body["error"])
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
                raise error_of((await answer.json())["error"])
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    response = completed_response(json.loads(line.removeprefix(b"data: ")))
                    if response is not None:
                        return response
            raise TurnFailed("the stream ended before its response")


def completed_response(event: dict[str, Any]) -> dict[str, Any] | None:
    """The response of a completed event, else None. Raises for errors and failures."""
    if event["type"] == "error":
        raise error_of(event["error"])
    if event["type"] in ("response.failed", "response.incomplete"):
        raise TurnFailed(event)
    return event["response"] if event["type"] == "response.completed" else None


def error_of(error: dict[str, Any]) -> Exception:
    return NotStarted() if error["code"] == "server_shutting_down" else TurnFailed(error)


class Fleet:
    """Two nodes that can be stopped and started, behind one port."""

    def __init__(self, stack: AsyncExitStack, balancer: Relay, store: str) -> None:
        self._stack = stack
        self._balancer = balancer
        self._store = store
        self.nodes: list[Process] = []

    async def start(
        self, index: int, *arguments: str, command: tuple[str, ...] = COMMAND, **variables: str
    ) -> None:
        """Start a node in place of the one at ``index``, or beside those that run."""
        flags = (*ENGINE, "--store", self._store, *arguments)
        node = await self._stack.enter_async_context(launched(*flags, command=command, **variables))
        self.nodes[index:] = [node, *self.nodes[index + 1 :]]
        self._balancer.targets = [port_of(each) for each in self.nodes]


def port_of(node: Process) -> int:
    return int(node.url.removesuffix("/v1").rpartition(":")[2])


@asynccontextmanager
async def fleet(store: str) -> AsyncIterator[tuple[Fleet, str]]:
    """A fleet without nodes, and the URL behind which they will be."""
    async with AsyncExitStack() as stack:
        balancer = await stack.enter_async_context(relay())
        yield Fleet(stack, balancer, store), f"{balancer.url}/v1"


@asynccontextmanager
async def traffic(url: str) -> AsyncIterator["Traffic"]:
    """Clients of every kind that make turns until the block ends."""
    # One connection per request, as the load balancer should have it.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        talking = ConversationClient(http, url)
        async with http.post(f"{url}/conversations", json={}) as answer:
            talking.conversation = (await answer.json())["id"]
        clients: list[Client] = [*(SocketClient(http, url) for _ in range(4)), talking]
        clients += [PostClient(http, url), StreamClient(http, url)]
        running = Traffic(http, url, clients, talking)
        try:
            yield running
        finally:
            running.cancel()


class Traffic:
    """Running clients, and what they must find in the end."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, clients: list[Client], talking: ConversationClient
    ) -> None:
        self.http = http
        self.clients = clients
        self._url = url
        self._talking = talking
        self._stopped = asyncio.Event()
        self._work = [asyncio.create_task(client.run(self._stopped)) for client in clients]

    @property
    def answers(self) -> int:
        return sum(len(client.answers) for client in self.clients)

    @property
    def repeated(self) -> int:
        return sum(client.repeated for client in self.clients)

    async def progress(self) -> None:
        """Wait until every client has some more answers."""
        wanted = [len(client.answers) + ANSWERS_PER_STEP for client in self.clients]

        def is_done() -> bool:
            for task in self._work:
                if task.done():
                    task.result()  # raises: a client ends only by failing
            return all(
                len(client.answers) >= count for client, count in zip(self.clients, wanted, strict=True)
            )

        await until(is_done)

    async def stop(self) -> None:
        """Let every client finish its turn."""
        self._stopped.set()
        await asyncio.gather(*self._work)

    def cancel(self) -> None:
        for task in self._work:
            task.cancel()

    async def check(self, makers: int) -> None:
        """Every acknowledged turn is in the chain of its client, once and in order, and at least so many
        nodes have made a part of each."""
        for client in self.clients:
            expected = [f"turn {number}" for number in range(len(client.answers))]
            found = await user_texts(self.http, f"{self._url}/responses/{client.previous}/input_items")
            assert found == expected
            assert len({node_of(answer) for answer in client.answers}) >= makers
        items = f"{self._url}/conversations/{self._talking.conversation}/items"
        spoken = [f"turn {number}" for number in range(len(self._talking.answers))]
        assert await user_texts(self.http, items) == spoken


async def stop_during_a_turn(node: Process, http: aiohttp.ClientSession) -> None:
    """Send SIGTERM to a node during a turn: the turn completes, then the socket is closed with 1001."""
    ws = await http.ws_connect(f"{node.url}/responses")
    await ws.send_json({"type": "response.create", "input": "before the signal"})
    assert (await ws.receive_json(timeout=300))["type"] == "response.created"
    stopped = asyncio.create_task(node.stop(signal.SIGTERM))
    kinds = []
    while not kinds or kinds[-1] != "error":
        kinds.append((await ws.receive_json(timeout=300))["type"])
    assert kinds[-2:] == ["response.completed", "error"]
    await ws.receive(timeout=300)
    assert ws.close_code == 1001
    assert await stopped == 0


async def user_texts(http: aiohttp.ClientSession, url: str) -> list[str]:
    """The texts of user messages in a list of items, oldest first."""
    texts: list[str] = []
    after = ""
    while True:
        async with http.get(f"{url}?order=asc&limit=100{after}") as answer:
            page = await answer.json()
        texts += [item["content"][0]["text"] for item in page["data"] if item["role"] == "user"]
        if not page["has_more"]:
            return texts
        after = f"&after={page['last_id']}"
