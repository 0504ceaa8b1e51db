"""Runs one check of a client: a server process, a relay in front of it, and a process for the client."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.real.installing import Workshop
from tests.commands.test_cli import launched
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.server import Call as CallStep
from tests.engines.fakes.server import Say, Step, Stop
from tests.mcp.fakes import FakeServer, serving
from tests.pictures import data_url, png
from tests.relay import Relay, RelayedSocket, relay_to

Json = dict[str, Any]
Answer = list[Json]
"""The steps of a scripted answer, see ``slipring.engines.simulated.script``."""

LLAMA = "llama:slots=1,context=2048"
LLAMA_MODEL = "smollm2-135m-instruct"
_SIGNS = ("Traceback", "unexpectedly", "never retrieved")
"""Log messages of unexpected server errors."""
_SHOWN = 4000
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


@dataclass(frozen=True)
class Ended:
    """The result of a client's process."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[Json]:
        """The JSON lines of its output."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]

    @property
    def result(self) -> Json:
        """The last JSON line, after checking that the client succeeded."""
        self.require_success()
        return self.lines[-1]

    def require_success(self) -> None:
        assert self.code == 0, f"the client ended with {self.code}\n{self}"

    def __str__(self) -> str:
        return f"--- stdout\n{self.stdout[-_SHOWN:]}\n--- stderr\n{self.stderr[-_SHOWN:]}"


class Stage:
    """One check of one client, with an empty directory as the client's home."""

    def __init__(self, workshop: Workshop, directory: Path) -> None:
        self.workshop = workshop
        self.directory = directory

    @asynccontextmanager
    async def serve(
        self, *answers: Answer, engine: str = "", flags: Sequence[str] = (), **settings: Any
    ) -> AsyncIterator[Relay]:
        """Run `slipring serve` with these scripted answers, or with an engine, behind a relay with these
        settings."""
        if not engine:
            script = self.directory / "script.jsonl"
            script.write_text("\n".join(json.dumps(answer) for answer in answers), encoding="utf-8")
            engine = f"simulated:tokens_per_s=0,script={script}"
        settings = {"patience_s": 120, **settings}
        async with launched("--engine", engine, "--store", "memory", *flags) as server:
            async with relay_to(server.url, **settings) as relay:
                yield relay
            await server.stop()
            log = await server.errors()
        assert not any(sign in log for sign in _SIGNS), log

    @asynccontextmanager
    async def serve_seeing(
        self, *answers: Sequence[Step], **settings: Any
    ) -> AsyncIterator[tuple[Relay, FakeChatServer]]:
        """Run `slipring serve` in front of a Chat Completions server whose model sees and gives these
        answers."""
        fake = FakeChatServer()
        for answer in answers:
            fake.script(*answer)
        await fake.start()
        try:
            engine = f"chat:{fake.url},model=simulated,images=true"
            async with self.serve(engine=engine, **settings) as relay:
                yield relay, fake
        finally:
            await fake.close()

    def pictures(self, count: int) -> list[tuple[Path, str]]:
        """Write PNG files into the client's home. Returns their paths, and their data as URLs."""
        found = []
        for number in range(count):
            path, data = self.directory / f"picture-{number}.png", png(64, 48, seed=number)
            path.write_bytes(data)
            found.append((path, data_url(data)))
        return found

    def blocking(self, word: str, **check: Any) -> Sequence[str]:
        """The flags of a server with a safety check that blocks texts with this word."""
        path = self.directory / "checks.toml"
        keys = {"name": "words", "source": "patterns", "action": "block", **check}
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        path.write_text("\n".join(["[[check]]", *lines, f'settings.patterns = {{ word = "{word}" }}']))
        return ("--config", str(path))

    @asynccontextmanager
    async def serve_with_tools(
        self, *answers: Answer, fake: FakeServer | None = None
    ) -> AsyncIterator[tuple[Relay, FakeServer]]:
        """Run `slipring serve` with these scripted answers, and an MCP server that clients name by its
        URL."""
        async with (
            serving(fake or FakeServer(modern=True)) as served,
            self.serve(*answers, flags=("--mcp-urls", "any")) as relay,
        ):
            yield relay, served

    @asynccontextmanager
    async def serve_with_builtins(self, *answers: Answer, fake: FakeServer) -> AsyncIterator[Relay]:
        """Run `slipring serve` with these scripted answers, and with an MCP server whose tools answer the
        built-in types of the same names."""
        async with serving(fake) as served:
            path = self.directory / "builtins.toml"
            lines = ["[[mcp]]", 'name = "fake"', f"url = {json.dumps(served.url)}"]
            for tool in fake.tools:
                lines += [f"[builtin_tools.{tool['name']}]", 'server = "fake"', f'tool = "{tool["name"]}"']
            path.write_text("\n".join(lines))
            async with self.serve(*answers, flags=("--config", str(path))) as relay:
                yield relay

    async def run(self, *command: str | Path, within_s: float = 60, **variables: str) -> Ended:
        """Run a client until it ends, without the user's settings, proxies and keys."""
        environment = {
            "HOME": str(self.directory),
            "PATH": os.environ.get("PATH", ""),
            "LANG": "C.UTF-8",
            "NO_PROXY": "127.0.0.1",
            **variables,
        }
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=self.directory,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        talking = asyncio.create_task(process.communicate())
        try:
            await asyncio.wait([talking], timeout=within_s)
            is_late = not talking.done()
        finally:
            # Its children too, because agents run commands.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        out, errors = await talking
        ended = Ended(process.returncode or 0, out.decode(), errors.decode())
        assert not is_late, f"the client was not done after {within_s} s\n{ended}"
        return ended

    async def launch(self, name: str, programs: Path, url: str, *arguments: str, **variables: str) -> Ended:
        """Run a client with `slipring launch`, from the directory that holds its program."""
        places = (str(programs), str(self.workshop.node.parent), os.environ.get("PATH", ""))
        return await self.run(
            *(sys.executable, "-m", "slipring", "launch", name, "--url", url, "--", *arguments),
            within_s=120,
            **{"PATH": os.pathsep.join(places), "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        )

    async def node(
        self,
        name: str,
        driver: str | Path,
        url: str,
        *arguments: str,
        model: str = "simulated",
        **variables: str,
    ) -> Ended:
        """Run a driver with a client's npm packages, on a Node that is new enough."""
        return await self.run(
            self.workshop.node,
            self.workshop.driver(name, driver),
            *arguments,
            OPENAI_BASE_URL=url,
            OPENAI_API_KEY="any",
            within_s=60,
            OPENAI_MODEL=model,
            **variables,
        )


def call(name: str, **arguments: Any) -> Json:
    """Return a script step that calls a function."""
    return {"function_call": {"name": name, "arguments": arguments}}


def hosted_call(name: str, **arguments: Any) -> Json:
    """Return a script step that calls a tool of the MCP server ``fake``."""
    return {"function_call": {"name": name, "namespace": "fake", "arguments": arguments}}


def say(text: str) -> Json:
    """Return a script step that outputs text."""
    return {"text": text}


LOOKS: tuple[Sequence[Step], ...] = (
    (CallStep("look", "{}"), Stop("tool_calls")),
    (Say(("They", " differ.")), Stop()),
)
"""The answers of a model that asks for a picture, and has seen two."""


def shown_images(fake: FakeChatServer) -> list[str]:
    """Return the URLs of the images in the last request that a Chat Completions server got."""
    return [
        part["image_url"]["url"]
        for message in fake.requests[-1]["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def tool_outputs(request: Json) -> list[str]:
    """Return the tool outputs in a request."""
    return [item["output"] for item in request["input"] if item.get("type") == "function_call_output"]


def tool_results(request: Json) -> list[str]:
    """Return the tool results in a request of the Messages API, as JSON."""
    messages = [message["content"] for message in request["messages"]]
    blocks = [block for content in messages if isinstance(content, list) for block in content]
    return [json.dumps(block["content"]) for block in blocks if block["type"] == "tool_result"]


def require_delta(frames: list[Json], responses: list[Json]) -> None:
    """Require that every frame except the first continues the previous response and repeats no item."""
    assert "previous_response_id" not in frames[0]
    for frame, response in zip(frames[1:], responses, strict=False):
        assert frame.get("previous_response_id") == response["id"]
        calls = [item["call_id"] for item in response["output"] if item["type"] in _CALLS]
        sent = frame["input"] if isinstance(frame["input"], list) else []
        assert [item["call_id"] for item in sent if item.get("type") in _OUTPUTS] == calls
        repeated = [item for item in sent if item.get("type") in (*_CALLS, "reasoning")]
        assert repeated == [], f"sent again: {repeated}"


def require_forks(result: Json, socket: RelayedSocket, text: str = "") -> None:
    """Require that two lanes continued one parent concurrently, and that each got its own answer."""
    parent, *endings = socket.responses
    assert result["parent"] == parent["id"]
    assert result["parents"] == [parent["id"]] * 2
    assert [ending["previous_response_id"] for ending in endings] == [parent["id"]] * 2
    assert [frame["stream_id"] for frame in socket.sent] == ["main", "happy", "sad"]
    assert all(result["texts"]), result
    assert not text or result["texts"] == [text] * 2
