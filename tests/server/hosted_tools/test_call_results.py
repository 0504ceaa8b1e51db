"""What models and clients get of the result of a call."""

import base64
import json
from typing import Any

import msgspec
import pytest

from slipring.core.attachments import AttachmentRules
from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import Capabilities
from slipring.core.limits import Limits
from slipring.mcp.protocol.tools import ToolResult, read_result
from slipring.mcp.result_redaction import Redaction
from slipring.protocol.items.hosted_items import ToolError, error_text
from slipring.protocol.items.item_pictures import base64_of
from slipring.server.hosted_tools.call_results import outcome_of
from tests.pictures import data_url, png

NOTHING = Redaction((), 1)


def read(*content: Any, **fields: Any) -> ToolResult:
    """The result that a server sends with these blocks."""
    body = json.dumps({"content": content, **fields}, indent=1).encode()
    found = read_result(msgspec.Raw(body), 10**6)
    assert isinstance(found, ToolResult)
    return found


def output(*content: Any, most: int = 1000, **fields: Any) -> str | None:
    return outcome_of(read(*content, **fields), NOTHING, most).output


def text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value}


IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("content", "structured", "expected"),
    [
        ([text("a"), text("b\nc")], {"x": 1}, "a\nb\nc"),
        ([], {"x": [1, "é"]}, '{"x":[1,"é"]}'),
        ([IMAGE], {"x": 1}, '{"x":1}\n[image: image/png, not shown]'),
        ([text("a"), IMAGE, text("b")], None, "a\n[image: image/png, not shown]\nb"),
        ([{"type": "audio", "data": "AA", "mimeType": "audio/wav"}], None, "[audio: audio/wav, not shown]"),
        (
            [{"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain"}],
            None,
            "[link: text/plain, file:///a]",
        ),
        ([{"type": "resource_link", "uri": "file:///a"}], None, "[link: resource, file:///a]"),
        (
            [{"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/x", "text": "inside"}}],
            None,
            "[resource: text/x, file:///a]\ninside",
        ),
        (
            [{"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}],
            None,
            "[resource: of unknown type, file:///a, not shown]",
        ),
        ([{"type": "hologram"}, 5], None, "\n".join(["[content of a type that is not known]"] * 2)),
        ([], None, ""),
    ],
)
def test_a_result_is_text(content: list[Any], structured: Any, expected: str) -> None:
    fields = {} if structured is None else {"structuredContent": structured}
    found = output(*content, **fields)
    assert found is not None
    if structured is not None and not any(block == text("a") for block in content):
        first, _, rest = found.partition("\n[")
        found = json.dumps(json.loads(first), separators=(",", ":"), ensure_ascii=False) + (
            f"\n[{rest}" if rest else ""
        )
    assert found == expected


def test_long_text_is_cut() -> None:
    assert output(text("abcdefgh"), most=8) == "abcdefgh"
    assert output(text("abcdefghij"), most=8) == "abcdefgh\n[cut off: 2 more characters]"


def failed(*content: Any, most: int = 1000, redaction: Redaction = NOTHING) -> ToolError:
    outcome = outcome_of(read(*content, isError=True), redaction, most)
    assert outcome.output is None
    assert isinstance(outcome.error, ToolError)
    assert b"\n" not in bytes(outcome.error.content)
    error_text(outcome.error)  # what the model reads can be read
    return outcome.error


def shown(block: Any, **more: Any) -> Any:
    """A block as the API shows it."""
    return {**block, "annotations": None, "meta": None, **more}


def test_an_error_has_the_blocks_in_the_form_of_recorded_ones() -> None:
    told = {"audience": ["user"]}
    found = failed({**text("no\nsuch city"), "annotations": told, "_meta": {"x": 1}}, IMAGE)
    blocks = [shown(text("no\nsuch city"), annotations=told, meta={"x": 1}), shown(IMAGE)]
    assert json.loads(bytes(found.content)) == blocks
    assert error_text(found) == "no\nsuch city"


def test_blocks_of_an_error_that_are_none_are_replaced() -> None:
    unknown = shown(text("[content of a type that is not known]"))
    found = failed(5, text(5), {"text": ["x"]}, None, [], {**IMAGE, "text": 7}, text("real"))
    assert json.loads(bytes(found.content)) == [*[unknown] * 5, shown(IMAGE), shown(text("real"))]


def test_a_long_error_is_cut() -> None:
    found = failed(text("a" * 5000), IMAGE, most=100)
    (block,) = json.loads(bytes(found.content))
    assert block["text"].startswith("a" * 100 + "\n[cut off: ")
    assert len(bytes(found.content)) < 200


def test_credentials_that_a_server_repeats_are_removed() -> None:
    secret = 'tok"en-/-0123456789'
    redaction = Redaction([secret, "short"], 16)
    assert outcome_of(read(text(f"<{secret}> short")), redaction, 1000).output == "<[redacted]> short"
    found = failed({**text("x"), "_meta": {"echo": secret}}, most=1000, redaction=redaction)
    assert b"0123456789" not in bytes(found.content)
    escaped = read_result(
        msgspec.Raw(
            rb'{"isError": true, "content": [{"type": "text", "text": "tok\"en-\/-0123456789 \u00e9"}]}'
        ),
        1000,
    )
    assert isinstance(escaped, ToolResult)
    error = outcome_of(escaped, redaction, 1000).error
    assert isinstance(error, ToolError)
    assert error_text(error) == "[redacted] \u00e9"
    found = failed(text(f"{secret}" * 100), most=90, redaction=redaction)
    assert b"0123456789" not in bytes(found.content)


RULES = AttachmentRules(Capabilities(images=True), Limits(max_picture_bytes=1000))


def image(data: bytes, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": base64_of(data_url(data)), "mimeType": kind}


def test_a_model_that_sees_gets_the_images_of_a_result_after_its_text():
    shown = image(png(13, 7))
    result = read(text("a"), shown, text("b"))
    outcome = outcome_of(result, NOTHING, 1000, RULES)
    assert outcome.output == "a\n[PNG picture, 13 × 7]\nb"
    assert outcome.pictures == (data_url(png(13, 7)),)
    for rules in (
        None,
        AttachmentRules(Capabilities(), Limits()),
        AttachmentRules(Capabilities(images=True), Limits(), Policy((Check("guard", on_images="closed"),))),
    ):
        blind = outcome_of(result, NOTHING, 1000, rules)
        assert (blind.output, blind.pictures) == ("a\n[image: image/png, not shown]\nb", ())


@pytest.mark.parametrize("data", [png(60, 60), png(5, 5)[:-4], b"GIF"], ids=["large", "cut off", "a lie"])
def test_an_image_that_cannot_be_shown_is_named(data: bytes):
    block = {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": "image/png"}
    outcome = outcome_of(read(block, image(png(1, 1))), NOTHING, 1000, RULES)
    assert outcome.output == "[image: image/png, not shown]\n[PNG picture, 1 × 1]"
    assert len(outcome.pictures) == 1


def test_a_result_shows_a_bounded_number_of_images():
    outcome = outcome_of(read(*[image(png(1, 1))] * 20), NOTHING, 1000, RULES)
    assert len(outcome.pictures) == 16
