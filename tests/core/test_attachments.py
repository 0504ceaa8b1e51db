"""Images reach a model that sees them, within bounds; others are refused before anything is generated."""

import json
from contextlib import nullcontext
from typing import Any

import pytest

from slipring.base.errors import InvalidPrompt, InvalidRequest
from slipring.core import attachments
from slipring.core.attachments import AttachmentRules
from slipring.core.chain import input_items
from slipring.core.chain.state import Carry
from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import ALL_ROLES, Capabilities
from slipring.core.limits import Limits
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import pictures
from slipring.protocol.items.items import Item, opened_with, read_item
from tests.core.connection import Connection, Json, Server, message, only_error
from tests.pictures import PIXEL, data_url, gif, png, webp

SEES = Capabilities(images=True)
RESOLVES = Capabilities(images=True, resolves_urls=True)
LIMITS = Limits()


def image(url: str | None = PIXEL, **more: object) -> Json:
    return {"type": "input_image", "image_url": url, **more}


def shown(*parts: Json) -> Item:
    return read_item(wire.encode({"type": "message", "role": "user", "content": list(parts)}), "")


def refusal(item: Item, capabilities: Capabilities = SEES, limits: Limits = LIMITS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        AttachmentRules(capabilities, limits).refuse_unseen(
            [shown({"type": "input_text", "text": "a"}), item]
        )
    return refused.value


REFUSED = {
    "a blind model": (image(), Capabilities(), LIMITS, "unsupported_parameter", ""),
    "a URL": (image("https://a.example/b.png"), SEES, LIMITS, "invalid_image_url", ".image_url"),
    "no URL": (image("file:///etc/passwd"), SEES, LIMITS, "invalid_image_url", ".image_url"),
    "a file id": (image(None, file_id="f"), SEES, LIMITS, "unsupported_parameter", ".file_id"),
    "nothing": (image(None), SEES, LIMITS, "missing_required_parameter", ".image_url"),
    "nothing to resolve": (image(None), RESOLVES, LIMITS, "missing_required_parameter", ".image_url"),
    "an empty URL": (image(""), RESOLVES, LIMITS, "invalid_image_url", ".image_url"),
    "a URL of no web server": (image("file:///x"), RESOLVES, LIMITS, "invalid_image_url", ".image_url"),
    "a bad picture": (image("data:image/png;base64,"), SEES, LIMITS, "empty_image_file", ".image_url"),
    "another type": (
        image(data_url(webp(1, 1))),
        Capabilities(images=True, picture_types=("image/png", "image/gif")),
        LIMITS,
        "unsupported_parameter",
        ".image_url",
    ),
    "too many bytes": (
        image(),
        SEES,
        Limits(max_picture_bytes=60),
        "image_file_too_large",
        ".image_url",
    ),
    "a pixel bomb": (image(data_url(webp(16000, 16000))), SEES, LIMITS, "image_too_large", ".image_url"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_image_is_refused_by_the_name_of_its_field(name):
    part, capabilities, limits, code, field = REFUSED[name]
    error = refusal(shown({"type": "input_text", "text": "a"}, part), capabilities, limits)
    assert (error.code, error.param) == (code, f"input[1].content[1]{field}")


def test_a_screenshot_is_refused_by_the_name_of_its_output():
    screen = {"type": "computer_screenshot", "image_url": "file:///x"}
    item = read_item(wire.encode({"type": "computer_call_output", "call_id": "c", "output": screen}), "")
    assert refusal(item).param == "input[1].output.image_url"


def test_what_an_item_was_opened_with_was_looked_at_when_it_was_made():
    blind = AttachmentRules(Capabilities(), LIMITS)
    compacted = read_item(b'{"type":"compaction","encrypted_content":"x"}', "")
    blind.refuse_unseen([opened_with(compacted, (shown(image()), shown(image())))])


def test_files_need_a_model_that_takes_them():
    part = {"type": "input_file", "file_id": "f"}
    assert refusal(shown(part)).param == "input[1].content[0]"
    AttachmentRules(Capabilities(files=True), LIMITS).refuse_unseen([shown(part)])


def test_pictures_within_the_bounds_pass():
    AttachmentRules(SEES, LIMITS).refuse_unseen([shown(image(), image(data_url(gif(20, 3))))])
    elsewhere = shown(image("HTTPS://a.example/b.png"), image(None, file_id="f"), image())
    AttachmentRules(RESOLVES, LIMITS).refuse_unseen([elsewhere])
    read = read_item(b'{"type":"reasoning","summary":[],"id":"\\u0061"}', "")
    AttachmentRules(Capabilities(), LIMITS).refuse_unseen([read])


def test_a_context_has_a_bound_on_its_pictures():
    AttachmentRules(SEES, Limits(max_pictures=2)).refuse_context(Carry(pictures=2))
    with pytest.raises(InvalidRequest, match="has 3 images, and may have 2"):
        AttachmentRules(SEES, Limits(max_pictures=2)).refuse_context(Carry(pictures=3))
    with pytest.raises(InvalidRequest, match=r"The context has images\. This model takes text only"):
        AttachmentRules(Capabilities(), LIMITS).refuse_context(Carry(pictures=1))


def test_pictures_are_counted_along_a_chain():
    connection = Connection(Server(max_pictures=3))
    two = message([image(), image(data_url(png(2, 2)))])
    first = connection.respond(model="able", input=[two])
    second = connection.respond(model="able", previous=first["id"], input=[message("so?")])
    third = connection.respond(model="able", previous=second["id"], input=[message([image()])])
    assert connection.cache.find(third["id"]).carry.pictures == 3
    assert connection.cache.find(third["id"]).carry.attached == ("image/png",)
    error = only_error(connection.create(model="able", previous=third["id"], input=[two]))["error"]
    assert (error["param"], error["code"]) == ("input", "invalid_value")


def test_a_chain_with_pictures_is_not_continued_by_a_blind_model():
    connection = Connection()
    first = connection.respond(model="able", input=[message([image()])])
    error = only_error(connection.create(previous=first["id"], input="so?"))["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "model")
    assert not connection.starts


def test_a_blind_model_says_which_models_see():
    error = only_error(Connection().create(input=[message([image()])]))["error"]
    assert "GET /v1/models" in error["message"]


@pytest.mark.parametrize(
    ("capabilities", "attached", "words"),
    [
        (SEES, "elsewhere", "images without their data"),
        (SEES, "file", "files"),
        (Capabilities(images=True, picture_types=("image/png",)), "image/webp", "image/webp"),
    ],
)
def test_a_context_of_another_model_is_refused_if_this_one_does_not_see_all_of_it(
    capabilities, attached, words
):
    with pytest.raises(InvalidRequest, match=words) as refused:
        AttachmentRules(capabilities, LIMITS).refuse_context(
            Carry(attached=(attached, "image/png"), pictures=1)
        )
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "model")
    able = Capabilities(images=True, resolves_urls=True, files=True)
    AttachmentRules(able, LIMITS).refuse_context(Carry(attached=(attached,), pictures=1))


URL = "https://a.example/b.png"


def test_a_model_sees_the_images_that_were_fetched():
    connection = Connection(Server.fetching_images())
    screen = {"type": "computer_screenshot", "image_url": URL}
    sent = [
        message([{"type": "input_text", "text": "a"}, image(URL), image()]),
        {"type": "computer_call", "call_id": "c", "actions": []},
        {"type": "computer_call_output", "call_id": "c", "output": screen},
        message("b"),
    ]
    connection.create(model="able", input=sent)
    (asked,) = connection.fetches.values()
    assert asked.urls == (URL,)
    connection.fetch({URL: data_url(png(30, 20))})
    job = connection.job()
    assert [[each.width for each in pictures(item)] for item in job.input] == [[30, 1], [], [30], []]
    first = connection.finish()
    state = connection.cache.find("resp_1")
    assert first
    assert state is not None
    assert [json.loads(item.raw) for item in state.input] == sent
    assert attachments.with_fetched_images(state.input, {URL: PIXEL}) == state.input
    connection.create(model="able", previous="resp_1", input="so?")
    assert connection.job().parent is state, "what was fetched is not fetched again"


def test_an_image_that_was_not_fetched_or_is_beyond_the_limits_is_refused_by_its_field():
    connection = Connection(Server.fetching_images(max_picture_pixels=100))
    connection.create(model="able", input=[message("a"), message([image(URL)])])
    error = only_error(
        connection.fetch({URL: InvalidRequest("it is gone.", code="failed_to_download_image")})
    )
    assert error["error"]["message"] == "Invalid 'input[1].content[0].image_url': it is gone."
    assert error["error"]["code"] == "failed_to_download_image"
    connection.create(model="able", input=[message([image(URL), image(None, file_id="f")])])
    error = only_error(connection.fetch({URL: PIXEL}))
    assert error["error"]["param"] == "input[0].content[1].file_id"
    connection.create(model="able", input=[message([image(URL)])])
    assert only_error(connection.fetch({URL: data_url(png(30, 20))}))["error"]["code"] == "image_too_large"


def test_nothing_is_fetched_for_a_model_that_cannot_see():
    connection = Connection(Server.fetching_images())
    error = only_error(connection.create(input=[message([image(URL)])]))
    assert error["error"]["code"] == "unsupported_parameter"


def test_a_check_that_is_closed_to_images_refuses_them():
    policy = Policy((Check("a"), Check("b", subjects=("answer",), on_images="closed")))
    assert AttachmentRules(SEES, LIMITS, policy).shows_images
    rules = AttachmentRules(SEES, LIMITS, Policy((*policy.checks, Check("c", on_images="closed"))))
    assert not rules.shows_images
    with pytest.raises(InvalidPrompt, match="safety check 'c' cannot read"):
        rules.refuse_unseen([shown(image())])


@pytest.mark.parametrize(("scope", "is_refused"), [("new", False), ("all", True)])
def test_images_of_earlier_turns_are_refused_where_checks_inspect_all(scope: Any, is_refused: bool):
    rules = AttachmentRules(SEES, LIMITS, Policy((Check("c", on_images="closed"),), scope))
    rules.refuse_context(Carry())
    with pytest.raises(InvalidPrompt, match="The context has images") if is_refused else nullcontext():
        rules.refuse_context(Carry(pictures=1))


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_an_image_in_a_message_of_another_role_needs_a_model_that_takes_it_there(role: str):
    item = read_item(wire.encode({"type": "message", "role": role, "content": [image()]}), "")
    error = refusal(item)
    assert (error.code, error.param) == ("unsupported_parameter", "input[1].content[0]")
    assert f"role {role}" in error.message
    carry = input_items.join(input_items.NOTHING, (item,), complete=False)
    with pytest.raises(InvalidRequest, match=f"in messages of the role {role}") as refused:
        AttachmentRules(SEES, LIMITS).refuse_context(carry)
    assert refused.value.param == "model"
    takes_all = AttachmentRules(Capabilities(images=True, image_roles=ALL_ROLES), LIMITS)
    takes_all.refuse_unseen([item])
    takes_all.refuse_context(carry)


def test_images_that_an_engine_has_not_read_count_no_longer():
    carry = Carry(pictures=5)
    assert input_items.with_pictures_read(carry, 2, ()).pictures == 2
    assert input_items.with_pictures_read(carry, 2, (shown(image()),)).pictures == 3
    assert input_items.with_pictures_read(carry, 5, ()) is carry
