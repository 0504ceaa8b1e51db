"""Configured keys, tenants, origins, and the addresses that are served."""

from typing import Any

import aiohttp
import pytest

from slipring.base.errors import StartupError
from slipring.config.settings import Config
from slipring.server.process.server import Server
from tests import wire
from tests.harness import Running, serve

KEYS = ("plain-key", "team:team-key")
PAGE = "https://app.example"


async def get(server: Running, path: str = "/models", **headers: str) -> tuple[int, dict[str, Any]]:
    async with server.http.get(server.url + path, headers=headers) as answer:
        return answer.status, await answer.json()


async def upgrade(server: Running, **headers: str) -> int:
    """Try to open a socket; 101, or the status of the error."""
    try:
        async with server.http.ws_connect(f"{server.url}/responses", headers=headers):
            return 101
    except aiohttp.WSServerHandshakeError as refusal:
        return refusal.status


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [{}, bearer("any"), bearer(""), {"Authorization": "nonsense"}])
async def test_without_configured_keys_any_key_or_none_is_accepted(headers: dict[str, str]) -> None:
    async with serve() as server:
        assert (await get(server, **headers))[0] == 200
        assert await upgrade(server, **headers) == 101


@pytest.mark.parametrize(
    "headers",
    [
        bearer("plain-key"),
        bearer("team-key"),
        {"Authorization": "bearer  team-key "},
        {"x-api-key": "team-key"},
        {"x-api-key": "team-key", "Authorization": ""},
        {"x-api-key": "wrong-key", **bearer("team-key")},
    ],
)
async def test_a_configured_key_is_accepted(headers: dict[str, str]) -> None:
    async with serve(api_key=KEYS) as server:
        assert (await get(server, **headers))[0] == 200
        assert await upgrade(server, **headers) == 101


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "plain-key"},
        {"Authorization": "Basic plain-key"},
        bearer("wrong-key"),
        {"x-api-key": "wrong-key"},
        {"x-api-key": ""},
        {"x-api-key": "team-key", **bearer("wrong-key")},
        bearer("plain-key-and-more"),
        bearer("plain-ke"),
        bearer("team:team-key"),
        bearer("PLAIN-KEY"),
        bearer("ключ"),
    ],
)
async def test_a_missing_or_wrong_key_is_rejected_by_every_endpoint(headers: dict[str, str]) -> None:
    async with serve(api_key=KEYS) as server:
        for path in ("/models", "/models/simulated", "/responses"):
            status, body = await get(server, path, **headers)
            assert status == 401
            assert wire.check_http_error(body)["error"]["code"] == "invalid_api_key"
        async with server.http.post(
            f"{server.url}/responses", json={"input": "hello"}, headers=headers
        ) as answer:
            assert answer.status == 401
        assert await upgrade(server, **headers) == 401
        assert server.service.sockets == 0


async def test_an_error_does_not_repeat_the_key() -> None:
    async with serve(api_key=KEYS) as server:
        _, body = await get(server, **bearer("sk-mistyped"))
        assert "sk-mistyped" not in str(body)


async def test_health_needs_no_key() -> None:
    async with serve(api_key=KEYS) as server:
        health = server.url.removesuffix("/v1") + "/health"
        async with server.http.get(health) as answer:
            assert answer.status == 200


async def test_two_keys_of_one_tenant_share_stored_responses() -> None:
    async with serve(api_key=("team:first", "team:second", "unnamed", "also-unnamed")) as server:
        for here, there in [("first", "second"), ("unnamed", "also-unnamed")]:
            _, stored = await server.post(key=here, input="hello")
            status, _ = await server.post(key=there, input="again", previous_response_id=stored["id"])
            assert status == 200
        status, _ = await server.post(key="first", input="again", previous_response_id=stored["id"])
        assert status == 400


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000", "null", ""])
async def test_an_unlisted_origin_is_rejected(origin: str) -> None:
    async with serve() as server:
        status, body = await get(server, Origin=origin)
        assert status == 403
        assert wire.check_http_error(body)["error"]["code"] == "permission_denied"
        async with server.http.post(
            f"{server.url}/responses", json={"input": "hello"}, headers={"Origin": origin}
        ) as answer:
            assert answer.status == 403
        assert await upgrade(server, Origin=origin) == 403


@pytest.mark.parametrize("origin", [PAGE, f"{PAGE}/", PAGE.upper()])
async def test_a_listed_origin_is_accepted(origin: str) -> None:
    async with serve(allow_origin=(f"{PAGE}/", "http://localhost:3000")) as server:
        assert (await get(server, Origin=origin))[0] == 200
        assert await upgrade(server, Origin=origin) == 101
        async with server.connect(headers={"Origin": origin}) as socket:
            assert (await socket.response(input="hello"))["status"] == "completed"


@pytest.mark.parametrize("origin", ["https://app.example.evil", "http://app.example", f"{PAGE}:8443"])
async def test_an_origin_that_resembles_a_listed_one_is_rejected(origin: str) -> None:
    async with serve(allow_origin=(PAGE,)) as server:
        assert await upgrade(server, Origin=origin) == 403


async def test_a_listed_origin_still_needs_a_key() -> None:
    async with serve(allow_origin=(PAGE,), api_key=KEYS) as server:
        assert await upgrade(server, Origin=PAGE) == 401
        assert await upgrade(server, Origin=PAGE, **bearer("plain-key")) == 101


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
async def test_other_addresses_are_not_served_without_keys(host: str) -> None:
    server = Server(Config(host=host, port=0, engine="simulated"))
    with pytest.raises(StartupError) as caught:
        await server.start()
    assert str(caught.value) == (
        f"refusing to serve on {host} without API keys: configure one with --api-key or"
        " SLIPRING_API_KEYS, create one with slipring keys create, or set --insecure-no-auth"
    )


@pytest.mark.parametrize("settings", [{"api_key": ("key",)}, {"insecure_no_auth": True}])
async def test_other_addresses_are_served_with_keys_or_with_insecure_no_auth(
    settings: dict[str, Any],
) -> None:
    server = Server(Config(host="0.0.0.0", port=0, engine="simulated", **settings))
    await server.start()
    await server.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost"])
async def test_the_loopback_is_served_without_keys(host: str) -> None:
    server = Server(Config(host=host, port=0, engine="simulated"))
    await server.start()
    assert server.base_url == f"http://{host}:{server.port}/v1"
    await server.stop()


async def test_an_address_of_another_machine_is_reported_in_one_line() -> None:
    server = Server(Config(host="192.0.2.1", port=0, engine="simulated", insecure_no_auth=True))
    with pytest.raises(StartupError, match=r"^cannot listen on 192\.0\.2\.1:0: [^\n]+$"):
        await server.start()


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    async with serve() as running:
        server = Server(Config(port=running.server.port, engine="simulated"))
        with pytest.raises(
            StartupError, match=rf"^cannot listen on 127\.0\.0\.1:{running.server.port}: [^\n]+$"
        ):
            await server.start()


async def test_one_key_cannot_belong_to_two_tenants() -> None:
    with pytest.raises(StartupError, match="two tenants, 'a' and 'b'"):
        async with serve(api_key=("a:same", "b:same")):
            pass


async def test_cached_tokens_do_not_reveal_what_another_tenant_has_sent() -> None:
    text = "a long and very secret text " * 50
    async with serve(api_key=("a:key-a", "b:key-b")) as server:
        for key in ("key-a", "key-b"):
            _, response = await server.post(key=key, input=text)
            assert response["usage"]["input_tokens_details"]["cached_tokens"] == 0
        _, again = await server.post(key="key-b", input=text)
        assert again["usage"]["input_tokens_details"]["cached_tokens"] > 0
