"""Servers that are reached over HTTP: keys, what failures mean to API clients, and what to operators."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from slipring.base.errors import InvalidRequest, RateLimited, ServerError, StartupError
from slipring.engines.remote.http_connection import BadStatus, TimedOut, Unreachable, Unreadable
from slipring.engines.remote.retries_and_breaker import Retryable
from slipring.engines.remote.upstream import Upstream, UpstreamOptions
from slipring.engines.remote.upstream_errors import refusal, startup_errors, without_secret
from tests.engines.remote.test_http_client import Collected, serving


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too hot", "code": 7}}', "too hot"),
        (b'{"error": "too hot"}', "too hot"),
        (b'{"message": "too hot"}', "too hot"),
        (b'{"detail": "too hot"}', "too hot"),
        (b'{"message": {"detail": [{"msg": "too hot"}]}}', '{"detail":[{"msg":"too hot"}]}'),
        (b'{"detail": [{"loc": ["body"], "msg": "too hot"}]}', "too hot"),
        (b"<html>", "422"),
        (b"[]", "422"),
    ],
)
def test_a_refusal_keeps_its_message_and_status(body: bytes, message: str) -> None:
    error = refusal(422, body, {})
    assert isinstance(error, InvalidRequest)
    assert (error.status, error.code) == (422, "engine_refused")
    assert message in error.message


def test_refusals_that_are_not_the_clients_fault_are_no_invalid_requests() -> None:
    busy = refusal(429, b'{"error": {"message": "slow down"}}', {"Retry-After": "7"})
    assert isinstance(busy, RateLimited)
    assert (busy.retry_after_s, busy.message) == (7.0, "slow down")
    assert refusal(429, b"", {"Retry-After": "soon"}).retry_after_s is None
    for status in (401, 403):
        assert type(refusal(status, b'{"error": "sk-secret"}', {})) is ServerError
        assert "sk-secret" not in refusal(status, b'{"error": "sk-secret"}', {}).message
    for status in (408, 500, 502, 503, 504):
        assert isinstance(refusal(status, b'{"error": "inside"}', {}), Retryable)
        assert "inside" not in refusal(status, b'{"error": "inside"}', {}).message
    assert type(refusal(301, b"", {})) is ServerError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wrong key My/Key+12 given", "wrong key (secret) given"),
        ("wrong key my/key+12 given", "wrong key (secret) given"),
        ("?key=My%2FKey%2B12&x", "?key=(secret)&x"),
        ("?key=My%2fKey%2b12&x", "?key=(secret)&x"),
        ("wrong key My/Ke…", "wrong key (secret)"),
        ("wrong key My/Key+1", "wrong key (secret)"),
        ("wrong key My/", "wrong key My/"),
        ("", ""),
    ],
)
def test_keys_are_removed_in_every_form(text: str, expected: str) -> None:
    assert without_secret(text, "My/Key+12") == expected
    assert without_secret(text, "") == text


@pytest.mark.parametrize("before", range(470, 505, 3))
async def test_no_part_of_a_key_remains_where_a_message_is_cut(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "correct-horse-battery")

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": f"{'x' * before} correct-horse-battery no"}, status=400)

    async with serving(answer) as url:
        upstream = Upstream("chat", UpstreamOptions(url=url, key_env="KEY"))
        await upstream.start()
        with pytest.raises(InvalidRequest) as refused:
            await upstream.post("/x", [b"{}"])
        await upstream.close()
    assert "corr" not in refused.value.message + refused.value.detail


async def test_failures_of_the_connection_are_errors_of_the_engine() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=422, body=b'{"error": "too hot"}')

    async with serving(answer) as url, connected(url) as upstream:
        for ask in (upstream.get("/x"), upstream.post("/x", [b"{}"]), all_batches(upstream)):
            with pytest.raises(InvalidRequest, match="too hot"):
                await ask
    async with connected("http://127.0.0.1:9") as upstream:
        for ask in (upstream.get("/x"), all_batches(upstream)):
            with pytest.raises(Retryable, match="cannot be reached"):
                await ask


async def test_silence_is_the_engines_failure() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"data: 1\n\n")
        await asyncio.Event().wait()
        return stream

    async with serving(answer) as url, connected(url, idle_timeout_s=0.05) as upstream:
        with pytest.raises(ServerError, match="nothing for too long"):
            await all_batches(upstream)


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Upstream]:
    upstream = Upstream("chat", UpstreamOptions(url=url, **options))
    await upstream.start()
    try:
        yield upstream
    finally:
        await upstream.close()


async def all_batches(upstream: Upstream) -> list[list[bytes]]:
    collected = Collected()
    await upstream.stream("/x", [b"{}"], {}, collected)
    return collected.batches


# Failures at start.


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (BadStatus(404, "Not Found", b"", {}), "http://h answers with 404 Not Found: expected a server"),
        (
            BadStatus(401, "Unauthorized", b"", {}),
            "http://h answers with 401 Unauthorized: name a valid API key with key_env=",
        ),
        (Unreachable("Connection refused"), "cannot reach http://h: Connection refused"),
        (TimedOut("timed out"), "cannot reach http://h: timed out"),
        (Unreadable("no JSON"), "http://h does not answer like a server"),
        (KeyError("data"), "http://h does not answer like a server"),
    ],
)
def test_failures_at_start_are_one_line_for_the_operator(failure: Exception, line: str) -> None:
    with pytest.raises(StartupError) as raised, startup_errors("chat", "http://h", "a server"):
        raise failure
    assert str(raised.value) == f"--engine chat: {line}"
