"""Runs servers for real clients in another thread, so that blocking clients do not block them."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from slipring.engines.base import Engine
from tests.harness import FAST
from tests.relay import Relay, Served, relayed


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """A portal to the event loop of the server's thread."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def served(portal: BlockingPortal) -> Served:
    """``with served(engine) as relay`` runs a server behind a relay, see ``tests.relay.relayed``."""

    def serve(engine: str | Engine = FAST, **settings: Any) -> AbstractContextManager[Relay]:
        return portal.wrap_async_context_manager(relayed(engine, **settings))

    return serve


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., str]:
    """``scripted([step, …], …)`` returns an engine with these answers, each a list of steps."""

    def write(*answers: list[dict[str, Any]]) -> str:
        script = tmp_path / "script.jsonl"
        script.write_text("\n".join(json.dumps(answer) for answer in answers), encoding="utf-8")
        return f"simulated:tokens_per_s=0,script={script}"

    return write
