"""Item ids, derived from the id of the item's response and its index there.

An item can therefore be found from its id alone, without an index of items. Input items that a client sent
without an id get one in the same way.

An id also says whether a model wrote the item after a call, in the same step. When a client sends a history
again, its ids therefore tell which calls were made at once, and the context is rendered as it was generated.
"""

import re
from collections.abc import Callable
from itertools import count

from msgspec import Struct

from slipring.protocol.items.items import Item, numbered_call

RESPONSE = "resp_"
_CALL = "call"
_DIGITS = 4
_OF_INPUT = "i"
_SAME_STEP = "s"
_TAGGED_PARTS = 3
_MINTED_RESPONSE = re.compile(RESPONSE + "[0-9a-f]{32}")
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
    "shell_call": "sh",
    "shell_call_output": "sho",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "computer_call": "cu",
    "computer_call_output": "cuo",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}


def call_minter(mint: Callable[[str], str], first: int | None) -> Callable[[str], str]:
    """``mint``, but that it numbers calls from ``first`` on, unless that is None."""
    if first is None:
        return mint
    numbers = count(first)
    return lambda prefix: numbered_call(next(numbers)) if prefix == _CALL else mint(prefix)


class Place(Struct, frozen=True):
    """The position that an item id encodes."""

    response_id: str
    of_input: bool
    index: int
    same_step: bool = False
    """Whether a call precedes it in the output of the same step of the model."""


def prefix(kind: str) -> str:
    return _PREFIXES.get(kind, "item")


def output_id(
    kind: str, response_id: str, index: int, *, same_step: bool = False, tag: str | None = None
) -> str:
    """The id of the item at this index of a response's output. ``tag``: text that the id ends with."""
    mark = _SAME_STEP if same_step else ""
    end = f"_{tag}" if tag is not None else ""
    return f"{prefix(kind)}_{response_id.removeprefix(RESPONSE)}{mark}{index:0{_DIGITS}x}{end}"


def tag_of(item_id: str) -> str | None:
    """The text that an output id ends with; None if there is none."""
    parts = item_id.split("_")
    return parts[2] if len(parts) == _TAGGED_PARTS else None


def input_id(item: Item, response_id: str, index: int) -> str:
    """The id of an input item: the client's, or one derived from its index."""
    return item.id or place_id(item, response_id, index)


def place_id(item: Item, response_id: str, index: int) -> str:
    """The id of an input item derived from its index, ignoring the client's."""
    return f"{prefix(item.type)}_{response_id.removeprefix(RESPONSE)}{_OF_INPUT}{index:0{_DIGITS}x}"


def place_of(item_id: str) -> Place | None:
    """Decode an id made by this module; None for other ids."""
    _, underscore, rest = item_id.partition("_")
    rest = rest.partition("_")[0]
    stem, digits = rest[:-_DIGITS], rest[-_DIGITS:]
    of_input, same_step = stem.endswith(_OF_INPUT), stem.endswith(_SAME_STEP)
    stem = stem.removesuffix(_OF_INPUT if of_input else _SAME_STEP)
    try:
        index = int(digits, 16)
    except ValueError:
        return None
    if not underscore or not stem or len(digits) != _DIGITS:
        return None
    return Place(RESPONSE + stem, of_input, index, same_step)


def is_minted(item_id: str) -> bool:
    """Whether the id has the form of those that a server gives to items: a client chose any other."""
    place = place_of(item_id)
    return place is not None and _MINTED_RESPONSE.fullmatch(place.response_id) is not None
