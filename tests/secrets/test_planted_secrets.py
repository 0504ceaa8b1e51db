"""Secrets of every kind are planted in a running server, its error paths are driven, and nothing that it
leaves behind contains one: logs at the level debug, files, answers, traces, metrics, the live stream,
recordings, and what it writes when it dies."""

import asyncio
import base64
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.config.settings import Config
from slipring.config.tables import CheckEntry, McpRegistration
from tests.commands.test_cli import COMMAND, environment, launched, refused_here
from tests.harness import WEATHER, PuppetEngine, serve
from tests.postgres import Postgres
from tests.secrets.planting import Planted, files_below, shared_secrets
from tests.secrets.world import World, world

_CRASHING = (sys.executable, "-X", "faulthandler", "-X", "dev", "-W", "ignore", "-m", "slipring")
"""Shows warnings of asyncio, and the stacks of all threads when the process is killed."""
_UNDELIVERED = "traces cannot be delivered to"
_TOOL_CALLS = [("reveal", "registered"), ("fail", "registered"), ("reveal", "asked"), ("fail", "asked")]


def settings(planted: Planted, around: World, folder: Path) -> str:
    """A configuration file with a secret wherever one may be."""
    script = folder / "script.jsonl"
    lines = [
        step
        for name, label in _TOOL_CALLS
        for step in (
            [{"function_call": {"name": name, "namespace": label, "arguments": {}}}],
            [{"text": "done"}],
        )
    ]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "seal").write_text(base64.b64encode(b"k" * 32).decode(), encoding="utf-8")
    (folder / "upstream.key").write_text(planted["key in a file"], encoding="utf-8")
    return f"""
api_keys = ["team-a:{planted["configured key"]}"]
admin_key = "{planted["admin key"]}"
admin = "127.0.0.1:0"
mcp_urls = "any"
record = "{folder / "recordings"}"
trace_endpoint = "{around.url}/v1/traces?key={planted["key in the URL of the trace collector"]}"
trace_sample = 1.0
trace_content = true
seal_key_file = "{folder / "seal"}"
node_url = "http://127.0.0.1:9"

[models.scripted]
engine = "simulated:script={script},tokens_per_s=0"
[models.planned]
engine = "simulated:tokens_per_s=0,output_tokens=3"
[models.refusing]
engine = "chat:{around.url}/401/v1,key_env=UPSTREAM_KEY,model=x"
[models.failing]
engine = "responses:{around.url}/500/v1,key_file={folder / "upstream.key"},model=x"

[[mcp]]
name = "registered"
url = "{around.mcp.url}?key={planted["secret in a registered URL"]}"
headers = {{ Authorization = "Bearer $MCP_TOKEN" }}
[[mcp]]
name = "broken"
command = "{sys.executable}"
args = ["{Path(__file__).with_name("broken_server.py")}", "{planted["argument of an MCP process"]}"]
env = ["PROCESS_SECRET"]

[[check]]
name = "endpoint"
source = "moderations"
settings = {{ url = "{around.url}/500", key_env = "MODERATION_KEY" }}
"""


def variables(planted: Planted) -> dict[str, str]:
    return {
        "UPSTREAM_KEY": planted["upstream key"],
        "MCP_TOKEN": planted["header of a registered MCP server"],
        "PROCESS_SECRET": planted["variable of an MCP process"],
        "MODERATION_KEY": planted["key of a moderation endpoint"],
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{planted['header of the trace collector']}",
        "SLIPRING_AFFINITY_SECRET": planted["affinity secret"],
        "UNRELATED": planted["unrelated variable"],
    }


class Clients:
    """Drives the error paths, and keeps every answer."""

    def __init__(self, http: aiohttp.ClientSession, url: str, mcp_url: str, planted: Planted) -> None:
        self.mcp_url = mcp_url
        self._http = http
        self._url = url
        self._planted = planted
        self.answers = bytearray()

    async def request(self, method: str, path: str, key: str = "", **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key or self._planted['configured key']}"}
        headers |= options.pop("headers", {})
        url = path if path.startswith("http") else f"{self._url}{path}"
        async with self._http.request(method, url, headers=headers, **options) as answer:
            body = await answer.read()
        self.answers += repr(dict(answer.headers)).encode() + body
        with suppress(ValueError):
            return answer.status, json.loads(body)
        return answer.status, body

    async def create(self, key: str = "", **body: Any) -> tuple[int, Any]:
        return await self.request("POST", "/responses", key, json=body)

    async def over_a_socket(self, *frames: dict[str, Any] | str) -> None:
        """Send frames over one socket; keep what is answered until each turn has ended."""
        headers = {"Authorization": f"Bearer {self._planted['configured key']}"}
        async with self._http.ws_connect(f"{self._url}/responses", headers=headers) as ws:
            for frame in frames:
                await ws.send_str(frame if isinstance(frame, str) else json.dumps(frame))
                while True:
                    message = await ws.receive(timeout=300)
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        return
                    self.answers += message.data.encode()
                    kind = json.loads(message.data)["type"]
                    if kind in ("error", "response.completed", "response.failed", "response.incomplete"):
                        break


async def wrong_keys(clients: Clients, planted: Planted) -> None:
    """Keys that are mistyped, in the wrong place, or of somebody else."""
    assert (await clients.create(planted["mistyped key"], input="x"))[0] == 401
    planted.add("mistyped stored key", planted["stored key"][:-1] + "!")
    assert (await clients.create(planted["mistyped stored key"], input="x"))[0] == 401
    for headers in (
        {"Authorization": f"Basic {base64.b64encode(planted['basic password'].encode()).decode()}"},
        {"Authorization": f"Bearer {planted['key with a space']} x"},
        {"Authorization": "", "X-Api-Key": planted["key in another header"]},
        {"Authorization": "", "Cookie": f"key={planted['key in a cookie']}"},
        {"Authorization": "", "Sec-WebSocket-Protocol": f"realtime, {planted['key as a subprotocol']}"},
    ):
        assert (await clients.request("GET", "/models", headers=headers))[0] == 401
    for path in ("/models", "/responses", f"/absent/{planted['key in a path']}"):
        await clients.request("GET", f"{path}?api_key={planted['key in a query']}")
        await clients.request(
            "GET", f"{path}?api_key={planted['key in a query']}", headers={"Authorization": ""}
        )


async def failing_servers(clients: Clients, planted: Planted) -> None:
    """Model servers that refuse, MCP servers that repeat credentials and fail, a process that dies."""
    for model in ("refusing", "failing"):
        for _ in range(2):
            status, _ = await clients.create(model=model, input="x")
            assert status >= 400
    asked = {
        "authorization": planted["authorization of a requested server"],
        "headers": {"X-Extra": planted["header of a requested server"]},
    }
    for name, label in _TOOL_CALLS:
        tool: dict[str, Any] = {"type": "mcp", "server_label": label, "require_approval": "never"}
        if label == "asked":
            secret = planted["secret in a requested URL"]
            tool |= {"server_url": f"{clients.mcp_url}?token={secret}", **asked}
        status, response = await clients.create(model="scripted", input=f"{name} it", tools=[tool])
        assert status == 200, response
        for path in ("", "/input_items"):
            await clients.request("GET", f"/responses/{response['id']}{path}")
    broken = {"type": "mcp", "server_label": "broken", "require_approval": "never"}
    assert (await clients.create(model="planned", input="x", tools=[broken]))[0] >= 400


async def bad_requests(clients: Clients, planted: Planted) -> None:
    """Requests that are refused although, or because, a secret is in them."""
    tool = {
        "type": "mcp",
        "server_label": "not allowed!",
        "server_url": f"https://user:{planted['password in a requested URL']}@host.example/",
        "authorization": planted["authorization that is refused"],
        "headers": {planted["name of a header"]: "x", "X-Y": 5},
    }
    assert (await clients.create(model="planned", input="x", tools=[tool]))[0] == 400
    frames: list[dict[str, Any] | str] = [
        {"type": "response.create", "model": "planned", "input": "x", "tools": [tool]},
        {"type": "response.create", "model": "planned", "input": "x", "tools": [{**tool, "server_url": 5}]},
        {"type": "response.create", "model": "planned", "input": "x", "metadata": {"a": "b"}},
        '{"type": "response.create", "tools": [{"type": "mcp", "authorization": "'
        + planted["authorization in broken JSON"]
        + '", }]}',
    ]
    await clients.over_a_socket(*frames)
    await clients.request("POST", "/responses", data=f'{{"authorization": "{planted["key in a body"]}", }}')


async def look_at_the_admin_address(clients: Clients, url: str, planted: Planted) -> None:
    """The page, the live stream and metrics, with the key and without."""
    for key in (planted["admin key"], planted["mistyped admin key"]):
        for path in ("", "metrics", "absent"):
            await clients.request("GET", f"{url}{path}", key)
            await clients.request("GET", f"{url}{path}?key={key}", headers={"Authorization": ""})


class Live:
    """Reads the live stream of the admin address."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self._http = http
        self._url = url
        self._key = key
        self.data = bytearray()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        began = asyncio.Event()

        async def read() -> None:
            headers = {"Authorization": f"Bearer {self._key}"}
            async with self._http.get(f"{self._url}live", headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                async for chunk in answer.content.iter_any():
                    self.data.extend(chunk)
                    began.set()

        task = asyncio.create_task(read())
        await asyncio.wait_for(began.wait(), 300)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def create_key(store: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "keys", "create", "--tenant", "team-b", "--store", store),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    printed, _ = await process.communicate()
    return printed.decode().strip()


async def test_nothing_that_a_server_leaves_behind_contains_a_secret(tmp_path: Path) -> None:
    planted = Planted()
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    planted.add("stored key", await create_key(store))
    (tmp_path / "recordings").mkdir(0o700)
    config, log = tmp_path / "slipring.toml", tmp_path / "log"
    async with world() as around, aiohttp.ClientSession() as http:
        config.write_text(settings(planted, around, tmp_path), encoding="utf-8")
        flags = ("--config", str(config), "--store", store, "--log-level", "debug")
        async with launched(*flags, command=_CRASHING, **variables(planted)) as server:
            undelivered = asyncio.Event()
            errors = asyncio.create_task(
                server.errors(lambda line: undelivered.set() if _UNDELIVERED in line else None)
            )
            (admin,) = [line.split()[-1] for line in server.output if "live page" in line]
            clients = Clients(http, server.url, around.mcp.url, planted)
            live = Live(http, admin, planted["admin key"])
            async with live.reading():
                assert (await clients.create(planted["stored key"], model="planned", input="x"))[0] == 200
                await wrong_keys(clients, planted)
                await failing_servers(clients, planted)
                await bad_requests(clients, planted)
                await look_at_the_admin_address(clients, admin, planted)
                await clients.request("GET", f"{server.url.removesuffix('/v1')}/health")
                await clients.request("GET", f"{server.url.removesuffix('/v1')}/slipring/turns")
            await undelivered.wait()  # traces are sent from time to time
            server.process.send_signal(signal.SIGABRT)
            await server.process.wait()
            log.write_text("\n".join(server.output) + await errors, encoding="utf-8")
        for name, secret in shared_secrets(tmp_path / "slipring.db").items():
            planted.add(f"shared secret {name}", secret)
        seen = "".join(around.seen)
    for purpose in (
        *("upstream key", "key in a file", "header of a registered MCP server"),
        *("authorization of a requested server", "header of a requested server"),
        *("key of a moderation endpoint", "header of the trace collector"),
    ):
        assert planted[purpose] in seen, f"the {purpose} was not there to be leaked"
    text = log.read_text(encoding="utf-8")
    assert "Fatal Python error: Aborted" in text
    traces = {
        **{f"file {name}": data for name, data in files_below(tmp_path).items()},
        "answers": bytes(clients.answers),
        "live stream": bytes(live.data),
        "exported traces": b"".join(around.traces),
    }
    assert all(traces.values()), "every place has something to search"
    assert any(name.startswith("file recordings/") for name in traces)
    belongs = [
        *((purpose, "file slipring.toml") for purpose in planted.purposes),
        ("key in a file", "file upstream.key"),
        *((purpose, "file slipring.db") for purpose in planted.purposes if purpose.startswith("shared")),
        # An error tells who has sent a request what was wrong in it, and nobody else.
        ("key in a path", "answers"),
        # The URL of a tool is part of the response, as the page on hosted tools says.
        ("secret in a requested URL", "answers"),
        ("secret in a requested URL", "file slipring.db"),
    ]
    found = planted.leaks(traces, belongs)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://nobody:SECRET@127.0.0.1:1/slipring",
        "postgresql://127.0.0.1:1/slipring?user=nobody&password=SECRET",
        "postgresql://nobody:SECRET@127.0.0.1:port/slipring",
        "postgres//nobody:SECRET@127.0.0.1/slipring",
    ],
)
def test_the_password_of_a_database_that_cannot_be_reached_is_in_no_message(
    form: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted()
    _, line = refused_here(
        capfd, monkeypatch, "--store", form.replace("SECRET", planted["database password"])
    )
    assert planted.leaks({"message": line.encode()}) == []


async def test_the_password_of_the_database_is_not_in_the_log_of_a_running_server(postgres: Postgres) -> None:
    planted = Planted()
    store = postgres.url.replace("postgres:@", f"postgres:{planted['database password']}@")
    async with launched("--log-level", "debug", SLIPRING_STORE=store) as server:
        errors = asyncio.create_task(server.errors())
        async with aiohttp.ClientSession() as http:
            await asyncio.to_thread(postgres.crash_and_restart)
            async with http.post(f"{server.url}/responses", json={"input": "x"}) as answer:
                body = await answer.read()
        assert await server.stop() == 0
        log = await errors
    assert "store" in log
    assert planted.leaks({"log": log.encode(), "answer": body}) == []


async def test_an_unexpected_error_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback, which shows where it was raised and no values."""
    planted = Planted()
    caplog.set_level("DEBUG")
    engine = PuppetEngine()
    async with serve(engine, api_key=(f"team-a:{planted['key']}",), admin_key=planted["admin key"]) as server:
        create = asyncio.create_task(
            server.post(key=planted["key"], input="x", tools=[WEATHER], metadata={"a": "b"})
        )
        (await engine.next()).fail(ZeroDivisionError("by the engine"))
        status, body = await create
    assert status == 500
    assert "Traceback" in caplog.text
    assert "ZeroDivisionError: by the engine" in caplog.text
    assert planted.leaks({"log": caplog.text.encode(), "answer": json.dumps(body).encode()}) == []


def test_settings_are_shown_without_secrets() -> None:
    planted = Planted()
    config = Config(
        api_key=(planted["key"],),
        admin_key=planted["admin key"],
        store=f"postgresql://u:{planted['password']}@h/d",
        mcp=(McpRegistration("x", url=f"https://h/?k={planted['URL']}", command=(planted["argument"],)),),
        checks=(CheckEntry("c", "moderations", settings=json.dumps({"url": planted["endpoint"]})),),
    )
    assert planted.leaks({"repr": repr(config).encode()}) == []


async def test_the_node_url_has_no_password(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted()
    code, line = refused_here(
        capfd, monkeypatch, "--node-url", f"http://u:{planted['password']}@10.0.0.5:8000"
    )
    assert code != 0
    assert "without a user or a password" in line
    assert planted.leaks({"message": line.encode()}) == []


@pytest.mark.parametrize("form", ["plain", "hexadecimal", "base64", "base64 in the middle"])
def test_the_search_finds_what_was_leaked(form: str) -> None:
    planted = Planted()
    secret = planted["key"].encode()
    data = {
        "plain": b"a" + secret + b"b",
        "hexadecimal": secret.hex().encode(),
        "base64": base64.b64encode(secret),
        "base64 in the middle": base64.b64encode(b"user:" + secret + b"!"),
    }[form]
    assert planted.leaks({"log": data}) == ["key in log"]
    assert planted.leaks({"log": data}, [("key", "log")]) == []
    assert planted.leaks({"log": data[5:-9]}) == []
