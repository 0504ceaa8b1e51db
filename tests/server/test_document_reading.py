"""PDF files on a real server: by every API, to models that see and to others, and files that are attacks."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.resent_history import KnownItems
from slipring.core.generation import Capabilities
from slipring.core.limits import Limits
from slipring.protocol.items.item_pictures import parts_of, pictures
from slipring.protocol.items.items import in_context, plain_text
from slipring.sandbox.sandbox import EncodedCall
from slipring.server import document_reading
from slipring.server.document_reading import DocumentReader
from slipring.server.request_decoding import RequestDecoder
from tests.api import Api
from tests.chat_api import Chat
from tests.harness import PuppetEngine, Running, serve
from tests.messages_api import MessagesApi
from tests.pdfs import pdf, pdf_of, pdf_url
from tests.server.test_resent_history import over_http
from tests.server.test_safety_checks import Guard, entry

Json = dict[str, Any]
REPORT = pdf("Sales rose", "Costs fell")
SEES = Capabilities(images=True)


def file(data: bytes = REPORT, **more: Any) -> Json:
    return {"type": "input_file", "file_data": pdf_url(data), "filename": "report.pdf", **more}


def asked(*parts: Json) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sum up"}, *parts]}


async def shown(engine: PuppetEngine, request: Any) -> tuple[str, list[tuple[int, int]]]:
    """What the model gets of a request: its text, and the sizes of pictures."""
    running = asyncio.create_task(request)
    performance = await engine.next()
    performance.say("ok")
    performance.finish()
    await running
    items = tuple(in_context(performance.job.input))
    text = "".join(plain_text(parts_of(item)) for item in items)
    return text, [(each.width, each.height) for item in items for each in pictures(item)]


TEXT = "[report.pdf, page 1 of 2]\nSales rose\n[report.pdf, page 2 of 2]\nCosts fell\n"


@pytest.mark.parametrize("sees", [True, False])
async def test_every_api_brings_the_pages_to_the_model(sees: bool) -> None:
    engine = PuppetEngine(Capabilities(images=sees))
    drawn = [(792, 1024)] * 2 if sees else []
    data = base64.b64encode(REPORT).decode()
    async with serve(engine) as server:
        assert await shown(engine, over_http(server, input=[asked(file())])) == (f"Sum up{TEXT}", drawn)
        part = {"type": "file", "file": {"file_data": pdf_url(REPORT), "filename": "report.pdf"}}
        chat = {"role": "user", "content": [part]}
        assert await shown(engine, Chat(server).complete(chat)) == (TEXT, drawn)
        source = {"type": "base64", "media_type": "application/pdf", "data": data}
        block = {"role": "user", "content": [{"type": "document", "source": source, "title": "report.pdf"}]}
        text, pages = await shown(engine, MessagesApi(server).create(block))
        assert text == f"Document: report.pdf\n\n{TEXT}"
        assert pages == drawn


async def test_detail_draws_pages_larger() -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine) as server:
        _, pages = await shown(engine, over_http(server, input=[asked(file(detail="high"))]))
        assert pages == [(1583, 2048)] * 2


async def test_a_document_is_kept_as_it_was_sent_and_read_once(tmp_path: Path) -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine, store=f"sqlite:{tmp_path}/s.db") as server:
        first = asyncio.create_task(over_http(server, input=[asked(file())]))
        performance = await engine.next()
        performance.say("ok")
        performance.finish()
        response = await first
        pids = server.service.documents.sandbox.pids
        assert len(pids) == 1
        _, pages = await shown(
            engine, over_http(server, input=[asked(file()), *response["output"], asked()], store=False)
        )
        assert pages == [(792, 1024)] * 2
        assert server.service.documents.sandbox.pids == pids
        _, listed = await Api(server).call("GET", f"/responses/{response['id']}/input_items")
        assert listed["data"][0]["content"][1] == file()
    async with serve(engine, store=f"sqlite:{tmp_path}/s.db") as server:
        turn = over_http(server, input="And?", previous_response_id=response["id"])
        running = asyncio.create_task(turn)
        performance = await engine.next()
        widths = [each.width for item in performance.job.context() for each in pictures(item)]
        assert widths == [792, 792], "after a restart, the model still sees the pages"
        performance.finish()
        await running
        assert server.service.documents.sandbox.pids == []


async def refusal(server: Running, data: bytes | str, **fields: Any) -> Json:
    part = file(**fields) if isinstance(data, str) else file(data, **fields)
    part |= {"file_data": data} if isinstance(data, str) else {}
    status, body = await Api(server).call("POST", "/responses", json={"input": [asked(part)]})
    assert status == 400, body
    error: Json = body["error"]
    assert error["param"] == "input[0].content[1].file_data", error
    return error


async def test_what_cannot_be_read_is_refused_by_its_field_and_the_server_goes_on() -> None:
    engine = PuppetEngine(SEES)
    limits = Limits(max_document_bytes=50_000, max_document_pages=3)
    async with serve(engine, limits=limits) as server:
        for data, words in (
            (b"%PDF-1.4 nothing", "the document cannot be read"),
            (pdf(*"abcd"), "the document has 4 pages, and may have 3 (max_document_pages)"),
            (pdf("x") + bytes(50_000), "the document has more than 50000 bytes (max_document_bytes)"),
            ("JVBERi0=?", "the document is not valid base64"),
        ):
            assert words in (await refusal(server, data))["message"]
        assert (await shown(engine, over_http(server, input=[asked(file())])))[1]


async def test_a_page_that_takes_too_long_ends_its_process_and_nothing_else() -> None:
    # A form that draws itself twice, which draws itself twice, …
    box = "/BBox [0 0 600 700]"
    forms = [
        f"<< /Type /XObject /Subtype /Form {box} /Resources << /XObject << /A {6 + number} 0 R >> >>"
        f" /Length 11 >>\nstream\n/A Do /A Do\nendstream"
        for number in range(24)
    ]
    page = (
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        " /Resources << /XObject << /A 5 0 R >> >> >>"
    )
    last = f"<< /Type /XObject /Subtype /Form {box} /Length 17 >>\nstream\n0 0 600 700 re f \nendstream"
    bomb = pdf_of(
        [
            *("<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>", page),
            *("<< /Length 5 >>\nstream\n/A Do\nendstream", *forms, last),
        ]
    )
    engine = PuppetEngine(SEES)
    async with serve(engine, limits=Limits(document_timeout_s=0.5)) as server:
        error = await refusal(server, bomb)
        assert "takes more than 0.5 s of processor time to read (document_timeout_s)" in error["message"]
        assert server.service.documents.sandbox.pids == []
        assert (await refusal(server, bomb))["message"] == error["message"], "it is known by now"
        assert server.service.documents.sandbox.pids == []
        assert (await shown(engine, over_http(server, input=[asked(file(pdf("x")))])))[1]


async def test_pages_beyond_the_size_of_an_answer_are_refused() -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine, limits=Limits(max_frame_bytes=16_000)) as server:
        error = await refusal(server, pdf(*"abc"))
        assert "expands to more than 16000 bytes (max_frame_bytes)" in error["message"]


async def test_the_pages_of_all_documents_of_an_item_are_within_the_size_of_a_request() -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine, limits=Limits(max_frame_bytes=20_000)) as server:
        one, two = file(pdf("a", "b")), file(pdf("c", "d"))
        assert (await shown(engine, over_http(server, input=[asked(one)])))[1]
        assert (await shown(engine, over_http(server, input=[asked(two)])))[1]
        status, body = await Api(server).call("POST", "/responses", json={"input": [asked(one, two)]})
        assert (status, body["error"]["param"]) == (400, "input[0].content[2].file_data")
        words = "more than 20000 bytes with those before it in the same item (max_frame_bytes)"
        assert words in body["error"]["message"]
        assert server.service.requests.used_bytes == 0


async def test_a_history_has_the_pages_of_all_its_documents_within_a_bound_of_its_own() -> None:
    engine = PuppetEngine(SEES)
    limits = Limits(max_frame_bytes=20_000, max_pages_bytes=30_000)
    async with serve(engine, limits=limits) as server:
        turns = [asked(file(pdf(*texts))) for texts in ("ab", "cd", "ef")]
        history: list[Json] = []
        for number, turn in enumerate(turns[:2], 1):
            history.append(turn)  # both together expand to more than one item may
            _, pages = await shown(engine, over_http(server, input=history, store=False))
            assert len(pages) == 2 * number
            history.append({"role": "assistant", "content": "ok"})
        status, body = await Api(server).call("POST", "/responses", json={"input": [*history, turns[2]]})
        assert (status, body["error"]["param"]) == (400, "input[4].content[1].file_data")
        assert "more than 30000 bytes with those before it (max_pages_bytes)" in body["error"]["message"]
        assert server.service.requests.used_bytes == 0


async def test_pages_count_as_bytes_of_requests_while_others_are_read() -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine, limits=Limits(tenant_request_bytes=40_000)) as server:
        used: list[int] = []
        run_encoded = server.service.documents.sandbox.run_encoded

        async def watched(tenant: str, call: EncodedCall) -> Any:
            used.append(server.service.requests.used_bytes)
            return await run_encoded(tenant, call)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.service.documents.sandbox, "run_encoded", watched)
            both = [asked(file(pdf("a", "b"))), asked(file(pdf("c", "d")))]
            assert len((await shown(engine, over_http(server, input=both)))[1]) == 4
            assert used[1] - used[0] > 10_000
            many = [asked(file(pdf(*texts))) for texts in ("ef", "gh", "ij")]
            status, body = await Api(server).call("POST", "/responses", json={"input": many})
            assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert server.service.requests.used_bytes == 0


async def test_a_history_that_is_sent_again_shares_its_pages_with_the_one_before() -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine) as server:
        forms = []
        for name in ("one", "two"):
            running = asyncio.create_task(over_http(server, input=[asked(file()), asked()], user=name))
            performance = await engine.next()
            forms.append(next(in_context(performance.job.context())))
            performance.finish()
            await running
        assert forms[0] is forms[1]
        read = len(server.service.documents._opened)
        assert read == 1
        other = over_http(server, input=[asked(file(filename="b.pdf"))])
        assert (await shown(engine, other))[0].startswith("Sum up[b.pdf, page 1 of 2]")
        status, _ = await Api(server).call("POST", "/conversations", json={"items": [asked()]})
        assert status == 200


async def test_a_system_message_gets_the_text_of_a_document_for_a_model_that_sees_elsewhere() -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine) as server:
        manual = {"role": "system", "content": [file()]}
        assert await shown(engine, over_http(server, input=[manual, asked()])) == (f"{TEXT}Sum up", [])


@pytest.mark.parametrize("joins", [True, False])
async def test_a_document_is_read_where_an_item_is_referred_to(tmp_path: Path, joins: bool) -> None:
    engine = PuppetEngine(SEES)
    async with serve(engine, store=f"sqlite:{tmp_path}/s.db") as server:
        api = Api(server)
        _, conversation = await api.call("POST", "/conversations", json={"items": [asked(file())]})
        _, listed = await api.call("GET", f"/conversations/{conversation['id']}/items")
        reference = {"type": "item_reference", "id": listed["data"][0]["id"]}
        more = {"conversation": conversation["id"]} if joins else {}
        text, pages = await shown(engine, over_http(server, input=[reference], **more))
        times = 2 if joins else 1
        assert (text, len(pages)) == (f"Sum up{TEXT}" * times, 2 * times)


async def test_checks_read_a_document_that_is_referred_to(tmp_path: Path) -> None:
    check, engine = Guard("guard"), PuppetEngine(SEES)
    check.flags = lambda subject: "fell" in subject.text
    async with serve(engine, store=f"sqlite:{tmp_path}/s.db", checks=[entry(before=True)]) as server:
        api = Api(server)
        _, conversation = await api.call("POST", "/conversations", json={"items": [asked(file())]})
        _, listed = await api.call("GET", f"/conversations/{conversation['id']}/items")
        reference = {"type": "item_reference", "id": listed["data"][0]["id"]}
        status, body = await api.call("POST", "/responses", json={"input": [reference]})
        assert (status, body["error"]["code"]) == (400, "invalid_prompt")


async def test_a_request_has_so_many_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_reading, "MOST_DOCUMENTS", 1)
    engine = PuppetEngine()
    async with serve(engine) as server:
        body = {"input": [asked(file(), file(pdf("x")))]}
        status, refused = await Api(server).call("POST", "/responses", json=body)
        assert (status, refused["error"]["param"]) == (400, "input[0].content[2].file_data")
        text, _ = await shown(engine, over_http(server, input=[asked(file(), file())]))
        assert text == f"Sum up{TEXT}{TEXT}"


async def test_checks_read_the_text_of_documents() -> None:
    check, engine = Guard("guard"), PuppetEngine(SEES)
    check.flags = lambda subject: "fell" in subject.text
    async with serve(engine, checks=[entry(before=True)]) as server:
        status, body = await Api(server).call("POST", "/responses", json={"input": [asked(file())]})
        assert (status, body["error"]["code"]) == (400, "invalid_prompt")
        read = "\n".join(check.inspected)
        assert "Sales rose" in read
        assert "[PNG picture, 792 × 1024: not inspected]" in read


def test_without_the_extra_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_reading, "find_spec", lambda name: None)
    decoder = RequestDecoder(Ledger(0, 0), KnownItems(0.0, 0), digests=False)
    assert not DocumentReader(Limits(), decoder).is_on
