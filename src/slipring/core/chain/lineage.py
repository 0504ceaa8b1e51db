"""How new items join a chain: references are resolved, calls are matched with their outputs.

Only the delta is looked at. What earlier items mean for it was summed up in the parent's ``Carry``.
"""

from collections.abc import Iterable, Iterator, Mapping

from slipring.core.chain.state import Carry, OpenCall, ResponseState
from slipring.errors import InvalidRequest, quoted
from slipring.protocol import requests, wire
from slipring.protocol.append import ANSWERS
from slipring.protocol.intake import Intake
from slipring.protocol.items import (
    AdditionalTools,
    ConfigurationUpdate,
    CustomToolCall,
    FunctionCall,
    Item,
    LoadedTools,
)
from slipring.protocol.tools import CallableTool, Toolset, merged

_CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "computer_call": "computer call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
    "tool_search_call": "tool search call",
}
"""Calls that a client answers, and how error texts speak of them."""
_BRINGING = ("additional_tools", "tool_search_output")
"""Items that bring tools."""
_SEARCHES = ("tool_search_call", "tool_search_output")
_TELLING = frozenset({*_CALLS, *ANSWERS, "additional_tools", "configuration_update"})
"""Items that leave something behind for later turns."""
NOTHING = Carry()


def references(items: tuple[Item, ...]) -> set[str]:
    """The ids that ``item_reference`` items name."""
    return {item.id for item in items if item.type == "item_reference" and item.id is not None}


def resolve(items: tuple[Item, ...], found: Mapping[str, Item]) -> tuple[Item, ...]:
    """Put the items in the place of their references."""
    if "item_reference" not in {item.type for item in items}:
        return items
    resolved = []
    for index, item in enumerate(items):
        if item.type == "item_reference":
            target = found.get(item.id or "")
            if target is None:
                raise InvalidRequest(
                    f"Item with id {quoted(item.id or '')} not found.", param=f"input[{index}].id"
                )
            item = target
        resolved.append(item)
    return tuple(resolved)


def join(before: Carry, items: tuple[Item, ...], *, complete: bool, intake: Intake | None = None) -> Carry:
    """What a chain that carried this much carries after these items.

    With ``complete``, a response is about to be made from them, so every call must have its output.
    ``intake`` takes what they define; without it, they were accepted before.
    """
    telling = [(n, item) for n, item in enumerate(items) if item.type in _TELLING or item.opened is not None]
    if not telling:
        if complete:
            _require_answers(before.open_calls)
        return before
    open_calls = _match(before.open_calls, telling)
    effort, text_format = before.effort, before.format
    added: list[tuple[CallableTool, ...]] = []
    for index, item in _in_place(telling):
        if item.type in _BRINGING:
            added.append(_read_tools(item, f"input[{index}]", intake))
        elif item.type == "configuration_update":
            update = item.body()
            assert isinstance(update, ConfigurationUpdate)
            if update.reasoning is not None:
                effort = update.reasoning.effort or effort
            if update.text is not None:
                asked = requests.read_format(update.text.format, f"input[{index}].text.format", intake)
                text_format = asked or text_format
    if complete:
        _require_answers(open_calls)
    tools = merged(before.tools, *added)
    return Carry(open_calls=open_calls, tools=tools, effort=effort, format=text_format)


def take_definitions(items: tuple[Item, ...], intake: Intake) -> None:
    """Hand over what the tools define that items bring."""
    for index, item in _in_place(enumerate(items)):
        if item.type in _BRINGING:
            _read_tools(item, f"input[{index}]", intake)


def after_output(carry: Carry, output: tuple[Item, ...], *, cut_off: bool = False) -> Carry:
    """What the chain carries once a response has added its own items; ``cut_off``: the last is a fragment."""
    calls = {
        item.call_id: opening(item, cut_off=cut_off and item is output[-1])
        for item in output
        if item.call_id is not None and item.type in _CALLS
    }
    if not calls:
        return carry
    return Carry(
        open_calls={**carry.open_calls, **calls},
        tools=carry.tools,
        effort=carry.effort,
        format=carry.format,
    )


def carried(parent: ResponseState | None) -> Carry:
    return parent.carry if parent is not None else NOTHING


def is_call(item: Item) -> bool:
    """Whether it is a call that a client answers."""
    return item.type in _CALLS


def _in_place(items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
    """What items stand for, each with the place in the input that it came from."""
    for index, item in items:
        for meant in (item,) if item.opened is None else item.opened:
            yield index, meant


def _require_answers(open_calls: Mapping[str, OpenCall]) -> None:
    for call_id, call in open_calls.items():
        if call.required:
            raise InvalidRequest(f"No tool output found for {_CALLS[call.type]} {call_id}.", param="input")


def _match(before: Mapping[str, OpenCall], items: Iterable[tuple[int, Item]]) -> Mapping[str, OpenCall]:
    """The calls that are open after these items; the very same mapping where they change nothing."""
    exchanged = [(n, item) for n, item in _in_place(items) if _is_exchanged(item)]
    if not exchanged:
        return before
    open_calls = dict(before)
    for index, item in exchanged:
        _exchange(item, open_calls, index)
    return open_calls


def _is_exchanged(item: Item) -> bool:
    """Whether it is a call that a client answers, or an answer. Searches that are neither name no call."""
    if item.type in _SEARCHES and item.call_id is None:
        return False
    return item.type in _CALLS or item.type in ANSWERS


def _exchange(item: Item, open_calls: dict[str, OpenCall], index: int) -> None:
    """Open a call, or close the one that an output answers."""
    call_id = item.call_id
    if call_id is None:
        raise wire.explain("Object missing required field `call_id`", f"input[{index}]")
    if item.type in _CALLS:
        open_calls[call_id] = opening(item)
        return
    call = open_calls.pop(call_id, None)
    if call is None or call.type != ANSWERS[item.type]:
        noun = _CALLS[ANSWERS[item.type]]
        raise InvalidRequest(
            f"No tool call found for {noun} output with call_id {call_id[:256]}.",
            param=f"input[{index}].call_id",
        )


def opening(item: Item, *, cut_off: bool = False) -> OpenCall:
    """How a call is open that nobody has answered yet."""
    body = item.body()
    required = not cut_off and not (
        isinstance(body, FunctionCall | CustomToolCall)
        and (body.asynchronous is True or body.status == "incomplete")
    )
    return OpenCall(type=item.type, required=required)


def _read_tools(item: Item, where: str, intake: Intake | None) -> tuple[CallableTool, ...]:
    body = item.body()
    assert isinstance(body, AdditionalTools | LoadedTools)
    return Toolset.read(body.tools, f"{where}.tools", loaded=True, intake=intake).callables
