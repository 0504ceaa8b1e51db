"""Hosted calls as models see them: each item of a hosted tool stands for a call, an output, or nothing.

A model calls a hosted tool as it calls any function, and reads the result as the output of that function. On
the wire, both are one ``mcp_call``. ``opened`` gives the items of hosted tools their ``Item.opened``:

- ``mcp_call``: the call; its output follows after the last item of the same step of the model, because the
  model made all calls of a step before it read any result. A call that was broken off has no output. Images
  of the result are not in the item: they are put into ``Item.opened`` when the call ends.
- ``mcp_approval_request``: the call. Its output stands where the client answers: a denial, or what the call
  returned once it was approved. One that is left unanswered counts as denied.
- ``mcp_list_tools``: nothing. The tools are part of the head.
- ``web_search_call``, ``file_search_call``, ``code_interpreter_call``: as ``mcp_call``. Their items do not
  contain the result, so it is put into ``Item.opened`` when the call ends. Of a call that comes back in a
  history, only what the item shows of the result is known.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import structs

from slipring.core.chain import item_ids
from slipring.core.chain.approvals import UNANSWERED, denial_text, unanswered
from slipring.core.chain.state import Approval, Carry
from slipring.protocol import wire
from slipring.protocol.items.hosted_items import (
    BuiltinCall,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    error_text,
)
from slipring.protocol.items.item_pictures import image_count
from slipring.protocol.items.items import Item, opened_with
from slipring.protocol.tools.builtin_tools import FUNCTIONS
from slipring.protocol.tools.mcp_tools import model_name
from slipring.protocol.tools.tool_types import BuiltinKind

Status = Literal["completed", "incomplete"]
_BUILTINS: dict[str, BuiltinKind] = {f"{kind}_call": kind for kind in FUNCTIONS}
"""The items of built-in tools."""
HOSTED = frozenset(
    {"mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response", *_BUILTINS}
)
_COMPACTIONS = ("compaction", "compaction_summary")
UNKNOWN_OUTCOME = "The call did not finish. Whether it had any effect is not known."


def call_item(call_id: str, label: str, name: str, arguments: str, status: Status = "completed") -> Item:
    """A hosted call as a model wrote it. An ``incomplete`` one was broken off, and has no output."""
    named = {"namespace": label, "name": model_name(label, name)}
    return _function_call(call_id, **named, arguments=arguments, status=status)


def builtin_call_item(call_id: str, kind: BuiltinKind, text: str) -> Item:
    """A call of a built-in tool as a model wrote it; ``text`` is the query, or the code."""
    arguments = wire.encode({FUNCTIONS[kind].argument: text}).decode()
    return _function_call(call_id, name=kind, arguments=arguments, status="completed")


def rejected_call_item(call_id: str, namespace: str | None, name: str, arguments: str) -> Item:
    """A call that is not made, as a model wrote it."""
    named = {"name": name} if namespace is None else {"namespace": namespace, "name": name}
    return _function_call(call_id, **named, arguments=arguments)


def _function_call(call_id: str, **fields: str) -> Item:
    raw = wire.encode({"type": "function_call", "call_id": call_id, **fields})
    return Item(type="function_call", raw=raw, call_id=call_id)


def output_item(call_id: str, text: str, pictures: Sequence[str] = ()) -> Item:
    """The result of a hosted call as a model reads it. ``pictures``: data URLs of images that follow the
    text."""
    output: object = text
    if pictures:
        shown = [{"type": "input_image", "image_url": url} for url in pictures]
        output = [{"type": "input_text", "text": text}, *shown]
    raw = wire.encode({"type": "function_call_output", "call_id": call_id, "output": output})
    return Item(type="function_call_output", raw=raw, call_id=call_id)


def result_text(call: McpCall) -> str:
    """What a model reads of a call that has ended."""
    if call.output is not None:
        return call.output
    return error_text(call.error) if call.error is not None else UNKNOWN_OUTCOME


def opened(items: Sequence[Item], results: Mapping[str, Item] | None = None) -> tuple[Item, ...]:
    """The items, with those of hosted tools opened.

    ``results``: by the id of the approval request, what approved calls returned whose ``mcp_call`` items are
    not among the items.
    """
    bare = tuple(map(_without_outputs, items))
    if not any(item.type in HOSTED for item in bare):
        return bare
    return _Opening(bare, results or {}, _outputs_in(items)).opened()


def _outputs_in(items: Sequence[Item]) -> dict[str, Item]:
    """The results of hosted calls that items have been opened with before, by the id of the call."""
    return {
        each.call_id: each
        for item in items
        for each in item.opened or ()
        if each.type == "function_call_output" and each.call_id is not None
    }


def _without_outputs(item: Item) -> Item:
    """An item without the outputs that stand with it in the context that it comes from: those of its own
    context are added anew."""
    if item.opened is None or item.type in HOSTED or item.type in _COMPACTIONS:
        return item
    content = tuple(
        each for each in item.opened if each.type != "function_call_output" or each.call_id == item.call_id
    )
    is_itself = len(content) == 1 and content[0].raw == item.raw
    return opened_with(item, None if is_itself else content)


class _Opening:
    def __init__(
        self, items: Sequence[Item], results: Mapping[str, Item], outputs: Mapping[str, Item]
    ) -> None:
        """``outputs``: what calls have returned, by the id of the call."""
        self._items = items
        self._known_outputs = outputs
        self._results = dict(results)
        self._requested: set[str] = set()
        self._answered = set(results)
        for item in items:
            self._note(item)
        self._done: list[Item] = []
        self._outputs: list[Item] = []
        """Outputs of the calls of the step in progress."""
        self._unanswered: list[str] = []
        """Requests of the step in progress that no item answers."""

    def _note(self, item: Item) -> None:
        if item.type not in HOSTED:
            return
        body = item.body()
        if isinstance(body, McpApprovalRequest):
            self._requested.add(item.id or "")
        elif isinstance(body, McpApprovalResponse):
            self._answered.add(body.approval_request_id)
        elif isinstance(body, McpCall) and body.approval_request_id is not None:
            asked = body.approval_request_id
            self._results[asked] = self._output(asked, body)

    def opened(self) -> tuple[Item, ...]:
        for index, item in enumerate(self._items):
            if not _is_of_same_step(item):
                if item.type != "mcp_approval_request":
                    self._deny_unanswered()
                self._end_step()
            self._done.append(self._open(item, item.id or f"call_{index}") if item.type in HOSTED else item)
        self._end_step()
        return tuple(self._done)

    def _deny_unanswered(self) -> None:
        """Something else follows the requests of a step: what was not answered was not approved."""
        self._outputs += (output_item(each, UNANSWERED) for each in self._unanswered)
        self._unanswered = []

    def _end_step(self) -> None:
        """Put the outputs behind the last item of their step."""
        if self._outputs:
            last = self._done[-1]
            content = (structs.replace(last, opened=None),) if last.opened is None else last.opened
            self._done[-1] = structs.replace(last, opened=(*content, *self._outputs))
            self._outputs = []

    def _open(self, item: Item, call_id: str) -> Item:
        body = item.body()
        content: tuple[Item, ...] = ()
        if isinstance(body, McpApprovalRequest):
            content = (call_item(call_id, body.server_label, body.name, body.arguments),)
            if call_id not in self._answered and call_id not in self._results:
                self._unanswered.append(call_id)
        elif isinstance(body, McpApprovalResponse):
            content = self._open_answer(body)
        elif isinstance(body, McpCall):
            content = self._open_call(body, call_id)
        elif isinstance(body, BuiltinCall):
            content = self._open_builtin(_BUILTINS[item.type], body, call_id)
        return opened_with(item, content)

    def _open_answer(self, answer: McpApprovalResponse) -> tuple[Item, ...]:
        asked = answer.approval_request_id
        if not answer.approve:
            return (output_item(asked, denial_text(answer.reason)),)
        return (self._results[asked],) if asked in self._results else ()

    def _open_call(self, call: McpCall, call_id: str) -> tuple[Item, ...]:
        asked = call.approval_request_id
        if asked is not None and asked in self._answered:
            return ()  # the answer stands for it
        if asked is not None and asked in self._requested:
            return (self._output(asked, call),)
        if call.status == "incomplete":
            return (call_item(call_id, call.server_label, call.name, call.arguments, "incomplete"),)
        self._outputs.append(self._output(call_id, call))
        return (call_item(call_id, call.server_label, call.name, call.arguments),)

    def _output(self, call_id: str, call: McpCall) -> Item:
        """What the model reads of a call that has ended. Its images are not in its item: they are known if
        the item was opened with them before."""
        known = self._known_outputs.get(call_id)
        return known if known is not None and image_count(known) else output_item(call_id, result_text(call))

    def _open_builtin(self, kind: BuiltinKind, call: BuiltinCall, call_id: str) -> tuple[Item, ...]:
        output = self._known_outputs.get(call_id)
        if output is None:
            shown = call.shown_result
            if shown is None:
                return ()  # a call that did not run, or of which nothing is known
            output = output_item(call_id, shown)
        self._outputs.append(output)
        return (builtin_call_item(call_id, kind, call.argument),)


def _is_of_same_step(item: Item) -> bool:
    place = item_ids.place_of(item.id) if item.id is not None else None
    return place is not None and place.same_step


def carried(before: Carry, items: Sequence[Item]) -> Carry:
    """The carry after the hosted items among these: their lists, the approvals that are still open, and how
    the others were answered."""
    lists, list_ids, approvals = dict(before.lists), dict(before.list_ids), dict(before.approvals)
    answered: dict[str, bool] = {}
    for item in items:
        body = item.body() if item.type in HOSTED else None
        if isinstance(body, McpListTools) and body.error is None:
            lists[body.server_label] = wire.encode(body.tools)
            list_ids.pop(body.server_label, None)
            if item.id is not None:
                list_ids[body.server_label] = item.id
        elif isinstance(body, McpApprovalRequest) and item.id is not None:
            approvals[item.id] = Approval(body.server_label, body.name, body.arguments)
        elif isinstance(body, McpApprovalResponse):
            answered[body.approval_request_id] = body.approve
        elif isinstance(body, McpCall) and body.approval_request_id is not None:
            answered.setdefault(body.approval_request_id, True)
    all_answered = {**answered, **before.answered} if answered else before.answered
    open_approvals = {asked: each for asked, each in approvals.items() if asked not in all_answered}
    return structs.replace(
        before, lists=lists, list_ids=list_ids, approvals=open_approvals, answered=all_answered
    )


def denied(carry: Carry) -> Carry:
    """The carry when the context goes on without an answer to the open requests: they count as denied."""
    answered = {**carry.answered, **dict.fromkeys(carry.approvals, False)}
    return structs.replace(carry, approvals={}, answered=answered)


def with_denials(before: Mapping[str, Approval], items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The input of a response, where what the client left unanswered counts as denied: the model reads so
    before anything else of the input."""
    answered = {
        body.approval_request_id
        for item in items
        if item.type == "mcp_approval_response" and isinstance(body := item.body(), McpApprovalResponse)
    }
    left = [request_id for request_id in before if request_id not in answered]
    last = items[-1] if items else None
    if last is not None and last.type == "mcp_approval_request":
        raise unanswered(last.id or "")
    if not left:
        return items
    if not items:
        raise unanswered(left[0])
    outputs = tuple(output_item(each, UNANSWERED) for each in left)
    first = items[0]
    content = (first,) if first.opened is None else first.opened
    return (structs.replace(first, opened=(*outputs, *content)), *items[1:])
