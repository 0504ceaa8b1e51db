"""Writes whose outcome is unknown at first: the connection to PostgreSQL is lost before the reply to the
commit arrives, or the disk under SQLite reports an error at the commit."""

from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from slipring.base.errors import Unavailable
from slipring.core.chain import item_ids
from slipring.stores.conversations import Appended, Conversation
from slipring.stores.databases import database
from slipring.stores.databases.database import Statement
from slipring.stores.databases.postgres import PostgresDatabase
from slipring.stores.databases.sqlite import SqliteDatabase
from slipring.stores.runs import LeaseLost
from slipring.stores.store import Store
from tests.crash.unsynced import Recorder, failing
from tests.stores.postgres_relay import Relay
from tests.stores.samples import chain, message, response, same, state

COMMIT = b"COMMIT"
IN_TRANSACTION = b"slipring_heads"
"""Sent within a transaction, which PostgreSQL rolls back if the connection is lost then."""
NAME = b"resp_1"
"""An argument of the only statement that saves a response with an old head: a transaction of its own."""


@pytest.fixture
async def near(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    """The same database over a connection that does not break."""
    database = PostgresDatabase(postgres_url)
    await database.start()
    yield database
    await database.close()


@pytest.fixture
async def far(relay: Relay, near: PostgresDatabase) -> AsyncIterator[Store]:
    store = Store(PostgresDatabase(relay.url), clock=lambda: 1000.0)
    await store.start()
    yield store
    await store.close()


class FailingOnce(Recorder):
    """A file system whose next sync fails after ``fail_next``."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self._flag = failing(log)
        self.failed = 0

    def fail_next(self) -> None:
        self._flag.touch()

    def must_fail(self) -> bool:
        if not super().must_fail():
            return False
        self._flag.unlink()
        self.failed += 1
        return True


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingOnce]:
    disk = FailingOnce(tmp_path / "log")
    yield disk
    disk.close()


@pytest.fixture
async def on_disk(disk: FailingOnce, tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(SqliteDatabase(str(tmp_path / "store.db")), clock=lambda: 1000.0)
    await store.start()
    yield store
    await store.close()


async def stored_ids(database: PostgresDatabase) -> list[str]:
    return [name for (name,) in await database.read("SELECT id FROM slipring_responses ORDER BY id")]


@pytest.mark.parametrize("text", [COMMIT, NAME])
async def test_a_save_that_was_committed_is_reported_as_saved(relay: Relay, far: Store, text: bytes) -> None:
    first, second = chain(2)
    if text is NAME:
        await far.responses.save("t", first)
    relay.lose_reply_to(text)
    saved = second if text is NAME else first
    await far.responses.save("t", saved)
    assert relay.replies_lost == 1
    assert same(await far.responses.load("t", saved.id), saved)
    assert far.failed_writes == 1


async def test_a_save_that_was_not_committed_is_repeated(
    relay: Relay, far: Store, near: PostgresDatabase
) -> None:
    relay.lose_reply_to(IN_TRANSACTION)
    await far.responses.save("t", state("resp_1"))
    assert relay.replies_lost == 1
    assert await stored_ids(near) == ["resp_1"]


async def test_items_are_added_once_to_a_conversation(relay: Relay, far: Store) -> None:
    await far.conversations.create("t", Conversation(id="conv_1", created_at=1), [])
    appended = Appended("conv_1", 0, (message("msg_1"),))
    relay.lose_reply_to(COMMIT)
    await far.responses.save("t", state("resp_1"), appended=appended)
    assert relay.replies_lost == 1
    thread = await far.conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip, thread.added) == (1, "resp_1", ())


@pytest.mark.parametrize("text", [COMMIT, b"slipring_conversation_items"])
async def test_items_of_a_response_that_is_not_stored_are_added_once(
    relay: Relay, far: Store, text: bytes
) -> None:
    """Whether or not the first attempt was committed."""
    await far.conversations.create("t", Conversation(id="conv_1", created_at=1), [])
    own = message(item_ids.output_id("message", "resp_1", 0))
    appended = Appended("conv_1", 0, (message("msg_of_somebody"), own))
    relay.lose_reply_to(text)
    await far.conversations.append("t", "resp_1", appended)
    assert relay.replies_lost == 1
    thread = await far.conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip, thread.added) == (1, "resp_1", ())
    assert await far.conversations.all_items("t", "conv_1") == appended.items


async def test_an_append_of_nothing_new_may_be_repeated(relay: Relay, far: Store) -> None:
    await far.conversations.create("t", Conversation(id="conv_1", created_at=1), [message("msg_1")])
    relay.lose_reply_to(COMMIT)
    await far.conversations.append("t", "resp_1", Appended("conv_1", 0, (message("msg_1"),)))
    assert await far.conversations.all_items("t", "conv_1") == (message("msg_1"),)


@pytest.mark.parametrize("text", [COMMIT, b"slipring_conversation_items"])
async def test_a_conversation_is_created_once(relay: Relay, far: Store, text: bytes) -> None:
    """Whether or not the first attempt was committed."""
    items = (message("msg_1"), message("msg_2"))
    relay.lose_reply_to(text)
    await far.conversations.create("t", Conversation(id="conv_1", created_at=1), items)
    assert relay.replies_lost == 1
    assert await far.conversations.all_items("t", "conv_1") == items


async def test_a_conversation_without_items_is_created_once(relay: Relay, far: Store) -> None:
    """The only statement is a transaction of its own."""
    created = Conversation(id="conv_1", created_at=1)
    relay.lose_reply_to(b"conv_1")
    await far.conversations.create("t", created, [])
    assert relay.replies_lost == 1
    assert await far.conversations.read("t", "conv_1") == created


@pytest.mark.parametrize("text", [COMMIT, b"msg_3"])
async def test_items_that_a_client_adds_are_added_once(relay: Relay, far: Store, text: bytes) -> None:
    """Whether or not the first attempt was committed, and also if some were there before."""
    await far.conversations.create("t", Conversation(id="conv_1", created_at=1), [message("msg_1")])
    relay.lose_reply_to(text)
    assert await far.conversations.add("t", "conv_1", [message("msg_2"), message("msg_1"), message("msg_3")])
    assert relay.replies_lost == 1
    expected = (message("msg_1"), message("msg_2"), message("msg_3"))
    assert await far.conversations.all_items("t", "conv_1") == expected
    thread = await far.conversations.thread("t", "conv_1")
    assert thread is not None
    assert thread.added == expected


async def test_adding_to_a_conversation_that_is_deleted_meanwhile_is_refused(
    relay: Relay, far: Store, near: PostgresDatabase
) -> None:
    await far.conversations.create("t", Conversation(id="conv_1", created_at=1), [])
    deleted = Statement("DELETE FROM slipring_conversations")
    relay.lose_reply_to(COMMIT, lambda: near.write(deleted))
    assert not await far.conversations.add("t", "conv_1", [message("msg_1")])


async def test_what_a_failing_disk_rolls_back_is_written_again(disk: FailingOnce, on_disk: Store) -> None:
    disk.fail_next()
    await on_disk.conversations.create("t", Conversation(id="conv_1", created_at=1), [message("msg_1")])
    disk.fail_next()
    assert await on_disk.conversations.add("t", "conv_1", [message("msg_2")])
    disk.fail_next()
    await on_disk.responses.save("t", state("resp_1"))
    assert disk.failed == 3
    assert await on_disk.conversations.all_items("t", "conv_1") == (message("msg_1"), message("msg_2"))
    assert await on_disk.responses.load("t", "resp_1") is not None


@pytest.mark.parametrize("text", [COMMIT, IN_TRANSACTION])
async def test_a_run_that_is_taken_over_meanwhile_keeps_what_was_committed_and_saves_nothing_else(
    relay: Relay, far: Store, near: PostgresDatabase, text: bytes
) -> None:
    lease = await far.runs.open("t", response("resp_1"), [], owner="a", lease_until=1.0)
    taken = Statement("UPDATE slipring_runs SET owner = 'b', epoch = epoch + 1")
    relay.lose_reply_to(text, lambda: near.write(taken))
    with nullcontext() if text is COMMIT else pytest.raises(LeaseLost):
        await far.responses.save("t", state("resp_1"), lease=lease)
    assert relay.replies_lost == 1
    assert await stored_ids(near) == (["resp_1"] if text is COMMIT else [])


async def test_an_outcome_that_cannot_be_found_out_is_reported_as_unknown(
    relay: Relay, far: Store, near: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PAUSES_S", (0.0, 0.0))
    relay.lose_reply_to(COMMIT, relay.stop_listening)
    with pytest.raises(Unavailable, match="not known"):
        await far.responses.save("t", state("resp_1"))
    assert await stored_ids(near) == ["resp_1"]
