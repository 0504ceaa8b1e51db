"""An SQLite file that the previous version has written is opened by this one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import apsw

from tests.commands.test_cli import environment, launched, refused
from tests.upgrade.contents import ENGINE, FOREVER, Client, Json, check, write
from tests.upgrade.previous import THIS

_SLOW = ("--engine", "simulated:tokens_per_s=5,output_tokens=10000")
_LEASE = ("--run-lease-s", "0.6")
_PATIENCE_S = 300.0
_FIRST_THAT_ASKS = 4
"""The schema with which sliprings began to ask the tables whether they may use them."""


async def upgrade_file(
    directory: Path, previous: tuple[str, ...], vocabulary: str, report: Callable[[str], None]
) -> None:
    """Fill a file with the previous version and kill it; open it with this one, which has to have
    everything."""
    path = directory / "slipring.db"
    store = ("--store", f"sqlite:{path}")
    engine = (ENGINE[0], ENGINE[1] + (f",vocabulary={vocabulary}" if vocabulary else ""))
    async with aiohttp.ClientSession() as http:
        key = await create_key(previous, *store)
        flags = (*engine, *store, *FOREVER, *_LEASE)
        async with launched(*flags, command=previous, PYTHONPATH="") as old:
            left = await write(Client(http, old.url, key))
            async with launched(*flags, *_SLOW, command=previous, PYTHONPATH="") as slow:
                run = await Client(http, slow.url, key).create(input="Never ended", background=True)
                slow.process.kill()
            old.process.kill()
        before = _version(path)
        async with launched(*flags) as new:
            client = Client(http, new.url, key)
            await check(client, left, counts=not vocabulary)
            await _wait_until_failed(client, run["id"])
            more = await write(client)
            assert (await http.get(f"{new.url}/models")).status == 401, "the store's keys are still required"
            assert await new.stop() == 0
        async with launched(*flags) as new:
            await check(Client(http, new.url, key), left, counts=not vocabulary)
            await check(Client(http, new.url, key), more)
        after = _version(path)
        report(f"schema {before} -> {after}: chains, conversations, runs, keys and sealed items continue")
        report(await start_previous(http, previous, before, *flags, contents=[left, more], key=key))


async def start_previous(
    http: aiohttp.ClientSession,
    previous: tuple[str, ...],
    schema: int,
    *flags: str,
    contents: list[Json],
    key: str = "",
) -> str:
    """Start the previous version on tables that this one has migrated from ``schema``: it says why it cannot,
    or, if it asks the tables, has all contents. Returns a line for the report."""
    if schema < _FIRST_THAT_ASKS:
        code, line = await refused(*flags, command=previous, PYTHONPATH="")
        assert code != 0
        assert "written by a newer slipring" in line, line
        return "the previous version is refused the new tables"
    async with launched(*flags, command=previous, PYTHONPATH="") as old:
        for each in contents:
            await check(Client(http, old.url, key), each, counts=False)
        assert await old.stop() == 0
    return "the previous version can be started again, and has what the new one has stored"


async def create_key(release: tuple[str, ...], *store: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(*release, "keys", "create", "--tenant", "team-a", *store),
        env=environment(**({} if release == THIS else {"PYTHONPATH": ""})),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return printed.decode().split()[-1]


async def _wait_until_failed(client: Client, run: str) -> None:
    """A run whose node died is ended by the next node that looks, and once."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            _, found = await client.get(f"/responses/{run}")
            if found["status"] not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.05)
    assert found["status"] == "failed", found
    ends = [event for event in await client.events(run) if event["type"] == "response.failed"]
    assert len(ends) == 1


def _version(path: Path) -> int:
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    version = connection.execute("SELECT MAX(version) FROM slipring_schema").get
    connection.close()
    return int(version)
