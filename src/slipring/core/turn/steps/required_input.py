"""What the client of a response owes it before it can go on: outputs of calls, and decisions about others."""

from msgspec import UNSET

from slipring.core.chain import input_items
from slipring.core.chain.state import Carry, ResponseState
from slipring.protocol.events import RequiredInput
from slipring.protocol.items import CALL_OF_OUTPUT, Body, FunctionCall, Item

_OUTPUT_OF_CALL = {call: output for output, call in CALL_OF_OUTPUT.items()}


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
        if item.call_id is not None and call is not None and call.required and input_items.is_call(item):
            stubs.append(_stub(item.type, item.call_id, item.body()))
    return stubs


def _stub(kind: str, call_id: str, call: Body) -> RequiredInput:
    if kind == "tool_search_call":
        return RequiredInput(_OUTPUT_OF_CALL[kind], call_id, execution="client")
    name = call.name if kind == "function_call" and isinstance(call, FunctionCall) else UNSET
    return RequiredInput(_OUTPUT_OF_CALL[kind], call_id, name)
