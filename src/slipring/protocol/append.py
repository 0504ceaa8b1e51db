"""``response.append`` and ``response.inject``: what a client owes to a response that is being made.

The two say the same and are answered differently. Stricter than a create: no key but those of the event, and
nothing but results of tools, each for a call.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.errors import InvalidRequest, quoted
from slipring.protocol import items, wire
from slipring.protocol.items import Item

ANSWERS = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "computer_call_output": "computer_call",
    "shell_call_output": "shell_call",
    "apply_patch_call_output": "apply_patch_call",
    "tool_search_output": "tool_search_call",
}
"""The results that a client sends, and the calls that they answer."""


class AppendRequest(Struct, forbid_unknown_fields=True):
    type: Literal["response.append", "response.inject"]
    response_id: Annotated[str, Meta(min_length=1)]
    input: Annotated[list[Raw], Meta(min_length=1)]


class AppendOutline(Struct):
    """What can be given back of an event that may be wrong in any way."""

    response_id: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET


_append = msgspec.json.Decoder(AppendRequest)
_outline = msgspec.json.Decoder(AppendOutline)


def read_append(frame: bytes | str) -> tuple[str, tuple[Item, ...]]:
    """The response that is meant, and what is added to it; errors name the field."""
    if len(frame) > wire.LONG_BYTES:
        sent = wire.given(read_outline(frame).input)
        if sent is not None:
            wire.require_few(sent, items.MOST_ITEMS, "input", "items")
    request = wire.decode(_append, frame)
    return request.response_id, items.read_items(request.input)


def require_answers(found: tuple[Item, ...]) -> None:
    """Refuse items that are well-formed and answer no call."""
    for index, item in enumerate(found):
        if item.type not in ANSWERS:
            param = f"input[{index}].type"
            known = ", ".join(f"'{kind}'" for kind in ANSWERS)
            raise InvalidRequest(
                f"Invalid '{param}': {quoted(item.type)} answers no call. What does: {known}.", param=param
            )
        if item.call_id is None:
            raise wire.explain("Object missing required field `call_id`", f"input[{index}]")


def read_outline(frame: bytes | str) -> AppendOutline:
    """Decode what has to be said again about an event that is refused."""
    return wire.decode(_outline, frame)
