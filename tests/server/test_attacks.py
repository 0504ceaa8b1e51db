"""Attacks of one tenant on the objects of another, with every method on every kind of object.

An object of another tenant has to be answered exactly like one that does not exist: with the same status,
headers and bytes. No attack may change anything for either tenant.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from slipring.core.generation import Accepted, Emit, Finished, Job, Text, deliver
from slipring.server.peers import PATH, TENANT
from tests.harness import TERMINAL, PuppetEngine, Running, Socket, serve
from tests.server.issuing import issue, revoke
from tests.server.raw import until
from tests.server.test_parking import cut

Json = dict[str, Any]

# The scene -------------------------------------------------------------------------------------------


class Answering(PuppetEngine):
    """Answers at once, except inputs that contain ``hold``: those are answered by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = 0

    async def generate(self, job: Job, emit: Emit) -> None:
        self.jobs += 1
        if any(b"hold" in item.raw for item in job.input):
            await super().generate(job, emit)
            return
        await deliver(emit, [Accepted()])
        finished = Finished("stop", input_tokens=1, cached_tokens=0, output_tokens=1)
        await deliver(emit, [Text("ok"), finished])


class Answer(NamedTuple):
    """What a client sees of an answer, without the parts that differ each time."""

    status: int
    headers: frozenset[tuple[str, str]]
    body: bytes


VOLATILE = {"date", "x-request-id", "server-timing"}


class PlainHttp:
    """Sends requests over one connection, exactly as written. Much cheaper than a client library, which would
    take half of the time of thousands of attacks."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert self._url.host is not None
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._url.host, self._url.port)
        reader, writer = self._streams
        fields = {"Host": self._url.authority, **headers, "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        found = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        named = {name.lower(): value.lower() for name, value in found}
        text = b"" if method == "HEAD" else await _read_body(reader, named)
        if named.get("connection") == "close":
            self.close()
        stable = frozenset((name, value) for name, value in found if name.lower() not in VOLATILE)
        return Answer(int(status.split()[1]), stable, text)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    text = b""
    while size := int(await reader.readline(), 16):
        text += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return text


class Party:
    """A client with a key."""

    def __init__(self, server: Running, key: str, spoofed: str = "") -> None:
        self.server = server
        self.key = key
        self.http = PlainHttp(URL(server.url))
        # Headers that nodes use among each other, and those of OpenAI. Neither may have an effect here.
        self._headers = {
            "Authorization": f"Bearer {key}",
            TENANT: spoofed.encode().hex(),
            "OpenAI-Organization": spoofed.encode().hex(),
            "OpenAI-Project": spoofed.encode().hex(),
        }

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request with its path exactly as written."""
        data = b"" if body is None else json.dumps(body).encode()
        return await self.http.request(method, f"{URL(self.server.url).path}{path}", self._headers, data)

    async def have(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request that has to succeed."""
        answer = await self.ask(method, path, body)
        assert answer.status == 200, answer
        return json.loads(answer.body)

    async def create(self, **fields: Any) -> Any:
        return await self.have("POST", "/responses", fields)

    async def has_event(self, response_id: str, kind: str) -> bool:
        """Whether a run produces an event of this type; followers get only events that are stored."""
        url = f"{self.server.url}/responses/{response_id}?stream=true"
        async with self.server.http.get(url, headers=self._headers) as answer:
            async for line in answer.content:
                if line == f"event: {kind}\n".encode():
                    return True
        return False

    def connect(self) -> AbstractAsyncContextManager[Socket]:
        return self.server.connect(key=self.key, abandoned=True)


async def events_after(socket: Socket, **fields: Any) -> bytes:
    """All events that answer a create on a socket."""
    await socket.create(**fields)
    events: list[Json] = []
    while not events or events[-1]["type"] not in (*TERMINAL, "error"):
        events.append(await socket.receive())
    return json.dumps(events).encode()


class Estate(NamedTuple):
    """The owner's objects."""

    responses: dict[str, str]
    items: dict[str, str]
    conversation: str
    live: Socket
    held: Any


class Scene(NamedTuple):
    server: Running
    engine: Answering
    owner: Party
    attacker: Party
    estate: Estate
    own_conversation: str
    own_response: str


async def build_estate(stack: AsyncExitStack, server: Running, engine: Answering, owner: Party) -> Estate:
    first = await owner.create(input="secret one")
    tip = await owner.create(input="secret two", previous_response_id=first["id"])
    conversation = await owner.have(
        "POST", "/conversations", {"items": [{"role": "user", "content": "secret"}], "metadata": {"a": "b"}}
    )
    taken_part = await owner.create(input="secret three", conversation=conversation["id"])
    finished = await owner.create(input="secret four", background=True)
    assert await owner.has_event(finished["id"], "response.completed")
    await until(lambda: not server.service.clients)
    async with server.connect(key=owner.key, abandoned=True) as socket:
        parked = None
        for _ in range(2):
            parked = (await socket.response(input="secret", store=False, previous_response_id=parked))["id"]
        await cut(server, socket)
    open_run = await owner.create(input="hold", background=True)
    held = await engine.next()
    assert await owner.has_event(open_run["id"], "response.in_progress")
    stack.callback(held.finish)  # else the server of a failed test waits for it
    live = await stack.enter_async_context(server.connect(key=owner.key))
    remembered = await live.response(input="secret five", store=False)
    given = await owner.have("GET", f"/responses/{tip['id']}/input_items?order=asc")
    listed = await owner.have("GET", f"/conversations/{conversation['id']}/items?order=asc")
    return Estate(
        responses={
            "stored": first["id"],
            "chain": tip["id"],
            "in a conversation": taken_part["id"],
            "finished run": finished["id"],
            "open run": open_run["id"],
            "parked": parked,
            "on a socket": remembered["id"],
        },
        items={
            "output": first["output"][0]["id"],
            "input": given["first_id"],
            "unstored output": remembered["output"][0]["id"],
            "of a conversation": listed["first_id"],
            "answer of a conversation": listed["last_id"],
        },
        conversation=conversation["id"],
        live=live,
        held=held,
    )


@asynccontextmanager
async def scene(store: str, tenants: tuple[str, str], *, configured: bool = False) -> AsyncIterator[Scene]:
    engine = Answering()
    keys = tuple(f"{tenant}:key-{number}" for number, tenant in enumerate(tenants)) if configured else ()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serve(engine, store=store, api_key=keys))
        held_keys = [f"key-{number}" for number in range(2)]
        if not configured:
            held_keys = [await issue(server, tenant) for tenant in tenants]
        owner = Party(server, held_keys[0])
        attacker = Party(server, held_keys[1], spoofed=tenants[0])
        stack.callback(owner.http.close)
        stack.callback(attacker.http.close)
        estate = await build_estate(stack, server, engine, owner)
        conversation = await attacker.have(
            "POST", "/conversations", {"items": [{"role": "user", "content": "mine"}]}
        )
        response = await attacker.create(input="mine")
        yield Scene(server, engine, owner, attacker, estate, conversation["id"], response["id"])
        # The owner has lost nothing, neither stored objects nor those in memory.
        async with server.connect(key=owner.key) as socket:
            for target, door in (("on a socket", estate.live), ("parked", socket)):
                more = await door.response(
                    input="more", store=False, previous_response_id=estate.responses[target]
                )
                assert more["status"] == "completed"
        assert not estate.held.stopped.is_set()
        estate.held.finish()
        assert await owner.has_event(estate.responses["open run"], "response.completed")


_TABLES = {
    "slipring_heads": "tenant, digest, instructions, tools",
    "slipring_responses": "*",
    "slipring_conversations": "*",
    "slipring_conversation_items": "*",
    "slipring_deleted_items": "*",
    # Without the lease, which the owning node renews.
    "slipring_runs": "tenant, response_id, status, owner, epoch, last_sequence, response, expires_at",
    "slipring_run_events": "*",
    "slipring_run_beginnings": "*",
    "slipring_keys": "*",
}


async def everything(at: Scene) -> Json:
    """All objects in the store and in memory."""
    service = at.server.service
    await until(lambda: service.sockets == 1)  # the owner's
    rows = {
        table: sorted(map(repr, await service.store._database.read(f"SELECT {columns} FROM {table}")))
        for table, columns in _TABLES.items()
    }
    return {
        **rows,
        "jobs": at.engine.jobs,
        "parked": (len(service.parking), service.parking.used_bytes),
        "clients": {id(client) for client in service.clients},
    }


# The attacks -----------------------------------------------------------------------------------------


class Request(NamedTuple):
    method: str
    path: str
    body: Any = None


ON_RESPONSES: dict[str, Callable[[str], Request]] = {
    "continue": lambda i: Request("POST", "/responses", {"input": "x", "previous_response_id": i}),
    "continue, not stored": lambda i: Request(
        "POST", "/responses", {"input": "x", "previous_response_id": i, "store": False}
    ),
    "continue, streamed": lambda i: Request(
        "POST", "/responses", {"input": "x", "previous_response_id": i, "stream": True}
    ),
    "continue in the background": lambda i: Request(
        "POST", "/responses", {"input": "x", "previous_response_id": i, "background": True}
    ),
    "take for a conversation": lambda i: Request("POST", "/responses", {"input": "x", "conversation": i}),
    "take for an item": lambda i: Request("POST", "/responses", {"input": [{"id": i}]}),
    "read": lambda i: Request("GET", f"/responses/{quote(i)}"),
    "look": lambda i: Request("HEAD", f"/responses/{quote(i)}"),
    "stream": lambda i: Request("GET", f"/responses/{quote(i)}?stream=true"),
    "stream the rest": lambda i: Request("GET", f"/responses/{quote(i)}?stream=true&starting_after=1"),
    "read wrongly": lambda i: Request("GET", f"/responses/{quote(i)}?starting_after=1"),
    "delete": lambda i: Request("DELETE", f"/responses/{quote(i)}"),
    "cancel": lambda i: Request("POST", f"/responses/{quote(i)}/cancel"),
    "list input": lambda i: Request("GET", f"/responses/{quote(i)}/input_items"),
    "page input": lambda i: Request("GET", f"/responses/{quote(i)}/input_items?order=asc&limit=1&after=x"),
    "read as a conversation": lambda i: Request("GET", f"/conversations/{quote(i)}"),
}
ON_CONVERSATIONS: dict[str, Callable[[str], Request]] = {
    "take part": lambda i: Request("POST", "/responses", {"input": "x", "conversation": i}),
    "take part by object": lambda i: Request("POST", "/responses", {"input": "x", "conversation": {"id": i}}),
    "take part unstored": lambda i: Request(
        "POST", "/responses", {"input": "x", "conversation": i, "store": False}
    ),
    "take part in the background": lambda i: Request(
        "POST", "/responses", {"input": "x", "conversation": i, "background": True}
    ),
    "continue": lambda i: Request("POST", "/responses", {"input": "x", "previous_response_id": i}),
    "read": lambda i: Request("GET", f"/conversations/{quote(i)}"),
    "look": lambda i: Request("HEAD", f"/conversations/{quote(i)}"),
    "update": lambda i: Request("POST", f"/conversations/{quote(i)}", {"metadata": {"x": "y"}}),
    "delete": lambda i: Request("DELETE", f"/conversations/{quote(i)}"),
    "list": lambda i: Request("GET", f"/conversations/{quote(i)}/items"),
    "page": lambda i: Request("GET", f"/conversations/{quote(i)}/items?order=asc&after=x&limit=3"),
    "add": lambda i: Request(
        "POST", f"/conversations/{quote(i)}/items", {"items": [{"role": "user", "content": "x"}]}
    ),
    "read as a response": lambda i: Request("GET", f"/responses/{quote(i)}"),
}


def on_items(
    conversation: str, own_conversation: str, own_response: str
) -> dict[str, Callable[[str], Request]]:
    """Attacks by an item id, through the owner's conversation and through the attacker's own objects."""
    theirs, mine = f"/conversations/{conversation}/items", f"/conversations/{own_conversation}/items"
    return {
        "refer": lambda i: Request("POST", "/responses", {"input": [{"type": "item_reference", "id": i}]}),
        "refer shortly": lambda i: Request("POST", "/responses", {"input": [{"id": i}]}),
        "refer, continuing": lambda i: Request(
            "POST", "/responses", {"input": [{"id": i}], "previous_response_id": own_response}
        ),
        "refer, taking part": lambda i: Request(
            "POST", "/responses", {"input": [{"id": i}], "conversation": own_conversation}
        ),
        "refer in the background": lambda i: Request(
            "POST", "/responses", {"input": [{"id": i}], "background": True}
        ),
        "read": lambda i: Request("GET", f"{theirs}/{quote(i)}"),
        "delete": lambda i: Request("DELETE", f"{theirs}/{quote(i)}"),
        "page from": lambda i: Request("GET", f"{theirs}?after={quote(i)}"),
        "read in one's own": lambda i: Request("GET", f"{mine}/{quote(i)}"),
        "delete in one's own": lambda i: Request("DELETE", f"{mine}/{quote(i)}"),
        "page from in one's own": lambda i: Request("GET", f"{mine}?after={quote(i)}"),
        "page input from": lambda i: Request(
            "GET", f"/responses/{own_response}/input_items?after={quote(i)}"
        ),
    }


ON_SOCKETS: dict[str, Callable[[str], Json]] = {
    "continue": lambda i: {"input": "x", "previous_response_id": i},
    "continue unstored": lambda i: {"input": "x", "previous_response_id": i, "store": False},
    "warm up": lambda i: {"input": "x", "previous_response_id": i, "store": False, "generate": False},
    "fork": lambda i: {"input": "x", "previous_response_id": i, "stream_id": "side", "store": False},
    "take part": lambda i: {"input": "x", "conversation": i},
    "take part unstored": lambda i: {"input": "x", "conversation": {"id": i}, "store": False},
    "refer": lambda i: {"input": [{"type": "item_reference", "id": i}], "store": False},
}

# Ids that do not exist, and malformed ids -----------------------------------------------------------

_CORE = slice(12, 28)
"""The random digits at the end of an id of any type."""
_NEXT_DIGIT = str.maketrans("0123456789abcdef", "123456789abcdef0")
_MASK = "#" * 16


def ghost(target: str) -> str:
    """An id of the same form that does not exist."""
    return target[:12] + target[_CORE].translate(_NEXT_DIGIT) + target[28:]


def masked(answered: bytes, target: str) -> bytes:
    """An answer without the id that was requested."""
    core = target[_CORE]
    assert re.fullmatch("[0-9a-f]{16}", core), target
    return answered.replace(core.encode(), _MASK.encode()).replace(core.upper().encode(), _MASK.encode())


TWISTS: dict[str, Callable[[str], str]] = {
    "shorter": lambda i: i[:-1],
    "much shorter": lambda i: i[:29],
    "longer": lambda i: i + "0",
    "upper case": lambda i: i.upper(),
    "upper digits": lambda i: i[:5] + i[5:].upper(),
    "no prefix": lambda i: i.partition("_")[2],
    "other prefix": lambda i: "item_" + i.partition("_")[2],
    "wildcard": lambda i: i[:-1] + "%",
    "one of any": lambda i: i[:-1] + "_",
    "quotes": lambda i: i + "' OR '1'='1",
    "comment": lambda i: i + "'--",
    "blank": lambda i: i + " ",
    "blank before": lambda i: " " + i,
    "line": lambda i: i + "\n",
    "nothing": lambda i: i + "\0",
    "nothing before": lambda i: "\0" + i,
    "nothing within": lambda i: i[:8] + "\0" + i[8:],
    "replaced": lambda i: i + "\ufffd",
    "invisible": lambda i: i + "\u200b",
    "full width": lambda i: i[:-1] + chr(ord(i[-1]) + 0xFEE0),
    "up": lambda i: f"../{i}",
    "up and down": lambda i: f"{i}/../{i}",
    "backslash": lambda i: f"..\\{i}",
    "below": lambda i: f"{i}/",
    "fragment": lambda i: f"{i}#",
    "query": lambda i: f"{i}?x",
    "twice quoted": lambda i: quote(quote(i + "\0", safe=""), safe=""),
    "long": lambda i: i + "0" * 3000,
    "snowman": lambda i: i + "☃",
}

# The matrix ------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    return "memory" if request.param == "memory" else str(request.getfixturevalue("postgres_url"))


async def require_same(at: Scene, name: str, attack: Callable[[str], Request], target: str) -> Answer:
    """Request an object of another tenant and one that does not exist: both answers have to be equal."""
    absent = ghost(target)
    answered, expected = [
        Answer(answer.status, answer.headers, masked(answer.body, asked))
        for asked in (target, absent)
        for answer in [await at.attacker.ask(*attack(asked))]
    ]
    assert answered == expected, name
    assert b"secret" not in answered.body, name
    return answered


@pytest.mark.parametrize("configured", [True, False], ids=["configured", "stored"])
async def test_objects_of_another_tenant_are_not_found(store: str, configured: bool) -> None:
    async with scene(store, ("owners", "attackers"), configured=configured) as at:
        estate, before = at.estate, await everything(at)
        for kind, target in estate.responses.items():
            for name, attack in ON_RESPONSES.items():
                answer = await require_same(at, f"{name}: {kind}", attack, target)
                assert answer.status in (400, 404), (name, kind)
        for name, attack in ON_CONVERSATIONS.items():
            answer = await require_same(at, name, attack, estate.conversation)
            assert answer.status in (400, 404), name
        by_item = on_items(estate.conversation, at.own_conversation, at.own_response)
        for kind, target in estate.items.items():
            for name, attack in by_item.items():
                answer = await require_same(at, f"{name}: {kind}", attack, target)
                assert answer.status in (400, 404), (name, kind)
        assert await everything(at) == before


@pytest.mark.parametrize("configured", [True, False], ids=["configured", "stored"])
async def test_responses_of_another_tenant_are_not_found_on_a_socket(store: str, configured: bool) -> None:
    async with scene(store, ("owners", "attackers"), configured=configured) as at:
        estate, before = at.estate, await everything(at)
        targets = {**estate.responses, **estate.items, "conversation": estate.conversation}
        async with at.attacker.connect() as socket:
            for (kind, target), (name, attack) in product(targets.items(), ON_SOCKETS.items()):
                absent = ghost(target)
                answered = masked(await events_after(socket, **attack(target)), target)
                assert answered == masked(await events_after(socket, **attack(absent)), absent)
                (error,) = json.loads(answered)
                assert error["status"] in (400, 404), (name, kind)
                assert b"secret" not in answered
        assert await everything(at) == before


@pytest.mark.parametrize("aim", ["chain", "open run", "conversation", "output", "input"])
async def test_malformed_ids_are_not_found(store: str, aim: str) -> None:
    """Neither for the attacker nor for the owner."""
    # Each store with one kind of keys: the kind has no influence on how an id is read.
    async with scene(store, ("owners", "attackers"), configured=store == "memory") as at:
        estate, before = at.estate, await everything(at)
        by_item = on_items(estate.conversation, at.own_conversation, at.own_response)
        if aim == "conversation":
            target, attacks = estate.conversation, [*ON_CONVERSATIONS.values()]
        elif aim in estate.responses:
            target, attacks = estate.responses[aim], [*ON_RESPONSES.values()]
        else:
            target, attacks = estate.items[aim], [by_item[name] for name in ("refer", "read", "delete")]
        for number, (name, twist) in enumerate(TWISTS.items()):
            # Every second attack with this store, the others with the other one.
            for attack in attacks[(number + (store == "memory")) % 2 :: 2]:
                answer = await require_same(at, name, partial(encoded, attack, twist), target)
                assert answer.status in (400, 404, 405), (name, answer)
                answer = await at.owner.ask(*encoded(attack, twist, target))
                assert answer.status in (400, 404, 405), (name, answer)
        assert await everything(at) == before


def encoded(attack: Callable[[str], Request], twist: Callable[[str], str], target: str) -> Request:
    """An attack with a malformed id. In a path its characters are quoted, so that it stays one segment."""
    target = twist(target)
    marker = "marker0"
    request = attack(marker)
    path = request.path.replace(marker, quote(target, safe=""))
    body = None if request.body is None else json.loads(json.dumps(request.body))
    return Request(request.method, path, _put(body, marker, target))


def _put(value: Any, marker: str, target: str) -> Any:
    if isinstance(value, dict):
        return {key: _put(inner, marker, target) for key, inner in value.items()}
    if isinstance(value, list):
        return [_put(inner, marker, target) for inner in value]
    return target if value == marker else value


@pytest.mark.parametrize(
    "raw", ["%2e%2e%2f{}", "../responses/{}", "./{}", "{}/.", "%c0%af{}", "{}%ff", "{};x"]
)
async def test_path_traversal_reaches_no_other_object(raw: str) -> None:
    """Paths exactly as on the wire, not normalized by a client."""
    async with scene("memory", ("owners", "attackers")) as at:
        before = await everything(at)
        for kind, target in at.estate.responses.items():
            for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                attack = partial(_as_written, method, raw, rest)
                assert (await require_same(at, kind, attack, target)).status in (400, 404, 405)
        assert await everything(at) == before


def _as_written(method: str, raw: str, rest: str, target: str) -> Request:
    return Request(method, f"/responses/{raw.format(target)}{rest}")


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '"' + "a" * 100_000 + '"', '"\\u0000"', '""', '"\\n"', "{}", "7"]
)
@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "item"])
async def test_invalid_ids_are_refused(store: str, text: str, field: str) -> None:
    body = f'{{"input":[{{"id":{text}}}]}}' if field == "item" else f'{{"input":"x","{field}":{text}}}'
    async with serve(store=store) as server:
        url = f"{server.url}/responses"
        async with server.http.post(url, data=body.encode()) as answer:
            assert answer.status in (400, 404), await answer.text()
            assert len(await answer.read()) < 2000
        async with server.http.ws_connect(url) as ws:
            await ws.send_str(f'{{"type":"response.create",{body[1:]}')
            error = json.loads(await ws.receive_str(timeout=300))
            assert (error["type"], error["status"] in (400, 404)) == ("error", True)


@pytest.mark.parametrize(
    "tenants",
    [
        ("a", "a:b"),
        ("a:b", "a"),
        ("a", "A"),
        ("a", "a "),
        ("a", " a"),
        ("a%", "a"),
        ("a", "a%"),
        ("a", "_"),
        ("a", "a' OR '1'='1"),
        ("a", "a'--"),
        ('a"', 'a""'),
        ("a", "a\\"),
        ("1", "1.0"),
        ("0", ""),
        ("default", ""),
        ("default", " "),
        ("\u00e4", "a\u0308"),
        ("a", "a\u200b"),
        ("a", "\uff41"),
        ("None", "null"),
    ],
)
async def test_tenants_with_similar_names_are_separate(tenants: tuple[str, str]) -> None:
    async with scene("memory", tenants) as at:
        estate, before = at.estate, await everything(at)
        for target in estate.responses.values():
            for name in ("continue", "read", "delete", "cancel", "list input", "stream"):
                answer = await require_same(at, name, ON_RESPONSES[name], target)
                assert answer.status in (400, 404)
            async with at.attacker.connect() as socket:
                answered = masked(
                    await events_after(socket, **ON_SOCKETS["continue unstored"](target)), target
                )
            assert json.loads(answered)[-1]["type"] == "error"
        for name, attack in ON_CONVERSATIONS.items():
            answer = await require_same(at, name, attack, estate.conversation)
            assert answer.status in (400, 404)
        for target in estate.items.values():
            answer = await require_same(
                at, "refer", lambda i: Request("POST", "/responses", {"input": [{"id": i}]}), target
            )
            assert answer.status == 400
        assert await everything(at) == before


async def test_turn_reports_are_visible_to_their_tenant_only() -> None:
    async with scene("memory", ("owners", "attackers")) as at:
        turns = await at.owner.have("GET", "/slipring/turns")
        assert [turn["response_id"] for turn in turns["data"]] == [at.estate.responses["on a socket"]]
        assert (await at.attacker.have("GET", "/slipring/turns"))["data"] == []


async def test_item_ids_of_another_tenant_can_be_used() -> None:
    """Clients choose the ids of the items they send: an id that another tenant uses must have no effect."""
    async with scene("memory", ("owners", "attackers")) as at:
        taken = at.estate.items["of a conversation"]
        before = await at.owner.have("GET", f"/conversations/{at.estate.conversation}/items")
        mine = {"type": "message", "id": taken, "role": "user", "content": "mine"}
        await at.attacker.have("POST", f"/conversations/{at.own_conversation}/items", {"items": [mine]})
        path = f"/conversations/{at.own_conversation}/items/{taken}"
        assert (await at.attacker.have("GET", path))["content"][0]["text"] == "mine"
        await at.attacker.create(input=[mine])
        await at.attacker.have("DELETE", path)
        assert await at.owner.have("GET", f"/conversations/{at.estate.conversation}/items") == before


# Without a key ---------------------------------------------------------------------------------------

OPEN = {"/", "/health", "/ready", "/ready/store", PATH + "/{response_id}"}
"""Paths without an API key. The last is for nodes, see `test_node_door`."""


def routes(server: Running) -> list[tuple[str, str]]:
    """Every method and path of the server, with a value for each parameter."""
    runner = server.server._runner
    assert runner is not None
    known = []
    for route in runner.app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        if path not in OPEN:
            known.append((route.method, re.sub(r"\{[^}]*\}", "x", path)))
    return known


async def refused(server: Running, headers: dict[str, str]) -> None:
    base = server.url.removesuffix("/v1")
    found = routes(server)
    assert len(found) > 30
    for method, path in found:
        # The key is checked first, whatever else is wrong.
        async with server.http.request(method, base + path, headers=headers, data=b"{nonsense") as answer:
            assert answer.status == 401, (method, path)
            body = await answer.read()
            if method != "HEAD":
                error = json.loads(body)["error"]
                # The Messages API has no codes.
                assert error["type"] == "authentication_error" or error["code"] == "invalid_api_key"
    for path in ("/responses", "/v1/responses"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await server.http.ws_connect(base + path, headers=headers)
        assert refusal.value.status == 401


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer guess",
        "Basic a2V5OmtleQ==",
        "Bearer owners:key",
        "key",
        "Bearer key key",
        "Bearer k\u00e9y",
    ],
)
async def test_every_endpoint_needs_a_key(header: str | None) -> None:
    async with serve(api_key=("owners:key",)) as server:
        await refused(server, {} if header is None else {"Authorization": header})


async def test_every_endpoint_refuses_a_revoked_key(tmp_path: Path) -> None:
    async with serve(store=f"sqlite:{tmp_path / 'slipring.db'}") as server:
        key = await issue(server, "owners")
        owner = Party(server, key)
        again = Party(server, await issue(server, "owners"))
        with closing(owner.http), closing(again.http):
            made = await owner.create(input="hello")
            await revoke(server, key)
            await refused(server, {"Authorization": f"Bearer {key}"})
            assert await again.have("GET", f"/responses/{made['id']}") == made
