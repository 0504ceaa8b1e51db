"""Background runs that are ended in place of their owner, because a client cancels them or their owner has
died: when an owner counts as dead, how such a run ends, and what is kept of its response.

To end a run, a node first takes it over from its owner. The final response is built from the store, and
written only if the run has not changed meanwhile: every run has exactly one terminal event.

A run writes what its response began with, as soon as no safety check holds that back. A response that is
cancelled or fails is stored with it and with the output items that were complete, and is then like any other:
it can be continued, listed and compacted. If its input was refused, nothing of it is stored.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import Raw, Struct, json, structs

from slipring.base.errors import InvalidEncryptedContent, InvalidPrompt
from slipring.core.chain import hosted_items_in_context, input_items, sealed_items
from slipring.core.chain.hosted_items_in_context import UNKNOWN_OUTCOME
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import ResponseState
from slipring.protocol.events import Completed, Failed, Incomplete, ResponseEvent
from slipring.protocol.items.hosted_items import ProtocolError
from slipring.protocol.items.items import read_item
from slipring.protocol.responses import Response, ResponseError
from slipring.protocol.wire import NULL, encode, raw
from slipring.stores.runs import Lease, LeaseLost, Run, RunEvent
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
_OWNER_DIED = "The server that made this response went away before it was finished."
_KINDS: dict[str, type[ResponseEvent]] = {
    "completed": Completed,
    "incomplete": Incomplete,
    "failed": Failed,
    # The API has no event for cancelled responses; the status distinguishes them.
    "cancelled": Incomplete,
}
"""The terminal events of saved responses, by status."""

read_response = json.Decoder(Response).decode


class ExpiredLeases:
    """Decides that a run is abandoned: its lease has stayed the same for ``grace_s`` since this node was able
    to write to the run, and this process was not stopped meanwhile.

    An expired lease does not prove that the owner is dead. All processes of a machine may have been stopped
    for a while, or no node could write to the store: when that is over, a live owner renews its leases
    within a moment.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since: dict[tuple[str, str, int, float], float] = {}
        """When this node wrote to the runs that were expired at its last look."""
        self._looked_at: float | None = None

    def abandoned(self, expired: Sequence[Run], now: float) -> list[Run]:
        """Return those of the expired runs that are abandoned, and forget the runs that are not expired."""
        was_stopped = self._looked_at is not None and now - self._looked_at > self._grace_s
        known = {} if was_stopped else self._since
        self._since = {lease: known[lease] for run in expired if (lease := _lease(run)) in known}
        return [run for run in expired if now - self._since.get(_lease(run), now) >= self._grace_s]

    def is_known(self, run: Run) -> bool:
        """Whether this node has written to the run since it expired."""
        return _lease(run) in self._since

    def note(self, run: Run, now: float) -> None:
        """This node has written to an expired run: its owner could have done the same."""
        self._since[_lease(run)] = now

    def looked(self, now: float) -> None:
        """A look at the expired runs has ended."""
        self._looked_at = now


def _lease(run: Run) -> tuple[str, str, int, float]:
    return run.tenant, run.response_id, run.epoch, run.lease_until


class Claim(Struct, frozen=True):
    """The node that takes a run over, the lease that it takes, and what opens the sealed items of the run."""

    owner: str
    lease_until: float
    seal: Seal


async def cancel_run(store: Store, run: Run, claim: Claim) -> Response | None:
    """Cancel a run, unless it is over, and return its final response; None if it does not exist."""
    return await _end(store, run, claim, cancelled=True)


async def fail_abandoned(store: Store, run: Run, claim: Claim) -> None:
    """Fail a run whose owner has died, unless its lease has been renewed since ``run`` was read."""
    await _end(store, run, claim, cancelled=False)


async def deletion_event(store: Store, tenant: str, response: Response, number: int) -> ResponseEvent:
    """The last event for followers of a run that is gone: how its response has ended, if that is stored,
    and otherwise that it was cancelled. It has nothing of the output of a response that was deleted."""
    saved = await store.responses.retrieve(tenant, response.id)
    if saved is not None:
        return _KINDS[saved.status](sequence_number=number, response=saved)
    return Incomplete(
        sequence_number=number, response=structs.replace(response, status="cancelled", output=[])
    )


async def _end(store: Store, run: Run, claim: Claim, *, cancelled: bool) -> Response | None:
    # Taken over first: otherwise the owner could add events faster than the end can be written.
    current: Run | None = run
    while current is not None and current.is_open:
        taken = await store.runs.seize(
            current, owner=claim.owner, lease_until=claim.lease_until, if_not_renewed=not cancelled
        )
        if taken is not None:
            number = taken.last_sequence + 1
            event = await _last_event(store, taken, number, cancelled=cancelled)
            lease = Lease(run.tenant, run.response_id, taken.owner, taken.epoch)
            with suppress(LeaseLost):  # then the run has changed, and is not ended here
                await save_unfinished(store, claim.seal, lease, event.response)
            if await store.runs.end(taken, event.response, RunEvent(number, encode(event))):
                return event.response
        if not cancelled:
            return None  # its owner is alive, or another node has taken it over
        current = await store.runs.read(run.tenant, run.response_id)
    return read_response(current.response) if current is not None else None


async def _last_event(store: Store, run: Run, number: int, *, cancelled: bool) -> ResponseEvent:
    saved = await store.responses.retrieve(run.tenant, run.response_id)
    if saved is not None:  # the owner saved the response, and died before it wrote the last event
        return _KINDS[saved.status](sequence_number=number, response=saved)
    response = structs.replace(read_response(run.response), output=await _output_of(store, run))
    if cancelled:
        return Incomplete(sequence_number=number, response=structs.replace(response, status="cancelled"))
    error = ResponseError(code="server_error", message=_OWNER_DIED)
    return Failed(sequence_number=number, response=structs.replace(response, status="failed", error=error))


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


async def _output_of(store: Store, run: Run) -> list[Raw]:
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


async def unfinished_state(store: Store, seal: Seal, tenant: str, response: Response) -> ResponseState | None:
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


async def save_unfinished(store: Store, seal: Seal, lease: Lease, response: Response) -> None:
    """Store a response that has been cancelled or has failed, before its run ends. Raises ``LeaseLost``."""
    is_refused = response.error is not None and response.error.code == InvalidPrompt.code
    if response.status not in ("cancelled", "failed") or is_refused:
        return
    if await store.responses.retrieve(lease.tenant, response.id) is not None:
        return  # it has failed in a later step, and its turn has saved it
    state = await unfinished_state(store, seal, lease.tenant, response)
    if state is not None:
        await store.responses.save(lease.tenant, state, lease=lease)
