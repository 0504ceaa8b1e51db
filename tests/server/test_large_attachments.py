"""Nothing of a large picture or document is looked at, decoded, digested or encoded on the event loop.

Which thread does the work is observed, not how long it takes.
"""

import asyncio
import base64
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipring.core import attachments
from slipring.core.generation import Capabilities
from slipring.protocol import wire
from slipring.protocol.items import data_spans, item_digests, item_pictures, pdf_documents
from slipring.protocol.items.items import Body, Item, read_item
from slipring.sandbox import pipe_messages
from slipring.server import image_fetching
from slipring.server.request_decoding import LARGE_BYTES
from tests.api import Api
from tests.chat_api import Chat
from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.vllm_pictures import FakeSeeingVllm, seeing_directory
from tests.harness import PuppetEngine, Running, serve
from tests.messages_api import MessagesApi
from tests.pdfs import pdf, pdf_url
from tests.pictures import data_url, png
from tests.server.test_resent_history import over_http
from tests.server.test_safety_checks import Guard, entry

Json = dict[str, Any]
SEES = Capabilities(images=True)
SHOT = data_url(png(500, 400))
FILLER = "x" * 200_000
REPORT = pdf("Sales rose", extra=f"% {FILLER}")
assert min(len(SHOT), len(REPORT)) > LARGE_BYTES


def asked(*parts: Json) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See"}, *parts]}


LOOK = asked({"type": "input_image", "image_url": SHOT}, {"type": "input_image", "image_url": SHOT})
READ = asked({"type": "input_file", "file_data": pdf_url(REPORT), "filename": "report.pdf"})


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Large pieces of work that the thread of the test, which runs the loop, has done."""
    found: list[str] = []
    loop_thread = threading.get_ident()

    def watch(owner: Any, name: str, size: Callable[..., int]) -> None:
        work = getattr(owner, name)

        def watched(*arguments: Any, **more: Any) -> Any:
            if threading.get_ident() == loop_thread and size(*arguments) > LARGE_BYTES:
                found.append("".join(traceback.format_stack(limit=8)))
            return work(*arguments, **more)

        monkeypatch.setattr(owner, name, watched)

    watch(Item, "body", lambda item: len(item.raw))
    watch(item_digests, "digest_of", len)
    watch(data_spans, "_end", lambda raw, start: len(raw))
    watch(item_pictures, "picture_in", lambda data, *_: len(data))
    watch(pdf_documents, "data_in", lambda part: len(part.file_data))
    watch(attachments, "_page_parts", lambda pages, name: sum(page.size_bytes for page in pages))
    watch(attachments, "_with_urls", lambda item, found: sum(map(len, found.values())))
    watch(image_fetching, "_data_url", len)
    watch(pipe_messages, "decode_reply", len)
    yield found
    monkeypatch.undo()
    assert not found, f"{len(found)} times:\n{found[0]}"


async def performed(engine: PuppetEngine, request: Any) -> Any:
    running = asyncio.create_task(request)
    performance = await engine.next()
    performance.say("ok")
    performance.finish()
    return await running


async def by_every_api(engine: PuppetEngine, server: Running, message: Json) -> None:
    api = Api(server)
    first = await performed(engine, over_http(server, input=[message]))
    await performed(engine, over_http(server, input="And?", previous_response_id=first["id"]))
    whole = [message, *first["output"], asked()]
    await performed(engine, over_http(server, input=whole))
    _, listed = await api.call("GET", f"/responses/{first['id']}/input_items")
    assert listed["data"][0]["content"][1].items() >= message["content"][1].items()
    reference = {"type": "item_reference", "id": listed["data"][0]["id"]}
    await performed(engine, over_http(server, input=[reference]))
    status, conversation = await api.call("POST", "/conversations", json={"items": [message]})
    assert status == 200
    path = f"/conversations/{conversation['id']}"
    await performed(engine, over_http(server, input="And?", conversation=conversation["id"]))
    await performed(engine, over_http(server, input=[message], conversation=conversation["id"]))
    assert (await api.call("GET", f"{path}/items"))[0] == 200
    assert (await api.call("POST", f"{path}/items", json={"items": [message]}))[0] == 200
    async with server.connect() as socket:
        response = await performed(engine, socket.response(input=[message], store=False))
        again = {"input": "And?", "previous_response_id": response["id"]}
        await performed(engine, socket.response(**again))


@pytest.mark.usefixtures("on_the_loop")
@pytest.mark.parametrize("message", [LOOK, READ], ids=["picture", "document"])
async def test_a_large_attachment_is_worked_on_in_threads(message: Json, tmp_path: Path) -> None:
    engine = PuppetEngine(SEES)
    store = f"sqlite:{tmp_path}/s.db"
    async with serve(engine, store=store) as server:
        await by_every_api(engine, server, message)
        first = await performed(engine, over_http(server, input=[message]))
    async with serve(engine, store=store) as server:
        await performed(engine, over_http(server, input="And?", previous_response_id=first["id"]))


@pytest.mark.usefixtures("on_the_loop")
async def test_histories_of_other_apis_are_worked_on_in_threads() -> None:
    engine = PuppetEngine(SEES)
    data = base64.b64encode(REPORT).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    block = {"role": "user", "content": [{"type": "document", "source": source, "title": "report.pdf"}]}
    part = {"type": "file", "file": {"file_data": pdf_url(REPORT), "filename": "report.pdf"}}
    user = {"role": "user", "content": [part, {"type": "image_url", "image_url": {"url": SHOT}}]}
    said, more = {"role": "assistant", "content": "ok"}, {"role": "user", "content": "And?"}
    async with serve(engine) as server:
        for messages in ((block,), (block, said, more)):
            await performed(engine, MessagesApi(server).create(*messages))
        for messages in ((user,), (user, said, more)):
            await performed(engine, Chat(server).complete(*messages))


@pytest.mark.usefixtures("on_the_loop")
async def test_what_checks_read_of_a_large_attachment_is_worked_out_in_threads() -> None:
    check, engine = Guard("guard"), PuppetEngine(SEES)
    async with serve(engine, checks=[entry(before=True)]) as server:
        for message in (LOOK, READ):
            await performed(engine, over_http(server, input=[message]))
    read = "\n".join(check.inspected)
    assert "See" in read
    assert "Sales rose" in read


@pytest.mark.usefixtures("on_the_loop")
@pytest.mark.parametrize("by_ids", [True, False])
async def test_engines_write_large_pictures_in_threads(by_ids: bool) -> None:
    fake = FakeSeeingVllm()
    fake.scale_out = by_ids
    for _ in range(2):
        fake.script(Say(("ok",)), Stop())
    await fake.start()
    try:
        engine = fake.engine(tokenizer=seeing_directory(), context=20_000, retries=0)
        async with serve(engine) as server, server.connect() as socket:
            first = await socket.response(input=[LOOK])
            await socket.response(input="And?", previous_response_id=first["id"])
    finally:
        await fake.close()


def test_many_pictures_are_looked_at_once() -> None:
    """A look at one part must not decode the whole item: a request could have thousands."""
    decoded: list[int] = []
    body = Item.body

    def counted(item: Item) -> Body:
        decoded.append(1)
        return body(item)

    message = {**asked(), "content": [{"type": "input_image", "image_url": SHOT[:3000]}] * 50}
    item = read_item(wire.encode(message), "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Item, "body", counted)
        item_pictures.examine(item)
        for image in item_pictures.images_of(item):
            item_pictures.image_param(item, 0, image)
        item_pictures.attachments(item)
        item_pictures.role_of(item)
    assert len(decoded) == 1
