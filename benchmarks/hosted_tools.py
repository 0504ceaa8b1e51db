"""Measures tools that a server runs inside one response: slipring, and OGX and agentic-api if they are
installed, in front of the same model server, with the same MCP server (``hosted_upstream.py``). OGX asks the
model by Chat Completions, agentic-api by Responses, and slipring by both.

Model and tool answer at once, so that a step takes what the servers add. ``direct`` is the least that a step
can take: the benchmark itself asks the model and calls the tool, over connections that stay open.

    python benchmarks/peers/setup.py --only ogx litellm agentic-api    # once
    python benchmarks/hosted_tools.py [--repeats 5]
"""

import argparse
import asyncio
import functools
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from common import Process, keep, slipring, spread, started

from slipring.commands.bench.client.transports import SseParser
from slipring.mcp.pool import Pool
from slipring.mcp.protocol.tools import TextContent
from slipring.mcp.servers import HttpServer
from slipring.mcp.transports.addresses import Reach
from slipring.mcp.url_policy import parse_url

sys.path.insert(0, str(Path(__file__).with_name("peers")))

import servers

SERVICES = str(Path(__file__).with_name("hosted_upstream.py"))
STEPS, PARALLEL, TURNS = 8, 4, 25
"""OGX and agentic-api end a response after ten steps."""
EMBEDDED, EMBEDDED_TURNS = "llama:slots=1,context=2048", 3
PAIRS = 7
"""Turns with and without steps in each repeat."""
LABEL = "tools"
OWN = {"slipring": "chat:URL", "slipring by Responses": "responses:URL,transport=sse,hosted_tools=here"}
WHY_NOT = {
    "ogx": "OGX is not installed",
    "agentic-api": f"agentic-api {servers.AGENTIC} is not installed (wheels: Linux on x86_64, macOS)",
}
"""Peers that are left out if they are not there."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What the model does in a turn."""

    tool: str
    steps: int
    parallel: int = 1

    def __str__(self) -> str:
        return f"calls={self.tool} steps={self.steps} parallel={self.parallel}"

    @property
    def calls(self) -> int:
        return self.steps * self.parallel


class Wrong(Exception):
    """An answer that cannot be right."""


class Agent:
    """Someone who runs turns: a client of a server, or the benchmark itself."""

    def __init__(self, process: Process | None) -> None:
        self.process = process
        """The server; None if there is none."""

    async def turn(self, plan: Plan, previous: str | None = None) -> str | None:
        """Run a turn; returns the id of its response. Raises ``Wrong``."""
        raise NotImplementedError

    def cpu_s(self) -> float:
        return self.process.cpu_s() if self.process is not None else 0.0


class Client(Agent):
    """A client of a server of the Responses API."""

    def __init__(self, http: aiohttp.ClientSession, server: servers.Server, tools_url: str) -> None:
        super().__init__(Process(server.pid, server.url))
        self._http = http
        self._server = server
        self._tool = {
            **{"type": "mcp", "server_label": LABEL, "server_url": tools_url},
            "require_approval": "never",
        }

    async def turn(self, plan: Plan, previous: str | None = None) -> str:
        body: Json = {"model": self._server.model, "input": str(plan), "tools": [self._tool]}
        if previous is not None:
            body["previous_response_id"] = previous
        response = await self._respond(body)
        calls = [item for item in response["output"] if item["type"] == "mcp_call"]
        if len(calls) != plan.calls or any(call["error"] or not call["output"] for call in calls):
            raise Wrong(f"{len(calls)} calls instead of {plan.calls}: {calls[-1:]}")
        if response["output"][-1]["type"] != "message":
            raise Wrong(f"the response ends with {response['output'][-1]}")
        response_id: str = response["id"]
        return response_id

    async def _respond(self, body: Json) -> Json:
        raise NotImplementedError


class SseClient(Client):
    async def _respond(self, body: Json) -> Json:
        url = f"{self._server.url}/responses"
        async with self._http.post(url, json={**body, "stream": True}) as answer:
            if answer.status != 200:
                raise Wrong(f"HTTP {answer.status}: {(await answer.text())[:300]}")
            parser = SseParser()
            async for chunk in answer.content.iter_any():
                for data in parser.feed(chunk):
                    if (response := _ended(data)) is not None:
                        return response
        raise Wrong("the answer has no end")


class SocketClient(Client):
    _socket: aiohttp.ClientWebSocketResponse | None = None

    async def _respond(self, body: Json) -> Json:
        if self._socket is None:
            self._socket = await self._http.ws_connect(f"{self._server.url}/responses", max_msg_size=0)
        return await _respond_on(self._socket, body)


async def _respond_on(socket: aiohttp.ClientWebSocketResponse, body: Json) -> Json:
    await socket.send_str(json.dumps({"type": "response.create", **body}))
    while True:
        if (response := _ended(await socket.receive_str())) is not None:
            return response


def _ended(event: str | bytes) -> Json | None:
    """The response, if an event ends it. Raises ``Wrong`` if it did not complete."""
    decoded: Json = json.loads(event)
    if decoded["type"] in ("response.failed", "response.incomplete", "error"):
        raise Wrong(json.dumps(decoded)[:300])
    return decoded["response"] if decoded["type"] == "response.completed" else None


async def measure_prefill(server: Process, tools_url: str) -> list[dict[str, int]]:
    """What the embedded model reads in a chain of turns with one call each: for each turn, the input tokens
    of both steps, and those of them that it had to prefill before and after the call."""
    name = {"type": "mcp", "server_label": LABEL}
    tool = {**name, "server_url": tools_url, "require_approval": "never", "allowed_tools": ["glance"]}
    asked = {
        **{"tools": [tool], "tool_choice": {**name, "name": "glance"}, "max_tool_calls": 1},
        **{"max_output_tokens": 64, "temperature": 0, "parallel_tool_calls": False, "store": False},
    }
    turns, previous = [], None
    async with (
        aiohttp.ClientSession(headers={"OpenAI-Beta": "slipring_timing=v1"}) as http,
        http.ws_connect(f"{server.url}/responses", max_msg_size=0) as socket,
    ):
        for number in range(EMBEDDED_TURNS):
            body = {"input": f"Look up the entry with the number {number}.", **asked}
            frame = {"type": "response.create", "previous_response_id": previous, **body}
            await socket.send_str(json.dumps(frame))
            while (event := json.loads(await socket.receive_str()))["type"] != "slipring.timing":
                if event["type"] == "error":
                    raise Wrong(json.dumps(event)[:300])
                previous = event.get("response", {}).get("id", previous)
            before, after = (step["prefilled"] for step in event["timing"]["steps"])
            turns.append(
                {"input": event["timing"]["tokens"]["input"], "before_call": before, "after_call": after}
            )
    return turns


class Direct(Agent):
    """Asks the model and calls the tools, with nothing between."""

    def __init__(self, http: aiohttp.ClientSession, pool: Pool, model_url: str, tools_url: str) -> None:
        super().__init__(None)
        self._http = http
        self._pool = pool
        self._model_url = f"{model_url}/chat/completions"
        self._server = HttpServer(LABEL, parse_url(tools_url), reach=Reach.ALL)

    async def turn(self, plan: Plan, previous: str | None = None) -> None:
        listed = (await self._pool.tools(self._server)).tools
        tools = [{"type": "function", "function": {"name": tool.name}} for tool in listed]
        messages: list[Json] = [{"role": "user", "content": str(plan)}]
        while calls := await self._ask(messages, tools):
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            for call, output in zip(calls, await asyncio.gather(*map(self._call, calls)), strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})

    async def _ask(self, messages: list[Json], tools: list[Json]) -> list[Json]:
        body = {"model": "instant", "messages": messages, "tools": tools}
        async with self._http.post(self._model_url, json=body) as answer:
            message = (await answer.json())["choices"][0]["message"]
        calls: list[Json] = message.get("tool_calls") or []
        return calls

    async def _call(self, call: Json) -> str:
        function = call["function"]
        result = await self._pool.call(self._server, function["name"], json.loads(function["arguments"]))
        return "".join(block.text for block in result.content if isinstance(block, TextContent))


class Services:
    """The model server and the tool server."""

    def __init__(self, http: aiohttp.ClientSession, model: Process, tools: Process) -> None:
        self._http = http
        self._model = model
        self._tools = tools

    async def read(self) -> list[dict[str, int]]:
        """What the model server has read since the last time."""
        async with self._http.get(f"{self._model.url}/counts") as answer:
            counts: list[dict[str, int]] = await answer.json(content_type=None)
            return counts

    async def asked(self) -> dict[str, int]:
        """How often each method of the tool server was called since the last time."""
        async with self._http.get(f"{self._tools.url}/counts") as answer:
            counts: dict[str, int] = await answer.json(content_type=None)
            return counts


async def _timed(agent: Agent, plan: Plan) -> tuple[float, float]:
    """Wall time and CPU time of a turn, in milliseconds."""
    cpu, start = agent.cpu_s(), time.perf_counter()
    await agent.turn(plan)
    return (time.perf_counter() - start) * 1e3, (agent.cpu_s() - cpu) * 1e3


async def measure_steps(agent: Agent, services: Services) -> dict[str, float]:
    """What a tool step takes: the difference between turns with many and turns without any."""
    times: dict[int, list[tuple[float, float]]] = {0: [], STEPS: []}
    for _ in range(PAIRS):
        for steps, taken in times.items():
            await services.read()
            taken.append(await _timed(agent, Plan("lookup", steps)))
    _, *read = await services.read()  # of the last turn, without the request that brings the question
    wall, cpu = (
        statistics.median(each[kind] for each in times[STEPS])
        - statistics.median(each[kind] for each in times[0])
        for kind in (0, 1)
    )
    return {
        **{"wall_ms": wall / STEPS, "cpu_ms": cpu / STEPS},
        **{f"{name}_read": statistics.mean(each[name] for each in read) for name in read[0]},
    }


async def measure_parallel(agent: Agent) -> float:
    """Seconds that a response takes in which four calls of a second each are made at once."""
    wall, _ = await _timed(agent, Plan("wait", 1, PARALLEL))
    return wall / 1e3


async def measure_chain(agent: Agent, services: Services) -> dict[str, float]:
    """Requests to the tool server during a chain of turns, each with one call."""
    await services.asked()
    previous, start = None, time.perf_counter()
    for _ in range(TURNS):
        previous = await agent.turn(Plan("lookup", 1), previous)
    wall = time.perf_counter() - start
    asked = await services.asked()
    others = sum(count for method, count in asked.items() if method not in ("tools/list", "tools/call"))
    return {
        "wall_s": wall,
        **{"lists": asked.get("tools/list", 0), "calls": asked.get("tools/call", 0), "others": others},
    }


def _slipring(engine: str, url: str) -> AbstractContextManager[servers.Server]:
    return servers.slipring(url, "--mcp-urls", "any", engine=engine)


def _installed() -> dict[str, Callable[[str], Any]]:
    """The servers that can be measured here."""
    found: dict[str, Callable[[str], Any]] = {
        name: functools.partial(_slipring, engine) for name, engine in OWN.items()
    }
    if servers.installed("ogx"):
        found["ogx"] = servers.ogx
    if servers.installed("agentic-api") == servers.AGENTIC:
        found["agentic-api"] = lambda url: servers.agentic(servers.Server("instant", url, 0, "instant"))
    return found


@asynccontextmanager
async def agents(
    running: dict[str, servers.Server], model_url: str, tools_url: str
) -> AsyncIterator[dict[str, Agent]]:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout) as http, Pool() as pool:
        found: dict[str, Agent] = {"direct": Direct(http, pool, model_url, tools_url)}
        for name, server in running.items():
            found[f"{name} SSE"] = SseClient(http, server, tools_url)
            if name != "ogx":  # it has none
                found[f"{name} WebSocket"] = SocketClient(http, server, tools_url)
        yield found


async def measure(
    running: dict[str, servers.Server], model: Process, tools: Process, repeats: int
) -> dict[str, Any]:
    model_url, tools_url = f"{model.url}/v1", f"{tools.url}/mcp"
    figures: dict[str, Any] = {}
    async with (
        agents(running, model_url, tools_url) as found,
        aiohttp.ClientSession() as http,
    ):
        services = Services(http, model, tools)
        await _wait_for(services)
        for agent in found.values():  # what is made once: connections, sessions, caches
            await agent.turn(Plan("lookup", STEPS))
        for repeat in range(repeats):
            names = list(found)
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                print(f"repeat {repeat + 1}, {name} …", file=sys.stderr, flush=True)
                agent, kept = found[name], figures.setdefault(name, {"step": [], "parallel_s": []})
                kept["step"].append(await measure_steps(agent, services))
                kept["parallel_s"].append(await measure_parallel(agent))
                if not isinstance(agent, Direct):
                    kept.setdefault("chain", []).append(await measure_chain(agent, services))
    return figures


async def _wait_for(services: Services) -> None:
    while True:
        try:
            await services.asked()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.2)
        else:
            return


def _column(rows: Sequence[dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows]


def added_ms(figures: dict[str, Any], name: str) -> list[float]:
    """What a step of each repeat took more than without a server."""
    floor = _column(figures["direct"]["step"], "wall_ms")
    return [
        each - least for each, least in zip(_column(figures[name]["step"], "wall_ms"), floor, strict=True)
    ]


def _range(values: Sequence[float], digits: int = 1) -> str:
    each = spread(values)
    return f"{each['median']:,.{digits}f} ({each['low']:,.{digits}f} – {each['high']:,.{digits}f})"


def table(figures: dict[str, Any]) -> str:
    """The figures as a table of the page."""
    lines = [
        "| way | added per tool step, ms | CPU of the server per step, ms | sent to the model per step, kB"
        " | tokens of it to prefill | 4 calls of 1 s, s | `tools/list` in 25 turns | other requests |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, kept in figures.items():
        read = [value / 1e3 for value in _column(kept["step"], "bytes_read")]
        prefilled = _column(kept["step"], "prefilled_read")
        cells = [name]
        own = name != "direct"
        cells += [
            _range(added_ms(figures, name)) if own else "0",
            _range(_column(kept["step"], "cpu_ms")) if own else "",
            f"{statistics.median(read):,.0f}",
            f"{statistics.median(prefilled):,.0f}",
            _range(kept["parallel_s"], 2),
            f"{statistics.median(_column(kept['chain'], 'lists')):.0f}" if own else "",
            f"{statistics.median(_column(kept['chain'], 'others')):.0f}" if own else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def about(record: dict[str, Any]) -> str:
    """What was measured, and where."""
    versions = ", ".join(f"{name} {each}" for name, each in {**record["versions"], **record["peers"]}.items())
    left_out = "".join(f" Not measured: {why}." for why in record["left_out"].values())
    return (
        f"{record['repeats']} repeats, medians and ranges; {record['when'][:10]}, {record['machine']['cpu']},"
        f" {record['machine']['cores']} cores; {versions}.{left_out}"
    )


def prefill_sentence(turns: Sequence[dict[str, int]]) -> str:
    return "; ".join(
        f"of {turn['input']:,} input tokens, {turn['before_call']:,} prefilled before the call and"
        f" {turn['after_call']:,} after it"
        for turn in turns
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with ExitStack() as stack:
        model = stack.enter_context(started(SERVICES, "model"))
        tools = stack.enter_context(started(SERVICES, "tools"))
        running = {
            name: stack.enter_context(start(f"{model.url}/v1")) for name, start in _installed().items()
        }
        figures = asyncio.run(measure(running, model, tools, repeats))
        embedded = stack.enter_context(slipring(EMBEDDED, "--mcp-urls", "any", "--log-level", "error"))
        prefills = asyncio.run(measure_prefill(embedded, f"{tools.url}/mcp"))
        versions = {name: version for each in running.values() for name, version in each.versions.items()}
    print(table(figures))
    print(f"the embedded model: {prefill_sentence(prefills)}")
    left_out = {name: why for name, why in WHY_NOT.items() if name not in running}
    setup = {"steps": STEPS, "parallel": PARALLEL, "turns": TURNS, "repeats": repeats}
    keep(
        "hosted_tools",
        {**setup, "peers": versions, "left_out": left_out, "ways": figures, "embedded": prefills},
    )


if __name__ == "__main__":
    main()
