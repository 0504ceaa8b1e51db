"""Fixtures for all tests, and what is done before and after each.

What applies to every test is done by hooks and not by fixtures: pytest looks at each fixture that applies,
again for each of ten thousand tests.
"""

import gc

gc.disable()  # until all tests are collected

import logging
import os
import secrets
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import certifi
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.client_sessions import ClientSessions, tracked_sessions
from tests.compiled_here import compiled_here
from tests.made_once import made_once
from tests.model import (
    elsewhere,
    real_model,
    seeing,
    seeing_model,
    seeing_path,
    smollm2,
    tiny,
    tiny_model,
    tiny_path,
)
from tests.patient import sitecustomize
from tests.postgres import postgres, postgres_server, postgres_url
from tests.tap import Tap, tapped

__all__ = [
    "all_authorities",
    "compiled_here",
    "elsewhere",
    "postgres",
    "postgres_server",
    "postgres_url",
    "real_model",
    "seeing",
    "seeing_model",
    "seeing_path",
    "smollm2",
    "tap",
    "tiny",
    "tiny_model",
    "tiny_path",
]

_AUTHORITIES = "SSL_CERT_FILE"
_DATA_HOME = "XDG_DATA_HOME"

# The same examples on every machine and in every run, so that failures can be reproduced. However long the
# machine takes to make them.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
# Hypothesis would also try numbers and texts that it finds in the source of modules. Those that are imported
# depend on the tests that ran before in this process.
providers._get_local_constants = Constants


class _Shared(NamedTuple):
    """What all tests of a process share."""

    tap: Tap
    sessions: ClientSessions
    data_homes: Path
    """The directory of all data directories."""
    authorities: str | None
    """The file of all certificate authorities, if the environment names one."""


_SHARED = pytest.StashKey[_Shared]()
_ROOT_LOGGER = pytest.StashKey[tuple[int, list[logging.Handler]]]()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported modules and collected tests from garbage collection: they live as long as the process,
    and are most of its objects. Collect rarely: with Python's own thresholds it takes a twentieth of the time
    of all tests. A test of what is freed collects by itself."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Set up what all tests share."""
    _restore_usual_signals()
    for name in [name for name in os.environ if _is_setting(name)]:
        del os.environ[name]
    # A test that is broken off may leave a process that still writes there.
    temporary = TemporaryDirectory(prefix="slipring-tests-", ignore_cleanup_errors=True)
    with (
        temporary as name,
        _patient_children(),
        _one_authority(Path(name)) as authorities,
        made_once(),
        tapped() as tap,
        tracked_sessions() as sessions,
    ):
        session.stash[_SHARED] = _Shared(tap, sessions, Path(name), authorities)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Give each test its own data directory, so that servers with the default store do not use the user's."""
    shared = item.session.stash[_SHARED]
    os.environ[_DATA_HOME] = str(shared.data_homes / secrets.token_hex(8))
    root = logging.getLogger()
    item.stash[_ROOT_LOGGER] = root.level, root.handlers[:]
    shared.tap.reset()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Restore the root logger, which a test that runs a command in this process sets up as that command does.
    Fail a test in which a server of this process sent a frame or an SSE event that is wrong, and one that
    left a client session open."""
    try:
        result = yield
    finally:
        root = logging.getLogger()
        level, root.handlers[:] = item.stash[_ROOT_LOGGER]
        root.setLevel(level)
    shared = item.session.stash[_SHARED]
    left_open = shared.sessions.take_left_open()
    assert not shared.tap.faults, "\n".join(shared.tap.faults)
    assert not left_open, f"client sessions were left open, created at {left_open}"
    return result


def _is_setting(name: str) -> bool:
    """Whether a variable changes what a command of slipring does: tests set those that they need."""
    return name.startswith(("OPENAI_", "SLIPRING_")) and not name.startswith("SLIPRING_TEST_")


def _restore_usual_signals() -> None:
    """Restore the default signal handlers. Under nohup or in the background of a shell some signals are
    ignored, and child processes would inherit that."""
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@contextmanager
def _patient_children() -> Iterator[None]:
    """Other interpreters that the tests start import ``tests.patient.sitecustomize``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(sitecustomize.__file__).parent), prepend=os.pathsep)
        yield


@contextmanager
def _one_authority(directory: Path) -> Iterator[str | None]:
    """Trust one certificate authority. Each process and each client of the openai package loads those that it
    trusts, which takes a tenth of a second for all that a machine has. Returns the name of their file, if the
    environment has one."""
    end = "-----END CERTIFICATE-----\n"
    first, *_ = Path(certifi.where()).read_text(encoding="utf-8").partition(end)
    path = directory / "one_authority.pem"
    path.write_text(first + end, encoding="utf-8")
    all_of_them = os.environ.get(_AUTHORITIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_AUTHORITIES, str(path))
        yield all_of_them


@pytest.fixture
def all_authorities(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust what the machine trusts, for a test that downloads something."""
    monkeypatch.delenv(_AUTHORITIES)
    if (path := request.session.stash[_SHARED].authorities) is not None:
        monkeypatch.setenv(_AUTHORITIES, path)


@pytest.fixture
def tap(request: pytest.FixtureRequest) -> list[str]:
    """The faults that were found in this test so far, in frames and SSE events of the servers in this
    process."""
    return request.session.stash[_SHARED].tap.faults
