"""Item ids encode the position of their item."""

import pytest

from slipring.core.chain import item_ids
from slipring.core.chain.item_ids import Place
from slipring.protocol.items.items import read_item, user_message


def test_an_output_item_id_encodes_its_position() -> None:
    named = item_ids.output_id("function_call", "resp_00ff", 11)
    assert named == "fc_00ff000b"
    assert item_ids.place_of(named) == Place("resp_00ff", False, 11)


def test_an_input_item_without_an_id_gets_one_from_its_index() -> None:
    named = item_ids.input_id(user_message("hi"), "resp_00ff", 2)
    assert named == "msg_00ffi0002"
    assert item_ids.place_of(named) == Place("resp_00ff", True, 2)


def test_an_input_item_keeps_its_own_id() -> None:
    item = read_item(b'{"type":"message","role":"user","content":"x","id":"msg_mine"}', "input[0]")
    assert item_ids.input_id(item, "resp_1", 0) == "msg_mine"


@pytest.mark.parametrize(
    "foreign", ["", "msg", "msg_", "msg_12", "msg_0001", "msg_i0001", "msg_mine", "x_12z4"]
)
def test_other_ids_encode_no_position(foreign: str) -> None:
    assert item_ids.place_of(foreign) is None


@pytest.mark.parametrize(
    ("item_id", "is_minted"),
    [
        (f"msg_{'0a' * 16}0001", True),
        (f"fc_{'0a' * 16}s0001", True),
        (f"msg_{'0a' * 16}i0001", True),
        (f"mcpr_{'0a' * 16}0001_tag", True),
        (f"msg_{'0a' * 24}", False),
        (f"msg_{'0A' * 16}0001", False),
        ("msg_mine", False),
        ("", False),
    ],
)
def test_ids_of_servers_have_a_form_of_their_own(item_id: str, is_minted: bool) -> None:
    assert item_ids.is_minted(item_id) is is_minted


def test_calls_are_numbered_if_their_ids_must_follow_from_the_context() -> None:
    mint = item_ids.call_minter(lambda prefix: f"{prefix}_random", 3)
    assert [mint("call"), mint("rs"), mint("call")] == ["call_3", "rs_random", "call_4"]
    assert item_ids.call_minter(str.upper, None)("call") == "CALL"
