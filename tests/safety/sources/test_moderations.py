"""The source in front of moderations endpoints: what is sent, and answers of every kind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from slipring.base.errors import StartupError
from slipring.safety.source_calls import Findings, SourceFailed
from slipring.safety.sources.moderations import Moderations, ModerationsSettings
from tests.safety.checking import said

_KEY = "SLIPRING_TEST_MODERATIONS_KEY"


class Endpoint:
    """A server that answers always the same, and keeps what it was sent."""

    def __init__(self, answer: object = None, status: int = 200) -> None:
        self.body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        self.status = status
        self.requests: list[tuple[str, str, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        sent = msgspec.json.decode(await request.read())
        self.requests.append((request.path, request.headers.get("Authorization", ""), sent))
        headers = {"Location": "/elsewhere"} if self.status == 302 else {}
        return web.Response(
            body=self.body, status=self.status, content_type="application/json", headers=headers
        )

    @asynccontextmanager
    async def source(self, **settings: Any) -> AsyncIterator[Moderations]:
        app = web.Application()
        app.router.add_post("/{path:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        source = Moderations(ModerationsSettings(f"http://127.0.0.1:{port}/v1/", **settings))
        try:
            await source.start()
            yield source
        finally:
            await source.close()
            await runner.cleanup()


def result(flagged: bool = False, **fields: Any) -> dict[str, Any]:
    return {"flagged": flagged, **fields}


async def test_texts_are_sent_as_one_array_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_KEY, " secret \n")
    endpoint = Endpoint({"results": [result(), result(True, categories={"hate": True, "x": None})]})
    async with endpoint.source(key_env=_KEY, model="m") as source:
        found = await source.inspect([said("a"), said("b")], "t")
    assert endpoint.requests == [("/v1/moderations", "Bearer secret", {"model": "m", "input": ["a", "b"]})]
    assert found == [Findings({}, ()), Findings({"hate": 1.0, "x": 0.0}, ("hate",))]
    assert source.version == "m"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (result(True), Findings({"flagged": 1.0}, ("flagged",))),
        (result(True, category_scores={"hate": 0.9}), Findings({"flagged": 1.0, "hate": 0.9}, ("flagged",))),
        (
            result(categories={"hate": False}, category_scores={"hate": 0.2, "other": None}),
            Findings({"hate": 0.2}, ()),
        ),
        (result(category_scores={"hate": 1.5}), Findings(failed="a score is not between 0 and 1")),
    ],
)
async def test_results_that_leave_something_out(answer: dict[str, Any], expected: Findings) -> None:
    async with Endpoint({"results": [answer]}).source() as source:
        assert await source.inspect([said("a")], "t") == [expected]


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        (Endpoint({"results": []}), "0 results for 1 texts"),
        (Endpoint({"results": [result(), result()]}), "2 results for 1 texts"),
        (Endpoint({"error": "a"}), "not that of a moderations endpoint"),
        (Endpoint(b"<html>"), "not that of a moderations endpoint"),
        (Endpoint(b"\xff"), "not that of a moderations endpoint"),
        (Endpoint(b" " * (4 * 2**20 + 1)), "more than 4194304 bytes"),
        (Endpoint({"error": {"message": "a"}}, 429), "status 429"),
        (Endpoint({}, 302), "status 302"),
    ],
    ids=["none", "two", "no results", "html", "no text", "large", "limited", "redirect"],
)
async def test_answers_that_are_none(endpoint: Endpoint, reason: str) -> None:
    async with endpoint.source() as source:
        with pytest.raises(SourceFailed, match=reason):
            await source.inspect([said("a")], "t")


async def test_a_server_that_is_gone() -> None:
    async with Endpoint({}).source() as source:
        url = source._settings.url
    gone = Moderations(ModerationsSettings(url))
    await gone.start()
    with pytest.raises(SourceFailed, match="cannot be reached: Connection refused"):
        await gone.inspect([said("a")], "t")
    await gone.close()


async def test_a_key_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_KEY, raising=False)
    with pytest.raises(StartupError, match=f"{_KEY} has no API key"):
        await Moderations(ModerationsSettings("http://127.0.0.1:1", key_env=_KEY)).start()


async def test_a_key_that_no_header_can_carry_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_KEY, "sk-one\nsk-two")
    with pytest.raises(StartupError, match=f"{_KEY} holds more than a key"):
        await Moderations(ModerationsSettings("http://127.0.0.1:1", key_env=_KEY)).start()
