"""Fixtures for all tests."""

import gc
import logging
import os
import secrets
import signal
from collections.abc import Generator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import certifi
import msgspec
import pytest
from hypothesis import settings

from slipring.engines.constraints import answer_grammar
from slipring.engines.llama import models
from slipring.engines.simulated import tokenized
from slipring.engines.tokens.model_files import read_gguf
from slipring.inspection import model_source
from slipring.prompts.templates import template_renderer
from slipring.prompts.templates.chat_template import ChatTemplate
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.compiled_here import compiled_here
from tests.model import elsewhere, real_model, smollm2, tiny, tiny_model, tiny_path
from tests.postgres import postgres, postgres_server, postgres_url
from tests.tap import Tap, tapped

__all__ = [
    "all_authorities",
    "compiled_here",
    "data_homes",
    "elsewhere",
    "grammars_tried_once",
    "model_files_read_once",
    "one_authority",
    "outbox_tap",
    "postgres",
    "postgres_server",
    "postgres_url",
    "real_model",
    "smollm2",
    "surroundings",
    "tap",
    "templates_compiled_once",
    "tiny",
    "tiny_model",
    "tiny_path",
    "tokenizers_built_once",
    "usual_signals",
]

_AUTHORITIES = "SSL_CERT_FILE"
_DATA_HOME = "XDG_DATA_HOME"

# The same examples on every machine and in every run, so that failures can be reproduced.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported modules and collected tests from garbage collection: they live as long as the process,
    and are most of its objects. Collect rarely: with Python's own thresholds it takes a twentieth of the time
    of all tests. A test of what is freed collects by itself."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def usual_signals() -> None:
    """Restore the default signal handlers. Under nohup or in the background of a shell some signals are
    ignored, and child processes would inherit that."""
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """Trust one certificate authority. Each process and each client of the openai package loads those that it
    trusts, which takes a tenth of a second for all that a machine has. Returns the name of their file, if the
    environment has one."""
    end = "-----END CERTIFICATE-----\n"
    first, *_ = Path(certifi.where()).read_text(encoding="utf-8").partition(end)
    path = tmp_path_factory.mktemp("authorities") / "one.pem"
    path.write_text(first + end, encoding="utf-8")
    all_of_them = os.environ.get(_AUTHORITIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_AUTHORITIES, str(path))
        yield all_of_them


@pytest.fixture
def all_authorities(one_authority: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust what the machine trusts, for a test that downloads something."""
    monkeypatch.delenv(_AUTHORITIES)
    if one_authority is not None:
        monkeypatch.setenv(_AUTHORITIES, one_authority)


@pytest.fixture(scope="session", autouse=True)
def tokenizers_built_once() -> Iterator[None]:
    """Engines with the same vocabulary share one tokenizer: it does not change, and building it takes as long
    as a hundred turns."""
    from_json, from_gguf = Tokenizer.from_json, Tokenizer.from_gguf
    built: dict[object, Tokenizer] = {}

    def json_once(text: str) -> Tokenizer:
        if text not in built:
            built[text] = from_json(text)
        return built[text]

    def gguf_once(metadata: Mapping[str, Any]) -> Tokenizer:
        described = [entry for entry in metadata.items() if entry[0].startswith("tokenizer.ggml.")]
        key = msgspec.msgpack.encode(sorted(described))
        if key not in built:
            built[key] = from_gguf(metadata)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokenizer, "from_json", json_once)
        patch.setattr(Tokenizer, "from_gguf", gguf_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def model_files_read_once() -> Iterator[None]:
    """Read the metadata of a GGUF file again only if the file has changed. Most tests with a vocabulary use
    the same file, and reading it takes a tenth of a second."""
    read: dict[object, dict[str, Any]] = {}

    def read_once(kind: str, path: str) -> dict[str, Any]:
        try:
            status = os.stat(path)
        except OSError:
            return read_gguf(kind, path)  # raises, with a message
        key = path, status.st_ino, status.st_size, status.st_mtime_ns
        if key not in read:
            read[key] = read_gguf(kind, path)
        return dict(read[key])

    with pytest.MonkeyPatch.context() as patch:
        for module in (models, tokenized, model_source):
            patch.setattr(module, "read_gguf", read_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def templates_compiled_once() -> Iterator[None]:
    """Renderers of the same chat template share it: it does not change, and is rendered dozens of times while
    it is made. Tests of ``ChatTemplate`` make their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_renderer, "ChatTemplate", cache(ChatTemplate))
        yield


@pytest.fixture(scope="session", autouse=True)
def grammars_tried_once() -> Iterator[None]:
    """Try each grammar once. Trying takes most of the time of compiling, its result depends on the text only,
    and the same few schemas are part of the grammars of most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_grammar, "_grammar_error", cache(answer_grammar._grammar_error))
        yield


@pytest.fixture(scope="session")
def data_homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of all data directories."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_DATA_HOME, "")
        yield tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def surroundings(data_homes: Path) -> Iterator[None]:
    """Give each test its own data directory, so that servers with the default store do not use the user's;
    restore the root logger, which a test that runs a command in this process sets up as that command does.

    One fixture for both: all ten thousand tests run it."""
    os.environ[_DATA_HOME] = str(data_homes / secrets.token_hex(8))
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="session")
def outbox_tap() -> Iterator[Tap]:
    with tapped() as tap:
        yield tap


@pytest.fixture(autouse=True)
def tap(outbox_tap: Tap) -> Iterator[list[str]]:
    """Check every frame and SSE event of the servers in this process, in every test."""
    outbox_tap.reset()
    yield outbox_tap.faults
    assert not outbox_tap.faults, "\n".join(outbox_tap.faults)
