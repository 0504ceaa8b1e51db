"""One embedded engine with several users: shares, addresses and restarts."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import StartupError, Unavailable
from slipring.engines.engine_hosts import Borrowed, Share
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.llama.served_model import locate
from slipring.engines.llama.worker_shares import EmbeddedOwner, ExternalOwner
from tests.engines.fakes.server import started
from tests.engines.llama.test_llama_engine import ASK, GREEDY, three_chains
from tests.harness import Running, serve
from tests.server.raw import until


def owner_of(users: int, **options: Any) -> EmbeddedOwner:
    return EmbeddedOwner(LlamaOptions(**options), "no.gguf", 64, users)


def test_slots_and_bytes_are_divided() -> None:
    owner = owner_of(3, slots=7, saved_mib=3)
    shares = [owner.share(number) for number in range(3)]
    assert [share.slots for share in shares] == [(0, 3, 6), (1, 4), (2, 5)]
    assert [share.saved_bytes for share in shares] == [2**20] * 3
    assert len({share.mark for share in shares}) == 3
    assert len({share.directory for share in shares}) == 1


def test_every_user_gets_at_least_one_slot() -> None:
    owner = owner_of(3, slots=2, saved_mib=0)
    assert [owner.share(number) for number in range(3)] == [
        Share(slots=(number,), saved_bytes=0, mark=f"{number}-") for number in range(3)
    ]


def test_only_the_files_of_a_user_that_died_are_removed(tmp_path: Path) -> None:
    owner = owner_of(12)
    owner._directory = tmp_path
    for number in (1, 2, 11):
        (tmp_path / f"slipring-{owner.share(number).mark}abc-1.kv").touch()
    owner.share(1)
    assert {left.name for left in tmp_path.iterdir()} == {"slipring-2-abc-1.kv", "slipring-11-abc-1.kv"}


async def test_a_user_follows_the_engines_address() -> None:
    suspected: list[str] = []
    lost: list[None] = []
    borrowed = Borrowed(Share((0,), 0), "key", suspected.append)
    starting = asyncio.create_task(borrowed.start(lambda: lost.append(None)))
    await asyncio.sleep(0)
    assert not starting.done()
    assert borrowed.trouble is not None
    with pytest.raises(Unavailable):
        _ = borrowed.url
    borrowed.suspect()
    borrowed.move("http://a")
    await starting
    assert (borrowed.url, borrowed.trouble, lost) == ("http://a", None, [])
    borrowed.suspect()
    borrowed.move("http://a")
    assert (suspected, lost) == (["http://a"], [])
    borrowed.move(None)
    assert (borrowed.trouble is None, len(lost)) == (False, 1)
    borrowed.move("http://b")
    assert (borrowed.url, len(lost)) == ("http://b", 1)
    borrowed.move("http://c")
    assert len(lost) == 2


@asynccontextmanager
async def sharing(users: int, options: LlamaOptions) -> AsyncIterator[tuple[EmbeddedOwner, list[Running]]]:
    """Servers that share one engine."""
    owner = EmbeddedOwner(options, *locate(options), users)
    borrowed = [Borrowed(owner.share(number), owner.key, owner.suspect) for number in range(users)]

    def move_all() -> None:
        for each in borrowed:
            each.move(owner.address)

    await owner.start(move_all)
    move_all()
    try:
        async with AsyncExitStack() as stack:
            engines = [LlamaEngine(options, each) for each in borrowed]
            yield owner, [await stack.enter_async_context(serve(engine)) for engine in engines]
    finally:
        await owner.close()


async def test_users_find_their_own_contexts(tiny_path: str) -> None:
    async with sharing(2, LlamaOptions(model=tiny_path, slots=4, context=512)) as (_, servers):
        found = await asyncio.gather(*map(three_chains, servers))
        assert found == [[True] * 3] * 2


async def test_an_engine_that_hangs_is_restarted_once_for_all_users(
    tiny_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.engines.llama.api._SILENCE_TIMEOUT_S", 5.0)
    async with sharing(2, LlamaOptions(model=tiny_path, slots=2, context=512)) as (owner, servers):
        hung, before = owner.process.pid, owner.address
        assert hung is not None
        assert before is not None
        os.kill(hung, signal.SIGSTOP)
        answers = await asyncio.gather(*(server.post(input=ASK, **GREEDY) for server in servers))
        # One notices the silence. The other does too, or loses its connection to the engine that is killed.
        statuses = sorted(status for status, _ in answers)
        assert statuses in ([500, 500], [500, 503])
        await until(lambda: bool(owner.process.restarts))
        owner.suspect(before)  # one who comes late
        for server in servers:
            status, response = await server.post(input=ASK, **GREEDY)
            assert (status, bool(response["output"])) == (200, True)
        assert owner.process.restarts == 1


async def test_the_slots_of_a_server_elsewhere_are_divided_too(elsewhere: LlamaEngine) -> None:
    options = elsewhere.options
    owner = ExternalOwner(options, 2)
    await owner.start(lambda: None)
    users = [
        LlamaEngine(options, Borrowed(owner.share(number), owner.key, owner.suspect)) for number in range(2)
    ]
    async with serve(users[1]) as server, started(users[0]):
        assert [list(user._slots._all) for user in users] == [[0, 2], [1]]
        _, response = await server.post(input=ASK, **GREEDY)
        assert response["output"]
    with pytest.raises(StartupError, match="has 3 slots, and 4 workers need one each"):
        await ExternalOwner(options, 4).start(lambda: None)
