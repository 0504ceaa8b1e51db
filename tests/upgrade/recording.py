"""Records what the previous version writes: its store as SQL, and what its nodes ask and answer each other.

``python -m tests.upgrade --record`` writes the files in ``recorded``, which ``test_recorded`` reads: so the
ordinary tests need neither that version nor its packages.
"""

import json
import tempfile
import time
from pathlib import Path

import aiohttp
import apsw
from aiohttp import web

from slipring.server.peers import PATH, SIGNATURE, Peers
from slipring.stores.nodes import Cluster, Node
from tests.commands.test_cli import launched
from tests.nodes.pairs import node_of
from tests.nodes.test_nodes_parking import reset
from tests.upgrade.contents import ENGINE, FOREVER, Client, Json, socket_turn, tool_loop, write
from tests.upgrade.files import create_key

RECORDED = Path(__file__).parent / "recorded"
ASKED_NODE = "aaaaaaaa"
"""The id of a node that the previous version is made to ask."""
QUESTION = "What did we speak about?"
TENANT = "team-a"
_ASKED = f"resp_{ASKED_NODE}{'0' * 24}"


async def record(previous: tuple[str, ...]) -> None:
    """Run the previous version once, and write down what it leaves."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "slipring.db"
        store = ("--store", f"sqlite:{path}")
        key = await create_key(previous, *store)
        async with aiohttp.ClientSession() as http:
            flags = (*ENGINE, *store, *FOREVER, "--node-url", "http://127.0.0.1:9")
            async with launched(*flags, command=previous, PYTHONPATH="") as old:
                client = Client(http, old.url, key)
                left = {"key": key, **(await write(client))}
                talk = {
                    "asked": await _record_question(client, path),
                    "answered": await _record_answer(client, http, old.url, path),
                }
                assert await old.stop() == 0
        lines = _dump(path)
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / "store.sql").write_text("".join(f"{line};\n" for line in lines), encoding="utf-8")
    _write_json("store.json", left)
    _write_json("nodes.json", talk)


def _dump(path: Path) -> list[str]:
    """The statements that create the tables and their rows again, in the order in which they were created.

    Without the nodes, which are gone.
    """
    connection = apsw.Connection(str(path))
    tables = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE sql <> '' ORDER BY rowid"
    ).fetchall()
    lines = [" ".join(sql.split()) for _, sql in tables]
    for name, sql in tables:
        if sql.startswith("CREATE TABLE") and name != "slipring_nodes":
            for row in connection.execute(f"SELECT * FROM {name} ORDER BY rowid"):
                values = ", ".join(apsw.format_sql_value(value) for value in row)
                lines.append(f"INSERT INTO {name} VALUES ({values})")
    connection.close()
    return lines


def _write_json(name: str, value: Json) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
    (RECORDED / name).write_text(text + "\n", encoding="utf-8")


async def _record_question(client: Client, path: Path) -> Json:
    """What the previous version sends to a node that it believes to have parked a response."""
    asked: list[Json] = []

    async def answer(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.startswith("X-Slipring-")}
        asked.append({"method": request.method, "path": request.path, "headers": headers})
        return web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    announce(path, Node(ASKED_NODE, f"http://{host}:{port}", time.time()))
    async with client.socket() as ws:
        await ws.send_json({"type": "response.create", "input": "x", "previous_response_id": _ASKED})
        event = await ws.receive_json(timeout=300)
    assert event["error"]["code"] == "previous_response_not_found"
    await runner.cleanup()
    (question,) = asked
    return {**question, "response_id": _ASKED, "secret": _secret(path).decode()}


def announce(path: Path, node: Node) -> None:
    """Enter a node into a store, as a node does itself."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    columns = {"id": node.id, "url": node.url, "seen": node.seen_at}
    connection.execute("INSERT INTO slipring_nodes (id, url, seen_at) VALUES (:id, :url, :seen)", columns)
    connection.close()


async def _record_answer(client: Client, http: aiohttp.ClientSession, url: str, path: Path) -> Json:
    """What the previous version answers to a node that asks for a parked response."""
    ws = await client.socket()
    tip = (await tool_loop(ws, store=False))[-1]["id"]
    probe = {"input": QUESTION, "store": False, "tool_choice": "none", "previous_response_id": tip}
    response = await socket_turn(ws, **probe)
    reset(ws)
    node = node_of({"id": tip})
    peers = Peers(node, _Secret(_secret(path)), None)
    await peers.open("")
    while True:  # until the node has noticed that the connection is gone
        async with http.get(
            f"{url.removesuffix('/v1')}{PATH}/{tip}", headers=peers.sign_request(node, TENANT, tip)
        ) as answer:
            if answer.status == 200:
                body = await answer.read()
                break
    await peers.close()
    return {
        "response_id": tip,
        "node": node,
        "body": body.hex(),
        "signature": answer.headers[SIGNATURE],
        "continued": [response["output"][-1]["content"][0]["text"], response["usage"]["input_tokens"]],
    }


def _secret(path: Path) -> bytes:
    connection = apsw.Connection(str(path))
    secret: bytes = connection.execute("SELECT value FROM slipring_secrets WHERE name = 'peers'").get
    connection.close()
    return secret


class _Secret(Cluster):
    """A cluster of which only the secret is known."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    async def secret(self, name: str, proposal: bytes) -> bytes:
        return self._secret
