"""Pictures in items: what is known of them, and why one is refused."""

import base64
import json

import pytest

from slipring.base.errors import InvalidRequest
from slipring.core.token_estimates import estimated_picture_tokens
from slipring.protocol import wire
from slipring.protocol.items import item_pictures
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.item_pictures import (
    A_FILE,
    ELSEWHERE,
    BadPicture,
    Picture,
    attachments,
    base64_of,
    described,
    examine,
    image_param,
    image_parts,
    images_of,
    picture_of,
    pictures,
    plain_url,
    without_images,
)
from slipring.protocol.items.items import InputText, Item, Message, read_item
from slipring.protocol.requests import read_create
from tests.pictures import FILES, PIXEL, data_url, png


def item_of(**fields: object) -> Item:
    return read_item(wire.encode(fields), "input[0]")


def message(*parts: dict[str, object]) -> Item:
    return item_of(type="message", role="user", content=list(parts))


def image(url: str | None, **more: object) -> dict[str, object]:
    return {"type": "input_image", "image_url": url, **more}


TEXT: dict[str, object] = {"type": "input_text", "text": "look"}


@pytest.mark.parametrize("media_type", FILES)
def test_a_picture_is_known_by_its_content(media_type):
    data = FILES[media_type](13, 7)
    picture = picture_of(data_url(data))
    assert (picture.media_type, picture.width, picture.height) == (media_type, 13, 7)
    assert picture.size_bytes == len(data)
    assert len(picture.digest) == 64
    assert base64_of(data_url(data)) == base64.b64encode(data).decode()


def test_the_digest_is_of_the_data_and_not_of_the_spelling_of_the_url():
    data = FILES["image/jpeg"](8, 8)
    spelled = ["image/jpeg", "image/jpg", "IMAGE/JPEG", "image/jpeg;charset=x"]
    assert len({picture_of(data_url(data, each)).digest for each in spelled}) == 1


@pytest.mark.parametrize("spelled", ["image/jpeg", "image/jpg", "IMAGE/JPEG", "image/jpeg;charset=x"])
def test_servers_are_sent_the_usual_spelling_of_a_data_url(spelled):
    plain = data_url(FILES["image/jpeg"](8, 8))
    url = plain.replace("image/jpeg", spelled)
    assert plain_url(url) == plain
    assert plain_url(url.replace("data:", "Data:").replace(";base64,", ";BASE64,")) == plain


def test_other_urls_have_no_other_spelling():
    assert plain_url("https://a.example/b,c") == "https://a.example/b,c"


def test_what_an_item_has_beside_texts_is_known():
    file: dict[str, object] = {"type": "input_file", "file_id": "f"}
    remote = image("https://a.example/b.png")
    assert attachments(message(TEXT)) == frozenset()
    assert attachments(message(TEXT, image(PIXEL), remote)) == {"image/png", ELSEWHERE}
    assert attachments(message(image(None, file_id="f"), file)) == {ELSEWHERE, A_FILE}
    assert attachments(message(image("data:image/png;base64,"))) == frozenset()


def test_the_pictures_of_an_item_are_in_the_order_of_its_parts():
    sizes = [(1, 2), (3, 4)]
    urls = [data_url(png(*size)) for size in sizes]
    item = message(TEXT, image(urls[0], detail="low"), TEXT, image(urls[1], detail="auto"))
    found = pictures(item)
    assert [(each.width, each.height) for each in found] == sizes
    assert [each.detail for each in found] == ["low", None]
    assert pictures(item) is found


@pytest.mark.parametrize(
    "item",
    [
        item_of(type="function_call_output", call_id="c", output=[TEXT, image(PIXEL)]),
        item_of(type="custom_tool_call_output", call_id="c", output=[image(PIXEL)]),
        item_of(
            type="computer_call_output",
            call_id="c",
            output={"type": "computer_screenshot", "image_url": PIXEL},
        ),
        item_of(type="message", role="developer", content=[image(PIXEL)]),
    ],
    ids=lambda item: item.type,
)
def test_pictures_are_found_wherever_an_api_puts_them(item):
    assert [each.size_bytes for each in pictures(item)] == [len(png(1, 1))]


@pytest.mark.parametrize(
    "item",
    [
        message(TEXT),
        message(image("https://example.com/a.png"), image(None, file_id="file_1")),
        item_of(type="message", role="user", content="input_image"),
        item_of(type="function_call", call_id="c", name="input_image", arguments='"\\u0069nput_image"'),
        item_of(type="function_call_output", call_id="c", output='"input_image"'),
    ],
    ids=["text", "elsewhere", "word", "call", "output"],
)
def test_items_without_data_have_no_pictures(item):
    assert pictures(item) == ()


PNG = png(1, 1)
REFUSED = {
    "no data URL": ("data:image/png,AAAA", "invalid_image_url"),
    "an open head": ("data:image/png;base64", "invalid_image_url"),
    "no type": ("data:;base64,AAAA", "unsupported_image_media_type"),
    "another type": ("data:image/bmp;base64,AAAA", "unsupported_image_media_type"),
    "no base64": ("data:image/png;base64,AAA", "invalid_base64_image"),
    "not the standard alphabet": ("data:image/png;base64,__-_", "invalid_base64_image"),
    "line breaks": ("data:image/png;base64,AAAA\nAAAA", "invalid_base64_image"),
    "other letters": ("data:image/png;base64,äöüß", "invalid_base64_image"),
    "nothing": ("data:image/png;base64,", "empty_image_file"),
    "another content": (data_url(b"%PDF-1.7", "image/png"), "unsupported_image_media_type"),
    "a lie": (data_url(PNG, "image/jpeg"), "invalid_image_format"),
    "cut off": (data_url(PNG[:-1]), "image_parse_error"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_picture_that_cannot_be_shown_says_why(name):
    url, code = REFUSED[name]
    with pytest.raises(BadPicture) as refused:
        picture_of(url)
    assert refused.value.code == code
    assert refused.value.message.startswith("The image ")


def test_the_error_names_the_field():
    item = message(TEXT, image(PIXEL), image("data:image/png;base64,"))
    with pytest.raises(BadPicture) as refused:
        pictures(item)
    error = refused.value.placed(item, 4)
    assert isinstance(error, InvalidRequest)
    assert error.param == "input[4].content[2].image_url"
    assert error.message == "Invalid 'input[4].content[2].image_url': the image has no data."


def test_each_place_of_an_image_has_a_name():
    shown = {"type": "computer_screenshot", "file_id": "f"}
    screen = item_of(type="computer_call_output", call_id="c", output=shown)
    for item, param in (
        (message(TEXT, image(PIXEL)), "input[1].content[1].image_url"),
        (message(image(None, file_id="f")), "input[1].content[0].file_id"),
        (screen, "input[1].output.file_id"),
    ):
        (found,) = images_of(item)
        assert image_param(item, 1, found) == param


def test_a_picture_in_words():
    assert described(picture_of(PIXEL)) == "PNG picture, 1 × 1"
    assert described(Picture("", "image/webp", 1280, 800, 9)) == "WebP picture, 1280 × 800"


def test_a_line_can_stand_for_each_image_of_a_message():
    item = message(TEXT, image(data_url(png(40, 30))), image("https://a.example/b.png"), image(PIXEL))
    body = without_images(item).body()
    assert isinstance(body, Message)
    assert isinstance(body.content, list)
    texts = ["look", "[PNG picture, 40 × 30]", "[image]", "[PNG picture, 1 × 1]"]
    assert body.content == [InputText(text) for text in texts]
    assert without_images(message(TEXT)) == message(TEXT)


LOOKALIKE = "see data:text/plain;base64," + "A" * 5000
LARGE = data_url(png(60, 60))


@pytest.mark.parametrize(
    "parts",
    [
        [image(LARGE)],
        [image(LARGE), TEXT, image(data_url(png(61, 61))), image(PIXEL)],
        [image(LARGE), {"type": "input_text", "text": LOOKALIKE}],
        [image(LARGE), {"type": "input_text", "text": LOOKALIKE + '" and more'}],
        [image(LARGE), {"type": "input_text", "text": LOOKALIKE + "\\"}],
        [image(PIXEL), {"type": "input_text", "text": LOOKALIKE + "\n"}],
        [image(LARGE, detail="low", unknown=LOOKALIKE), TEXT],
        [{"type": "input_text", "text": LOOKALIKE}, image(PIXEL, unknown=LOOKALIKE)],
    ],
    ids=["one", "three", "text", "quote", "backslash", "small", "in-it", "in-both"],
)
def test_images_are_replaced_and_text_like_their_data_stays(parts):
    assert len(LARGE) > 4096
    kept = json.loads(without_images(message(*parts)).raw)["content"]
    for sent, shown in zip(parts, kept, strict=True):
        if sent["type"] == "input_text":
            assert shown == sent
        else:
            assert shown["type"] == "input_text"
            assert shown["text"].startswith("[PNG picture, ")


def test_the_data_of_images_that_are_replaced_is_not_decoded_again(monkeypatch):
    item = message(TEXT, image(LARGE), image(data_url(png(61, 61))))
    examine(item)
    decoded = []
    content_of = item_pictures._content_of

    def watched(raw):
        decoded.append(len(raw))
        return content_of(raw)

    monkeypatch.setattr(item_pictures, "_content_of", watched)
    without_images(item)
    (size,) = decoded
    assert size < 1000


def test_what_is_read_ahead_has_its_pictures_and_leaves_bad_ones_to_the_turn():
    bad = image("data:image/png;base64,")
    contents = [image(PIXEL)], [bad], "a"
    sent = [{"role": "user", "content": content} for content in contents]
    request = read_create(wire.encode({"input": sent}))
    request.read_ahead(digests=True, known={})
    good, broken, plain = request.items
    assert "_examined" in good.__dict__
    assert "_examined" in broken.__dict__, "it is not read again"
    assert len(set(map(content_digest, request.items))) == 3
    assert not pictures(plain)


def test_the_tokens_of_a_picture_are_estimated_by_its_size():
    def tokens(width: int, height: int) -> int:
        return estimated_picture_tokens(Picture("", "image/png", width, height, 1))

    assert [tokens(1, 1), tokens(280, 560), tokens(8000, 8000)] == [64, 200, 3000]


def test_a_text_has_no_images_with_data() -> None:
    assert list(image_parts(message({"type": "input_text", "text": "a"}))) == []
