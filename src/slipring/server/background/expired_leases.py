"""Runs of other nodes whose lease has expired, and which of them are abandoned.

An expired lease does not prove that the owner is dead. All processes of a machine may have been stopped for a
while, or no node could write to the store: when that is over, a live owner renews its leases within a moment.
"""

from collections.abc import Sequence

from slipring.stores.runs import Run

_Lease = tuple[str, str, int, float]


class ExpiredLeases:
    """Decides that a run is abandoned: its lease has stayed the same for ``grace_s`` since this node was able
    to write to the run, and this process was not stopped meanwhile."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since: dict[_Lease, float] = {}
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


def _lease(run: Run) -> _Lease:
    return run.tenant, run.response_id, run.epoch, run.lease_until
