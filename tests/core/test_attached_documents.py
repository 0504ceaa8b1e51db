"""PDF files reach models that take no files as the texts and pictures of their pages."""

import json

import pytest
from msgspec import structs

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.core.attachments import (
    AttachmentRules,
    Page,
    ReadPages,
    document_data,
    documents_in,
    fetched_form,
    unreadable,
    with_pages,
)
from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import Capabilities, Text
from slipring.core.limits import Limits
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import pictures
from slipring.protocol.items.items import InputFile, Item, in_context, read_item
from slipring.protocol.items.pdf_documents import Document, document_in
from tests.core.connection import Connection, Json, Server, message, only_error
from tests.pictures import PIXEL, data_url, png

DATA = "JVBERi0xLjQK"
URL = f"data:application/pdf;base64,{DATA}"
PAGE = data_url(png(30, 20))


def document(data: str = DATA, *, is_detailed: bool = False) -> Document:
    found = document_in(InputFile(file_data=data, detail="high" if is_detailed else None))
    assert found is not None
    return found


PAGES: ReadPages = {document(): [Page("One", PAGE), Page("Two", PAGE)]}
TEXT = {"type": "input_text", "text": "Read this"}


def file(data: str | None = URL, **more: object) -> Json:
    return {"type": "input_file", "file_data": data, **more}


def image(url: str = PIXEL) -> Json:
    return {"type": "input_image", "image_url": url}


def item(*parts: Json, **fields: object) -> Item:
    sent = {"type": "message", "role": "user", "content": list(parts), **fields}
    return read_item(wire.encode(sent), "")


def seen(shown: Item) -> list[str]:
    """What a model reads of an item: texts, and the widths of pictures."""
    (form,) = in_context([shown])
    widths = iter(pictures(form))
    fields = json.loads(form.raw)
    parts = fields.get("content", fields.get("output"))
    return [part["text"] if "text" in part else f"<{next(widths).width}>" for part in parts]


@pytest.mark.parametrize(
    "data",
    [
        URL,
        DATA,
        f"data:application/PDF;name=a.pdf;BASE64,{DATA}",
        f"DATA:application/x-pdf;base64,{DATA}",
    ],
)
def test_pdf_files_are_found_by_their_type_or_beginning(data: str):
    sent = item(TEXT, file(data), file(data))
    assert documents_in(sent) == (document(),)
    assert document_data(sent, document()) == DATA


@pytest.mark.parametrize(
    "part",
    [
        file(None, file_id="f"),
        file("data:text/plain;base64,aGk="),
        file(f"data:application/pdf,{DATA}"),
        file("aGVsbG8="),
        image(),
    ],
)
def test_other_files_are_none(part: Json):
    assert documents_in(item(part)) == documents_in(item(TEXT)) == ()


def test_pages_stand_where_the_file_stood():
    sent = item(TEXT, file(filename="a.pdf"), image(), file())
    shown = with_pages(sent, PAGES, ["user"])
    a, b = "[a.pdf, page 1 of 2]\nOne\n", "[a.pdf, page 2 of 2]\nTwo\n"
    unnamed = [text.replace("a.pdf", "document.pdf") for text in (a, b)]
    assert seen(shown) == ["Read this", a, "<30>", b, "<30>", "<1>", unnamed[0], "<30>", unnamed[1], "<30>"]
    assert shown.raw == sent.raw
    assert documents_in(shown) == ()
    assert with_pages(shown, {}, ["user"]) is shown


def test_a_page_without_anything_is_named():
    pages = {document(): [Page(" \n"), Page("Two")]}
    shown = with_pages(item(file(filename="a.pdf")), pages, ["user"])
    assert seen(shown) == ["[a.pdf, page 1 of 2: no text]\n", "[a.pdf, page 2 of 2]\nTwo\n"]


def test_outputs_of_calls_have_documents_too():
    raw = {"type": "function_call_output", "call_id": "c", "output": [file(detail="high")]}
    shown = with_pages(read_item(wire.encode(raw), ""), {document(is_detailed=True): [Page("One", PAGE)]}, [])
    assert seen(shown) == ["[document.pdf, page 1 of 1]\nOne\n", "<30>"]


def test_messages_that_may_have_no_pictures_get_the_texts_of_pages():
    shown = with_pages(item(file(), role="system"), PAGES, ["user"])
    assert seen(shown) == ["[document.pdf, page 1 of 2]\nOne\n", "[document.pdf, page 2 of 2]\nTwo\n"]


def test_what_was_fetched_stays():
    sent = item(image("https://a.example/b.png"), file())
    form = item(image(data_url(png(7, 7))), file())
    fetched = Item(sent.type, sent.raw, opened=(form,))
    assert fetched_form(fetched) is form
    shown = with_pages(fetched, {document(): [Page("One")]}, ["user"])
    assert seen(shown) == ["<7>", "[document.pdf, page 1 of 1]\nOne\n"]
    sealed = Item("reasoning", b"{}", opened=(item(TEXT), item(TEXT)))
    assert with_pages(sealed, {}, []) is sealed


def test_an_error_names_the_file():
    error = unreadable(item(TEXT, file()), 1, document(), InvalidRequest("has no pages"))
    assert error.param == "input[1].content[1].file_data"
    assert error.message == "Invalid 'input[1].content[1].file_data': the document has no pages."


# In a turn.


def test_a_document_in_a_steer_is_read_when_its_turn_begins():
    connection = Connection(Server.reading_documents())
    connection.create(model="seeing")
    connection.generate(Text("One. "))
    accepted = connection.steer("resp_1", [{"role": "user", "content": [TEXT, file()]}])
    assert accepted["type"] == "response.steer.accepted"
    connection.finish()
    connection.read_pages(PAGES)
    (read,) = connection.job().input
    assert seen(Item(read.type, read.raw))[1].endswith("page 1 of 2]\nOne\n")


def test_a_document_in_an_append_is_refused_in_words():
    rules = AttachmentRules(Capabilities(images=True), Limits())
    sent = {"type": "function_call_output", "call_id": "c", "output": [TEXT, file()]}
    output = read_item(wire.encode(sent), "")
    with pytest.raises(UnsupportedParameter) as refused:
        rules.refuse_unread([item(TEXT), output])
    assert refused.value.param == "input[1].output[1]"
    assert "documents are not read while a response runs" in refused.value.message
    AttachmentRules(Capabilities(files=True), Limits()).refuse_unread([output])


def test_a_model_that_sees_is_shown_the_pages_and_others_read_the_text():
    for model, draws in (("m", False), ("seeing", True)):
        connection = Connection(Server.reading_documents())
        connection.create(model=model, input=[message([TEXT, file()])])
        (asked,) = connection.reads.values()
        assert asked.draws == draws
        connection.read_pages({document(): [Page("One", PAGE if draws else None)]})
        (read,) = connection.job().input
        assert ("<30>" in seen(Item(read.type, read.raw))) == draws
        connection.finish()
        state = connection.cache.find("resp_1")
        assert state is not None
        assert json.loads(state.input[0].raw)["content"][1] == file(), "lists show what was sent"


def test_a_check_that_cannot_read_images_leaves_the_text():
    server = Server.reading_documents()
    server.policy = Policy((Check("c", on_images="closed"),))
    connection = Connection(server)
    connection.create(model="seeing", input=[message([file()])])
    (asked,) = connection.reads.values()
    assert not asked.draws


def test_files_go_to_models_that_take_them_unread():
    connection = Connection(Server.reading_documents())
    connection.create(model="able", input=[message([file()])])
    assert connection.reads == {}
    assert connection.job().input[0].opened is None


def test_without_a_reader_files_are_refused():
    error = only_error(Connection().create(input=[message([TEXT, file()])]))
    assert (error["error"]["code"], error["error"]["param"]) == (
        "unsupported_parameter",
        "input[0].content[1]",
    )
    assert "extra 'pdf'" in error["error"]["message"]


@pytest.mark.parametrize(
    ("part", "model", "param"),
    [
        (file("aGVsbG8="), "seeing", "input[0].content[1]"),
        (file(None, file_id="f"), "m", "input[0].content[1]"),
        (image("https://a.example/b.png"), "seeing", "input[0].content[1].image_url"),
        (image(), "m", "input[0].content[1]"),
    ],
)
def test_what_stands_beside_a_document_is_refused_in_its_place(part: Json, model: str, param: str):
    connection = Connection(Server.reading_documents())
    error = only_error(connection.create(model=model, input=[message([file(), part])]))
    assert error["error"]["param"] == param
    assert connection.reads == {}


def test_a_document_that_cannot_be_read_fails_the_turn_only():
    connection = Connection(Server.reading_documents())
    connection.create(input=[message([file()])])
    error = only_error(connection.refuse_documents(InvalidRequest("is protected by a password")))
    assert error["error"]["param"] == "input[0].content[0].file_data"
    assert connection.respond()["status"] == "completed"


def test_pages_are_charged_like_a_request_until_the_turn_ends():
    connection = Connection(Server.reading_documents())
    connection.create(model="seeing", input=[message([file()])])
    requests = connection.server.requests
    before = requests.used_bytes
    connection.read_pages(PAGES)
    assert requests.used_bytes - before >= 2 * len(PAGE)
    connection.finish()
    assert requests.used_bytes == 0


def test_pages_that_are_smaller_than_what_was_fetched_with_their_file_return_bytes():
    server = Server.reading_documents()
    server.ports = structs.replace(server.ports, fetches_images=True)
    connection = Connection(server)
    long = DATA + "A" * 4000
    connection.create(model="seeing", input=[message([image("https://a.example/b.png"), file(long)])])
    sent = server.requests.used_bytes
    connection.fetch({"https://a.example/b.png": PIXEL})
    fetched = server.requests.used_bytes
    assert fetched > sent
    connection.read_pages({document(long): [Page("One")]})
    assert sent < server.requests.used_bytes < fetched
    connection.finish()
    assert server.requests.used_bytes == 0


def test_pages_beyond_what_a_tenant_may_hold_are_refused():
    connection = Connection(Server.reading_documents(tenant_request_bytes=2000))
    connection.create(model="seeing", input=[message([file()])])
    error = only_error(connection.read_pages({document(): [Page("x" * 2000)]}))
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert connection.server.requests.used_bytes == 0
    assert connection.respond()["status"] == "completed"


def test_pages_count_as_images():
    connection = Connection(Server.reading_documents(max_pictures=1))
    connection.create(model="seeing", input=[message([file()])])
    assert only_error(connection.read_pages(PAGES))["error"]["param"] == "input"


def test_a_check_that_is_closed_refuses_files_that_it_cannot_read():
    server = Server.reading_documents()
    server.policy = Policy((Check("c", on_images="closed"),))
    error = only_error(Connection(server).create(model="able", input=[message([TEXT, file()])]))
    assert (error["error"]["code"], error["error"]["param"]) == ("invalid_prompt", "input[0].content[1]")
    assert "a file, which the safety check 'c' cannot read" in error["error"]["message"]
