"""Adds new items to a chain, and tells what its client still owes.

References are resolved, call outputs are matched with their calls, and the ``Carry`` of the chain is updated.
Only the new items are examined: the parent's ``Carry`` summarizes the earlier ones. What is open afterwards
are the calls whose outputs the client must send, and those about which it must decide, before the chain can
go on (``required_input``).
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import UNSET, structs

from slipring.base.errors import InvalidRequest, quoted
from slipring.core.chain import hosted_items_in_context
from slipring.core.chain.state import Carry, OpenCall, ResponseState
from slipring.protocol import requests
from slipring.protocol.events import RequiredInput
from slipring.protocol.items.item_pictures import attachments, image_count
from slipring.protocol.items.items import (
    CALL_OF_OUTPUT,
    AdditionalTools,
    Body,
    ConfigurationUpdate,
    CustomToolCall,
    FunctionCall,
    Item,
    LoadedTools,
    computed_once,
    in_context,
    may_have_images,
    shown,
)
from slipring.protocol.tools.grammars_and_schemas import Definitions
from slipring.protocol.tools.toolset import CallableTool, Toolset, merged

_CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "computer_call": "computer call",
    "shell_call": "shell call",
    "local_shell_call": "local shell call",
    "apply_patch_call": "apply patch call",
    "tool_search_call": "tool search call",
}
"""Calls that a client answers, and their names in error messages."""
_OUTPUT_OF_CALL = {call: output for output, call in CALL_OF_OUTPUT.items()}
_WITH_TOOLS = ("additional_tools", "tool_search_output")
_COMPACTIONS = ("compaction", "compaction_summary")
_MATCHED = frozenset({*_CALLS, *CALL_OF_OUTPUT})
"""Items that open or close a call."""
_CONFIGURING = frozenset({*_WITH_TOOLS, *_COMPACTIONS, "configuration_update"})
"""Items that may have tools or settings."""
_RELEVANT = frozenset({*_CALLS, *CALL_OF_OUTPUT, *_CONFIGURING})
"""Items that change the carry."""
NOTHING = Carry()


def references(items: tuple[Item, ...]) -> set[str]:
    """The ids in ``item_reference`` items."""
    return {item.id for item in items if item.type == "item_reference" and item.id is not None}


def resolve(items: tuple[Item, ...], found: Mapping[str, Item]) -> tuple[Item, ...]:
    """Replace references by the items in ``found``. Raises for a reference that is not found."""
    if "item_reference" not in [item.type for item in items]:
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


def join(
    before: Carry, items: tuple[Item, ...], *, complete: bool, definitions: Definitions | None = None
) -> Carry:
    """The carry of a chain after these items; ``before`` is its carry without them.

    With ``complete``, a response will be generated next, so every required call must have its output.
    ``definitions`` collects grammars and bounds schemas; None for items that were accepted before.
    """
    types = {item.type for item in items}
    before = _with_hosted_items_and_pictures(before, items, types)
    if types.isdisjoint(_RELEVANT):
        if complete:
            _require_answers(before.open_calls)
        return before
    relevant = [(n, item) for n, item in enumerate(items) if item.type in _RELEVANT]
    if not types.isdisjoint(_COMPACTIONS):
        relevant = list(_opened(relevant))
    open_calls = _match(before.open_calls, relevant)
    effort, text_format = before.effort, before.format
    added: list[tuple[CallableTool, ...]] = []
    for index, item in relevant if types & _CONFIGURING else ():
        if item.type in _WITH_TOOLS:
            added.append(_read_tools(item, f"input[{index}]", definitions))
        elif item.type == "configuration_update":
            update = item.body()
            assert isinstance(update, ConfigurationUpdate)
            if update.reasoning is not None:
                effort = update.reasoning.effort or effort
            if update.text is not None:
                new_format = requests.read_format(
                    update.text.format, f"input[{index}].text.format", definitions
                )
                text_format = new_format or text_format
    if complete:
        _require_answers(open_calls)
    tools = merged(before.tools, *added)
    return structs.replace(before, open_calls=open_calls, tools=tools, effort=effort, format=text_format)


def take_definitions(items: tuple[Item, ...], definitions: Definitions) -> None:
    """Add the grammars and schemas of the tools in these items to ``definitions``."""
    for index, item in _opened(enumerate(items)):
        if item.type in _WITH_TOOLS:
            _read_tools(item, f"input[{index}]", definitions)


def after_output(carry: Carry, output: tuple[Item, ...], *, cut_off: bool = False) -> Carry:
    """The carry after a response's output; ``cut_off``: its last item is incomplete."""
    calls = {
        item.call_id: opening(item, cut_off=cut_off and item is output[-1])
        for item in output
        if item.call_id is not None and item.type in _CALLS
    }
    carry = _with_hosted_items_and_pictures(carry, output, {item.type for item in output})
    return structs.replace(carry, open_calls={**carry.open_calls, **calls}) if calls else carry


def _with_hosted_items_and_pictures(carry: Carry, items: tuple[Item, ...], types: set[str]) -> Carry:
    if not hosted_items_in_context.HOSTED.isdisjoint(types):
        carry = hosted_items_in_context.carried(carry, items)
    bearing = list(filter(may_have_images, shown(items)))
    if not bearing:
        return carry
    attached = frozenset(carry.attached).union(*map(attachments, bearing))
    count = carry.pictures + sum(map(image_count, bearing))
    return structs.replace(carry, pictures=count, attached=tuple(sorted(attached)))


def with_pictures_read(carry: Carry, read: int, output: tuple[Item, ...]) -> Carry:
    """The carry of a context of which the engine has read so many images: truncation may have dropped the
    items of others. Of ``output``, it may have read some or none."""
    most = read + sum(map(image_count, in_context(output)))
    return structs.replace(carry, pictures=most) if most < carry.pictures else carry


class OpenCarry:
    """The carry of a response in progress. Its turn owns it; the turn's rollout extends the same object."""

    __slots__ = ("_observed", "current", "settled")

    def __init__(self, carry: Carry) -> None:
        self.replace(carry)

    def replace(self, carry: Carry, observed: int = 0) -> None:
        """``carry`` covers the context, with so many finished output items."""
        self.settled = carry
        """Covers the input, and the output up to the client's last append."""
        self.current = carry
        """Covers every finished output item and every accepted append too."""
        self._observed = observed

    def extend(self, carry: Carry) -> None:
        """``carry`` covers an append that was accepted, too."""
        self.current = carry

    def observe(self, output: list[Item]) -> tuple[Item, ...]:
        """Add the output items that are new since the last call to ``current``; returns them."""
        new = tuple(output[self._observed :])
        if new:
            self._observed += len(new)
            self.current = after_output(self.current, new)
        return new

    def with_output(self, output: list[Item]) -> Carry:
        """What ``current`` would be after ``observe``."""
        return after_output(self.current, tuple(output[self._observed :]))

    def settle(self, output: list[Item]) -> None:
        """The accepted appends are now the end of the output: ``settled`` covers all of it."""
        self.settled = self.current
        self._observed = len(output)


def carried(parent: ResponseState | None) -> Carry:
    """The carry that a continuation of ``parent`` begins with."""
    return parent.carry if parent is not None else NOTHING


def is_call(item: Item) -> bool:
    """Whether the item is a call that a client answers."""
    return item.type in _CALLS


def _opened(items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
    """Replace compactions by their content; each item keeps the index of the one that contained it."""
    for index, item in items:
        if item.type not in _COMPACTIONS:
            yield index, item
        else:
            yield from ((index, inner) for inner in item.opened or ())


def _require_answers(open_calls: Mapping[str, OpenCall]) -> None:
    for call_id, call in open_calls.items():
        if call.required:
            raise InvalidRequest(f"No tool output found for {_CALLS[call.type]} {call_id}.", param="input")


def _match(before: Mapping[str, OpenCall], items: Iterable[tuple[int, Item]]) -> Mapping[str, OpenCall]:
    """The calls that are open after these items; ``before`` itself if they change nothing."""
    open_calls = dict(before)
    has_matched = False
    for index, item in items:
        kind, call_id = item.type, item.call_id
        if kind not in _MATCHED or call_id is None:
            continue  # a tool search without ``call_id`` ran on a server; the forms of all others require it
        has_matched = True
        if kind in _CALLS:
            open_calls[call_id] = _opening(item)
            continue
        call = open_calls.pop(call_id, None)
        if call is None or call.type != CALL_OF_OUTPUT[kind]:
            raise _without_call(kind, call_id, index)
    return open_calls if has_matched else before


def _without_call(kind: str, call_id: str, index: int) -> InvalidRequest:
    """The error about an output that answers no call."""
    noun = _CALLS[CALL_OF_OUTPUT[kind]]
    return InvalidRequest(
        f"No tool call found for {noun} output with call_id {call_id[:256]}.", param=f"input[{index}].call_id"
    )


def opening(item: Item, *, cut_off: bool = False) -> OpenCall:
    """The ``OpenCall`` of a new call. Asynchronous, incomplete and cut-off calls need no output."""
    body = item.body()
    required = not cut_off and not (
        isinstance(body, FunctionCall | CustomToolCall)
        and (body.asynchronous is True or body.status == "incomplete")
    )
    return OpenCall(type=item.type, required=required)


_opening = computed_once(opening)


def _read_tools(item: Item, where: str, definitions: Definitions | None) -> tuple[CallableTool, ...]:
    body = item.body()
    assert isinstance(body, AdditionalTools | LoadedTools)
    return Toolset.read(body.tools, f"{where}.tools", loaded=True, definitions=definitions).callables


def requires_input(state: ResponseState) -> bool:
    """Whether the client has to send outputs, or decisions about calls, before its steers can follow."""
    return bool(state.carry.approvals) or any(call.required for call in state.carry.open_calls.values())


def required_input(output: tuple[Item, ...], carry: Carry) -> list[RequiredInput]:
    """The outputs that the client must send for calls in ``output``, and its decisions about those that need
    approval. Earlier ones have been answered."""
    stubs = []
    for item in output:
        if item.id is not None and item.id in carry.approvals:
            stubs.append(RequiredInput("mcp_approval_response", approval_request_id=item.id))
        call = carry.open_calls.get(item.call_id or "")
        if item.call_id is not None and call is not None and call.required and is_call(item):
            stubs.append(_stub(item.type, item.call_id, item.body()))
    return stubs


def _stub(kind: str, call_id: str, call: Body) -> RequiredInput:
    if kind == "tool_search_call":
        return RequiredInput(_OUTPUT_OF_CALL[kind], call_id, execution="client")
    name = call.name if kind == "function_call" and isinstance(call, FunctionCall) else UNSET
    return RequiredInput(_OUTPUT_OF_CALL[kind], call_id, name)
