"""Background runs and their leases, on every kind of store."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import Raw, structs

from slipring.core.chain.instructions_and_tools import NO_HEAD, Head
from slipring.protocol import wire
from slipring.protocol.responses import Response
from slipring.protocol.tools.toolset import Toolset
from slipring.server.access.content_encryption import KeyedSeal, new_key
from slipring.server.background.cancelled_and_orphaned_runs import Claim, cancel_run, fail_abandoned
from slipring.stores.conversations import Appended, Conversation
from slipring.stores.databases.database import UniqueViolated
from slipring.stores.runs import Beginning, Lease, LeaseLost, Run
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation
from tests.stores.samples import event, message, response, state

QUEUED = response("resp_1", status="queued")
RUNNING = response("resp_1")
DONE = response("resp_1", status="completed")
CANCELLED = response("resp_1", status="cancelled")
FAILED = response("resp_1", status="failed")


async def opened(store: Store, owner: str = "node_a") -> Lease:
    return await store.runs.open("t", QUEUED, [event(0), event(1)], owner=owner, lease_until=50.5)


async def read(store: Store) -> Run:
    run = await store.runs.read("t", "resp_1")
    assert run is not None
    return run


async def numbers(store: Store, after: int = -1, limit: int = 100) -> list[int]:
    found = await store.runs.events("t", "resp_1", after=after, limit=limit)
    return [each.sequence_number for each in found]


async def test_a_run_records_events_and_status_until_it_completes(store: Store) -> None:
    lease = await opened(store)
    assert lease == Lease("t", "resp_1", "node_a", 1)
    assert await read(store) == Run("t", "resp_1", "queued", "node_a", 1, 50.5, 1, wire.encode(QUEUED))
    await store.runs.append(lease, [event(2), event(3)], RUNNING, lease_until=60.5)
    run = await read(store)
    assert (run.status, run.lease_until, run.last_sequence) == ("in_progress", 60.5, 3)
    await store.runs.append(lease, [], RUNNING, lease_until=70.5)
    assert (await read(store)).last_sequence == 3
    await store.runs.append(lease, [event(4)], DONE, lease_until=80.5)
    run = await read(store)
    assert (run.status, run.is_open, run.response) == ("completed", False, wire.encode(DONE))
    with pytest.raises(LeaseLost):
        await store.runs.append(lease, [event(5)], RUNNING, lease_until=90.5)
    assert await numbers(store) == [0, 1, 2, 3, 4]
    assert await numbers(store, after=1, limit=2) == [2, 3]
    assert (await store.runs.events("t", "resp_1", after=3, limit=1))[0] == event(4)
    assert await numbers(store, after=4) == []


async def test_tenants_cannot_see_each_others_data(store: Store) -> None:
    lease = await opened(store)
    foreign = Lease("u", "resp_1", "node_a", 1)
    assert await store.runs.read("u", "resp_1") is None
    assert await store.runs.events("u", "resp_1", after=-1, limit=9) == []
    assert await store.runs.delete("u", "resp_1") is False
    assert await store.runs.renew([foreign, lease], lease_until=99) == [foreign]
    with pytest.raises(LeaseLost):
        await store.runs.append(foreign, [event(2)], RUNNING, lease_until=99)
    run = await read(store)
    theirs = Run("u", "resp_1", run.status, run.owner, run.epoch, 0.0, run.last_sequence, b"")
    assert await store.runs.end(theirs, CANCELLED, event(2)) is False
    await store.runs.open("u", RUNNING, [], owner="node_b", lease_until=1)
    assert (await read(store)).owner == "node_a"


async def test_a_run_cannot_be_opened_twice(store: Store) -> None:
    await opened(store)
    with pytest.raises(UniqueViolated):
        await opened(store, "node_b")
    assert (await read(store)).owner == "node_a"
    assert await numbers(store) == [0, 1]


async def test_an_append_may_be_repeated(store: Store) -> None:
    """As after a connection that was lost during a commit: the owner cannot know whether it was done."""
    lease = await opened(store)
    for _ in range(2):
        await store.runs.append(lease, [event(2)], RUNNING, lease_until=99)
    await store.runs.append(lease, [event(2), event(3)], RUNNING, lease_until=99)
    assert await numbers(store) == [0, 1, 2, 3]
    assert (await read(store)).last_sequence == 3


@pytest.mark.parametrize("last", [CANCELLED, FAILED])
async def test_a_run_whose_response_is_saved_cannot_end_as_failed_or_cancelled(
    store: Store, last: Response
) -> None:
    """A node that ends a run looks for its response first; the owner may save it just after that."""
    lease = await opened(store)
    run = await read(store)
    await store.responses.save("t", state("resp_1"), lease=lease)
    assert await store.runs.end(run, last, event(2)) is False
    assert await read(store) == run
    assert await store.runs.end(run, DONE, event(2)) is True
    assert await numbers(store) == [0, 1, 2]


async def test_the_owner_cannot_fail_a_run_whose_response_is_saved(store: Store) -> None:
    lease = await opened(store)
    await store.responses.save("t", state("resp_1"), lease=lease)
    with pytest.raises(LeaseLost):
        await store.runs.append(lease, [event(2)], FAILED, lease_until=99)
    assert (await read(store)).is_open
    assert await numbers(store) == [0, 1]


async def test_a_run_may_fail_if_its_response_is_not_saved(store: Store) -> None:
    lease = await opened(store)
    await store.responses.save("t", state("resp_2"))
    await store.runs.append(lease, [event(2)], FAILED, lease_until=99)
    assert (await read(store)).status == "failed"


async def test_a_run_whose_response_is_saved_as_failed_ends_as_failed(store: Store) -> None:
    """It has failed in a later step, and its finished steps are kept."""
    lease = await opened(store)
    run = await read(store)
    await store.responses.save("t", state("resp_1", status="failed"), lease=lease)
    assert await store.runs.end(run, CANCELLED, event(2)) is False
    await store.runs.append(lease, [event(2)], FAILED, lease_until=99)
    assert (await read(store)).status == "failed"


@pytest.mark.parametrize("ending", [cancel_run, fail_abandoned])
async def test_a_run_is_ended_with_the_failed_response_that_its_owner_has_saved(
    store: Store, ending: Callable[[Store, Run, Claim], Awaitable[object]]
) -> None:
    lease = await opened(store)
    await store.responses.save("t", state("resp_1", status="failed"), lease=lease)
    await ending(store, await read(store), Claim("other", 99.0, KeyedSeal([new_key()])))
    assert (await read(store)).status == "failed"
    (*_, last) = await store.runs.events("t", "resp_1", after=-1, limit=9)
    assert b'"type":"response.failed"' in last.data
    assert b"I am resp_1" in last.data


async def test_a_concurrent_save_and_cancel_have_one_winner(location: StoreLocation) -> None:
    """The two happen on two nodes at the same moment."""
    store = await location.open()
    other = await location.open() if store.is_shared else store
    lease = await opened(store)
    run = await read(other)
    saved, cancelled = await asyncio.gather(
        store.responses.save("t", state("resp_1"), lease=lease),
        other.runs.end(run, CANCELLED, event(2)),
        return_exceptions=True,
    )
    assert cancelled is (saved is not None)
    assert (await other.responses.retrieve("t", "resp_1") is None) is cancelled


async def test_ending_a_run_ends_the_lease_of_its_owner(store: Store) -> None:
    lease = await opened(store)
    before = await read(store)
    assert await store.runs.end(before, CANCELLED, event(2)) is True
    after = await read(store)
    assert (after.status, after.epoch, after.last_sequence) == ("cancelled", 2, 2)
    with pytest.raises(LeaseLost):
        await store.runs.append(lease, [event(2)], DONE, lease_until=99)
    assert await store.runs.renew([lease], lease_until=99) == [lease]
    await store.conversations.create("t", Conversation("conv_1", 0), ())
    appended = Appended("conv_1", 0, (message("msg_1"),))
    with pytest.raises(LeaseLost):
        await store.responses.save("t", state("resp_1"), appended=appended, lease=lease)
    assert await store.responses.load("t", "resp_1") is None
    assert await store.conversations.all_items("t", "conv_1") == ()
    assert await store.runs.end(before, CANCELLED, event(3)) is False
    assert await store.runs.end(after, CANCELLED, event(3)) is False, "the run has ended"
    assert await numbers(store) == [0, 1, 2]


async def test_a_run_with_newer_events_than_were_read_is_not_ended(store: Store) -> None:
    lease = await opened(store)
    before = await read(store)
    await store.runs.append(lease, [event(2)], RUNNING, lease_until=99)
    assert await store.runs.end(before, CANCELLED, event(2)) is False
    assert (await read(store)).status == "in_progress"


async def test_the_owner_can_save_only_until_the_run_ends(store: Store) -> None:
    lease = await opened(store)
    saved = state("resp_1")
    await store.responses.save("t", saved, lease=lease)
    assert await store.responses.load("t", "resp_1") is saved
    await store.runs.append(lease, [event(2)], DONE, lease_until=99)
    with pytest.raises(LeaseLost):
        await store.responses.save("t", saved, lease=lease)


async def test_concurrent_endings_of_a_run_have_one_winner(location: StoreLocation) -> None:
    store = await location.open()
    other = await location.open() if store.is_shared else store
    lease = await opened(store)
    run = await read(store)
    results = await asyncio.gather(
        store.runs.append(lease, [event(2)], DONE, lease_until=99),
        other.runs.end(run, CANCELLED, event(2)),
        store.runs.end(run, CANCELLED, event(2)),
        return_exceptions=True,
    )
    won = [result for result in results if result in (None, True)]
    assert len(won) == 1
    assert await numbers(store) == [0, 1, 2]


async def test_expired_lists_open_runs_whose_lease_expired(store: Store) -> None:
    leases = [
        await store.runs.open("t", response(f"resp_{number}"), [], owner="node_a", lease_until=number)
        for number in range(4)
    ]
    assert await store.runs.renew([], lease_until=9) == []
    assert await store.runs.renew(leases[:1], lease_until=9) == []
    assert [run.response_id for run in await store.runs.expired(2.5, 10)] == ["resp_1", "resp_2"]
    assert [run.response_id for run in await store.runs.expired(2.5, 1)] == ["resp_1"]
    await store.runs.append(leases[1], [], response("resp_1", status="failed"), lease_until=0)
    assert [run.response_id for run in await store.runs.expired(2.5, 10)] == ["resp_2"]


async def test_deleting_a_run_ends_its_lease(store: Store) -> None:
    lease = await opened(store)
    assert await store.runs.delete("t", "resp_1") is True
    assert await store.runs.delete("t", "resp_1") is False
    assert await store.runs.read("t", "resp_1") is None
    assert await numbers(store) == []
    assert await store.runs.renew([lease], lease_until=99) == [lease]
    with pytest.raises(LeaseLost):
        await store.runs.append(lease, [event(2)], RUNNING, lease_until=99)


async def test_finished_runs_expire_with_their_events(location: StoreLocation) -> None:
    store = await location.open(retention_s=100)
    lease = await opened(store)
    assert await store.pruning.step(1000) == 0, "open runs do not expire"
    await store.runs.append(lease, [event(2)], DONE, lease_until=0)
    assert await store.pruning.step(99) == 0
    assert await store.pruning.step(100) == 1
    location.now = 0.0
    assert await numbers(store) == []
    assert await store.pruning.step(100) == 0


async def test_a_run_that_has_ended_is_gone_when_its_retention_is_over(location: StoreLocation) -> None:
    """Before its row is removed, too."""
    store = await location.open(retention_s=100)
    lease = await opened(store)
    location.now = 5000.0
    assert (await read(store)).is_open, "an open run is kept"
    assert await numbers(store) == [0, 1]
    await store.runs.append(lease, [event(2)], DONE, lease_until=0)
    assert await store.runs.read("t", "resp_1") is None
    assert await numbers(store) == []
    assert await store.runs.delete("t", "resp_1") is False
    location.now = float(DONE.created_at + 99)
    assert await numbers(store) == [0, 1, 2]
    assert await store.runs.delete("t", "resp_1") is True


async def test_a_run_can_be_seized_although_its_owner_appends_meanwhile(store: Store) -> None:
    lease = await opened(store)
    read_before = await read(store)
    await store.runs.append(lease, [event(2)], RUNNING, lease_until=60.5)
    taken = await store.runs.seize(read_before, owner="node_b", lease_until=99.5)
    assert taken is not None
    assert (taken.owner, taken.epoch, taken.last_sequence, taken.lease_until) == ("node_b", 2, 2, 99.5)
    assert taken.is_open
    with pytest.raises(LeaseLost):
        await store.runs.append(lease, [event(3)], RUNNING, lease_until=70.5)
    with pytest.raises(LeaseLost):
        await store.responses.save("t", state("resp_1"), lease=lease)
    assert await store.runs.renew([lease], lease_until=70.5) == [lease]
    assert await store.runs.seize(read_before, owner="node_c", lease_until=99.5) is None
    assert await store.runs.end(taken, CANCELLED, event(3))
    assert await store.runs.seize(taken, owner="node_c", lease_until=99.5) is None
    assert await numbers(store) == [0, 1, 2, 3]


async def test_a_run_of_another_tenant_cannot_be_seized(store: Store) -> None:
    await opened(store)
    run = await read(store)
    foreign = structs.replace(run, tenant="u")
    assert await store.runs.seize(foreign, owner="node_b", lease_until=99.5) is None
    assert await read(store) == run


async def test_a_renewed_run_is_not_seized_if_that_is_asked_for(store: Store) -> None:
    lease = await opened(store)
    before = await read(store)
    assert await store.runs.touch(before) is True
    assert await read(store) == before
    await store.runs.renew([lease], lease_until=60.5)
    assert await store.runs.touch(before) is False
    assert await store.runs.seize(before, owner="node_b", lease_until=99.5, if_not_renewed=True) is None
    renewed = await read(store)
    assert (renewed.owner, renewed.epoch) == ("node_a", 1)
    taken = await store.runs.seize(renewed, owner="node_b", lease_until=99.5, if_not_renewed=True)
    assert taken is not None
    assert taken.owner == "node_b"
    assert await store.runs.touch(renewed) is False
    assert await store.runs.end(taken, FAILED, event(2))
    assert await store.runs.touch(await read(store)) is False


async def test_a_run_of_another_tenant_cannot_be_touched(store: Store) -> None:
    await opened(store)
    assert await store.runs.touch(structs.replace(await read(store), tenant="u")) is False


async def test_what_a_run_began_with_is_kept_until_it_ends(store: Store) -> None:
    head = Head("Be short.", Toolset.read(Raw(b'[{"type":"function","name":"f","parameters":{}}]')))
    began = Beginning("resp_0", head, (message("msg_1"), message("msg_2")), is_upstream=True)
    lease = await store.runs.open("t", QUEUED, [], owner="node_a", lease_until=1, beginning=began)
    found = await store.runs.beginning("t", "resp_1")
    assert found is not None
    assert (found.parent_id, found.input, found.is_upstream) == ("resp_0", began.input, True)
    assert (found.head.instructions, found.head.tools.raw) == ("Be short.", head.tools.raw)
    assert await store.runs.beginning("u", "resp_1") is None
    other = Beginning(None, NO_HEAD, ())
    await store.runs.append(lease, [], RUNNING, lease_until=2, beginning=other)
    assert (await store.runs.beginning("t", "resp_1")) is not None
    await store.runs.append(lease, [event(0)], DONE, lease_until=3)
    assert await store.runs.beginning("t", "resp_1") is None


@pytest.mark.parametrize("ending", ["end", "delete"])
async def test_what_a_run_began_with_goes_with_it(store: Store, ending: str) -> None:
    lease = await opened(store)
    assert await store.runs.beginning("t", "resp_1") is None
    began = Beginning(None, NO_HEAD, (message("msg_1"),))
    await store.runs.append(lease, [], RUNNING, lease_until=2, beginning=began)
    assert await store.runs.beginning("t", "resp_1") == began
    if ending == "end":
        assert await store.runs.end(await read(store), CANCELLED, event(2))
    else:
        assert await store.runs.delete("t", "resp_1")
    assert await store.runs.beginning("t", "resp_1") is None


@pytest.mark.parametrize("ending", [cancel_run, fail_abandoned])
async def test_a_node_that_dies_between_saving_and_ending_a_run_leaves_it_to_others(
    store: Store, ending: Callable[[Store, Run, Claim], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await opened(store)
    began = Beginning(None, NO_HEAD, (message("msg_1"),))
    await store.runs.append(lease, [event(2)], RUNNING, lease_until=2, beginning=began)

    async def die(*given: object) -> bool:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(store.runs, "end", die)
        with pytest.raises(ConnectionError):
            await ending(store, await read(store), Claim("first", 99.0, KeyedSeal([new_key()])))
    assert (await read(store)).is_open
    await cancel_run(store, await read(store), Claim("second", 99.0, KeyedSeal([new_key()])))
    ended = "cancelled" if ending is cancel_run else "failed"
    assert (await read(store)).status == ended
    loaded = await store.responses.load("t", "resp_1")
    assert loaded is not None
    assert (loaded.response.status, loaded.input, loaded.output) == (ended, began.input, ())
    assert await numbers(store) == [0, 1, 2, 3]
