"""Background runs that have not finished: when an owner counts as dead, the states of their responses, and
how a run is ended in place of its owner, cancelled by a client or failed because the owner died.

A run writes what its response began with, as soon as no safety check holds that back. A response that is
cancelled or fails is stored with it and with the output items that were complete, and is then like any other:
it can be continued, listed and compacted. If its input was refused, nothing of it is stored.

To end a run, a node first takes it over from its owner. The final response is built from the store, and
written only if the run has not changed meanwhile: every run has exactly one terminal event.
"""

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct, json, structs

from slipring.core.chain.sealed_items import Seal
from slipring.protocol.events import Completed, Failed, Incomplete, ResponseEvent
from slipring.protocol.responses import Response, ResponseError
from slipring.protocol.wire import encode
from slipring.server.background.unfinished_responses import output_of, save
from slipring.stores.runs import Lease, LeaseLost, Run, RunEvent
from slipring.stores.store import Store

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


class Claim(Struct, frozen=True):
    """The node that takes a run over, the lease that it takes, and what opens the sealed items of the run."""

    owner: str
    lease_until: float
    seal: Seal


async def cancel(store: Store, run: Run, claim: Claim) -> Response | None:
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
                await save(store, claim.seal, lease, event.response)
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
    response = structs.replace(read_response(run.response), output=await output_of(store, run))
    if cancelled:
        return Incomplete(sequence_number=number, response=structs.replace(response, status="cancelled"))
    error = ResponseError(code="server_error", message=_OWNER_DIED)
    return Failed(sequence_number=number, response=structs.replace(response, status="failed", error=error))


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
