"""Quotas of keys, on one server and on several that share a store."""

from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import Unavailable
from tests.harness import PuppetEngine, Running, Socket
from tests.pictures import data_url, png
from tests.server.issuing import NOW, bearer, issue, serve_stored
from tests.server.raw import gone

MINUTE_LEFT = "45"
DAY_LEFT = str(24 * 60 * 60 - 15)
COST: dict[str, Any] = {"input_tokens": 30, "output_tokens": 12}


async def post(server: Running, key: str, **body: Any) -> tuple[int, str | None]:
    """The status of a request, and its Retry-After."""
    url = f"{server.url}/responses"
    async with server.http.post(url, json={"input": "hello", **body}, headers=bearer(key)) as answer:
        return answer.status, answer.headers.get("Retry-After")


def advance_clock(server: Running, seconds: float) -> None:
    server.service.quotas.now = lambda: NOW + seconds


async def finish_turn(socket: Socket, engine: PuppetEngine, **fields: Any) -> str:
    """Make a turn that costs ``COST``; returns the type of its last event."""
    await socket.create(input="hello", **fields)
    (await engine.next()).finish(**COST)
    return str((await socket.until("response.completed"))[-1]["type"])


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_up_to_the_limit_are_served_over_http(tmp_path: Path, stream: bool) -> None:
    async with serve_stored(tmp_path) as server:
        key, other = await issue(server, requests_per_minute=3), await issue(server, requests_per_minute=3)
        for _ in range(3):
            assert await post(server, key, stream=stream) == (200, None)
        for _ in range(2):
            assert await post(server, key, stream=stream) == (429, MINUTE_LEFT)
        assert await post(server, other, stream=stream) == (200, None)
        advance_clock(server, 44.5)
        assert await post(server, key, stream=stream) == (429, "1")
        advance_clock(server, 45)
        assert await post(server, key, stream=stream) == (200, None)


async def test_requests_up_to_the_limit_are_served_on_a_socket(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, requests_per_minute=2)
        async with server.connect(key=key) as socket:
            first = await socket.response(input="hello")
            await socket.response(input="more", stream_id="a", previous_response_id=first["id"])
            error = await socket.error(input="more", stream_id="a")
            assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
            assert error["error"]["type"] == "rate_limit_error"
            assert error["error"]["headers"] == {"retry-after": MINUTE_LEFT}
            assert error["error"]["message"] == "Rate limit reached for this API key: 2 requests per minute."
            advance_clock(server, 60)
            await socket.response(input="more", previous_response_id=first["id"])


async def test_concurrent_turns_are_all_counted(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, requests_per_minute=3)
        async with server.connect(key=key) as socket:
            lanes = [f"lane-{number}" for number in range(8)]
            for lane in lanes:
                await socket.create(input="hello", stream_id=lane)
            ends = []
            while len(ends) < len(lanes):
                event = await socket.receive()
                if event["type"] in ("response.completed", "error"):
                    ends.append(event["type"])
            assert ends.count("response.completed") == 3


async def test_requests_that_are_rejected_at_once_are_not_counted(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, requests_per_minute=1)
        async with server.connect(key=key) as socket:
            assert (await post(server, key, input=7))[0] == 400
            assert (await post(server, key, input=[{"type": "no such type"}]))[0] == 400
            assert (await socket.error(input=7))["status"] == 400
            await socket.send(type="response.dance")
            assert (await socket.receive())["status"] == 400
            await socket.response(input="hello")
            assert (await socket.error(input="hello"))["status"] == 429


async def test_input_and_output_tokens_are_counted_when_a_response_is_finished(tmp_path: Path) -> None:
    engine = PuppetEngine()
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server, tokens_per_day=84)
        async with server.connect(key=key) as socket:
            await finish_turn(socket, engine)
            await finish_turn(socket, engine, store=False)
            error = await socket.error(input="hello")
            assert (error["status"], error["error"]["headers"]) == (429, {"retry-after": DAY_LEFT})
            assert error["error"]["message"] == "Rate limit reached for this API key: 84 tokens per day."
            assert await post(server, key) == (429, DAY_LEFT)
            advance_clock(server, 24 * 60 * 60)
            await finish_turn(socket, engine)


async def test_a_turn_may_exceed_a_limit_that_was_not_reached_before(tmp_path: Path) -> None:
    engine = PuppetEngine()
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server, tokens_per_day=43, requests_per_minute=100)
        async with server.connect(key=key) as socket:
            await finish_turn(socket, engine)
            await finish_turn(socket, engine)
            assert (await socket.error(input="hello"))["status"] == 429


async def test_what_a_client_abandons_is_counted(tmp_path: Path) -> None:
    engine = PuppetEngine()
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server, tokens_per_day=100)
        for text in ("a" * 80, "b" * 400):
            async with server.connect(key=key, abandoned=True) as socket:
                await socket.create(input="hello", store=False)
                (await engine.next()).say(text)
                await socket.until("response.output_text.delta")
            await gone(server)
        assert await post(server, key) == (429, DAY_LEFT)


def shown(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A user's message with so many images."""
    parts = [
        {"type": "input_image", "image_url": data_url(png(2, 2, seed=seed + number))}
        for number in range(count)
    ]
    return [{"role": "user", "content": [{"type": "input_text", "text": "Look"}, *parts]}]


@pytest.mark.parametrize("stream", [False, True])
async def test_images_that_are_left_are_shown(tmp_path: Path, stream: bool) -> None:
    async with serve_stored(tmp_path) as server:
        key, other = await issue(server, images_per_minute=3), await issue(server, images_per_minute=3)
        assert await post(server, key, input=shown(2), stream=stream) == (200, None)
        assert await post(server, key, input=shown(2, seed=5), stream=stream) == (429, MINUTE_LEFT)
        assert await post(server, key, stream=stream) == (200, None), "a turn without images"
        assert await post(server, key, input=shown(1), stream=stream) == (200, None)
        assert await post(server, key, input=shown(1, seed=9), stream=stream) == (429, MINUTE_LEFT)
        assert await post(server, other, input=shown(4), stream=stream) == (429, MINUTE_LEFT)
        assert await post(server, other, input=shown(3), stream=stream) == (200, None)
        advance_clock(server, 45)
        assert await post(server, key, input=shown(3), stream=stream) == (200, None)


async def test_images_count_once_along_a_chain_and_in_a_history_that_is_recognised(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, images_per_minute=2)
        async with server.connect(key=key) as socket:
            first = await socket.response(input=shown(1))
            await socket.response(input="more", previous_response_id=first["id"])
            history = [*shown(1), *first["output"], *shown(1, seed=1)]
            await socket.response(input=history, stream_id="a")
            error = await socket.error(input=shown(1, seed=2), previous_response_id=first["id"])
            assert (error["status"], error["error"]["headers"]) == (429, {"retry-after": MINUTE_LEFT})
            message = "Rate limit reached for this API key: 2 images per minute."
            assert error["error"]["message"] == message


async def test_servers_on_one_store_share_a_quota_of_images(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as one, serve_stored(tmp_path) as two:
        key = await issue(one, images_per_minute=2, requests_per_minute=50)
        assert (await post(one, key, input=shown(1)))[0] == 200
        await one.service.quotas.exchange()
        assert (await post(two, key, input=shown(2)))[0] == 429
        assert (await post(two, key, input=shown(1)))[0] == 200


async def test_servers_on_one_store_share_a_quota(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as one, serve_stored(tmp_path) as two:
        key = await issue(one, requests_per_minute=4)
        for _ in range(2):
            assert (await post(one, key))[0] == 200
        await one.service.quotas.exchange()
        assert (await post(two, key))[
            0
        ] == 200  # the first request with this key reads the totals from the store
        await two.service.quotas.exchange()
        await one.service.quotas.exchange()
        assert (await post(one, key))[0] == 200
        assert (await post(one, key))[0] == 429
        await one.service.quotas.exchange()
        await two.service.quotas.exchange()
        assert (await post(two, key))[0] == 429


async def test_a_stale_total_is_read_again(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as one, serve_stored(tmp_path) as two:
        key = await issue(one, requests_per_minute=3)
        for server in (one, two):
            assert (await post(server, key))[0] == 200
            await server.service.quotas.exchange()
        assert (await post(two, key))[0] == 200
        await two.service.quotas.exchange()
        advance_clock(one, 2)
        assert (await post(one, key))[0] == 429


async def test_token_counts_survive_a_stop(tmp_path: Path) -> None:
    engine = PuppetEngine()
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server, tokens_per_day=42)
        async with server.connect(key=key) as socket:
            await finish_turn(socket, engine)
    async with serve_stored(tmp_path) as again:
        assert await post(again, key) == (429, DAY_LEFT)


async def test_a_quota_may_be_exceeded_between_exchanges(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as one, serve_stored(tmp_path) as two:
        key = await issue(one, requests_per_minute=1)
        for server in (one, two):
            assert (await post(server, key))[0] == 200
        for server in (one, two):
            await server.service.quotas.exchange()
            assert (await post(server, key))[0] == 429


async def test_without_the_store_quotas_use_the_last_known_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def spend(spent: object) -> None:
        raise Unavailable("The store cannot be reached.")

    async with serve_stored(tmp_path) as server:
        key = await issue(server, requests_per_minute=3)
        assert (await post(server, key))[0] == 200
        with monkeypatch.context() as fault:
            fault.setattr(server.service.store.keys, "spend", spend)
            for status in (200, 200, 429):
                await server.service.quotas.exchange()
                assert (await post(server, key))[0] == status
            unseen = await issue(server, requests_per_minute=1)
            assert [(await post(server, unseen))[0] for _ in range(2)] == [200, 429]
        warnings = [record.message for record in caplog.records if "quotas" in record.message]
        assert warnings == ["quotas use the last known counts: The store cannot be reached."]
        await server.service.quotas.exchange()
        async with serve_stored(tmp_path) as other:
            assert (await post(other, key))[0] == 429


# Headers -----------------------------------------------------------------------------------------

BODIES: dict[str, Any] = {
    "/responses": {"input": "hello"},
    "/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/messages": {
        "model": "simulated",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hello"}],
    },
}
DAY_ENDS = "2100-01-02T00:00:00Z"
MINUTE_ENDS = "2100-01-01T00:01:00Z"


async def limits_of(
    server: Running, key: str, path: str, method: str = "POST", **body: Any
) -> tuple[int, dict[str, str]]:
    """The status of a request, and its headers about quotas."""
    headers = {**bearer(key), "anthropic-version": "2023-06-01"} if "messages" in path else bearer(key)
    sent: dict[str, Any] = {"json": {**BODIES.get(path, {}), **body}} if method == "POST" else {}
    async with server.http.request(method, f"{server.url}{path}", headers=headers, **sent) as answer:
        await answer.read()
        found = {name.lower(): value for name, value in answer.headers.items() if "ratelimit" in name.lower()}
        return answer.status, found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
async def test_answers_say_what_is_left_of_quotas(tmp_path: Path, path: str, stream: bool) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, requests_per_minute=2, tokens_per_day=1000)
        for left in ("1", "0"):
            status, found = await limits_of(server, key, path, stream=stream)
            assert status == 200
            assert found["x-ratelimit-remaining-requests"] == left
        assert found | {"x-ratelimit-remaining-tokens": ""} == {
            "x-ratelimit-limit-requests": "2",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "45s",
            "x-ratelimit-limit-tokens": "1000",
            "x-ratelimit-remaining-tokens": "",
            "x-ratelimit-reset-tokens": "23h59m45s",
        }
        assert 0 < int(found["x-ratelimit-remaining-tokens"]) < 1000
        status, refused = await limits_of(server, key, path, stream=stream)
        assert (status, refused["x-ratelimit-remaining-requests"]) == (429, "0")


async def test_answers_say_how_many_images_are_left(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, images_per_minute=5)
        _, found = await limits_of(server, key, "/responses", input=shown(2))
        assert found == {
            "x-ratelimit-limit-images": "5",
            "x-ratelimit-remaining-images": "3",
            "x-ratelimit-reset-images": "45s",
        }
        assert (await limits_of(server, key, "/messages"))[1] == {}, "that API has no such header"


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_of_the_messages_api_say_it_in_its_own_headers(tmp_path: Path, stream: bool) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, requests_per_minute=2, tokens_per_day=1000)
        await limits_of(server, key, "/messages", stream=stream)
        status, found = await limits_of(server, key, "/messages", stream=stream)
        assert status == 200
        tokens = found["anthropic-ratelimit-tokens-remaining"]
        assert 0 < int(tokens) < 1000
        expected = {
            "anthropic-ratelimit-requests-limit": "2",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": MINUTE_ENDS,
        }
        for name in ("tokens", "input-tokens", "output-tokens"):
            expected[f"anthropic-ratelimit-{name}-limit"] = "1000"
            expected[f"anthropic-ratelimit-{name}-remaining"] = tokens
            expected[f"anthropic-ratelimit-{name}-reset"] = DAY_ENDS
        assert found == expected
        status, refused = await limits_of(server, key, "/messages", stream=stream)
        assert (status, refused["anthropic-ratelimit-requests-remaining"]) == (429, "0")


async def test_only_quotas_that_exist_and_are_counted_are_named(tmp_path: Path) -> None:
    async with serve_stored(tmp_path) as server:
        free, counted = await issue(server), await issue(server, tokens_per_day=1000)
        for path in BODIES:
            assert await limits_of(server, free, path) == (200, {})
        assert await limits_of(server, counted, "/models", "GET") == (200, {})
        # Refused before a turn begins: nothing has been counted yet.
        assert await limits_of(server, counted, "/responses", input=5) == (400, {})
        _, found = await limits_of(server, counted, "/responses")
        assert {name.rpartition("-")[2] for name in found} == {"tokens"}
        advance_clock(server, 24 * 60 * 60)
        assert await limits_of(server, counted, "/responses", input=5) == (400, {})
