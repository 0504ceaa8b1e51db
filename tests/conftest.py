"""Fixtures for all tests."""

import secrets
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.postgres import postgres_server, postgres_url
from tests.tap import tapped

__all__ = ["data_home", "postgres_server", "postgres_url", "tap", "usual_signals"]

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
