"""Pictures on a real server: by every API and transport, along chains, in histories that are sent again, in
conversations and background responses, after a restart, and on another worker.

The simulated engine's answers carry a digest of the context that it got, which covers the data of pictures.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.core.generation import Capabilities
from slipring.core.limits import Limits
from slipring.protocol.items.item_pictures import base64_of, pictures
from slipring.protocol.items.items import CallOutput, InputImage, Message
from tests.api import Api
from tests.chat_api import Chat
from tests.harness import PuppetEngine, serve
from tests.messages_api import MessagesApi
from tests.pictures import PIXEL, data_url, gif, jpeg, png, webp
from tests.server.process.test_workers import workers
from tests.server.test_resent_history import over_http
from tests.server.test_safety_checks import Guard, entry

pytestmark = pytest.mark.usefixtures("compiled_here")
Json = dict[str, Any]
ENGINE = "simulated:tokens_per_s=0,output_tokens=8,digest=true"
SHOT, OTHER = data_url(png(400, 300)), data_url(jpeg(1200, 900))
SEES = Capabilities(images=True)


def image(url: str | None = SHOT, **more: Any) -> Json:
    return {"type": "input_image", "image_url": url, "detail": "auto", **more}


def asked(*parts: Json | str) -> Json:
    content = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"type": "message", "role": "user", "content": content}


def text_of(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


LOOK, AGAIN = asked("What is this?", image()), asked("And this?", image(OTHER), image(data_url(gif(20, 20))))


async def test_a_chain_and_a_history_that_is_sent_again_show_the_same_pictures() -> None:
    async with serve(ENGINE) as server:
        first = await over_http(server, input=[LOOK], store=False)
        whole = [LOOK, *first["output"], AGAIN]
        resent = await over_http(server, input=whole, store=False)
        assert resent["timing"]["recognised_items"] > 0
        assert resent["usage"]["input_tokens_details"]["cached_tokens"] > 150, "the picture is not read again"
        async with server.connect() as socket:
            begun = await socket.response(input=[LOOK], store=False)
            chained = await socket.response(input=[AGAIN], previous_response_id=begun["id"], store=False)
        assert text_of(chained) == text_of(resent)
        assert chained["usage"]["input_tokens"] == resent["usage"]["input_tokens"]
        changed = json.loads(json.dumps(whole).replace(SHOT[30:], data_url(png(400, 300, seed=1))[30:]))
        other = await over_http(server, input=changed, store=False)
        assert text_of(other) != text_of(resent), "another picture is another context"


async def test_a_picture_that_is_spelled_otherwise_is_the_same_picture() -> None:
    spelled = asked(
        "What is this?", image(SHOT.replace("data:image/png;", "data:image/PNG;charset=x;"), id="x")
    )
    del spelled["content"][1]["detail"]
    async with serve(ENGINE) as server:
        first = await over_http(server, input=[LOOK], store=False)
        resent = await over_http(server, input=[spelled, *first["output"], AGAIN], store=False)
        assert resent["timing"]["recognised_items"] > 0


async def test_what_was_sent_is_what_is_listed_and_stored_once(tmp_path: Path) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": [image(OTHER, detail="low")]}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    shot = {
        "type": "computer_call_output",
        "call_id": "d",
        "output": {"type": "computer_screenshot", "image_url": SHOT},
    }
    moved = {"type": "computer_call", "call_id": "d", "actions": [{"type": "screenshot"}]}
    sent = [LOOK, call, output, moved, shot, asked(image(SHOT))]
    store = f"sqlite:{tmp_path}/s.db"
    async with serve(ENGINE, store=store) as server:
        first = await over_http(server, input=sent)
        second = await over_http(server, input="so?", previous_response_id=first["id"])
        rows = await server.service.store._database.read("SELECT LENGTH(data) FROM slipring_pictures")
        assert sorted(size for (size,) in rows) == sorted(len(base64_of(url)) for url in (SHOT, OTHER))
    async with serve(ENGINE, store=store) as server:
        api = Api(server)
        query = (
            "include=message.input_image.image_url&include=computer_call_output.output.image_url&order=asc"
        )
        status, page = await api.call("GET", f"/responses/{first['id']}/input_items?{query}")
        assert status == 200
        data = page["data"]
        assert data[0]["content"] == LOOK["content"]
        assert data[2]["output"] == output["output"]
        assert data[4]["output"]["image_url"] == SHOT
        third = await over_http(server, input="so?", previous_response_id=first["id"])
        assert text_of(third) == text_of(second), "the pictures are in the context after a restart"
        for each in (first, second, third):
            assert (await api.call("DELETE", f"/responses/{each['id']}"))[0] == 200
        while await server.service.store.pruning.step(0):
            pass
        assert not await server.service.store._database.read("SELECT 1 FROM slipring_pictures")


async def test_a_background_response_sees_and_can_be_continued_by_other_workers(tmp_path: Path) -> None:
    async with workers("--engine", ENGINE, "--store", f"sqlite:{tmp_path}/s.db") as server:

        async def post(**body: Any) -> Json:
            # A new connection each time: the kernel picks a worker.
            headers = {"Authorization": "Bearer k"}
            async with (
                aiohttp.ClientSession(headers=headers) as http,
                http.post(f"{server.url}/responses", json=body) as answer,
            ):
                body = await answer.json()
                assert answer.status == 200, body
                return body

        first = await post(input=[LOOK])
        wanted = text_of(await post(input=[AGAIN], previous_response_id=first["id"]))
        for _ in range(4):
            assert text_of(await post(input=[AGAIN], previous_response_id=first["id"])) == wanted
        assert text_of(await post(input=[LOOK, *first["output"], AGAIN])) == wanted


async def test_background_and_conversations_show_the_same_pictures() -> None:
    async with serve(ENGINE) as server:
        api = Api(server)
        first = await over_http(server, input=[LOOK])
        wanted = text_of(await over_http(server, input=[AGAIN], previous_response_id=first["id"]))
        begun = await api.begin(input=[AGAIN], previous_response_id=first["id"])
        assert text_of(await api.ended(begun["id"])) == wanted
        status, conversation = await api.call("POST", "/conversations", json={"items": [LOOK]})
        assert status == 200
        answer = first["output"]
        path = f"/conversations/{conversation['id']}"
        assert (await api.call("POST", f"{path}/items", json={"items": answer}))[0] == 200
        turn = await over_http(server, input=[AGAIN], conversation=conversation["id"])
        assert text_of(turn) == wanted
        status, page = await api.call("GET", f"{path}/items?order=asc")
        assert status == 200
        assert page["data"][0]["content"] == LOOK["content"]
        assert page["data"][2]["content"] == AGAIN["content"]


async def test_a_conversation_refuses_what_no_model_can_see() -> None:
    async with serve(ENGINE) as server:
        cut = asked("a", image(data_url(png(9, 9)[:-5])))
        status, error = await Api(server).call("POST", "/conversations", json={"items": [LOOK, cut]})
        assert (status, error["error"]["code"]) == (400, "image_parse_error")
        assert error["error"]["param"] == "items[1].content[1].image_url"
        assert "items[1].content[1].image_url" in error["error"]["message"]
        for url in (None, "", " " + SHOT, "file:///a.png"):
            nothing = {"items": [asked(image(url))]}
            status, error = await Api(server).call("POST", "/conversations", json=nothing)
            assert (status, error["error"]["param"]) == (400, "items[0].content[0].image_url")


@pytest.mark.parametrize("make", [png, jpeg, webp, gif])
async def test_every_api_brings_every_type_to_the_model(make: Any) -> None:
    data = make(30, 20)
    url = data_url(data)
    engine = PuppetEngine(SEES)
    media_type = url[5 : url.index(";")]
    source = {"type": "base64", "media_type": media_type, "data": base64_of(url)}
    async with serve(engine) as server:

        async def seen(request: Any) -> list[tuple[str, int, int]]:
            running = asyncio.create_task(request)
            performance = await engine.next()
            performance.say("ok")
            performance.finish()
            await running
            return [
                (each.media_type, each.width, each.height)
                for item in performance.job.input
                for each in pictures(item)
            ]

        wanted = [(media_type, 30, 20)]
        assert await seen(over_http(server, input=[asked(image(url))])) == wanted
        chat = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
        assert await seen(Chat(server).complete(chat)) == wanted
        block = {"role": "user", "content": [{"type": "image", "source": source}]}
        assert await seen(MessagesApi(server).create(block)) == wanted
        use = {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}],
        }
        result = {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "image", "source": source}],
        }
        tools = [{"name": "look", "input_schema": {"type": "object"}}]
        answered = MessagesApi(server).create("look", use, {"role": "user", "content": [result]}, tools=tools)
        assert await seen(answered) == wanted


async def test_every_api_names_the_field_of_a_bad_picture_in_its_own_words() -> None:
    lie = data_url(png(5, 5), "image/jpeg")
    async with serve(PuppetEngine(SEES)) as server:
        status, error = await server.post(input=[asked("a"), asked("b", image(lie))])
        assert (status, error["error"]["code"]) == (400, "invalid_image_format")
        assert error["error"]["param"] == "input[1].content[1].image_url"
        parts = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": lie}}]
        status, error = await Chat(server).error({"role": "user", "content": parts})
        assert (status, error["param"]) == (400, "messages[0].content[1].image_url.url")
        source = {"type": "base64", "media_type": "image/jpeg", "data": base64_of(lie)}
        blocks = [{"type": "text", "text": "b"}, {"type": "image", "source": source}]
        refused = await MessagesApi(server).refused({"role": "user", "content": blocks})
        assert "messages.0.content.1.source: the image is said to be image/jpeg" in str(refused)


async def test_models_that_cannot_see_refuse_in_each_api_and_list_what_they_take() -> None:
    async with serve(PuppetEngine()) as server:
        status, error = await server.post(input=[LOOK])
        assert (status, error["error"]["code"]) == (400, "unsupported_parameter")
        assert "This model takes text only" in error["error"]["message"]
        status, error = await Chat(server).error(
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}
        )
        assert (status, error["param"]) == (400, "messages[0].content[0]")
        async with server.http.get(f"{server.url}/models") as answer:
            assert [each["input_modalities"] for each in (await answer.json())["data"]] == [["text"]]
    async with serve(PuppetEngine(SEES)) as server, server.http.get(f"{server.url}/models/puppet") as answer:
        assert (await answer.json())["input_modalities"] == ["text", "image"]


async def test_limits_are_those_of_the_server() -> None:
    limits = Limits(max_picture_bytes=200, max_picture_pixels=5000, max_pictures=2)
    async with serve(ENGINE, limits=limits) as server, server.connect() as socket:
        large = await socket.error(input=[asked(image(data_url(webp(80, 80))))])
        assert large["error"]["code"] == "image_too_large"
        heavy = await socket.error(input=[asked(image(data_url(png(20, 20))))])
        assert heavy["error"]["code"] == "image_file_too_large"
        small = data_url(webp(70, 70))
        many = await socket.error(input=[asked(image(small)), asked(image(small), image(small))])
        assert many["error"]["param"] == "input"
        assert (await socket.response(input=[asked(image(small), image(small))]))["status"] == "completed"


async def test_a_check_reads_that_there_is_a_picture() -> None:
    check = Guard("guard")
    async with serve(ENGINE, checks=(entry(subjects=("message", "tool_output")),)) as server:
        await over_http(server, input=[LOOK])
        await over_http(server, input=[asked(image(OTHER))])
    assert check.inspected == [
        "What is this?\n[PNG picture, 400 × 300: not inspected]",
        "[JPEG picture, 1200 × 900: not inspected]",
    ]


async def test_a_check_that_is_closed_to_images_refuses_them_before_anything_is_generated() -> None:
    Guard("guard")
    engine = PuppetEngine(SEES)
    async with serve(engine, checks=(entry(subjects=("message",), on_images="closed"),)) as server:
        status, error = await server.post(input=[asked("a", image())])
        assert (status, error["error"]["code"]) == (400, "invalid_prompt")
        assert error["error"]["param"] == "input[0].content[1]"
        assert "safety check 'guard' cannot read" in error["error"]["message"]
        assert engine._performances.empty()


async def test_a_compaction_leaves_a_line_for_each_picture() -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input=[LOOK], store=False)
        performance = await engine.next()
        performance.say("A cat.")
        performance.finish()
        first = (await socket.until("response.completed"))[-1]["response"]
        compacting = asyncio.create_task(
            server.compact(model="puppet", input=[LOOK, *first["output"], asked("and?")])
        )
        performance = await engine.next()
        assert [each.width for item in performance.job.input for each in pictures(item)] == [400]
        performance.say("It was a cat.")
        performance.finish()
        status, window = await asyncio.wait_for(compacting, 300)
        assert status == 200
        await socket.create(input=[*window["output"], asked("so?")], store=False)
        performance = await engine.next()
        bodies = [item.body() for item in performance.job.context()]
        contents = [each.content for each in bodies if isinstance(each, Message)]
        performance.finish()
        await socket.until("response.completed")
    shown = json.dumps([part.text for part in contents[0] if hasattr(part, "text")], ensure_ascii=False)
    assert "[PNG picture, 400 × 300]" in shown
    assert not any(isinstance(part, InputImage) for each in contents for part in each)
    assert not any(isinstance(each, CallOutput) for each in bodies)
