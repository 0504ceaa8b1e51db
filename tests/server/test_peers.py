"""Requests between nodes: signed, and invisible to other clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slipring.server.peers import ASKED_AT, PATH, SIGNATURE, TENANT
from slipring.server.random_ids import node_of
from tests.harness import Running, serve
from tests.server.test_attacks import VOLATILE, Answer, ghost, routes
from tests.server.test_parking import cut


@asynccontextmanager
async def node(tmp_path: Path) -> AsyncIterator[tuple[Running, str, str]]:
    """A node with a ``node_url``, the id of a response parked there, and the secret of its cluster."""
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    async with serve(store=store, api_key=("owners:key",), node_url="http://127.0.0.1:9") as server:
        async with server.connect(key="key", abandoned=True) as socket:
            parked = (await socket.response(input="secret", store=False))["id"]
            await cut(server, socket)
        secret = (await server.service.store.cluster.secret("peers", b"too late")).decode()
        yield server, parked, secret


async def request(server: Running, method: str, path: str, headers: dict[str, str]) -> Answer:
    url = server.url.removesuffix("/v1") + path
    async with server.http.request(method, url, headers=headers) as answer:
        volatile = {(name, value) for name, value in answer.headers.items() if name.lower() not in VOLATILE}
        return Answer(answer.status, frozenset(volatile), await answer.read())


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer key", "Bearer guess", "Bearer k\u00e9y"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_clients_get_the_answer_for_an_unknown_path(
    tmp_path: Path, header: str | None, method: str
) -> None:
    async with node(tmp_path) as (server, parked, _):
        headers = {TENANT: b"owners".hex(), **({} if header is None else {"Authorization": header})}
        unknown = PATH.replace("parked", "absent")
        for response_id in (parked, ghost(parked)):
            at_the_path = await request(server, method, f"{PATH}/{response_id}", headers)
            elsewhere = await request(server, method, f"{unknown}/{response_id}", headers)
            assert at_the_path.status == 404
            assert at_the_path.headers == elsewhere.headers
            assert at_the_path.body.replace(b"parked", b"absent") == elsewhere.body


async def test_keys_that_are_not_utf8_are_wrong_keys(tmp_path: Path) -> None:
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
def test_only_well_formed_ids_name_a_node(digits: str) -> None:
    """The id becomes part of a URL that is requested from the node."""
    assert node_of("resp_0123abcd" + "0" * 24) == "0123abcd"
    assert node_of("resp_0123abcd" + digits) is None


async def test_without_a_node_url_every_request_is_a_404() -> None:
    async with serve(api_key=("owners:key",)) as server:
        for header in ("Bearer ", "Bearer", ""):
            answer = await request(server, "GET", f"{PATH}/resp_x", {"Authorization": header})
            assert answer.status == 404


async def test_a_signed_request_gets_the_response_of_its_tenant_alone(tmp_path: Path) -> None:
    async with node(tmp_path) as (server, parked, secret):
        peers = server.service.peers
        question = peers.sign_request(peers.node_id, "owners", parked)
        answer = await request(server, "GET", f"{PATH}/{parked}", question)
        assert answer.status == 200
        assert b"secret" in answer.body
        attackers = peers.sign_request(peers.node_id, "attackers", parked)
        elsewhere = peers.sign_request("00000000", "owners", parked)
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
            answer = await request(server, "GET", f"{PATH}/{parked}", wrong)
            assert (answer.status, b"secret" in answer.body) == (404, False), wrong
        known = {"Authorization": f"Bearer {secret}"}
        for method, path in routes(server):
            url = server.url.removesuffix("/v1") + path
            async with server.http.request(method, url, headers=known) as refusal:
                assert refusal.status == 401, "the secret is not an API key"
