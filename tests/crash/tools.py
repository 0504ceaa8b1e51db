"""Hosted tools, approvals and safety checks, on servers that are killed.

Every call has arguments of its own, because the simulated engine puts a digest of its context into them. The
MCP server, which outlives the servers, therefore knows which calls ran twice.
"""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from tests.crash.checks import Findings
from tests.crash.clients import CONNECTION_LOST, Crowd, RequestRefused, ServerClient, WrongAnswer
from tests.crash.ledger import Json
from tests.crash.servers import Server, serving
from tests.crash.sites import SqliteSite
from tests.crash.word_check import FORBIDDEN
from tests.mcp.fakes import Exchange, FakeServer, Reply, text
from tests.mcp.fakes import serving as serving_tools

_ENGINE = "simulated:tokens_per_s=400,output_tokens=20,tool_calls=1,digest=true"
_CONFIG = """
[[mcp]]
name = "notes"
url = "{url}"

[[check]]
name = "words"
source = "python:tests.crash.word_check:word_check"
action = "block"
timeout_s = 60
"""
_TOOL = {
    "name": "note",
    "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}
_CHOICE = {"type": "mcp", "server_label": "notes", "name": "note"}
_LONGEST_CALL_S = 0.1
_TWO_SERVERS = 0.5
_SAMPLE = 5
_FOLLOW_UP = "And then?"


@dataclass(eq=False)
class Errand:
    """A turn whose model calls a tool, with or without the client's approval."""

    number: int
    needs_approval: bool
    asked: Json | None = None
    """The response that asks for approval."""
    was_approved: bool = False
    """Whether the approval was sent; what became of it may not be known."""
    response: Json | None = None
    """The final object, once a client has received it."""
    next_words: str = ""
    """What the engine says next. It depends on the whole context."""

    def body(self) -> Json:
        tool = {
            "type": "mcp",
            "server_label": "notes",
            "require_approval": "always" if self.needs_approval else "never",
        }
        return {
            "input": f"errand {self.number}",
            "tools": [tool],
            "tool_choice": _CHOICE,
            "metadata": {"errand": str(self.number)},
        }

    def approval(self) -> Json:
        """The request that approves the call."""
        assert self.asked is not None
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": self.asked["output"][-1]["id"],
            "approve": True,
        }
        body = {**self.body(), "input": [answer], "previous_response_id": self.asked["id"]}
        return {**body, "tool_choice": "auto"}


class CountedTools(FakeServer):
    """An MCP server that counts the calls of its one tool by their arguments."""

    def __init__(self, random: Random) -> None:
        super().__init__(modern=True)
        self.tools = [_TOOL]
        self.calls = {"note": self._note}
        self.counts: Counter[str] = Counter()
        self.answers: dict[str, str] = {}
        self._random = random

    async def _note(self, exchange: Exchange) -> Reply:
        key = exchange.arguments["key"]
        self.counts[key] += 1
        self.answers[key] = f"note {self.counts.total()}"
        await asyncio.sleep(self._random.uniform(0, _LONGEST_CALL_S))
        return text(self.answers[key])


class ToolsSite(SqliteSite):
    """One server or two, with an MCP server and a safety check."""

    name = "tools"

    async def open(self, stack: AsyncExitStack) -> None:
        await super().open(stack)
        assert self.directory is not None
        self._random = Random(0)
        self.tools = CountedTools(self._random)
        await stack.enter_async_context(serving_tools(self.tools))
        self._config = self.directory / "slipring.toml"
        self._config.write_text(_CONFIG.format(url=self.tools.url))
        self._errands: list[Errand] = []
        self._crowd: Crowd | None = None

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        self._random = random
        count = 2 if random.random() < _TWO_SERVERS else 1
        arguments = ("--config", str(self._config))
        return [
            await stack.enter_async_context(serving(self.spec, *arguments, engine=_ENGINE))
            for _ in range(count)
        ]

    def add_clients(self, crowd: Crowd) -> None:
        self._crowd = crowd
        crowd.behaviours = [
            *([self._run_errand] * 8 + [self._ask_for_the_forbidden] * 2),
            *[crowd.socket, crowd.post, crowd.talk, crowd.background],
        ]

    @property
    def acknowledged(self) -> int:
        return sum(errand.response is not None for errand in self._errands)

    # Clients.

    async def _run_errand(self, server: ServerClient) -> None:
        assert self._crowd is not None
        errand = Errand(len(self._errands), needs_approval=self._random.random() < 0.5)
        self._errands.append(errand)
        response = await self._make(server, errand.body())
        if response["status"] == "failed":  # in the background, its lease has run out
            return
        if errand.needs_approval:
            errand.asked = response
            approved = await self._approve(server, errand)
            if approved is None:
                return
            response = approved
        errand.response = response
        self._crowd.on_answer()
        errand.next_words = await _words_after(server, response)

    async def _make(self, server: ServerClient, body: Json) -> Json:
        """Make a response by a POST, or in the background."""
        if self._random.random() < 0.7:
            response = await server.call("POST", "/responses", body)
        else:
            response = await server.call("POST", "/responses", {**body, "background": True})
            while response["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.02)
                response = await server.call("GET", f"/responses/{response['id']}")
            if response["status"] == "failed":
                return response
        if response["status"] != "completed":
            raise WrongAnswer(f"{body} ended as {response}")
        return response

    async def _approve(self, server: ServerClient, errand: Errand) -> Json | None:
        """Approve a call, sometimes twice at once, at any server. One approval is used. Return None if it is
        not known by which response, because a server was killed."""
        assert self._crowd is not None
        errand.was_approved = True
        attempts = [server]
        if self._random.random() < 0.5:
            attempts.append(ServerClient(server.http, self._random.choice(self._crowd.urls or [server.url])))
        done = await asyncio.gather(*(_use(attempt, errand) for attempt in attempts), return_exceptions=True)
        used = [each for each in done if isinstance(each, dict)]
        failures = [each for each in done if isinstance(each, BaseException)]
        for attempt, failure in zip(attempts, done, strict=True):
            is_killed = isinstance(failure, CONNECTION_LOST) and attempt.url not in self._crowd.urls
            if isinstance(failure, BaseException) and not is_killed:
                raise failure
        if len(used) > 1:
            raise WrongAnswer(f"an approval was used twice: {used}")
        if not used and not failures:
            raise WrongAnswer(f"an approval was refused that was never used: errand {errand.number}")
        return used[0] if used else None

    async def _ask_for_the_forbidden(self, server: ServerClient) -> None:
        """Send a text that the check refuses, as a turn of its own or after any other."""
        assert self._crowd is not None
        crowd = self._crowd
        turn = crowd.ledger.ask(parent=crowd.choose_parent())
        turn.text += f" {FORBIDDEN}"
        turn.is_forbidden = True
        body = crowd.body(turn)
        async with server.request("POST", "/responses", {**body, "stream": True}) as answer:
            if answer.status == 400:
                return _expect_refusal((await answer.json())["error"])
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event["type"] == "response.created":
                    turn.id = event["response"]["id"]
                elif event["type"] == "response.failed":
                    return _expect_refusal(event["response"]["error"])
                elif event["type"] == "error":
                    return _expect_refusal(event["error"])
                elif event["type"] != "response.in_progress":
                    raise WrongAnswer(f"a client received what a check had to refuse: {event}")
        raise ConnectionError("the stream ended early")

    # Inspection.

    async def inspect(self, url: str, findings: Findings, strangers: list[Json]) -> None:
        async with aiohttp.ClientSession() as http:
            server = ServerClient(http, url)
            for errand in self._errands:
                if errand.was_approved and errand.response is None:
                    await self._settle(server, errand)
            known = [errand for errand in self._errands if errand.response is not None]
            for errand in self._random.sample(known, min(_SAMPLE, len(known))):
                await self._read(server, errand, findings)
        for stranger in strangers:
            if "errand" not in stranger["metadata"]:
                findings.half.append(f"no turn matches {stranger}")
            elif stranger["status"] == "completed":
                self._compare(stranger, findings)
        for key, count in self.tools.counts.items():
            if count > 1:
                findings.twice.append(f"the call with {key} ran {count} times")

    async def _settle(self, server: ServerClient, errand: Errand) -> None:
        """Send an approval again that was sent before the crash. It is used now, or it was used then."""
        errand.response = await _use(server, errand)
        errand.was_approved = errand.response is not None

    async def _read(self, server: ServerClient, errand: Errand, findings: Findings) -> None:
        """An errand that was acknowledged is stored unchanged, has its call's result, and can be continued.
        Its approval is used."""
        response = errand.response
        assert response is not None
        async with server.request("GET", f"/responses/{response['id']}") as answer:
            found = await answer.json()
        if found != response:
            findings.lost.append(f"errand {errand.number}: {found}, not {response}")
            return
        self._compare(response, findings)
        if errand.next_words and await _words_after(server, response) != errand.next_words:
            findings.half.append(f"errand {errand.number} goes on from another context")
        if errand.asked is not None and await _use(server, errand) is not None:
            findings.twice.append(f"the approval of errand {errand.number} was used again")

    def _compare(self, response: Json, findings: Findings) -> None:
        """The calls of a stored response have the results that the tool returned."""
        for item in response["output"]:
            if item["type"] == "mcp_call":
                key = json.loads(item["arguments"])["key"]
                if item["status"] != "completed" or item["output"] != self.tools.answers.get(key):
                    findings.half.append(f"{item}, but the tool said {self.tools.answers.get(key)}")


async def _use(server: ServerClient, errand: Errand) -> Json | None:
    """Send an approval. Return the response, or None if the approval was used before."""
    async with server.request("POST", "/responses", errand.approval()) as answer:
        body: Json = await answer.json()
    if answer.status == 400 and "already been used" in body["error"]["message"]:
        return None
    if answer.status >= 500 or body.get("status") == "failed":
        raise RequestRefused(body)
    if answer.status != 200 or body["status"] != "completed":
        raise WrongAnswer(f"errand {errand.number}: {answer.status} {body}")
    return body


async def _words_after(server: ServerClient, response: Json) -> str:
    """Return what the engine says after a response. Nothing of it is stored."""
    body = {"input": _FOLLOW_UP, "previous_response_id": response["id"], "store": False}
    following = await server.call("POST", "/responses", body)
    return str(following["output"][-1]["content"][0]["text"])


def _expect_refusal(error: Any) -> None:
    if error["code"] != "invalid_prompt":
        raise WrongAnswer(f"a check had to refuse: {error}")
