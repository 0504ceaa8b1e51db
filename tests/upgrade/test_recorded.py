"""What the previous version has written is read by this one: its store, and what its nodes send.

The files in ``recorded`` were written by that version itself (``recording``). ``make test-upgrade`` runs it
beside this one.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest
from aiohttp import web

from slipring.server import peers
from slipring.server.clock import shared_now
from slipring.server.peers import SIGNATURE, Peers
from slipring.stores.databases.schema import MIGRATIONS
from slipring.stores.nodes import Node
from tests.harness import Running, serve
from tests.server.test_parking import cut
from tests.upgrade.contents import ENGINE, Client, Json, check, socket_turn, tool_loop
from tests.upgrade.recording import QUESTION, RECORDED, TENANT, announce

_STORE = (RECORDED / "store.sql").read_text(encoding="utf-8")
_TALK: Json = json.loads((RECORDED / "nodes.json").read_text(encoding="utf-8"))
_LEFT: Json = json.loads((RECORDED / "store.json").read_text(encoding="utf-8"))


def restored(path: Path) -> str:
    """The ``--store`` of an SQLite file that the previous version has written."""
    connection = apsw.Connection(str(path))
    connection.execute(_STORE)
    connection.close()
    return f"sqlite:{path}"


async def restored_in_postgres(url: str) -> str:
    """The same in PostgreSQL."""
    text = _STORE.replace(" BLOB", " BYTEA")
    text = re.sub(r"(?<![\w'])X'([0-9A-F]*)'", r"'\\x\1'", text)
    connection = await asyncpg.connect(url)
    await connection.execute(text)
    await connection.close()
    return url


@asynccontextmanager
async def opened(store: str, **settings: Any) -> AsyncIterator[tuple[Running, Client]]:
    async with serve(ENGINE[1], store=store, retention_days=0.0, **settings) as server:
        yield server, Client(server.http, server.url, _LEFT["key"])


async def test_an_sqlite_file_of_the_previous_version_is_continued(tmp_path: Path) -> None:
    async with opened(restored(tmp_path / "slipring.db")) as (server, client):
        await check(client, _LEFT)
        async with server.http.get(f"{server.url}/models") as answer:
            assert answer.status == 401, "its keys are still required"


async def test_tables_of_the_previous_version_in_postgresql_are_continued(postgres_url: str) -> None:
    async with opened(await restored_in_postgres(postgres_url)) as (_, client):
        await check(client, _LEFT)


async def test_migrated_tables_equal_new_ones(tmp_path: Path) -> None:
    shapes = []
    for store in (restored(tmp_path / "old.db"), f"sqlite:{tmp_path}/new.db"):
        async with opened(store):
            shapes.append(shape(Path(store.removeprefix("sqlite:"))))
    assert shapes[0] == shapes[1]


def shape(path: Path) -> dict[str, Any]:
    """The columns of every table, and the names of all indexes."""
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT MAX(version) FROM slipring_schema").get == len(MIGRATIONS)
    names = connection.execute("SELECT name, type FROM sqlite_schema ORDER BY name").fetchall()
    columns = {
        name: sorted(row[1:] for row in connection.execute(f"PRAGMA table_info({name})"))
        for name, kind in names
        if kind == "table"
    }
    connection.close()
    return {"names": names, "columns": columns}


@pytest.mark.parametrize(
    "loss",
    [
        "DELETE FROM slipring_run_events WHERE sequence_number = 1",
        "UPDATE slipring_responses SET hidden = 0, expires_at = 4611686018427387904",
        "DELETE FROM slipring_secrets WHERE name <> 'peers'",
    ],
)
async def test_a_loss_is_found(tmp_path: Path, loss: str) -> None:
    store = restored(tmp_path / "slipring.db")
    connection = apsw.Connection(str(tmp_path / "slipring.db"))
    connection.execute(loss)
    connection.close()
    async with opened(store) as (_, client):
        with pytest.raises(AssertionError):
            await check(client, _LEFT)


# What nodes send each other.


@asynccontextmanager
async def previous_node(answer: Json) -> AsyncIterator[str]:
    """A node that answers with what the previous version has answered; yields its URL."""

    async def reply(request: web.Request) -> web.Response:
        assert request.match_info["id"] == answer["response_id"]
        return web.Response(body=bytes.fromhex(answer["body"]), headers={SIGNATURE: answer["signature"]})

    app = web.Application()
    app.router.add_get(f"{peers.PATH}/{{id}}", reply)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def test_a_chain_that_the_previous_version_has_parked_is_continued(tmp_path: Path) -> None:
    answer = _TALK["answered"]
    path = tmp_path / "slipring.db"
    async with (
        previous_node(answer) as url,
        opened(restored(path), node_url="http://127.0.0.1:9") as (_, client),
    ):
        announce(path, Node(answer["node"], url, shared_now()))
        async with client.socket() as ws:
            response = await socket_turn(
                ws,
                input=QUESTION,
                store=False,
                tool_choice="none",
                previous_response_id=answer["response_id"],
            )
        found = [response["output"][-1]["content"][0]["text"], response["usage"]["input_tokens"]]
        assert found == answer["continued"]


async def test_a_question_of_the_previous_version_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = _TALK["asked"]
    node = question["response_id"].removeprefix("resp_")[:8]
    asked_at = int(question["headers"]["X-Slipring-Asked-At"])
    assert question["method"] == "GET"
    assert question["path"] == f"{peers.PATH}/{question['response_id']}"
    async with opened(restored(tmp_path / "slipring.db")) as (server, _):
        asked = Peers(node, server.service.store.cluster, None)
        await asked.open("http://127.0.0.1:9")
        monkeypatch.setattr(peers, "shared_now", lambda: float(asked_at))
        assert asked.verify_request(question["headers"], question["response_id"]) == TENANT
        assert asked.verify_request(question["headers"], "resp_other") is None
        await asked.close()


class PreviousRecord(msgspec.Struct):
    """A response as nodes of the previous version read it. They ignore fields that they do not know."""

    id: str
    head: bytes
    response: bytes
    input: bytes
    output: bytes
    carry: bytes | None
    position: bytes | None


class PreviousChain(msgspec.Struct):
    heads: dict[bytes, tuple[bytes | None, bytes]]
    records: list[PreviousRecord]


async def test_an_answer_of_this_version_has_all_that_the_previous_one_reads(tmp_path: Path) -> None:
    decode = msgspec.msgpack.Decoder(PreviousChain).decode
    recorded = decode(bytes.fromhex(_TALK["answered"]["body"]))
    store = restored(tmp_path / "slipring.db")
    async with opened(store, node_url="http://127.0.0.1:9") as (server, _):
        async with server.connect(key=_LEFT["key"], abandoned=True) as socket:
            tip = (await tool_loop(socket.ws, store=False))[-1]["id"]
            await cut(server, socket)
        state = server.service.parking.find(TENANT, tip, asyncio.get_running_loop().time())
        body, _ = server.service.peers.reply(TENANT, state)
    sent = decode(body)
    assert sent.heads == recorded.heads
    assert len(sent.records) == len(recorded.records)
    for ours, theirs in zip(sent.records, recorded.records, strict=True):
        assert ours.head == theirs.head
        assert json.loads(ours.response).keys() >= json.loads(theirs.response).keys()
        assert (ours.carry is None) == (theirs.carry is None)
        assert (ours.position is None) == (theirs.position is None)
        for mine, yours in ((ours.input, theirs.input), (ours.output, theirs.output)):
            assert kinds(mine) == kinds(yours)


def kinds(packed: bytes) -> list[set[str]]:
    """The names of the fields of each packed item."""
    return [
        set(item) if isinstance(item, dict) else {str(len(item))} for item in msgspec.msgpack.decode(packed)
    ]
