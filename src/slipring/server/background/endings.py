"""How a background run ends that its owner does not end itself: by a cancel, or because the owner is gone.

The last object is made from what the store has. It is written only if the run has not changed meanwhile, and
takes the run away from its owner: exactly one end is told.
"""

from msgspec import Raw, Struct, json, structs

from slipring.protocol.events import Completed, Failed, Incomplete, ResponseEvent
from slipring.protocol.responses import Response, ResponseError
from slipring.protocol.wire import NULL, encode
from slipring.stores.base import Run, RunEvent, Store

_PAGE = 500
_GONE = "The server that made this response went away before it was finished."


class _Outline(Struct):
    type: str
    item: Raw = NULL


_response = json.Decoder(Response)
_outline = json.Decoder(_Outline)


def read_response(data: bytes) -> Response:
    return _response.decode(data)


class Claim(Struct, frozen=True):
    """Who ends a run in its owner's place, and how long that may take."""

    owner: str
    lease_until: float


async def cancel(store: Store, run: Run, claim: Claim) -> Response | None:
    """End a run because its client wants it to end; a run that is over stays as it is."""
    return await _end(store, run, claim, cancelled=True)


async def give_up(store: Store, run: Run, claim: Claim) -> None:
    """End a run whose owner is gone."""
    await _end(store, run, claim, cancelled=False)


async def _end(store: Store, run: Run, claim: Claim, *, cancelled: bool) -> Response | None:
    # First it is taken away: whoever makes it may say more every moment, and would never be caught up with.
    current: Run | None = run
    while current is not None and current.is_open:
        taken = await store.runs.seize(current, owner=claim.owner, lease_until=claim.lease_until)
        if taken is not None:
            number = taken.last_sequence + 1
            event = await _last_event(store, taken, number, cancelled=cancelled)
            if await store.runs.end(taken, event.response, RunEvent(number, encode(event))):
                return event.response
        current = await store.runs.read(run.tenant, run.response_id)
        if current is not None and not cancelled and current.epoch != run.epoch:
            return None  # somebody else is at it
    return read_response(current.response) if current is not None else None


async def _last_event(store: Store, run: Run, number: int, *, cancelled: bool) -> ResponseEvent:
    saved = await store.responses.retrieve(run.tenant, run.response_id)
    if saved is not None:  # its owner had finished it, and could not say so any more
        kind = Completed if saved.status == "completed" else Incomplete
        return kind(sequence_number=number, response=saved)
    response = structs.replace(read_response(run.response), output=await _output(store, run))
    if cancelled:
        # The API has no event of its own for this; the status says what it was.
        return Incomplete(sequence_number=number, response=structs.replace(response, status="cancelled"))
    error = ResponseError(code="server_error", message=_GONE)
    return Failed(sequence_number=number, response=structs.replace(response, status="failed", error=error))


async def _output(store: Store, run: Run) -> list[Raw]:
    """The items that were finished."""
    items: list[Raw] = []
    after = -1
    while events := await store.runs.events(run.tenant, run.response_id, after=after, limit=_PAGE):
        after = events[-1].sequence_number
        for event in events:
            if b'"response.output_item.done"' in event.data:
                outline = _outline.decode(event.data)
                if outline.type == "response.output_item.done":
                    items.append(outline.item)
    return items
