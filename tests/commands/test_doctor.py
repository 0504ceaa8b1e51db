"""``slipring doctor``: one line for everything that a server needs, and what to do about it."""

import asyncio
import json
import logging
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

from slipring.commands import doctor
from slipring.commands.cli import main
from slipring.commands.doctor import Finding, check_engines, check_open_files, check_store
from slipring.config.settings import Config
from slipring.core.limits import Limits
from slipring.engines.hub import model_names
from slipring.engines.hub.model_hub import ModelHub
from tests.commands.test_cli import COMMAND, environment
from tests.engines.fakes.hub import FakeHub

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


def test_an_admin_address_for_other_machines_needs_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, *FAST, "--admin", "0.0.0.0:0")
    assert (code, [finding.state for finding in found["live page"]]) == (1, ["ok", "fail"])
    assert "--admin-key" in found["live page"][1].what
    code, found = run(capsys, *FAST, "--admin", "0.0.0.0:0", "--admin-key", "k")
    assert (code, [finding.state for finding in found["live page"]]) == (0, ["ok"])


def test_keys_of_a_store_that_cannot_be_used_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, *FAST[:-1], "postgresql://nobody@127.0.0.1:9/none")
    assert (code, found["store"][0].state) == (1, "fail")
    what = "not known: the store, which may have some, cannot be read"
    assert found["API keys"] == [Finding("API keys", "warn", what)]


def test_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = check_store(Config(store=f"sqlite:{tmp_path / 'slipring.db'}"))
    assert (found.state, "free on its disk" in found.what) == ("ok", True)
    monkeypatch.setattr(doctor, "_LITTLE_DISK", 1 << 62)
    (found,) = check_store(Config(store=f"sqlite:{tmp_path / 'slipring.db'}"))
    assert found.state == "warn"
    for store in ("sqlite:/no/such/place/a.db", "magic", "postgresql://nobody@127.0.0.1:9/none"):
        (found,) = check_store(Config(store=store))
        assert found.state == "fail"
    (tmp_path / "other.db").write_bytes(b"not a database, but long enough to be read as one" * 100)
    (found,) = check_store(Config(store=f"sqlite:{tmp_path / 'other.db'}"))
    assert found.state == "fail"


def test_too_few_open_files() -> None:
    (found,) = check_open_files(Config(limits=Limits(max_connections=10**9)))
    assert found.state == "warn"


def test_engines_that_cannot_be_used() -> None:
    for engine in ("magic", "simulated:speed=1", "llama:/no/such.gguf", "vllm:http://127.0.0.1:9"):
        found = check_engines(Config(engine=engine))
        assert [each.state for each in found] == ["fail"], engine
    assert "nothing answers at 127.0.0.1:9: Connection refused" in found[0].what


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub that the checks ask, with a model and a tokenizer; the cache is empty."""
    fake = FakeHub({"acme/a-GGUF": {"a-Q4_K_M.gguf": bytes(10**6)}, "acme/a": {"tokenizer.json": b"{}"}})
    with fake.running() as url:
        monkeypatch.setattr(doctor, "ModelHub", lambda: ModelHub(url, tmp_path / "cache"))
        yield fake


def test_what_a_server_would_fetch_is_stated_and_not_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_names, "available_memory", lambda: None)
    monkeypatch.setattr(doctor, "available_memory", lambda: 10**10)
    found = check_engines(Config(model=("acme/a-GGUF",)))
    assert [(each.name, each.state) for each in found] == [("engine llama", "ok")] * 2
    assert "not started: a server fetches acme/a-GGUF Q4_K_M (1.0 MB) first: 1.0 MB to fetch" in found[0].what
    assert "needs 1.1 GB of memory" in found[1].what
    monkeypatch.setattr(ModelHub, "room", 10)
    assert [each.state for each in check_engines(Config(engine="acme/a-GGUF"))] == ["fail", "ok"]
    monkeypatch.setattr(doctor, "available_memory", lambda: 10**6)
    assert [each.state for each in check_engines(Config(engine="acme/a-GGUF"))] == ["fail", "warn"]
    for engine, problem in (
        ("acme/a-GGUF,slots=no", "option 'slots' must be a number"),
        ("acme/none-GGUF", "no such model on the hub"),
    ):
        (only,) = check_engines(Config(engine=engine))
        assert (only.state, problem in only.what) == ("fail", True)
    assert hub.downloads(".gguf") == []


def test_a_projector_that_a_server_would_fetch_or_leave_out_is_stated(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["acme/a-GGUF"]["mmproj-F16.gguf"] = bytes(10**6)
    monkeypatch.setattr(doctor, "available_memory", lambda: 10**10)
    monkeypatch.setattr(model_names, "available_memory", lambda: 10**10)
    found = check_engines(Config(engine="acme/a-GGUF"))
    assert [each.state for each in found] == ["ok", "ok"]
    assert "fetches acme/a-GGUF Q4_K_M (1.0 MB) with mmproj-F16.gguf (1.0 MB) first: 2.0 MB" in found[0].what
    monkeypatch.setattr(model_names, "available_memory", lambda: 2**30 + 10**6)
    found = check_engines(Config(engine="acme/a-GGUF"))
    assert [each.state for each in found] == ["ok", "ok", "warn"]
    assert "images are not available: Q4_K_M with mmproj-F16.gguf (1.0 MB) needs" in found[2].what
    assert hub.downloads(".gguf") == []


async def test_ctrl_c_ends_it_while_the_hub_does_not_answer(tmp_path: Path) -> None:
    """The hub takes the connection, and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "doctor", *FAST, "--engine", "acme/a-GGUF"),
            env=environment(HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}", HF_HOME=str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            process.send_signal(signal.SIGINT)
            printed = await process.communicate()
    assert (process.returncode, printed) == (130, (b"", b""))


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
        found = await doctor._check_address("engine chat", f"chat:http://127.0.0.1:{port}/v1,model=a")
    assert [each.state for each in found] == states


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (found,) = check_engines(Config(engine=f"chat:http://127.0.0.1:{port}/v1"))
    assert (found.state, f"nothing answers at 127.0.0.1:{port}: no answer within" in found.what) == (
        "fail",
        True,
    )


def test_a_certificate_that_ends_soon() -> None:
    def ends(days: float) -> dict[str, str]:
        return {"notAfter": time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + days * 86_400))}

    assert [each.state for each in doctor._certificate("engine", ends(5))] == ["warn"]
    assert list(doctor._certificate("engine", ends(90))) == list(doctor._certificate("engine", None)) == []


def test_what_an_engine_logs_at_its_start_is_reported() -> None:
    with doctor._logged() as lines:
        logging.getLogger("slipring").warning("sessions are refused: %s", "why")
        logging.getLogger("slipring").info("chosen: this")
    assert lines == [("warn", "sessions are refused: why"), ("ok", "chosen: this")]
