"""Requests of the conversations endpoints: bounded in items and metadata."""

import json
from collections.abc import Callable

import pytest

from slipring.base.errors import InvalidRequest
from slipring.protocol import wire
from slipring.protocol.endpoints.conversations import read_addition, read_creation, read_update

Read = Callable[[bytes], object]
ITEM = {"role": "user", "content": "hello"}
LONG_ITEM = {"role": "user", "content": "x" * wire.LONG_BYTES}
LONG_METADATA = {"k": "v" * wire.LONG_BYTES}


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_a_creation_may_be_empty() -> None:
    created = read_creation(b"{}")
    assert (created.items, created.metadata) == (None, None)


def test_a_creation_has_items_and_metadata() -> None:
    created = read_creation(body(items=[ITEM], metadata={"k": "v"}))
    assert created.items is not None
    assert [json.loads(bytes(item)) for item in created.items] == [ITEM]
    assert created.metadata == {"k": "v"}


def test_metadata_can_be_updated_to_null() -> None:
    assert read_update(body(metadata=None)).metadata is None


@pytest.mark.parametrize(("read", "param"), [(read_update, "metadata"), (read_addition, "items")])
def test_an_update_needs_metadata_and_an_addition_needs_items(read: Read, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(b"{}")
    assert (caught.value.param, caught.value.code) == (param, "missing_required_parameter")


@pytest.mark.parametrize("read", [read_creation, read_addition])
def test_at_most_twenty_items_are_added_at_once(read: Read) -> None:
    read(body(items=[ITEM] * 20))
    with pytest.raises(InvalidRequest) as caught:
        read(body(items=[ITEM] * 21))
    assert caught.value.param == "items"


def test_a_long_item_is_accepted() -> None:
    assert len(read_addition(body(items=[LONG_ITEM])).items) == 1


def test_the_items_of_a_long_body_are_counted_before_they_are_decoded() -> None:
    with pytest.raises(InvalidRequest, match="more than 20 items") as caught:
        read_addition(body(items=[LONG_ITEM] + [ITEM] * 20))
    assert caught.value.param == "items"


@pytest.mark.parametrize("read", [read_creation, read_update])
def test_long_metadata_is_refused_before_it_is_decoded(read: Read) -> None:
    with pytest.raises(InvalidRequest, match="bytes") as caught:
        read(body(metadata=LONG_METADATA))
    assert caught.value.param == "metadata"


def test_a_long_body_may_have_short_metadata_and_no_items() -> None:
    assert read_update(body(metadata={"k": "v"}, unknown="x" * wire.LONG_BYTES)).metadata == {"k": "v"}
