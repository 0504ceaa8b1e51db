"""What is kept of a background response that was cancelled or has failed: its state, and its items so far."""

from typing import Any

from msgspec import Raw, Struct, json

from slipring.base.errors import InvalidEncryptedContent, InvalidPrompt
from slipring.core.chain import hosted_items_in_context, input_items, sealed_items
from slipring.core.chain.hosted_items_in_context import UNKNOWN_OUTCOME
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import ResponseState
from slipring.protocol.hosted.hosted_items import ProtocolError
from slipring.protocol.items import read_item
from slipring.protocol.responses import Response
from slipring.protocol.wire import NULL, raw
from slipring.stores.runs import Lease, Run
from slipring.stores.store import Store

_PAGE = 500

_TELLING = (
    b'"response.output_item.',
    b'"response.mcp_call_arguments.delta"',
    b'"response.code_interpreter_call_code.done"',
)
"""Marks of the events that begin, extend or end an item."""

_INTERNAL_ERROR = -32603

_HOSTED = frozenset({"mcp_call", "web_search_call", "file_search_call", "code_interpreter_call"})


class _RecordedEvent(Struct):
    type: str
    output_index: int = 0
    item: Raw = NULL
    delta: str = ""
    code: str = ""


_Call = dict[str, Any]
"""A hosted call as JSON: that of an upstream may have other fields than ours."""

_outline = json.Decoder(_RecordedEvent)

_item: json.Decoder[_Call] = json.Decoder(_Call)


async def output_of(store: Store, run: Run) -> list[Raw]:
    """The finished output items and the hosted calls that had begun, from the events."""
    items: dict[int, Raw] = {}
    calls: dict[int, _Call] = {}
    after = -1
    while events := await store.runs.events(run.tenant, run.response_id, after=after, limit=_PAGE):
        after = events[-1].sequence_number
        for event in events:
            if any(mark in event.data for mark in _TELLING):
                _take(_outline.decode(event.data), items, calls)
    for index, call in calls.items():
        # It may have run, so it is not run again.
        call["status"] = "failed"
        if call["type"] == "mcp_call":
            call["error"] = ProtocolError(_INTERNAL_ERROR, UNKNOWN_OUTCOME)
        items[index] = raw(call)
    return [items[index] for index in sorted(items)]


def _take(event: _RecordedEvent, items: dict[int, Raw], calls: dict[int, _Call]) -> None:
    """Note what an event says of an item: ``items`` are finished, ``calls`` are hosted and are not."""
    index = event.output_index
    if event.type == "response.output_item.done":
        items[index] = event.item
        calls.pop(index, None)
    elif event.type == "response.output_item.added":
        item = _item.decode(event.item)
        if item["type"] in _HOSTED:
            calls[index] = item
    elif index in calls:
        if event.type == "response.mcp_call_arguments.delta":
            calls[index]["arguments"] += event.delta
        else:
            calls[index]["code"] = event.code


async def find_state(store: Store, seal: Seal, tenant: str, response: Response) -> ResponseState | None:
    """The state of the response of an open run. None: what it began with is not in the store, what it
    continues has been deleted, or its output was sealed with a key that this node does not have."""
    beginning = await store.runs.beginning(tenant, response.id)
    if beginning is None:
        return None
    parent: ResponseState | None = None
    if beginning.parent_id is not None:
        parent = await store.responses.load(tenant, beginning.parent_id)
        if parent is None:
            return None
    items = tuple(read_item(bytes(raw), f"output[{index}]") for index, raw in enumerate(response.output))
    try:
        output = sealed_items.opened(items, seal, tenant, "output")
    except InvalidEncryptedContent:
        return None
    carry = input_items.join(input_items.carried(parent), beginning.input, complete=False)
    carry = hosted_items_in_context.denied(carry)
    if beginning.is_upstream:
        carry = input_items.after_output(carry, output).without_hosted_items
    else:
        output = hosted_items_in_context.opened(output)
        carry = input_items.after_output(carry, output)
    return ResponseState(
        response=response,
        parent=parent,
        head=beginning.head,
        input=beginning.input,
        output=output,
        carry=carry,
        fork=True,
    )


async def save(store: Store, seal: Seal, lease: Lease, response: Response) -> None:
    """Store a response that has been cancelled or has failed, before its run ends. Raises ``LeaseLost``."""
    is_refused = response.error is not None and response.error.code == InvalidPrompt.code
    if response.status not in ("cancelled", "failed") or is_refused:
        return
    if await store.responses.retrieve(lease.tenant, response.id) is not None:
        return  # it has failed in a later step, and its turn has saved it
    state = await find_state(store, seal, lease.tenant, response)
    if state is not None:
        await store.responses.save(lease.tenant, state, lease=lease)
