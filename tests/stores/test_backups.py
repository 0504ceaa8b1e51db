"""Backups that are taken from a running server by the commands of the page, restored, and continued."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from tests.harness import serve
from tests.postgres import Postgres
from tests.upgrade.contents import ENGINE, Client, Json, check, write

_PAGE = Path(__file__).parents[2] / "docs" / "backups.md"
_BLOCKS = re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
_TURNS_BEFORE = 3
"""Turns of the running client between the first one and the backup."""


def test_every_command_of_the_page_is_run_here() -> None:
    assert len(_BLOCKS) == len({block(word) for word in (".backup", "VACUUM", "pg_dump", "pg_restore")})


def block(word: str) -> str:
    """The block of the page that contains a word."""
    (found,) = [text for text in _BLOCKS if word in text]
    return found


async def run(commands: str, places: dict[str, str]) -> None:
    """Run a block of the page, with other places than its own."""
    for there, here in places.items():
        assert there in commands
        commands = commands.replace(there, here)
    process = await asyncio.create_subprocess_exec("sh", "-ec", commands)
    assert await process.wait() == 0, commands


@asynccontextmanager
async def busy(client: Client) -> AsyncIterator[list[Json]]:
    """A client that adds to one chain until the block ends; yields its acknowledged responses."""
    turns: list[Json] = []
    enough = asyncio.Event()

    async def talk() -> None:
        while True:
            previous = turns[-1]["id"] if turns else None
            turns.append(await client.create(input=f"turn {len(turns)}", previous_response_id=previous))
            if len(turns) > _TURNS_BEFORE:
                enough.set()

    task = asyncio.create_task(talk())
    await enough.wait()
    try:
        yield turns
    finally:
        task.cancel()
        await asyncio.wait([task])


async def back_up(store: str, commands: str, places: dict[str, str]) -> tuple[Json, list[str]]:
    """Fill a store, and back it up while its server is busy. Returns what was there before, and the ids of
    the busy client's turns."""
    async with serve(ENGINE[1], store=store) as server:
        client = Client(server.http, server.url)
        left = await write(client)
        async with busy(client) as turns:
            acknowledged = len(turns)
            await run(commands, places)
            assert len(turns) >= acknowledged
            return left, [turn["id"] for turn in turns[:acknowledged]]


async def check_restored(store: str, left: Json, acknowledged: list[str]) -> None:
    async with serve(ENGINE[1], store=store) as server:
        client = Client(server.http, server.url)
        await check(client, left)
        items = await client.items(f"/responses/{acknowledged[-1]}/input_items")
        texts = [item["content"][0]["text"] for item in items if item["role"] == "user"]
        assert texts == [f"turn {number}" for number in range(len(acknowledged))]
        await client.create(input="and on", previous_response_id=acknowledged[-1])


async def test_backups_of_an_sqlite_file_continue_its_chains(tmp_path: Path) -> None:
    places = {
        "/opt/slipring/bin/python": shlex.quote(sys.executable),
        "/var/lib/slipring/slipring.db": str(tmp_path / "slipring.db"),
        "/backup/slipring.db": str(tmp_path / "copy.db"),
    }
    vacuumed = block("VACUUM").replace("/backup/", "/backup/vacuumed-")
    places["/backup/vacuumed-slipring.db"] = str(tmp_path / "vacuumed.db")
    commands = block(".backup") + vacuumed
    left, acknowledged = await back_up(f"sqlite:{tmp_path}/slipring.db", commands, places)
    for name in ("copy.db", "vacuumed.db"):
        assert os.stat(tmp_path / name).st_mode & 0o077 == 0, "others cannot read it"
        await check_restored(f"sqlite:{tmp_path / name}", left, acknowledged)


async def test_a_dump_of_postgresql_continues_its_chains(tmp_path: Path, postgres: Postgres) -> None:
    source, target = (postgres.url.replace("/postgres?", f"/{name}?") for name in ("backed_up", "restored"))
    connection = await asyncpg.connect(postgres.url)
    for name in ("backed_up", "restored"):
        await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    dump = str(tmp_path / "slipring.dump")
    places = {"postgresql://slipring@10.0.0.9/slipring": f"'{source}'", "/backup/slipring.dump": dump}
    program = f"{postgres.programs}/pg_dump"
    left, acknowledged = await back_up(source, block("pg_dump"), {**places, "pg_dump": program})
    await run(
        block("pg_restore"),
        {
            "postgresql://slipring@10.0.0.9/restored": f"'{target}'",
            "/backup/slipring.dump": dump,
            "pg_restore": f"{postgres.programs}/pg_restore",
        },
    )
    await check_restored(target, left, acknowledged)
