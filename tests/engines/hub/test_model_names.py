"""What users call a model becomes what an engine opens, and a server serves it under the name they used."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.base.errors import StartupError
from slipring.commands.cli import main
from slipring.commands.serve import refuse_early
from slipring.config.settings import Config
from slipring.engines.hub import model_names
from slipring.engines.hub.model_hub import HubName, ModelHub
from slipring.engines.hub.model_names import (
    Fetch,
    full_name,
    inspected_name,
    model_of_flag,
    names_hub_model,
    opened_name,
    to_fetch,
)
from tests.commands.test_cli import COMMAND, environment, launched
from tests.engines.fakes.hub import FakeHub
from tests.harness import serve
from tests.pictures import data_url, png

MODEL = "acme/small-GGUF"
SEEING = "acme/seeing-GGUF"
PROJECTOR = "mmproj-F32.gguf"
CHUNK = 10 * 2**20
"""What the hub's client writes at once."""


@pytest.fixture(scope="module")
def fake(tiny_path: str) -> Iterator[FakeHub]:
    hub = FakeHub(
        {
            MODEL: {"small-Q4_K_M.gguf": Path(tiny_path).read_bytes(), "small-Q8_0.gguf": b"not a model"},
            "acme/small": {"tokenizer.json": b"{}"},
        }
    )
    with hub.running():
        yield hub


@pytest.fixture
def hub(fake: FakeHub, tmp_path: Path) -> ModelHub:
    return ModelHub(fake.url, tmp_path)


@pytest.mark.parametrize(
    ("engine", "full"),
    [
        ("models/x.gguf,slots=1", "llama:models/x.gguf,slots=1"),
        ("/models/x.gguf", "llama:/models/x.gguf"),
        ("acme/small-GGUF:Q4_K_M,slots=1", "llama:acme/small-GGUF:Q4_K_M,slots=1"),
        ("llama:/models/x.gguf", "llama:/models/x.gguf"),
        ("llama", "llama"),
        (
            "vllm:http://127.0.0.1:8000,tokenizer=acme/small",
            "vllm:http://127.0.0.1:8000,tokenizer=acme/small",
        ),
        ("chat:http://127.0.0.1:8000/v1,model=acme/small", "chat:http://127.0.0.1:8000/v1,model=acme/small"),
    ],
)
def test_a_model_alone_is_one_of_llama(engine: str, full: str) -> None:
    assert full_name(engine) == full


@pytest.mark.parametrize(
    ("engine", "names", "expected"),
    [
        ("llama", ("a/b",), ("llama:a/b", ("a/b",))),
        ("llama", ("a/b:Q8_0", "x"), ("llama:a/b:Q8_0", ("a/b", "a/b:Q8_0", "x"))),
        ("llama:slots=1", ("a/b",), ("llama:a/b,slots=1", ("a/b",))),
        ("llama", ("small",), ("llama", ("small",))),
        ("llama", (), ("llama", ())),
        ("llama:/m/x.gguf", ("a/b",), ("llama:/m/x.gguf", ("a/b",))),
        ("chat:http://h/v1", ("a/b",), ("chat:http://h/v1", ("a/b",))),
    ],
)
def test_a_name_of_the_hub_is_the_model_of_an_engine_without_one(
    engine: str, names: tuple[str, ...], expected: tuple[str, tuple[str, ...]]
) -> None:
    assert model_of_flag(engine, names) == expected


@pytest.mark.parametrize(
    "name", ["https://hub/a/b", "a/b/b-Q8_0.gguf", "a/b:", "/m/x.gguf", "./x.gguf", "x.gguf", "m/"]
)
def test_a_path_or_an_address_is_no_name_for_the_packaged_model(name: str) -> None:
    with pytest.raises(
        StartupError, match=re.escape(f"--model {name}: a model of the hub is named ORG/REPO")
    ):
        model_of_flag("llama:slots=1", (name,))
    assert model_of_flag("chat:http://h/v1", (name,)) == ("chat:http://h/v1", (name,))


@pytest.mark.parametrize(
    ("engine", "is_used"),
    [
        ("a/b:Q8_0,slots=2", True),
        ("llama:a/b", True),
        ("llama", False),
        ("x.gguf", False),
        ("vllm:http://h,tokenizer=a/b", False),
        ("chat:http://h/v1", False),
    ],
)
def test_whether_the_model_of_an_engine_is_one_of_the_hub(engine: str, is_used: bool) -> None:
    assert names_hub_model(engine) is is_used


def test_what_would_be_fetched_is_stated_without_fetching_it(fake: FakeHub, hub: ModelHub) -> None:
    size = len(fake.repositories[MODEL]["small-Q4_K_M.gguf"])
    found = to_fetch(f"{MODEL}:Q4_K_M,slots=1", hub)
    assert found == Fetch(f"{MODEL} Q4_K_M ({size / 1e6:.1f} MB)", size, size + 2**30)
    vllm = "vllm:http://127.0.0.1:9,tokenizer=acme/small"
    assert to_fetch(vllm, hub) == Fetch("the tokenizer of acme/small", 2)
    assert hub.held() == []
    for engine in (f"{MODEL}:Q4_K_M", vllm):
        opened_name(engine, hub)
        assert to_fetch(engine, hub) is None
    for engine in ("llama", "chat:http://h/v1", "vllm:http://h", "simulated"):
        assert to_fetch(engine, hub) is None


def test_context_and_slots_are_chosen_unless_the_user_named_one(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_names, "available_memory", lambda: 16 * 10**9)
    opened = opened_name(f"{MODEL}:Q4_K_M", hub)
    assert opened.endswith("/small-Q4_K_M.gguf,context=8192,slots=4")
    path = opened.removeprefix("llama:").split(",")[0]
    for own in ("context=512", "slots=3", "gpu_layers=99"):
        assert opened_name(f"{path},{own}", hub) == f"llama:{path},{own}"
    assert opened_name(path, hub) == opened
    monkeypatch.setattr(model_names, "available_memory", lambda: None)
    assert opened_name(path, hub) == f"llama:{path}"


@pytest.fixture(scope="module")
def seeing(seeing_path: str) -> Iterator[FakeHub]:
    """A hub with the tiny model that sees, in a folder, and its projector."""
    model, projector = Path(seeing_path), Path(seeing_path).with_name("mmproj-Tiny-F32.gguf")
    hub = FakeHub(
        {
            SEEING: {"Q8_0/seeing-Q8_0.gguf": model.read_bytes(), PROJECTOR: projector.read_bytes()},
            "acme/hearing-GGUF": {"hearing-Q8_0.gguf": model.read_bytes(), PROJECTOR: model.read_bytes()},
        }
    )
    with hub.running():
        yield hub


def test_a_projector_is_loaded_unless_the_user_named_one(
    seeing: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_names, "available_memory", lambda: None)
    hub = ModelHub(seeing.url, tmp_path)
    seeing.requests.clear()
    for own in ("mmproj=none", "mmproj=/models/eye.gguf"):
        assert opened_name(f"{SEEING},slots=1,{own}", hub).endswith(f"/seeing-Q8_0.gguf,slots=1,{own}")
        assert to_fetch(f"{SEEING},{own}", hub) is None
    assert seeing.downloads(PROJECTOR) == []
    projector = len(seeing.repositories[SEEING][PROJECTOR])
    found = to_fetch(SEEING, hub)
    assert found is not None
    assert (found.size, found.blind) == (projector, "")
    assert f" with {PROJECTOR} (" in found.what
    model, slots, named = opened_name(f"{SEEING},slots=1", hub).split(",")
    assert (slots, named.partition("=")[0]) == ("slots=1", "mmproj")
    assert Path(named.partition("=")[2]).read_bytes() == seeing.repositories[SEEING][PROJECTOR]
    assert to_fetch(SEEING, hub) is None
    assert opened_name(f"{SEEING},slots=1", hub) == f"{model},slots=1,{named}"


def test_a_projector_for_which_the_memory_has_no_room_is_not_fetched(
    seeing: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub = ModelHub(seeing.url, tmp_path)
    seeing.requests.clear()
    needed = sum(map(len, seeing.repositories[SEEING].values())) + 2**30
    monkeypatch.setattr(model_names, "available_memory", lambda: needed - 1)
    found = to_fetch(SEEING, hub)
    assert found is not None
    assert found.blind.startswith(f"images are not available: Q8_0 with {PROJECTOR} (")
    assert opened_name(f"{SEEING},slots=1", hub).endswith("/seeing-Q8_0.gguf,slots=1,mmproj=none")
    assert f"{SEEING}: {found.blind}" in caplog.messages
    assert seeing.downloads(PROJECTOR) == []


def test_a_projector_that_is_not_for_images_is_not_loaded(
    seeing: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_names, "available_memory", lambda: None)
    opened = opened_name("acme/hearing-GGUF,slots=1", ModelHub(seeing.url, tmp_path))
    assert opened.endswith("/hearing-Q8_0.gguf,slots=1,mmproj=none")
    assert f"images are not available: {PROJECTOR} is not for images" in caplog.text


async def test_a_server_of_a_model_with_a_projector_sees(
    seeing: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_names, "available_memory", lambda: None)
    opened = opened_name(f"{SEEING},context=512,slots=1", ModelHub(seeing.url, tmp_path))
    texts = []
    async with serve(engine=opened) as server, server.connect() as socket:
        for seed in (1, 2):
            image = {"type": "input_image", "image_url": data_url(png(40, 40, seed))}
            response = await socket.response(
                input=[{"role": "user", "content": [image]}], temperature=0, max_output_tokens=12
            )
            texts.append(response["output"][0]["content"][0]["text"])
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    "engine",
    [
        "llama",
        "llama:slots=2",
        "llama:http://127.0.0.1:8080",
        "chat:http://h/v1,model=a/b",
        "llama:/no/such.gguf",
    ],
)
def test_other_engines_are_opened_as_they_are(engine: str, hub: ModelHub) -> None:
    assert opened_name(engine, hub) == engine


def test_a_tokenizer_of_the_hub_becomes_its_directory(fake: FakeHub, hub: ModelHub, tmp_path: Path) -> None:
    opened = opened_name("vllm:http://127.0.0.1:9,tokenizer=acme/small,tokens=1", hub)
    address, tokenizer, rest = opened.split(",")
    assert (address, rest) == ("vllm:http://127.0.0.1:9", "tokens=1")
    assert (Path(tokenizer.removeprefix("tokenizer=")) / "tokenizer.json").exists()


def test_what_inspect_reads(hub: ModelHub, tmp_path: Path) -> None:
    assert Path(inspected_name("acme/small", hub)).is_dir()
    assert inspected_name(f"llama:{MODEL},slots=1", hub).endswith("/small-Q4_K_M.gguf,slots=1")
    assert inspected_name("/models/x.gguf", hub) == "/models/x.gguf"
    assert "tokenizer=acme" not in inspected_name("sglang:http://127.0.0.1:9,tokenizer=acme/small", hub)


def test_a_file_that_is_no_model_is_refused(hub: ModelHub) -> None:
    with pytest.raises(StartupError, match=r"small-Q8_0\.gguf"):
        opened_name(f"{MODEL}:Q8_0", hub)


async def test_a_server_fetches_its_model_and_serves_it_by_name(fake: FakeHub, tmp_path: Path) -> None:
    variables: dict[str, Any] = {"HF_ENDPOINT": fake.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    arguments = ("--engine", "llama:context=512,slots=1", "--model", f"{MODEL}:Q4_K_M", "--store", "memory")
    async with launched(*arguments, **variables) as server, aiohttp.ClientSession() as session:
        for model in (MODEL, f"{MODEL}:Q4_K_M"):
            body = {"model": model, "input": "Hello", "max_output_tokens": 3}
            async with session.post(f"{server.url}/responses", json=body) as answer:
                response = await answer.json()
                assert (answer.status, response["model"]) == (200, model)
    listing = await asyncio.create_subprocess_exec(
        *(*COMMAND, "models"), env=environment(**variables), stdout=asyncio.subprocess.PIPE
    )
    printed = (await listing.communicate())[0].decode()
    assert [line.split()[0] for line in printed.splitlines()[:2]] == ["MODEL", f"{MODEL}:Q4_K_M"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_download_that_is_stopped_goes_on_at_the_next_start(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    content = b"".join(bytes([number]) * CHUNK for number in range(4))
    fake = FakeHub({MODEL: {"tiny-Q4_K_M.gguf": content}})
    fake.holds = threading.Event()
    with fake.running() as url:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--model", MODEL, "--store", "memory", "--port", "0"],
            env=environment(HF_ENDPOINT=url, HF_HOME=str(tmp_path), HF_HUB_DISABLE_XET="1"),
            stderr=subprocess.PIPE,
        )
        try:
            fake.is_holding.wait()
            while not any(each.stat().st_size for each in tmp_path.rglob("*.incomplete")):
                time.sleep(0.01)
            process.send_signal(number)
            printed = process.communicate()[1].decode()
        finally:
            fake.holds.set()
        assert process.returncode == code
        assert [line for line in printed.splitlines() if "slipring fetching" not in line] == []
        (left,) = tmp_path.rglob("*.incomplete")
        held = left.stat().st_size
        fake.holds = None
        fake.requests.clear()
        hub = ModelHub(url, tmp_path / "hub")
        assert Path(hub.fetch_gguf(HubName(MODEL), None)[1]).read_bytes() == content
    assert 0 < held < len(content)
    assert fake.downloads("tiny-Q4_K_M.gguf") == [f"bytes={held}-"]
    assert list(tmp_path.rglob("*.incomplete")) == []


async def test_settings_that_name_models_of_the_hub_are_checked_without_it(tmp_path: Path) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text('[models.a]\nengine = "acme/a-GGUF"\n[models.b]\nengine = "simulated:"\n')
    for arguments in (("--config", str(file)), ("--engine", "acme/a-GGUF"), ("--model", "acme/a-GGUF")):
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "config", "check", *arguments),
            env=environment(HF_ENDPOINT="http://127.0.0.1:1", HF_HOME=str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
        )
        printed = (await process.communicate())[0].decode()
        assert process.returncode == 0
        assert "acme/a-GGUF" in printed
        assert "a server fetches what the hub has" in printed


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("acme/a-GGUF,contxt=9", "unknown option 'contxt': did you mean context?"),
        ("acme/a-GGUF,context=none", "option 'context' must be a number"),
        ("acme/a-GGUF,dialect=chatlm", "unknown dialect 'chatlm': did you mean chatml?"),
        ("acme/a-GGUF,thinking=no", "option 'thinking' must be"),
        ("acme/a-GGUF,variables=a", "option 'variables' is written as"),
        ("vllm:http://127.0.0.1:9,tokenizer=acme/a,tokenzer=b", "unknown option 'tokenzer'"),
        ("vllm:http://127.0.0.1:9,tokenizer=acme/a,dialect=x", "unknown dialect 'x'"),
    ],
)
def test_options_of_a_model_that_is_not_fetched_yet_are_checked(
    engine: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert main(["config", "check", "--engine", engine]) == 3
    assert message in capsys.readouterr().err


async def test_a_port_in_use_is_found_before_a_model_is_fetched(fake: FakeHub, tmp_path: Path) -> None:
    fake.requests.clear()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "serve", "--model", f"{MODEL}:Q4_K_M", "--port", port, "--store", "memory"),
            env=environment(HF_ENDPOINT=fake.url, HF_HOME=str(tmp_path)),
            stderr=asyncio.subprocess.PIPE,
        )
        printed = (await process.communicate())[1].decode()
    assert process.returncode == 3
    assert printed.startswith(f"slipring: cannot listen on 127.0.0.1:{port}: the port is in use; stop")
    assert fake.downloads("small-Q4_K_M.gguf") == []


def test_all_that_keeps_a_server_from_starting_is_found_before_a_model_is_fetched(tmp_path: Path) -> None:
    fits = Config(model=(MODEL,), port=0, store="memory")
    refuse_early(fits)
    for wrong, message in (
        (replace(fits, host="0.0.0.0"), "without API keys"),
        (replace(fits, store=f"sqlite:{tmp_path}/none/a.db"), "none/a.db"),
        (replace(fits, engine="llama:slots=none"), "option 'slots' must be a number"),
    ):
        with pytest.raises(StartupError, match=message):
            refuse_early(wrong)


def test_an_empty_cache_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slipring.commands.models.ModelHub", lambda: ModelHub(None, tmp_path))
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("No models of the hub are on this machine")
    assert "'slipring serve --model Qwen/Qwen3-4B-GGUF' fetches one (2.5 GB)" in printed
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


async def test_workers_without_a_shared_store_are_refused_before_a_model_is_fetched(
    tmp_path: Path,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve", "--model", MODEL, "--workers", "2", "--store", "memory"),
        env=environment(HF_ENDPOINT="http://127.0.0.1:1", HF_HOME=str(tmp_path)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert b"--workers 2 with --store memory" in (await process.communicate())[1]
