"""Endpoints that lack a feature, or cannot be measured at all."""

import asyncio

import pytest
from aiohttp import web

from slipring.commands.argument_parser import CommandFailed
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.command import Bench
from slipring.commands.bench.measure.probes import first_model
from slipring.commands.bench.options import BenchOptions
from slipring.commands.bench.subject.endpoint import Target
from tests.commands.bench.faulty import Faulty, Json, running
from tests.commands.bench.stage import Watching, faults, measured, tiny


async def test_lanes_are_skipped_if_answers_have_no_stream_id() -> None:
    async with running(Faulty("names no lane")) as url:
        record = await measured(url)
    assert record.skipped == {"websocket-lanes": "the answer to a request with a stream_id has none"}


@pytest.mark.parametrize(
    ("fault", "skipped"),
    [
        ("has no websocket", {"websocket": "404", "websocket-lanes": "404", "rollout": "404"}),
        ("knows no rollouts", {"rollout": "ended instead of waiting"}),
        ("refuses lanes", {"websocket-lanes": "Unknown parameter: 'stream_id'."}),
        ("stores nothing", {"http-chained": "400: There is no store."}),
    ],
)
async def test_unsupported_modes_are_skipped_with_the_reason(fault: str, skipped: dict[str, str]) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url)
    assert faults(record) == []
    assert record.skipped.keys() == skipped.keys()
    for mode, reason in skipped.items():
        assert reason in record.skipped[mode]
        assert record.of("tiny", mode) == []


async def test_timing_is_not_requested_from_servers_that_refuse_unknown_betas() -> None:
    async with running(Faulty("refuses unknown betas")) as url:
        record = await measured(url)
    assert faults(record) == []
    assert record.skipped.keys() == {"rollout"}  # which needs a beta header


class Refusing(Faulty):
    """Refuses every request: with 401, with 404, or by answering with a web page."""

    def __init__(self, status: int, text: str, content_type: str = "application/json") -> None:
        super().__init__()
        self._status, self._text, self._content_type = status, text, content_type

    async def models(self, request: web.Request) -> web.Response:
        return web.Response(status=self._status, text=self._text, content_type=self._content_type)

    post = socket = models


WRONG_KEY = Refusing(401, '{"error": {"message": "Incorrect API key provided."}}')
WRONG_PATH = Refusing(404, "Not Found", "text/plain")
WEB_PAGE = Refusing(200, "<html>Hello</html>", "text/html")


@pytest.mark.parametrize(
    ("server", "model", "reason"),
    [
        (WRONG_KEY, None, "URL refused the API key (401: Incorrect API key provided.): see --api-key-env"),
        (WRONG_KEY, "m", "URL refused the API key (401: Incorrect API key provided.): see --api-key-env"),
        (
            *(WRONG_PATH, None),
            "URL/models answered 404 Not Found: check the path in --url, or name a model with --model",
        ),
        (WRONG_PATH, "m", "URL/responses answered 404: check the path in --url"),
        (
            *(WEB_PAGE, None),
            "URL/models returned text/html and no list of models: check --url, or name a model with --model",
        ),
        (
            *(WEB_PAGE, "m"),
            "cannot measure URL: http-full: the answer does not follow the API: no events, content type"
            " text/html; websocket: the WebSocket upgrade was answered with 200",
        ),
    ],
)
async def test_endpoints_that_cannot_be_measured(server: Refusing, model: str | None, reason: str) -> None:
    async with running(server) as url:
        target = Target(url=url, key="sk-wrong-key", model=model, timeout_s=60)
        options = BenchOptions(target=target, modes=("http-full", "websocket"), repeats=1)
        with pytest.raises(CommandFailed) as error:
            await Bench(options, [tiny()], Watching()).run()
    assert str(error.value) == reason.replace("URL", url)


async def test_a_list_without_models() -> None:
    async with running(Refusing(200, '{"data": []}')) as url:
        with pytest.raises(CommandFailed, match="/models lists no models: name one with --model"):
            await first_model(Access(url, "", timeout_s=60))


async def test_a_server_that_does_not_answer() -> None:
    released = asyncio.Event()

    class Silent(Faulty):
        async def models(self, request: web.Request) -> web.Response:
            await released.wait()
            return await super().models(request)

    async with running(Silent()) as url:
        with pytest.raises(CommandFailed, match=r"cannot reach http://.*: no answer in 0\.01 s"):
            await first_model(Access(url, "", timeout_s=0.01))
        released.set()


async def test_messages_name_the_endpoint_and_not_the_proxy() -> None:
    async with running(WRONG_PATH) as url:
        with pytest.raises(CommandFailed, match=f"^{url}/models answered 404"):
            await measured(url, rtt_ms=2.0)


async def test_support_of_stage_times_is_probed_for_each_transport() -> None:
    """The client does not wait for stage times on a WebSocket if the server sends them over HTTP only."""

    class Timed(Faulty):
        async def post(self, request: web.Request) -> web.StreamResponse:
            original = self.events
            timing: Json = {"type": "slipring.timing", "timing": {"stages": []}}

            def events(frame: Json) -> list[Json]:
                sent = original(frame)
                return [*sent, {**timing, "sequence_number": len(sent)}]

            self.events = events  # type: ignore[method-assign]
            try:
                return await super().post(request)
            finally:
                self.events = original  # type: ignore[method-assign]

    async with running(Timed()) as url:
        record = await measured(url, modes=("http-full", "websocket"))
    assert faults(record) == []
    assert [loop.error for loop in record.loops] == [None, None]
