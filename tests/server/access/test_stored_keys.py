"""Keys in the store: authentication, revocation, permitted models."""

import asyncio
import hmac
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.base.errors import StartupError, Unavailable
from slipring.config.settings import Config
from slipring.config.tables import ModelEntry
from slipring.server.access import auth
from slipring.server.process import server as server_process
from slipring.server.process.server import Server
from slipring.stores.keys import Token
from tests import wire
from tests.harness import FAST, TERMINAL, PuppetEngine, Running, serve
from tests.server.issuing import bearer, issue, revoke, serve_stored, stored

ID = "0123456789abcdef"
SECRET = "A" * 43
TABLE = (
    ModelEntry(name="small", engine=FAST, model="", aliases=("s", "tiny"), defaults=()),
    ModelEntry(name="medium", engine=FAST, model="", aliases=("m",), defaults=()),
    ModelEntry(name="large", engine=FAST, model="", aliases=(), defaults=()),
)


async def models(server: Running, key: str, path: str = "") -> tuple[int, Any]:
    async with server.http.get(f"{server.url}/models{path}", headers=bearer(key)) as answer:
        body = await answer.json()
        return answer.status, [model["id"] for model in body["data"]] if "data" in body else body


async def upgrade(server: Running, key: str) -> int:
    try:
        async with server.http.ws_connect(f"{server.url}/responses", headers=bearer(key)):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        return error.status


# Authentication.


async def test_tenants_do_not_find_responses_of_each_other(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        own, also_own = await issue(server, "a"), await issue(server, "a")
        other = await issue(server, "b")
        _, response = await server.post(key=own, input="hello")
        for key, status in [(own, 200), (also_own, 200), (other, 400)]:
            got, body = await server.post(key=key, input="more", previous_response_id=response["id"])
            assert got == status
        assert body["error"]["code"] == "previous_response_not_found"
        async with server.connect(key=other) as socket:
            error = await socket.error(input="more", previous_response_id=response["id"])
            assert error["error"]["code"] == "previous_response_not_found"


async def test_configured_and_stored_keys_are_accepted_side_by_side(tmp_path: Path) -> None:
    async with serve_stored(tmp_path, api_key=("team:configured",)) as server:
        _, response = await server.post(key=await issue(server), input="hello")
        status, _ = await server.post(key="configured", input="more", previous_response_id=response["id"])
        assert status == 200
        assert await upgrade(server, "neither") == 401


@pytest.mark.parametrize(
    "key",
    [
        "",
        "any",
        "sk-slip-",
        "sk-slip-.",
        f"sk-slip-{ID}",
        f"sk-slip-{ID}.",
        f"sk-slip-{ID}.{SECRET}",
        f"sk-slip-{ID}.{SECRET}A",
        f"sk-slip-{ID}.{SECRET[1:]}",
        f"sk-slip-{ID.upper()}.{SECRET}",
        f"sk-slip-{ID[1:]}.{SECRET}",
        f"sk-slip-{ID}{SECRET}",
        f"sk-slip-.{SECRET}",
        f"SK-SLIP-{ID}.{SECRET}",
        f"sk-slip-{ID}.{SECRET} {SECRET}",
        f"sk-slip-{ID}.{SECRET[:-1]}=",
        f"sk-slip-{ID}.{SECRET[:-2]}é",
        f"sk-slip-１{ID[1:]}.{SECRET}",
        f"sk-slip-' OR 1=1 --.{SECRET}",
        f"sk-slip-{'0' * 5000}.{SECRET}",
    ],
)
async def test_a_malformed_or_unknown_key_is_rejected(tmp_path: Path, key: str) -> None:
    async with serve_stored(tmp_path) as server:
        await issue(server)
        await server.service.sync_keys()
        status, body = await models(server, key)
        assert status == 401
        assert wire.check_http_error(body)["error"]["code"] == "invalid_api_key"
        assert (await server.post(key=key, input="hello"))[0] == 401
        assert await upgrade(server, key) == 401


async def test_variations_of_a_real_key_are_rejected(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key, other = await issue(server), await issue(server)
        await server.service.sync_keys()
        last = "A" if key[-1] != "A" else "B"
        for wrong in (key[:-1], key[:-1] + last, key + "A", key.upper(), key[:24] + other[24:], key[8:]):
            assert (await models(server, wrong))[0] == 401
        assert (await models(server, f" {key} "))[0] == 200


async def test_a_revoked_key_gets_the_answer_of_an_unknown_one(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server)
        assert (await models(server, key))[0] == 200
        await revoke(server, key)
        revoked = await models(server, key)
        assert revoked == await models(server, Token.generate().reveal())
        assert revoked[0] == 401
        assert await upgrade(server, key) == 401


async def test_an_unknown_id_is_compared_like_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    async with serve_stored(tmp_path) as server:
        await issue(server)
        await server.service.sync_keys()
        monkeypatch.setattr(auth.hmac, "compare_digest", spy)  # type: ignore[attr-defined]
        unknown = Token.generate()
        assert (await models(server, unknown.reveal()))[0] == 401
        ((stored_digest, presented),) = compared
        assert presented == unknown.digest
        assert len(stored_digest) == len(presented)


# Guests: keys are required once there is a first key.


async def test_guests_are_served_until_there_is_a_key(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server, server.connect(key="any") as guest:
        assert (await models(server, Token.generate().reveal()))[0] == 200
        first = await guest.response(input="hello")
        key = await issue(server)
        await server.service.sync_keys()
        assert (await models(server, "any"))[0] == 401
        error = await guest.error(input="more", stream_id="a", previous_response_id=first["id"])
        assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")
        await revoke(server, key)
        await server.service.sync_keys()
        assert (await models(server, "any"))[0] == 401


async def test_a_first_key_is_accepted_before_the_next_refresh(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, "team")
        _, response = await server.post(key=key, input="hello")
        assert (await server.post(key="any", input="hello"))[0] == 401
        assert await server.service.store.responses.load("team", response["id"]) is not None


async def test_a_key_in_the_store_suffices_to_serve_other_addresses(tmp_path: Path) -> None:
    config = Config(host="0.0.0.0", port=0, engine="simulated")
    with pytest.raises(StartupError, match=r"^refusing to serve on 0\.0\.0\.0 without API keys"):
        await Server(config, store=stored(tmp_path)).start()
    async with serve_stored(tmp_path) as running:
        await issue(running)
    server = Server(config, store=stored(tmp_path))
    await server.start()
    assert str(server.service.keyring) == "those in the store"
    await server.stop()


# Checks at every turn.


async def test_a_revoked_key_fails_the_next_turn_and_no_running_one(tmp_path: Path) -> None:
    engine = PuppetEngine()
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server)
        async with server.connect(key=key) as socket:
            await socket.create(input="long", stream_id="running")
            performance = await engine.next()
            performance.say("still ")
            await socket.until("response.output_text.delta", lane="running")
            await revoke(server, key)
            error = await socket.error(input="hello", stream_id="next")
            assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")
            assert error["stream_id"] == "next"
            performance.say("here")
            performance.finish()
            last = (await socket.until(*TERMINAL, lane="running"))[-1]
            assert last["type"] == "response.completed"
            assert last["response"]["output"][0]["content"][0]["text"] == "still here"
            assert (await socket.error(input="hello", stream_id="running"))["status"] == 401


async def test_a_queued_turn_is_checked_when_it_starts(tmp_path: Path) -> None:
    engine = PuppetEngine()
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server)
        async with server.connect(key=key) as socket:
            await socket.create(input="first")
            performance = await engine.next()
            await socket.create(input="second")
            await socket.create(input="third")
            await socket.until("response.in_progress")
            await revoke(server, key)
            performance.finish()
            assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"
            for _ in ("second", "third"):
                assert (await socket.receive())["status"] == 401


async def test_revoking_one_key_of_a_tenant_does_not_affect_the_other(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        revoked, valid = await issue(server), await issue(server)
        async with server.connect(key=revoked) as first_socket, server.connect(key=valid) as second_socket:
            first = await first_socket.response(input="hello")
            await revoke(server, revoked)
            assert (await first_socket.error(input="hello"))["status"] == 401
            await second_socket.response(input="more", previous_response_id=first["id"])


async def test_a_turn_fails_if_its_key_cannot_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(key_id: str) -> None:
        raise Unavailable("The store cannot be reached.")

    async with serve_stored(tmp_path, api_key=("configured",)) as server:
        key = await issue(server)
        async with server.connect(key=key) as socket, server.connect(key="configured") as other:
            first = await socket.response(input="hello", store=False)
            with monkeypatch.context() as fault:
                fault.setattr(server.service.store.keys, "find", find)
                assert (await socket.error(input="hello", stream_id="a"))["status"] == 503
                assert (await models(server, key))[0] == 503
                assert await upgrade(server, key) == 503
                await other.response(input="hello", store=False)
            await socket.response(input="more", previous_response_id=first["id"], store=False)


# Permitted models.


@pytest.mark.parametrize(
    ("permitted", "seen", "known"),
    [
        (("medium",), ["medium"], "'medium', 'm'"),
        (("m",), ["medium"], "'medium', 'm'"),
        (("large", "small"), ["small", "large"], "'small', 'large', 's', 'tiny'"),
        (("large", "elsewhere"), ["large"], "'large'"),
    ],
)
async def test_a_key_sees_only_its_models(
    tmp_path: Path, permitted: tuple[str, ...], seen: list[str], known: str
) -> None:
    async with serve_stored(tmp_path, models=TABLE) as server:
        key, unbound = await issue(server, models=permitted), await issue(server)
        assert await models(server, key) == (200, seen)
        assert await models(server, unbound) == (200, ["small", "medium", "large"])
        hidden = {"small": "s", "medium": "m", "large": "large"}
        async with server.connect(key=key) as socket:
            assert (await socket.response(input="hello"))["model"] == seen[0]
            assert (await server.post(key=key, input="hello"))[1]["model"] == seen[0]
            for name, alias in hidden.items():
                for asked in (name, alias):
                    status, body = await server.post(key=key, input="hello", model=asked)
                    shown, _ = await models(server, key, f"/{asked}")
                    if name in seen:
                        assert (status, shown, body["model"]) == (200, 200, name)
                        assert (await socket.response(input="hello", model=asked))["model"] == name
                    else:
                        error = await socket.error(input="hello", model=asked)
                        assert (status, shown, error["status"]) == (404, 404, 404)
                        assert error["error"] == body["error"]
                        assert body["error"]["message"] == (
                            f"The model '{asked}' does not exist here. This server serves: {known}."
                        )


async def test_a_key_without_a_served_model_gets_404(tmp_path: Path) -> None:
    async with serve_stored(tmp_path, models=TABLE) as server:
        key = await issue(server, models=("elsewhere", "nowhere"))
        assert await models(server, key) == (200, [])
        for body in ({}, {"model": "elsewhere"}):
            status, answer = await server.post(key=key, input="hello", **body)
            assert (status, answer["error"]["code"]) == (404, "model_not_found")
            assert answer["error"]["message"] == (
                "The model 'elsewhere' does not exist here."
                " This server serves: no model that this key may use."
            )


# Secrets.


async def test_secrets_are_neither_logged_nor_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve_stored(tmp_path) as server:
        key = await issue(server, requests_per_minute=1)
        token = Token.parse(key)
        assert token is not None
        async with server.connect(key=key) as socket:
            events = await socket.turn(input="hello")
            events += await socket.turn(input="hello")
            await revoke(server, key)
            events += await socket.turn(input="hello")
        _, body = await server.post(key=key, input="hello")
        assert token.secret not in f"{events}{body}{token!r}"
    assert caplog.records
    assert token.secret not in caplog.text


# The exchange with the store.


async def test_the_exchange_is_repeated_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_process, "EXCHANGE_INTERVAL_S", 0.01)
    async with serve(store=stored(tmp_path)) as server:
        await issue(server)
        exchanged: asyncio.Queue[None] = asyncio.Queue()

        async def exchange() -> None:
            exchanged.put_nowait(None)
            raise RuntimeError("unexpected")

        with monkeypatch.context() as fault:
            fault.setattr(server.service.quotas, "exchange", exchange)
            for _ in range(2):
                await asyncio.wait_for(exchanged.get(), 300)
        assert (await models(server, "any"))[0] == 401
    assert "exchanging key usage with the store failed unexpectedly" in caplog.text


async def test_without_the_store_guests_stay_and_a_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exist() -> bool:
        raise Unavailable("The store cannot be reached.")

    async with serve_stored(tmp_path) as server:
        monkeypatch.setattr(server.service.store.keys, "exist", exist)
        await server.service.sync_keys()
        assert (await models(server, "any"))[0] == 200
    store = stored(tmp_path)
    monkeypatch.setattr(store.keys, "exist", exist)
    with pytest.raises(StartupError, match=r"^The store cannot be reached\.$"):
        await Server(Config(port=0, engine="simulated"), store=store).start()
