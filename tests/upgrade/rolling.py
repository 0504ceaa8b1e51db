"""Two nodes on PostgreSQL are upgraded one after the other, with traffic, while chains move between them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
import asyncpg

from tests.nodes.pairs import Relay, relay
from tests.nodes.rolling import Fleet, Traffic, fleet, port_of, stop_during_a_turn, traffic
from tests.nodes.test_nodes_parking import reset
from tests.upgrade.contents import (
    FOREVER,
    TOOL_LOOP_SETTINGS,
    Client,
    Json,
    check,
    socket_turn,
    tool_loop,
    write,
)
from tests.upgrade.files import start_previous
from tests.upgrade.previous import THIS

Report = Callable[[str], None]

_ENGINE = "simulated:tokens_per_s=500,output_tokens=40,tool_calls=1,digest=true"
_CHAINS = 4
"""Parked chains that move in each direction at once."""
_PATIENCE_S = 300.0
"""Half of the time for which chains are parked."""
_QUESTION = "What did we speak about?"


class RollingUpgrade:
    """The steps of a rolling upgrade, and what has to hold at each of them."""

    def __init__(self, store: str, previous: tuple[str, ...], vocabulary: str, report: Report) -> None:
        self._store = store
        self._previous = previous
        self._engine = _ENGINE + (f",vocabulary={vocabulary}" if vocabulary else "")
        self._counts = not vocabulary
        """Whether both versions count the same tokens."""
        self._report = report
        self._fronts: list[Relay] = []
        self.moved = 0

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            nodes, url = await stack.enter_async_context(fleet(self._store))
            self._fronts = [await stack.enter_async_context(relay()) for _ in range(2)]
            for index in range(2):
                await self._start(nodes, index, self._previous)
            before = await self._version()
            clients = await stack.enter_async_context(traffic(url))
            left = [await write(self._client(nodes, 0, clients.http))]
            await self._look(nodes, clients, left, "both old")
            await self._replace(nodes, 0, clients)
            after = await self._version()
            self._report(f"schema {before} -> {after}")
            left.append(await write(self._client(nodes, 0, clients.http)))
            left.append(await write(self._client(nodes, 1, clients.http)))
            await self._look(nodes, clients, left, "one new, one old")
            flags = ("--store", self._store, "--engine", self._engine, *FOREVER)
            started = start_previous(clients.http, self._previous, before, *flags, contents=left)
            self._report(await started)
            await self._replace(nodes, 1, clients)
            await self._look(nodes, clients, left, "both new")
            await clients.stop()
            await clients.check(makers=2)
            self._report(
                f"{clients.answers} turns acknowledged, 0 lost, {clients.repeated} repeated because a node"
                f" was stopping, {self.moved} parked chains continued on the other node"
            )

    async def _start(self, nodes: Fleet, index: int, release: tuple[str, ...]) -> None:
        front = self._fronts[index]
        await nodes.start(
            index,
            *("--engine", self._engine, "--node-url", front.url, *FOREVER),
            command=release,
            # Else the previous version would import what is checked out here.
            **({} if release == THIS else {"PYTHONPATH": ""}),
        )
        front.targets = [port_of(nodes.nodes[index])]

    async def _replace(self, nodes: Fleet, index: int, clients: Traffic) -> None:
        """Stop an old node during a turn, and start a new one in its place."""
        await stop_during_a_turn(nodes.nodes[index], clients.http)
        await clients.progress()
        await self._start(nodes, index, THIS)
        await clients.progress()

    async def _look(self, nodes: Fleet, clients: Traffic, left: list[Json], stage: str) -> None:
        """Each node has everything that any node has stored, and finds what the other has parked."""
        began = time.monotonic()
        for index in range(2):
            for contents in left:
                await check(self._client(nodes, index, clients.http), contents, counts=self._counts)
        await clients.progress()
        for here, there in ((0, 1), (1, 0)):
            urls = nodes.nodes[here].url, nodes.nodes[there].url
            await asyncio.gather(*(self._move(clients.http, *urls) for _ in range(_CHAINS)))
        await clients.progress()
        self._report(f"{stage}: stores and parked chains are whole ({time.monotonic() - began:.0f} s)")

    def _client(self, nodes: Fleet, index: int, http: aiohttp.ClientSession) -> Client:
        return Client(http, nodes.nodes[index].url)

    async def _move(self, http: aiohttp.ClientSession, here: str, there: str) -> None:
        """A chain that is not stored goes from one node to the other and back, each time by a dropped
        connection, and is read in full each time: the same words, in the same number of tokens if both
        versions count the same."""
        ws = await http.ws_connect(f"{here}/responses")
        tip = (await tool_loop(ws, store=False))[-1]["id"]
        for url in (there, here):
            expected = await socket_turn(ws, **_question(tip))
            reset(ws)
            ws, found = await _ask_parked(http, url, tip)
            assert _text(found) == _text(expected)
            assert not self._counts or _input_tokens(found) == _input_tokens(expected)
            self.moved += 1
            go_on = {"input": "Go on", "store": False, "previous_response_id": found["id"]}
            tip = (await socket_turn(ws, **go_on))["id"]
        await ws.close()

    async def _version(self) -> int:
        connection = await asyncpg.connect(self._store)
        version = await connection.fetchval("SELECT MAX(version) FROM slipring_schema")
        await connection.close()
        return int(version)


def _question(tip: str) -> Json:
    return {
        "input": _QUESTION,
        "store": False,
        "tool_choice": "none",
        "previous_response_id": tip,
        **TOOL_LOOP_SETTINGS,
    }


def _text(answer: Json) -> str:
    """What shows the context that the engine has read: a digest of it."""
    text: str = answer["output"][-1]["content"][0]["text"]
    return text


def _input_tokens(answer: Json) -> int:
    count: int = answer["usage"]["input_tokens"]
    return count


async def _ask_parked(
    http: aiohttp.ClientSession, url: str, tip: str
) -> tuple[aiohttp.ClientWebSocketResponse, Json]:
    """Ask a question about a chain over a new socket; return the socket and the answer.

    Repeated if the chain is not found, as clients do: the node that had it may not have noticed yet that the
    connection is gone, or may have had no time to answer the other node.
    """
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            ws = await http.ws_connect(f"{url}/responses")
            await ws.send_json({"type": "response.create", **_question(tip)})
            event = await ws.receive_json()
            while event["type"] not in ("error", "response.completed"):
                event = await ws.receive_json()
            if event["type"] == "response.completed":
                return ws, event["response"]
            assert event["error"]["code"] == "previous_response_not_found", event
            await ws.close()
            await asyncio.sleep(0.02)
