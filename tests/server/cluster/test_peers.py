"""What nodes ask each other for: nobody else finds that there is anything to ask."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slipring.server.cluster.ids import node_of
from slipring.server.cluster.peers import ASKED_AT, PATH, SIGNATURE, TENANT
from tests.harness import Running, serve
from tests.server.cluster.test_parking import cut
from tests.server.test_attacks import VOLATILE, Answer, ghost, routes


@asynccontextmanager
async def node(tmp_path: Path) -> AsyncIterator[tuple[Running, str, str]]:
    """A node that others may ask, what is parked there, and the secret of its cluster."""
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    async with serve(store=store, api_key=("owners:key",), node_url="http://127.0.0.1:9") as server:
        async with server.connect(key="key", abandoned=True) as socket:
            parked = (await socket.response(input="secret", store=False))["id"]
            await cut(server, socket)
        secret = (await server.service.store.cluster.secret("peers", b"too late")).decode()
        yield server, parked, secret


async def told(server: Running, method: str, path: str, headers: dict[str, str]) -> Answer:
    url = server.url.removesuffix("/v1") + path
    async with server.http.request(method, url, headers=headers) as answer:
        volatile = {(name, value) for name, value in answer.headers.items() if name.lower() not in VOLATILE}
        return Answer(answer.status, frozenset(volatile), await answer.read())


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer key", "Bearer guess", "Bearer k\u00e9y"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_who_is_no_node_finds_no_door(tmp_path: Path, header: str | None, method: str) -> None:
    async with node(tmp_path) as (server, parked, _):
        headers = {TENANT: b"owners".hex(), **({} if header is None else {"Authorization": header})}
        unknown = PATH.replace("parked", "nobody")
        for response_id in (parked, ghost(parked)):
            at_the_door = await told(server, method, f"{PATH}/{response_id}", headers)
            elsewhere = await told(server, method, f"{unknown}/{response_id}", headers)
            assert at_the_door.status == 404
            assert at_the_door.headers == elsewhere.headers
            assert at_the_door.body.replace(b"parked", b"nobody") == elsewhere.body


async def test_keys_that_are_no_text_are_wrong_keys(tmp_path: Path) -> None:
    async with node(tmp_path) as (server, parked, _):
        for path, status in (
            (f"{PATH}/{parked}", b"404"),
            ("/v1/models", b"401"),
            ("/v1/responses/x", b"401"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer "
            writer.write(head.encode() + b"\xff\xfe\r\n\r\n")
            answer = await reader.read()
            assert answer.split(b" ", 2)[1] == status
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    "digits", ["/../../../v1/models?a=bc", "0" * 23, "0" * 25, "A" * 24, "%2e%2e%2f" + "0" * 15, "\n" * 24]
)
def test_only_an_id_of_a_node_is_asked_for_there(digits: str) -> None:
    """It becomes part of a URL, and with it goes the secret."""
    assert node_of("resp_0123abcd" + "0" * 24) == "0123abcd"
    assert node_of("resp_0123abcd" + digits) is None


async def test_without_peers_there_is_no_secret_to_know() -> None:
    async with serve(api_key=("owners:key",)) as server:
        for header in ("Bearer ", "Bearer", ""):
            answer = await told(server, "GET", f"{PATH}/resp_x", {"Authorization": header})
            assert answer.status == 404


async def test_a_node_is_told_what_its_own_tenant_left(tmp_path: Path) -> None:
    async with node(tmp_path) as (server, parked, secret):
        peers = server.service.peers
        question = peers.question(peers.node_id, "owners", parked)
        answer = await told(server, "GET", f"{PATH}/{parked}", question)
        assert answer.status == 200
        assert b"secret" in answer.body
        attackers = peers.question(peers.node_id, "attackers", parked)
        elsewhere = peers.question("00000000", "owners", parked)
        old = str(int(question[ASKED_AT]) - 61)
        for wrong in (
            attackers,
            elsewhere,
            {**attackers, TENANT: question[TENANT]},
            *({**question, TENANT: tenant} for tenant in (b"attackers".hex(), "", "no hex", "ff")),
            *({**question, ASKED_AT: when} for when in (old, "", "now", "9" * 30)),
            *({**question, SIGNATURE: signature} for signature in ("", "0" * 64, "k\u00e9y")),
            {name: value for name, value in question.items() if name != ASKED_AT},
        ):
            answer = await told(server, "GET", f"{PATH}/{parked}", wrong)
            assert (answer.status, b"secret" in answer.body) == (404, False), wrong
        known = {"Authorization": f"Bearer {secret}"}
        for method, path in routes(server):
            url = server.url.removesuffix("/v1") + path
            async with server.http.request(method, url, headers=known) as refusal:
                assert refusal.status == 401, "the secret is no API key"
