"""Images by URL: fetched from allowed hosts only, within bounds, and from public addresses only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipring.base.errors import InvalidRequest
from slipring.core.generation import Capabilities
from slipring.core.limits import Limits
from slipring.protocol.items.item_pictures import pictures
from slipring.server import image_fetching
from slipring.server.image_fetching import ImageFetcher
from tests.api import Api
from tests.harness import PuppetEngine, serve
from tests.pictures import PIXEL, data_url, png

Json = dict[str, Any]
SHOT = png(50, 40)


class Host:
    """A web server with pictures."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.routes: dict[str, web.Response] = {}
        self.hangs = asyncio.Event()
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path == "/hang":
            await self.hangs.wait()
        if request.path.startswith("/to/"):
            return web.Response(status=302, headers={"Location": request.query["to"]})
        if request.path == "/loop":
            return web.Response(status=302, headers={"Location": "/loop"})
        if request.path == "/shot.png":
            return web.Response(body=SHOT, content_type="image/png")
        if request.path == "/large":
            return web.Response(body=bytes(5000))
        if request.path == "/text":
            return web.Response(text="hello", content_type="image/png")
        if request.path == "/cut":
            return web.Response(body=SHOT[:-3], content_type="image/png")
        return web.Response(status=404)


@asynccontextmanager
async def hosting(**options: Any) -> AsyncIterator[tuple[Host, ImageFetcher]]:
    host = Host()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", host.answer)
    async with TestServer(app) as server:
        host.url = f"http://127.0.0.1:{server.port}"
        options = {"hosts": [f"127.0.0.1:{server.port}"], "most_bytes": 4000, "only_public": False, **options}
        fetcher = ImageFetcher(options.pop("hosts"), options.pop("most_bytes"), **options)
        try:
            yield host, fetcher
        finally:
            host.hangs.set()
            await fetcher.close()


async def refusal(fetcher: ImageFetcher, url: str) -> InvalidRequest:
    found = (await fetcher.fetch("t", (url,)))[url]
    assert isinstance(found, InvalidRequest)
    return found


async def test_images_that_are_kept_count_towards_the_size_of_a_request() -> None:
    most = len(data_url(SHOT)) * 3 // 2
    async with hosting(most_bytes=most) as (host, fetcher):
        first, second = f"{host.url}/shot.png", f"{host.url}/shot.png?again"
        for url in (first, second):
            assert (await fetcher.fetch("t", (url,)))[url] == data_url(SHOT)
        found = await fetcher.fetch("t", (first, second))
        assert found[first] == data_url(SHOT)
        refused = found[second]
        assert isinstance(refused, InvalidRequest)
        assert "all images of the request together are" in refused.message
        assert host.asked == ["/shot.png"] * 2


async def test_an_image_is_fetched_once_and_kept_for_its_tenant() -> None:
    async with hosting() as (host, fetcher):
        url = f"{host.url}/shot.png"
        for tenant in ("t", "t", "u"):
            assert await fetcher.fetch(tenant, (url,)) == {url: data_url(SHOT)}
        assert host.asked == ["/shot.png", "/shot.png"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/large", "too large"),
        ("/text", "is no PNG, JPEG, WebP or GIF file"),
        ("/cut", "it is cut off"),
        ("/none", "its server answered 404"),
        ("/to/?to=/loop", "moved too often"),
        ("/to/?to=http://elsewhere.example/a.png", "moved to a host that is not allowed"),
        ("/to/?to=file:///etc/passwd", "moved to a host that is not allowed"),
    ],
)
async def test_what_cannot_be_fetched_says_why(path: str, reason: str) -> None:
    async with hosting() as (host, fetcher):
        error = await refusal(fetcher, host.url + path)
        assert error.code == "failed_to_download_image"
        assert reason in error.message


async def test_a_redirect_within_allowed_hosts_is_followed() -> None:
    async with hosting() as (host, fetcher):
        url = f"{host.url}/to/?to=/shot.png"
        assert await fetcher.fetch("t", (url,)) == {url: data_url(SHOT)}


@pytest.mark.parametrize(
    "url",
    [
        "http://elsewhere.example/a.png",
        "http://127.0.0.1/a.png",
        "ftp://127.0.0.1/a.png",
        "http://user@127.0.0.1/a.png",
        "http://127.0.0.1:99999/",
        "http:///a",
    ],
)
async def test_other_hosts_are_not_asked(url: str) -> None:
    async with hosting() as (host, fetcher):
        error = await refusal(fetcher, url.replace("user@127.0.0.1", "user@" + host.url[7:]))
        assert error.code == "invalid_image_url"
        assert not host.asked


async def test_an_allowed_name_that_leads_to_a_private_address_is_not_connected_to() -> None:
    async with hosting(only_public=True) as (host, fetcher):
        error = await refusal(fetcher, f"{host.url}/shot.png")
        assert (error.code, host.asked) == ("failed_to_download_image", [])
        assert "cannot be reached" in error.message


async def test_time_bytes_and_number_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosting() as (host, fetcher):
        many = tuple(f"{host.url}/none?{number}" for number in range(17))
        last = (await fetcher.fetch("t", many))[many[-1]]
        assert isinstance(last, InvalidRequest)
        assert "16 images" in last.message
        monkeypatch.setattr(image_fetching, "_TOTAL_S", 0.05)
        assert "not sent in time" in (await refusal(fetcher, f"{host.url}/hang")).message


def asked(url: str) -> list[Json]:
    image = {"type": "input_image", "image_url": url, "detail": "auto"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    move = {"type": "computer_call", "call_id": "d", "actions": []}
    screen = {"type": "computer_screenshot", "image_url": url}
    return [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}, image]},
        *(call, {"type": "function_call_output", "call_id": "c", "output": [image]}),
        *(move, {"type": "computer_call_output", "call_id": "d", "output": screen}),
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]},
    ]


async def test_the_model_sees_what_was_fetched_and_lists_show_what_was_sent(tmp_path: Path) -> None:
    engine = PuppetEngine(Capabilities(images=True))
    async with (
        hosting() as (host, fetcher),
        serve(engine, store=f"sqlite:{tmp_path}/s.db", image_host=("pictures.example",)) as server,
    ):
        server.service.images = fetcher
        url = f"{host.url}/shot.png"

        async def turn(**body: Any) -> tuple[Json, list[tuple[int, int]]]:
            running = asyncio.create_task(server.post(**body))
            performance = await engine.next()
            performance.say("ok")
            performance.finish()
            status, response = await running
            assert status == 200
            sizes = [(p.width, p.height) for item in performance.job.context() for p in pictures(item)]
            return response, sizes

        first, seen = await turn(input=asked(url))
        assert seen == [(50, 40)] * 3 + [(1, 1)]
        _, seen = await turn(input="so?", previous_response_id=first["id"])
        assert seen == [(50, 40)] * 3 + [(1, 1)]
        _, page = await Api(server).call("GET", f"/responses/{first['id']}/input_items?order=asc")
        assert page["data"][0]["content"][1]["image_url"] == url
        assert page["data"][2]["output"][0]["image_url"] == url
        assert host.asked == ["/shot.png"]
        status, error = await server.post(input=asked("https://elsewhere.example/a.png"))
        assert (status, error["error"]["code"]) == (400, "invalid_image_url")
        assert error["error"]["param"] == "input[0].content[1].image_url"
        status, error = await server.post(input=asked(f"{host.url}/none")[3:])
        assert error["error"]["param"] == "input[1].output.image_url"
        assert (status, error["error"]["code"]) == (400, "failed_to_download_image")


async def test_what_was_fetched_is_within_the_limits_of_the_server() -> None:
    engine = PuppetEngine(Capabilities(images=True))
    limits = Limits(max_picture_pixels=1000)
    async with (
        hosting() as (host, fetcher),
        serve(engine, limits=limits, image_host=("pictures.example",)) as server,
    ):
        server.service.images = fetcher
        status, error = await server.post(input=asked(f"{host.url}/shot.png"))
        assert (status, error["error"]["code"]) == (400, "image_too_large")
        assert error["error"]["param"] == "input[0].content[1].image_url"
