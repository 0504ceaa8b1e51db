"""Fixtures for all tests."""

import logging
import os
import secrets
import signal
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import settings

from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.model import elsewhere, real_model, smollm2, tiny, tiny_model, tiny_path
from tests.postgres import postgres_server, postgres_url
from tests.tap import tapped

__all__ = [
    "data_home",
    "elsewhere",
    "few_certificates",
    "postgres_server",
    "postgres_url",
    "real_model",
    "root_logging",
    "smollm2",
    "tap",
    "tiny",
    "tiny_model",
    "tiny_path",
    "tokenizers_built_once",
    "usual_signals",
]

# The same examples on every machine and in every run, so that failures can be reproduced.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def usual_signals() -> None:
    """Restore the default signal handlers. Under nohup or in the background of a shell some signals are
    ignored, and child processes would inherit that."""
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def few_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let processes and clients load one of the machine's certificates, not all: aiohttp loads them twice
    when it is imported, a seventh of the work of starting a server. No test uses TLS."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    with pytest.MonkeyPatch.context() as patch:
        if found and "SSL_CERT_FILE" not in os.environ:
            file = tmp_path_factory.mktemp("certificates") / "one.pem"
            file.write_text(ssl.DER_cert_to_PEM_cert(found[0]))
            patch.setenv("SSL_CERT_FILE", str(file))
        yield


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
        described = {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")}
        key = repr(sorted(described.items()))
        if key not in built:
            built[key] = from_gguf(metadata)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokenizer, "from_json", json_once)
        patch.setattr(Tokenizer, "from_gguf", gguf_once)
        yield


@pytest.fixture(autouse=True)
def root_logging() -> Iterator[None]:
    """Restore the root logger: a test that runs a command in this process sets it up as that command does."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own data directory, so that servers with the default store do not use the user's."""
    home = tmp_path_factory.getbasetemp() / "data" / secrets.token_hex(8)
    monkeypatch.setenv("XDG_DATA_HOME", str(home))


@pytest.fixture(autouse=True)
def tap(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Check every frame and SSE event of the servers in this process, in every test."""
    with tapped(monkeypatch) as faults:
        yield faults
    assert not faults, "\n".join(faults)
