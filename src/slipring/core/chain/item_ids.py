"""Item ids, derived from the id of the item's response and its index there.

An item can therefore be found from its id alone, without an index of items. Input items that a client sent
without an id get one in the same way.
"""

from msgspec import Struct

from slipring.protocol.items import Item

RESPONSE = "resp_"
_DIGITS = 4
_OF_INPUT = "i"
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "compaction": "cmp",
}


class Place(Struct, frozen=True):
    """The position that an item id encodes."""

    response_id: str
    of_input: bool
    index: int


def prefix(kind: str) -> str:
    return _PREFIXES.get(kind, "item")


def output_id(kind: str, response_id: str, index: int) -> str:
    """The id of the item at this index of a response's output."""
    return f"{prefix(kind)}_{response_id.removeprefix(RESPONSE)}{index:0{_DIGITS}x}"


def input_id(item: Item, response_id: str, index: int) -> str:
    """The id of an input item: the client's, or one derived from its index."""
    return item.id or place_id(item, response_id, index)


def place_id(item: Item, response_id: str, index: int) -> str:
    """The id of an input item derived from its index, ignoring the client's."""
    return f"{prefix(item.type)}_{response_id.removeprefix(RESPONSE)}{_OF_INPUT}{index:0{_DIGITS}x}"


def place_of(item_id: str) -> Place | None:
    """Decode an id made by this module; None for other ids."""
    _, underscore, rest = item_id.partition("_")
    stem, digits = rest[:-_DIGITS], rest[-_DIGITS:]
    of_input = stem.endswith(_OF_INPUT)
    stem = stem.removesuffix(_OF_INPUT)
    try:
        index = int(digits, 16)
    except ValueError:
        return None
    if not underscore or not stem or len(digits) != _DIGITS:
        return None
    return Place(RESPONSE + stem, of_input, index)
