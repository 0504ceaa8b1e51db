"""How the items of hosted tools stand for calls and outputs."""

import json
from typing import Any

from msgspec import structs

from slipring.core.chain import hosted_items_in_context
from slipring.core.chain.state import Approval, Carry
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import image_count
from slipring.protocol.items.items import Item, in_context, read_item, user_message
from tests.pictures import PIXEL

CALL = {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "{}"}
REQUEST = {"type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "{}"}


def item(body: dict[str, Any], **fields: Any) -> Item:
    return read_item(wire.encode({**body, **fields}), "input[0]")


def call(place: str, output: str, **fields: Any) -> Item:
    return item(CALL, id=f"mcp_{place}", output=output, **fields)


def answer(request_id: str, *, approve: bool) -> Item:
    return item({"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve})


def message(text: str, id: str | None = None) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return item({"type": "message", "role": "assistant", "content": content, "status": "completed"}, id=id)


def told(items: tuple[Item, ...]) -> list[str]:
    """The context, each item as its type and its call."""
    seen = []
    for each in in_context(items):
        body = json.loads(each.raw)
        if each.type == "message":
            seen.append("message")
        else:
            seen.append(f"{'output' if 'output' in body else 'call'} {body['call_id']}")
    return seen


def test_outputs_follow_the_last_item_of_their_step() -> None:
    items = (call("10000", "a"), call("1s0001", "b"), message("so", "msg_1s0002"), call("10003", "c"))
    opened = hosted_items_in_context.opened(items)
    assert told(opened) == [
        *("call mcp_10000", "call mcp_1s0001", "message", "output mcp_10000", "output mcp_1s0001"),
        *("call mcp_10003", "output mcp_10003"),
    ]
    assert [each.raw for each in opened] == [each.raw for each in items]


def test_opening_again_changes_nothing() -> None:
    items = (call("10000", "a"), message("so", "msg_1s0001"), user_message("more"))
    opened = hosted_items_in_context.opened(items)
    assert hosted_items_in_context.opened(opened) == opened


def test_images_of_a_result_stay_with_the_item_that_was_opened_with_them() -> None:
    shown = hosted_items_in_context.output_item("mcp_10000", "a", [PIXEL])
    named = item(CALL, id="mcp_10000", output="a")
    made = hosted_items_in_context.call_item("mcp_10000", "s", "f", "{}")
    opened = hosted_items_in_context.opened(
        (structs.replace(named, opened=(made, shown)), user_message("more"))
    )
    assert told(opened) == ["call mcp_10000", "output mcp_10000", "message"]
    assert [image_count(each) for each in in_context(opened)] == [0, 1, 0]
    assert hosted_items_in_context.opened(opened) == opened
    approved = call("20000", "42", approval_request_id="mcpr_10000_tag")
    shown = hosted_items_in_context.output_item("mcpr_10000_tag", "42", [PIXEL])
    known = structs.replace(approved, opened=(made, shown))
    opened = hosted_items_in_context.opened((item(REQUEST, id="mcpr_10000_tag"), known))
    assert [image_count(each) for each in in_context(opened)] == [0, 1]


def test_an_item_leaves_outputs_of_its_old_context_behind() -> None:
    opened = hosted_items_in_context.opened((call("10000", "a"), message("so", "msg_1s0001")))
    assert hosted_items_in_context.opened(opened[1:]) == (message("so", "msg_1s0001"),)


def test_sealed_content_stays_and_an_output_keeps_itself() -> None:
    thought = item({"type": "reasoning", "summary": []})
    sealed = structs.replace(thought, opened=(user_message("the thought"),))
    output = hosted_items_in_context.output_item("call_1", "42")
    denied = structs.replace(output, opened=(hosted_items_in_context.output_item("mcpr_1", "no"), output))
    assert hosted_items_in_context.opened((sealed, denied)) == (sealed, output)


def test_a_history_may_have_the_approved_call_without_the_approval() -> None:
    request = item(REQUEST, id="mcpr_10000_tag")
    approved = call("20000", "42", approval_request_id="mcpr_10000_tag")
    assert told(hosted_items_in_context.opened((request, approved, user_message("more")))) == [
        *("call mcpr_10000_tag", "output mcpr_10000_tag", "message"),
    ]


def test_what_an_approved_call_returned_stands_where_it_was_approved() -> None:
    request, yes = item(REQUEST, id="mcpr_10000_tag"), answer("mcpr_10000_tag", approve=True)
    waiting = hosted_items_in_context.opened((request, yes, user_message("quick")))
    assert told(waiting) == ["call mcpr_10000_tag", "message"]
    results = {"mcpr_10000_tag": hosted_items_in_context.output_item("mcpr_10000_tag", "42")}
    ended = hosted_items_in_context.opened((request, yes, user_message("quick")), results)
    assert told(ended) == ["call mcpr_10000_tag", "output mcpr_10000_tag", "message"]
    # Its item adds nothing more.
    approved = call("20000", "42", approval_request_id="mcpr_10000_tag")
    whole = hosted_items_in_context.opened((request, yes, user_message("quick"), approved, message("so")))
    assert told(whole) == ["call mcpr_10000_tag", "output mcpr_10000_tag", "message", "message"]


def test_a_request_without_an_answer_is_denied_by_what_follows() -> None:
    one, two = item(REQUEST, id="mcpr_10000_x"), item(REQUEST, id="mcpr_1s0001_y")
    opened = hosted_items_in_context.opened((one, two, answer("mcpr_1s0001_y", approve=False)))
    assert told(opened) == [
        *("call mcpr_10000_x", "call mcpr_1s0001_y", "output mcpr_10000_x", "output mcpr_1s0001_y"),
    ]
    assert told(hosted_items_in_context.opened((one, two))) == ["call mcpr_10000_x", "call mcpr_1s0001_y"]


def test_the_carry_has_lists_and_open_requests() -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    good = item({"type": "mcp_list_tools", "server_label": "s", "tools": [tool]})
    bad = item({"type": "mcp_list_tools", "server_label": "t", "tools": [], "error": "unreachable"})
    request = item(REQUEST, id="mcpr_1")
    carry = hosted_items_in_context.carried(Carry(), (good, bad, request))
    assert (list(carry.lists), carry.approvals) == (["s"], {"mcpr_1": Approval("s", "f", "{}")})
    after = hosted_items_in_context.carried(carry, (answer("mcpr_1", approve=True),))
    assert (after.approvals, after.answered) == ({}, {"mcpr_1": True})
    denied = hosted_items_in_context.denied(carry)
    assert (denied.approvals, denied.answered) == ({}, {"mcpr_1": False})
    assert hosted_items_in_context.denied(denied) == denied
    assert hosted_items_in_context.carried(carry, (user_message("hi"),)) == carry
