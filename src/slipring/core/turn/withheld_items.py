"""Replaces items that a safety check refused in an earlier turn by placeholders, so that no model of a later
turn reads them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from slipring.core.chain import hosted_items_in_context
from slipring.core.checks.inspected_texts import subject_of
from slipring.core.checks.known_verdicts import Known, KnownVerdicts
from slipring.core.checks.policies import Decision, Policy, decide
from slipring.core.checks.verdicts import Subject
from slipring.core.turn.inspection_context import InspectionContext, sealed_and_open
from slipring.protocol import wire
from slipring.protocol.items.hosted_items import McpCall
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.items import Item, Message, read_item

_NAME = "withheld"
"""Stands for names of tools and of files."""

_Fields = dict[str, Any]


_OF_CALLS: dict[str, Callable[[str], _Fields]] = {
    "function_call": lambda text: {"name": _NAME, "arguments": _arguments(text)},
    "function_call_output": lambda text: {"output": text},
    "custom_tool_call": lambda text: {"name": _NAME, "input": text},
    "custom_tool_call_output": lambda text: {"output": text},
    "shell_call": lambda text: {"action": {"commands": [text]}},
    "shell_call_output": lambda text: {
        "output": [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    },
    "local_shell_call": lambda text: {"action": {"type": "exec", "command": [text], "env": {}}},
    "local_shell_call_output": lambda text: {"output": text},
    "apply_patch_call": lambda text: {"operation": {"type": "update_file", "path": _NAME, "diff": text}},
    "apply_patch_call_output": lambda text: {"status": "failed", "output": text},
    "computer_call": lambda text: {"actions": [{"type": "type", "text": text}]},
    "tool_search_call": lambda text: {"arguments": {_NAME: text}, "execution": "client"},
    "tool_search_output": lambda text: {"tools": [], "execution": "client"},
}
"""The content of calls that a client answers, and of its answers."""


def _arguments(text: str) -> str:
    return wire.encode({_NAME: text}).decode()


class _Kept(Struct):
    """What a placeholder keeps of a message or of a call."""

    role: str | None = None
    status: str | None = None
    asynchronous: bool | None = msgspec.field(name="async", default=None)


class _KeptOfHosted(Struct):
    """What a placeholder keeps of a hosted call: whose result it is, and what had approved it."""

    id: str | None = None
    server_label: str = ""
    name: str = ""
    status: str | None = None
    approval_request_id: str | None = None


def placeholder(item: Item, check: str) -> Item | None:
    """What stands for an item that this check has refused; None if nothing can."""
    content = _content(item, f"[Withheld: the safety check '{check}' has refused this content.]")
    if content is None:
        return None
    given = {name: value for name, value in content.items() if value is not None}
    return read_item(wire.encode({"type": item.type, **given}), "input")


def _content(item: Item, text: str) -> _Fields | None:
    if item.type == "message":
        kept = msgspec.json.decode(item.raw, type=_Kept)
        return {"role": kept.role, "content": text}
    if item.type == "reasoning":
        return {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}
    if item.type == "mcp_call":
        hosted = msgspec.json.decode(item.raw, type=_KeptOfHosted)
        return {**msgspec.structs.asdict(hosted), "arguments": _arguments(text), "output": text}
    if item.type not in _OF_CALLS or item.call_id is None:
        return None
    kept = msgspec.json.decode(item.raw, type=_Kept)
    status = {"status": kept.status, "async": kept.asynchronous} if item.type.endswith("_call") else {}
    return {"call_id": item.call_id, **status, **_OF_CALLS[item.type](text)}


_DIGEST_BYTES = 12


class Behind:
    """Identifies what stands behind each item of a request: how many items, and which is the last."""

    __slots__ = ("_count", "_last", "_last_digest")

    def __init__(self, items: Sequence[Item], digests: Mapping[int, bytes]) -> None:
        self._count = len(items)
        self._last = items[-1] if items else None
        self._last_digest = digests.get(id(self._last))

    def __getitem__(self, index: int) -> bytes:
        """What stands behind the item with this index; empty if nothing does."""
        count = self._count - 1 - index
        if count <= 0 or self._last is None:
            return b""
        if self._last_digest is None:
            self._last_digest = content_digest(self._last)
        return count.to_bytes(4, "big") + self._last_digest[:_DIGEST_BYTES]


class Refusal(Struct, frozen=True):
    """Why an item is refused."""

    decision: Decision
    known: Known


class Refusals:
    """What is known to be refused under one policy."""

    __slots__ = ("_known", "_policy", "_tenant")

    def __init__(self, policy: Policy, known: KnownVerdicts, tenant: str) -> None:
        self._policy = policy
        self._known = known
        self._tenant = tenant

    @property
    def may_be(self) -> bool:
        """Whether any item can be refused by what is known."""
        return self._known.has_flagged(self._tenant)

    def of(self, item: Item, index: int, digest: bytes | None, context: InspectionContext) -> Refusal | None:
        """Why an item of a request is refused; None if it is not, or nothing is known about it. The item then
        belongs to the context, or what stands for it does."""
        before = context.before
        refusal = None
        for part, is_sealed in _parts(item, index):
            known_digest = digest if part is item else None
            if not context.is_read:
                key = context.key(part, digest=known_digest, is_sealed=is_sealed)
                subject = None
            else:
                subject, key = context.read(part, "input", digest=known_digest, is_sealed=is_sealed)
            known = self._known.find(self._tenant, self._policy.digest, key)
            if refusal is None and known is not None and known.verdicts:
                refusal = self._refusal(known, subject or subject_of(part, "input", _nameless))
        if refusal is not None and context.is_read:
            context.go_to(before)
            # Behind an item for which nothing can stand, nothing is read: the request is refused for it.
            stands_in = placeholder(item, refusal.decision.check) or item
            context.pass_over(part for part, _ in _parts(stands_in, index))
        return refusal

    def _refusal(self, known: Known, subject: Subject | None) -> Refusal | None:
        assert subject is not None, "only what was inspected has verdicts"
        decision = decide(subject, self._policy.on(subject.kind), known.verdicts)
        return Refusal(decision, known) if decision is not None and decision.consequence == "block" else None


def withheld(
    items: tuple[Item, ...],
    digests: Mapping[int, bytes],
    refusals: Refusals,
    context: InspectionContext,
) -> tuple[tuple[Item, ...], dict[int, Refusal]]:
    """The items of a request with placeholders for those that were refused before, unless the request is to
    be refused for them again; and, by their indexes, why they are withheld. ``digests``: of items, by
    ``id()``. ``context``: what stands before the items; afterwards, it has gone on."""
    if not refusals.may_be:
        return items, {}
    context.call(hosted_items_in_context.opened(items))
    refused = {
        index: refusal
        for index, item in enumerate(items)
        if (refusal := refusals.of(item, index, digests.get(id(item)), context)) is not None
    }
    if not refused:
        return items, {}
    last = _last_asking(items, refused)
    behind = Behind(items, digests)
    together, why = list(items), {}
    for index, refusal in refused.items():
        is_same = refusal.known.behind == behind[index]
        stands_in = placeholder(items[index], refusal.decision.check)
        if index < last and not is_same and stands_in is not None:
            together[index] = stands_in
            why[index] = refusal
    return tuple(together), why


def _last_asking(items: tuple[Item, ...], refused: Mapping[int, Refusal]) -> int:
    """The index of the last item that a model can answer; -1 if there is none."""
    for index in range(len(items) - 1, -1, -1):
        if index not in refused and not _asks_nothing(items[index]):
            return index
    return -1


def _asks_nothing(item: Item) -> bool:
    """Whether a model has no more to answer behind an item than before it."""
    if item.type != "message":
        return item.type in ("additional_tools", "configuration_update")
    body = item.body()
    assert isinstance(body, Message)
    return body.role in ("developer", "system")


def _parts(item: Item, index: int) -> Iterator[tuple[Item, bool]]:
    """The items that a model reads of an item whose hosted calls are not opened yet, and whether the server
    has made them."""
    if item.type != "mcp_call":
        yield from sealed_and_open((item,))
        return
    call = item.body()
    assert isinstance(call, McpCall)
    call_id, text = item.id or f"call_{index}", hosted_items_in_context.result_text(call)
    yield hosted_items_in_context.call_item(call_id, call.server_label, call.name, call.arguments), False
    yield hosted_items_in_context.output_item(call_id, text), False
    if call.approval_request_id is not None:
        yield hosted_items_in_context.output_item(call.approval_request_id, text), False


def _nameless(call_id: str) -> None:
    """The name of a called tool does not change what follows from a verdict."""
