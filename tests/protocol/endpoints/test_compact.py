"""The compact endpoint: its request is equivalent to a create that ends with a trigger."""

import json
from typing import Any, cast

import pytest
from msgspec import Raw

from slipring.base.errors import InvalidRequest
from slipring.protocol import wire
from slipring.protocol.endpoints.compact import read_compact
from slipring.protocol.items.items import MOST_ITEMS
from slipring.protocol.requests import CreateRequest

TRIGGER = {"type": "compaction_trigger"}
HELLO = {"role": "user", "content": "hello"}


def as_create(**fields: object) -> CreateRequest:
    return read_compact(json.dumps({"model": "m", **fields}).encode()).as_create()


def input_of(request: CreateRequest) -> Any:
    return json.loads(bytes(cast(Raw, request.input)))


@pytest.mark.parametrize(
    ("fields", "items"),
    [
        ({}, []),
        ({"input": None}, []),
        ({"input": []}, []),
        ({"input": "hello"}, [HELLO]),
        ({"input": [HELLO, HELLO]}, [HELLO, HELLO]),
    ],
)
def test_the_trigger_is_the_last_item_of_the_input(fields: dict[str, object], items: list[object]) -> None:
    assert input_of(as_create(**fields)) == [*items, TRIGGER]


def test_a_compaction_is_a_create_that_is_not_stored() -> None:
    request = as_create(instructions="be brief", previous_response_id="resp_1", prompt_cache_key="k")
    assert (request.model, request.instructions) == ("m", "be brief")
    assert (request.previous_response_id, request.prompt_cache_key) == ("resp_1", "k")
    assert request.store is False


@pytest.mark.parametrize(("body", "param"), [(b"{}", "model"), (b'{"model":"m","input":5}', "input")])
def test_an_error_names_the_invalid_field(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_compact(body).as_create()
    assert caught.value.param == param


def test_a_long_input_with_too_many_items_is_refused() -> None:
    items = [{"x": "y" * (wire.LONG_BYTES // MOST_ITEMS)}] * (MOST_ITEMS + 1)
    with pytest.raises(InvalidRequest, match=f"more than {MOST_ITEMS} items") as caught:
        as_create(input=items)
    assert caught.value.param == "input"
