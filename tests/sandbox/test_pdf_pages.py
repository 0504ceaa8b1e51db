"""The pages of PDF files: texts, pictures, and files that are no PDF, broken, protected or too long."""

import base64

import pytest

from slipring.base.errors import InvalidRequest
from slipring.protocol.items.item_pictures import picture_of
from slipring.sandbox import pdf_pages
from slipring.sandbox.pdf_pages import read_pdf
from tests.pdfs import pdf, pdf_of

SIDE = 400


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_pages, "_SIDE", SIDE)


def read(
    data: bytes, most_pages: int = 5, draws: bool = True, is_detailed: bool = False
) -> list[tuple[str, str | None]]:
    return read_pdf(base64.b64encode(data).decode(), most_pages, draws, is_detailed)


def sizes(pages: list[tuple[str, str | None]]) -> list[tuple[int, int]]:
    found = [picture_of(url) for _, url in pages if url is not None]
    return [(picture.width, picture.height) for picture in found]


def test_each_page_has_its_text_and_a_picture():
    pages = read(pdf("First page", "And a second"))
    assert [text.strip() for text, _ in pages] == ["First page", "And a second"]
    assert sizes(pages) == [(310, 400), (310, 400)]
    assert pages[0][1] != pages[1][1]
    assert read(pdf("First page", "And a second")) == pages, "the same file has the same pictures"


def test_a_detailed_picture_is_larger():
    assert max(sizes(read(pdf("Text"), is_detailed=True))[0]) == 2048


def test_without_pictures_there_are_texts_only():
    assert read(pdf("Text"), draws=False) == [("Text", None)]


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ("0 0 14400 14400", (400, 400)),
        ("0 0 14400 1", (400, 1)),
        ("0 0 20 10", (80, 40)),
        ("0 0 0 0", (310, 400)),
        ("0 0 9e30 9e30", (310, 400)),
    ],
)
def test_a_page_of_any_size_has_a_picture_within_bounds(box: str, size: tuple[int, int]):
    ((width, height),) = sizes(read(pdf("x", box=box)))
    assert width <= SIDE + 1
    assert height <= SIDE + 1
    assert (width, height) == size or "e30" in box or box == "0 0 0 0"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello", "is no PDF file by its content"),
        (b"%PDF-1.7 and nothing else", "cannot be read"),
        (pdf("x")[:300], "cannot be read"),
        (pdf(*"abcdef"), r"has 6 pages, and may have 5 \(max_document_pages\)"),
        (
            pdf_of(["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [] /Count 0 >>"]),
            "has no pages|cannot",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(data: bytes, reason: str):
    with pytest.raises(InvalidRequest, match=reason):
        read(data)


def test_a_protected_file_is_refused():
    locked = "/Filter /Standard /V 1 /R 2 /Length 40 /P -44"
    keys = f"/O <{'00' * 32}> /U <{'11' * 32}>"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [] /Count 0 >>",
        f"<< {locked} {keys} >>",
    ]
    data = pdf_of(objects, f"/Encrypt 3 0 R /ID [<{'22' * 16}> <{'22' * 16}>]")
    with pytest.raises(InvalidRequest, match="is protected by a password"):
        read(data)


def test_what_is_no_base64_is_refused():
    with pytest.raises(InvalidRequest, match="is not valid base64"):
        read_pdf("JVBERi0?", 5, False, False)
