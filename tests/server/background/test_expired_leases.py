"""A live owner goes on after its lease has expired, unless another node has taken the run over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from slipring.base.errors import Unavailable
from slipring.core.limits import Limits
from slipring.server import clock
from slipring.server.background import runs
from slipring.server.background.cancelled_and_orphaned_runs import ExpiredLeases
from slipring.server.background.runs import Background
from slipring.stores.databases import sqlite
from slipring.stores.runs import Run
from tests.api import Api
from tests.harness import TERMINAL, PuppetEngine, serve
from tests.server.background.test_runs import written
from tests.server.raw import until

LEASE_S = 3600.0
"""So long that nothing is renewed or looked at except by a test."""
GRACE_S = LEASE_S / 2


class Clocks:
    """Shifts the clocks that leases are measured with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        monkeypatch.setattr(runs, "now", lambda: clock.now() + self.ahead_s)
        monkeypatch.setattr(runs, "shared_now", lambda: clock.shared_now() + self.ahead_s)

    def advance(self, seconds: float) -> None:
        self.ahead_s += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:{tmp_path / 'slipring.db'}"


@asynccontextmanager
async def nodes(store: str, count: int) -> AsyncIterator[tuple[PuppetEngine, list[Api]]]:
    """Nodes on one store, and the engine of the first."""
    engine = PuppetEngine()
    async with AsyncExitStack() as stack:
        apis = []
        for number in range(count):
            used = PuppetEngine() if number else engine
            limits = Limits(run_lease_s=LEASE_S)
            apis.append(Api(await stack.enter_async_context(serve(used, store=store, limits=limits))))
        yield engine, apis


def background(api: Api) -> Background:
    return api.server.server.background


async def terminal_types(api: Api, response_id: str) -> list[str]:
    return [event["type"] for event in await api.events(response_id) if event["type"] in TERMINAL]


async def test_a_lone_node_goes_on_after_a_pause_that_was_longer_than_the_lease(
    shared_store: str, clocks: Clocks
) -> None:
    async with nodes(shared_store, 1) as (engine, [api]):
        begun = await api.begin()
        performance = await engine.next()
        for _ in range(4):
            clocks.advance(2 * LEASE_S)
            await background(api)._end_abandoned()
        for _ in range(4):
            clocks.advance(LEASE_S / 3)
            await background(api)._end_abandoned()
        run = await api.server.service.store.runs.read("default", begun["id"])
        assert (run.is_open, run.epoch) == (True, 1)
        await background(api)._renew()
        performance.say("still here")
        performance.finish()
        assert (await api.ended(begun["id"]))["output"][0]["content"][0]["text"] == "still here"
        assert await terminal_types(api, begun["id"]) == ["response.completed"]


async def test_a_node_that_pauses_while_it_opens_a_run_goes_on(
    shared_store: str, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(shared_store, 1) as (engine, [api]):
        store = api.server.service.store.runs
        really_open, is_open, go_on = store.open, asyncio.Event(), asyncio.Event()

        async def open_slowly(*given: Any, **more: Any) -> Any:
            lease = await really_open(*given, **more)
            is_open.set()
            await go_on.wait()
            return lease

        monkeypatch.setattr(store, "open", open_slowly)
        beginning = asyncio.create_task(api.begin())
        await is_open.wait()
        for _ in range(4):
            clocks.advance(LEASE_S / 3)
            await background(api)._end_abandoned()
        go_on.set()
        begun = await beginning
        (await engine.next()).finish()
        assert (await api.ended(begun["id"]))["status"] == "completed"


async def test_a_run_that_this_node_no_longer_makes_is_ended_by_it(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with nodes(f"sqlite:{tmp_path / 'slipring.db'}", 1) as (engine, [api]):
        store = api.server.service.store.runs

        async def broken(*given: Any, **more: Any) -> None:
            raise RuntimeError

        begun = await api.begin()
        performance = await engine.next()
        monkeypatch.setattr(store, "append", broken)
        performance.say("a")
        await asyncio.wait_for(performance.stopped.wait(), 300)
        clocks.advance(LEASE_S)
        for _ in range(3):
            await background(api)._end_abandoned()
            clocks.advance(LEASE_S / 3)
        assert (await api.read(begun["id"]))["status"] == "failed"


async def test_a_run_of_a_dead_node_is_taken_over_and_its_owner_cannot_continue_it(
    shared_store: str, clocks: Clocks
) -> None:
    async with nodes(shared_store, 2) as (engine, [here, there]):
        begun = await here.begin()
        performance = await engine.next()
        performance.say("a")
        await written(here, begun["id"], 5)
        clocks.advance(LEASE_S)
        for _ in range(2):
            await background(there)._end_abandoned()
            assert (await there.read(begun["id"]))["status"] == "in_progress", "the grace is not over"
            clocks.advance(LEASE_S / 3)
        await background(there)._end_abandoned()
        failed = await there.read(begun["id"])
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        performance.say("b")  # the owner was not dead after all
        performance.finish()
        await until(lambda: not background(here)._runs)
        for api in (here, there):
            assert await api.read(begun["id"]) == failed
            assert await terminal_types(api, begun["id"]) == ["response.failed"]


async def test_a_renewal_after_the_lease_expired_keeps_the_run(shared_store: str, clocks: Clocks) -> None:
    """The second node was awake, or woke up first."""
    async with nodes(shared_store, 2) as (engine, [here, there]):
        begun = await here.begin()
        performance = await engine.next()
        clocks.advance(LEASE_S)
        await background(there)._end_abandoned()
        await background(here)._renew()
        clocks.advance(LEASE_S / 3)
        for _ in range(2):
            await background(there)._end_abandoned()
            clocks.advance(LEASE_S / 3)
        performance.finish()
        assert (await here.ended(begun["id"]))["status"] == "completed"


async def test_an_owner_that_could_not_renew_because_nothing_could_be_written_keeps_the_run(
    tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_MS", 1)
    path = tmp_path / "slipring.db"
    async with nodes(f"sqlite:{path}", 2) as (engine, [here, there]):
        begun = await here.begin()
        performance = await engine.next()
        await written(here, begun["id"], 3)
        with closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            clocks.advance(LEASE_S)
            for _ in range(6):
                with pytest.raises(Unavailable):
                    await background(here)._renew()
                with pytest.raises(Unavailable):
                    await background(there)._end_abandoned()
                clocks.advance(LEASE_S / 3)
            other.execute("ROLLBACK")
        await background(there)._end_abandoned()
        clocks.advance(LEASE_S / 3)
        await background(here)._renew()
        for _ in range(2):
            await background(there)._end_abandoned()
            clocks.advance(LEASE_S / 3)
        performance.finish()
        assert (await here.ended(begun["id"]))["status"] == "completed"


def expired(number: int = 1, *, epoch: int = 1, lease_until: float = 10.0) -> Run:
    return Run("t", f"resp_{number}", "in_progress", "node_a", epoch, lease_until, 3, b"{}")


def test_a_run_is_abandoned_if_its_lease_stays_the_same() -> None:
    leases = ExpiredLeases(grace_s=6.0)
    assert leases.abandoned([expired(1), expired(2)], 100.0) == []
    leases.note(expired(1), 100.0)
    leases.looked(100.0)
    assert (leases.is_known(expired(1)), leases.is_known(expired(2))) == (True, False)
    assert leases.abandoned([expired(1), expired(2)], 104.0) == []
    leases.looked(104.0)
    assert leases.abandoned([expired(1), expired(2)], 108.0) == [expired(1)]


@pytest.mark.parametrize("changed", [expired(epoch=2), expired(lease_until=11.0)])
def test_a_lease_that_has_changed_is_another_one(changed: Run) -> None:
    leases = ExpiredLeases(grace_s=6.0)
    leases.note(expired(), 100.0)
    assert leases.abandoned([changed], 108.0) == []
    assert not leases.is_known(changed)
    assert not leases.is_known(expired())


def test_what_was_known_before_this_process_was_stopped_does_not_count() -> None:
    leases = ExpiredLeases(grace_s=6.0)
    leases.note(expired(), 100.0)
    leases.looked(100.0)
    assert leases.abandoned([expired()], 107.0) == []
    assert not leases.is_known(expired())
