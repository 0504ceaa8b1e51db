"""``slipring doctor``: one line for everything that a server needs, and what to do about it."""

import asyncio
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

from slipring.commands.cli import main
from slipring.commands.doctor import checks
from slipring.commands.doctor.checks import Finding, check_engines, check_open_files, check_store
from slipring.config.settings import Config
from slipring.core.limits import Limits

FAST = ("--engine", "simulated", "--port", "0", "--store", "memory")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[Finding]]]:
    code = main(["doctor", "--json", *arguments])
    findings = [Finding(**each) for each in json.loads(capsys.readouterr().out)]
    return code, {each.name: [other for other in findings if other.name == each.name] for each in findings}


def test_a_server_that_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, *FAST)
    assert code == 0
    assert list(found) == ["machine", "open files", "address", "API keys", "store", "engine simulated"]
    assert found["engine simulated"][0].what == "serves simulated"
    assert [name for name, (first, *_) in found.items() if first.state == "warn"] == ["store"]


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *FAST]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    machine           Python 3.")
    assert (
        "warn  store             memory: responses are lost when the server stops (--store sqlite" in lines[4]
    )


def test_a_port_that_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        port = address.partition(":")[2]
        code, found = run(capsys, *FAST, "--port", port, "--admin", address)
    assert code == 1
    assert [found[name][0].state for name in ("address", "live page")] == ["fail", "fail"]
    assert port in found["address"][0].what


def test_other_machines_need_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    code, found = run(capsys, *FAST, "--host", "0.0.0.0", "--store", store)
    assert (code, found["API keys"][0].state) == (1, "fail")
    assert "slipring keys create" in found["API keys"][0].what
    _, found = run(capsys, *FAST, "--host", "0.0.0.0", "--api-key", "a:b")
    assert found["API keys"][0] == Finding("API keys", "ok", "1 in the settings")
    assert main(["keys", "create", "--tenant", "a", "--store", store]) == 0
    capsys.readouterr()
    for host in ("0.0.0.0", "127.0.0.1"):
        _, found = run(capsys, *FAST, "--host", host, "--store", store)
        assert found["API keys"][0] == Finding("API keys", "ok", "in the store (slipring keys list)")


async def test_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = await check_store(Config(store=f"sqlite:{tmp_path / 'slipring.db'}"))
    assert (found.state, "free on its disk" in found.what) == ("ok", True)
    monkeypatch.setattr(checks, "_LITTLE_DISK", 1 << 62)
    (found,) = await check_store(Config(store=f"sqlite:{tmp_path / 'slipring.db'}"))
    assert found.state == "warn"
    for store in ("sqlite:/no/such/place/a.db", "magic", "postgresql://nobody@127.0.0.1:9/none"):
        (found,) = await check_store(Config(store=store))
        assert found.state == "fail"
    (tmp_path / "other.db").write_bytes(b"not a database, but long enough to be read as one" * 100)
    (found,) = await check_store(Config(store=f"sqlite:{tmp_path / 'other.db'}"))
    assert found.state == "fail"


async def test_too_few_open_files() -> None:
    (found,) = await check_open_files(Config(limits=Limits(max_connections=10**9)))
    assert found.state == "warn"


async def test_engines_that_cannot_be_used() -> None:
    for engine in ("magic", "simulated:speed=1", "llama:/no/such.gguf", "vllm:http://127.0.0.1:9"):
        found = await check_engines(Config(engine=engine))
        assert [each.state for each in found] == ["fail"], engine
    assert "nothing answers at 127.0.0.1:9: Connection refused" in found[0].what


@asynccontextmanager
async def answering(head: str, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server whose answer to everything is ``head``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{head}\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("apart", "has_date", "states"), [(0, True, []), (3600, True, ["warn"]), (0, False, [])]
)
async def test_the_clock_of_another_machine(apart: float, has_date: bool, states: list[str]) -> None:
    date = f"Date: {formatdate(time.time() - apart, usegmt=True)}" if has_date else "Date: yesterday"
    async with answering(date) as port:
        found = await checks._check_address("engine chat", f"chat:http://127.0.0.1:{port}/v1,model=a")
    assert [each.state for each in found] == states


async def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (found,) = await check_engines(Config(engine=f"chat:http://127.0.0.1:{port}/v1"))
    assert (found.state, f"nothing answers at 127.0.0.1:{port}: no answer within" in found.what) == (
        "fail",
        True,
    )


def test_a_certificate_that_ends_soon() -> None:
    def ends(days: float) -> dict[str, str]:
        return {"notAfter": time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + days * 86_400))}

    assert [each.state for each in checks._certificate("engine", ends(5))] == ["warn"]
    assert list(checks._certificate("engine", ends(90))) == list(checks._certificate("engine", None)) == []


def test_what_an_engine_logs_at_its_start_is_reported() -> None:
    with checks._logged() as lines:
        logging.getLogger("slipring").warning("sessions are refused: %s", "why")
        logging.getLogger("slipring").info("chosen: this")
    assert lines == [("warn", "sessions are refused: why"), ("ok", "chosen: this")]
