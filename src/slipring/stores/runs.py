"""Background runs: their owners, events and final status.

A lease is the owner's name and an epoch. Every write about a run begins with an update that matches only
while the run is open and has this epoch, so that a node that has lost the run cannot change it. A run whose
response has been saved cannot fail or be cancelled any more: it ends with the saved response. A run that has
ended cannot be found after its retention, whether or not its row has been removed.
"""

from collections.abc import Sequence

from msgspec import Struct

from slipring.core.chain.instructions_and_tools import Head
from slipring.protocol import wire
from slipring.protocol.items.items import Item
from slipring.protocol.responses import Response, Status
from slipring.stores import response_codec
from slipring.stores.databases.database import Database, RequiredRowMissing, Statement
from slipring.stores.pictures import Detached, Pictures, prepare_large, used_by_run
from slipring.stores.pruning import Expiry


class LeaseLost(Exception):
    """The node no longer owns the run: it was cancelled, or its lease expired and another node took it
    over."""


class Lease(Struct, frozen=True):
    """Proof that a node owns a background run, sent with every write about the run.

    A lease ends when the run ends, is taken over, or is deleted; writes with it then raise ``LeaseLost``.
    """

    tenant: str
    response_id: str
    owner: str
    epoch: int


class Run(Struct, frozen=True):
    """A background response as it is recorded in the store."""

    tenant: str
    response_id: str
    status: Status
    owner: str
    epoch: int
    lease_until: float
    last_sequence: int
    """The sequence number of the newest event; -1 before the first."""
    response: bytes
    """The response object as JSON, as of the last write."""

    @property
    def is_open(self) -> bool:
        return self.status in ("queued", "in_progress")


class Beginning(Struct, frozen=True):
    """What the response of a run began with."""

    parent_id: str | None
    """The response that it continues."""
    head: Head
    input: tuple[Item, ...]
    is_upstream: bool = False
    """Whether an upstream runs its hosted tools."""


class RunEvent(Struct, frozen=True):
    """One streaming event of a background response."""

    sequence_number: int
    data: bytes
    """The event as JSON."""


_FIRST_EPOCH = 1
_OPEN_STATUSES = ("queued", "in_progress")
_OPEN = """
INSERT INTO slipring_runs
    (tenant, response_id, status, owner, epoch, lease_until, last_sequence, response, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_INSERT_EVENT = """
INSERT INTO slipring_run_events (tenant, response_id, sequence_number, data) VALUES ($1, $2, $3, $4)
"""
_INSERT_BEGINNING = """
INSERT INTO slipring_run_beginnings
    (tenant, response_id, parent_id, is_upstream, instructions, tools, input)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
"""
_BEGINNING = """
SELECT parent_id, is_upstream, instructions, tools, input FROM slipring_run_beginnings
WHERE tenant = $1 AND response_id = $2
"""
_DELETE_BEGINNING = "DELETE FROM slipring_run_beginnings WHERE tenant = $1 AND response_id = $2"
# An owner that does not know whether its events were written writes them again.
_APPEND_EVENT = f"{_INSERT_EVENT}ON CONFLICT DO NOTHING\n"
# The preceding update has locked the run's row, and a save updates that row first: no save can come in
# between.
_NOT_SAVED_OTHERWISE = """
SELECT 1 WHERE NOT EXISTS (
    SELECT 1 FROM slipring_responses
    WHERE tenant = $1 AND id = $2 AND hidden = 0 AND expires_at > $3 AND status <> $4
)
"""
_OPEN_RUN = "tenant = $1 AND response_id = $2 AND status IN ('queued', 'in_progress')"
_OWNED = f"{_OPEN_RUN} AND owner = $3 AND epoch = $4"
_HOLD = f"""
UPDATE slipring_runs SET epoch = epoch
WHERE {_OWNED} RETURNING epoch
"""
_APPEND = f"""
UPDATE slipring_runs SET status = $5, response = $6, lease_until = $7,
    last_sequence = CASE WHEN last_sequence < $8 THEN $8 ELSE last_sequence END
WHERE {_OWNED} RETURNING epoch
"""
_RENEW = f"""
UPDATE slipring_runs SET lease_until = $5
WHERE {_OWNED} RETURNING epoch
"""
# In the order of the fields of ``Run``.
_COLUMNS = "tenant, response_id, status, owner, epoch, lease_until, last_sequence, response"
_SEIZE = f"""
UPDATE slipring_runs SET epoch = epoch + 1, owner = $4, lease_until = $5
WHERE {_OPEN_RUN} AND epoch = $3 RETURNING {_COLUMNS}
"""
_SEIZE_IF_NOT_RENEWED = _SEIZE.replace("epoch = $3", "epoch = $3 AND lease_until = $6")
_TOUCH = f"""
UPDATE slipring_runs SET epoch = epoch
WHERE {_OPEN_RUN} AND epoch = $3 AND lease_until = $4 RETURNING epoch
"""
_END = f"""
UPDATE slipring_runs SET status = $5, response = $6, last_sequence = $7, epoch = epoch + 1
WHERE {_OPEN_RUN} AND epoch = $3 AND last_sequence = $4 RETURNING epoch
"""
# What is kept: an open run, and one that has ended until it expires.
_KEPT = "(expires_at > $3 OR status IN ('queued', 'in_progress'))"
_READ = f"SELECT {_COLUMNS} FROM slipring_runs WHERE tenant = $1 AND response_id = $2 AND {_KEPT}"
_EXPIRED = f"""
SELECT {_COLUMNS} FROM slipring_runs
WHERE status IN ('queued', 'in_progress') AND lease_until <= $1
ORDER BY lease_until LIMIT $2
"""
_EVENTS = f"""
SELECT sequence_number, data FROM slipring_run_events
WHERE tenant = $1 AND response_id = $2 AND sequence_number > $4 AND EXISTS (
    SELECT 1 FROM slipring_runs WHERE tenant = $1 AND response_id = $2 AND {_KEPT}
)
ORDER BY sequence_number LIMIT $5
"""
_DELETE = f"""
DELETE FROM slipring_runs WHERE tenant = $1 AND response_id = $2 AND {_KEPT}
RETURNING response_id
"""


def require_lease(lease: Lease) -> Statement:
    """Return a statement that rolls back the write it is part of if the lease has ended."""
    return Statement(_HOLD, _key(lease), requires_row=True)


def _key(lease: Lease) -> tuple[str, str, str, int]:
    return lease.tenant, lease.response_id, lease.owner, lease.epoch


def _insert(
    tenant: str, response_id: str, events: Sequence[RunEvent], sql: str = _INSERT_EVENT
) -> list[Statement]:
    return [Statement(sql, (tenant, response_id, event.sequence_number, event.data)) for event in events]


def _begin(
    tenant: str, response: Response, beginning: Beginning | None, detached: Detached
) -> list[Statement]:
    """Return the statements that keep what an open run began with, or drop it because the run has ended.
    ``detached`` gets its pictures."""
    if response.status not in _OPEN_STATUSES:
        return [Statement(_DELETE_BEGINNING, (tenant, response.id))]
    if beginning is None:
        return []
    key = (tenant, response.id, beginning.parent_id, int(beginning.is_upstream))
    head, packed = response_codec.head_columns(beginning.head), detached.pack(beginning.input)
    inserted = Statement(_INSERT_BEGINNING, (*key, *head, packed))
    return [inserted, *used_by_run(tenant, response.id, detached)]


def _newest(events: Sequence[RunEvent]) -> int:
    return events[-1].sequence_number if events else -1


class Runs:
    """Background runs, their events, and the leases of their owners.

    A run that has ended is gone when its retention is over. An open run is kept until it ends.
    """

    def __init__(self, database: Database, expiry: Expiry, pictures: Pictures) -> None:
        self._database = database
        self._expiry = expiry
        self._pictures = pictures

    async def open(
        self,
        tenant: str,
        response: Response,
        events: Sequence[RunEvent],
        *,
        owner: str,
        lease_until: float,
        beginning: Beginning | None = None,
    ) -> Lease:
        """Record a new run with its first events, owned by the node ``owner``. ``beginning``: to be kept
        until the run ends."""
        expires_at = self._expiry.expires_at(response.created_at)
        args = (tenant, response.id, response.status, owner, _FIRST_EPOCH, float(lease_until))
        opened = Statement(_OPEN, (*args, _newest(events), wire.encode(response), expires_at))
        detached = Detached()
        await prepare_large(beginning.input if beginning is not None else ())
        begun = _begin(tenant, response, beginning, detached)
        await self._pictures.write(tenant, detached, opened, *_insert(tenant, response.id, events), *begun)
        return Lease(tenant, response.id, owner, _FIRST_EPOCH)

    async def append(
        self,
        lease: Lease,
        events: Sequence[RunEvent],
        response: Response,
        *,
        lease_until: float,
        beginning: Beginning | None = None,
    ) -> None:
        """Write events, the current response object and its status, and extend the lease. ``beginning``: to
        be kept until the run ends, if none is kept yet.

        A terminal status ends the run and its lease. Events that are already stored are not changed, so a
        write may be repeated. Raises ``LeaseLost`` if the lease has ended, and if the status is ``failed``
        or ``cancelled`` although the response has been saved: the run then stays open until it is ended with
        the saved response.
        """
        args = (response.status, wire.encode(response), float(lease_until), _newest(events))
        appended = Statement(_APPEND, (*_key(lease), *args), requires_row=True)
        inserts = _insert(lease.tenant, lease.response_id, events, _APPEND_EVENT)
        unsaved = self._unsaved(lease.tenant, response)
        try:
            detached = Detached()
            await prepare_large(beginning.input if beginning is not None else ())
            begun = _begin(lease.tenant, response, beginning, detached)
            await self._pictures.write(lease.tenant, detached, appended, *unsaved, *inserts, *begun)
        except RequiredRowMissing:
            raise LeaseLost(lease.response_id) from None

    async def renew(self, leases: Sequence[Lease], *, lease_until: float) -> list[Lease]:
        """Extend the leases; return those that have ended."""
        if not leases:
            return []
        renewed = await self._database.write(
            *(Statement(_RENEW, (*_key(lease), float(lease_until))) for lease in leases)
        )
        return [lease for lease, rows in zip(leases, renewed, strict=True) if not rows]

    async def read(self, tenant: str, response_id: str) -> Run | None:
        rows = await self._database.read(_READ, tenant, response_id, self._expiry.now())
        return Run(*rows[0]) if rows else None

    async def beginning(self, tenant: str, response_id: str) -> Beginning | None:
        """Return what an open run began with. None: it has ended, or has not written that."""
        rows = await self._database.read(_BEGINNING, tenant, response_id)
        if not rows:
            return None
        parent_id, is_upstream, instructions, tools, packed = rows[0]
        head = response_codec.read_head(instructions, tools)
        (items,) = await self._pictures.unpacked(tenant, [packed])
        return Beginning(parent_id, head, items, bool(is_upstream))

    async def events(self, tenant: str, response_id: str, *, after: int, limit: int) -> list[RunEvent]:
        """Return up to ``limit`` events with a sequence number above ``after``, in order."""
        rows = await self._database.read(_EVENTS, tenant, response_id, self._expiry.now(), after, limit)
        return [RunEvent(*row) for row in rows]

    async def seize(
        self, run: Run, *, owner: str, lease_until: float, if_not_renewed: bool = False
    ) -> Run | None:
        """Make ``owner`` the owner of an open run; the previous owner's lease ends.

        None: the run has ended, or its owner has changed since ``run`` was read; with ``if_not_renewed`` also
        if the owner has renewed its lease since then.
        """
        args = (run.tenant, run.response_id, run.epoch, owner, float(lease_until))
        seized = Statement(_SEIZE, args)
        if if_not_renewed:
            seized = Statement(_SEIZE_IF_NOT_RENEWED, (*args, run.lease_until))
        (rows,) = await self._database.write(seized)
        return Run(*rows[0]) if rows else None

    async def end(self, run: Run, response: Response, event: RunEvent) -> bool:
        """End an open run with its final object and event, whichever node owns it; that node's lease ends.

        False, and nothing is written: the run has changed since it was read, or the final status is
        ``failed`` or ``cancelled`` although the response has been saved meanwhile.
        """
        key = (run.tenant, run.response_id, run.epoch, run.last_sequence)
        args = (response.status, wire.encode(response), event.sequence_number)
        ended = Statement(_END, (*key, *args), requires_row=True)
        unsaved = self._unsaved(run.tenant, response)
        try:
            inserts = _insert(run.tenant, run.response_id, [event])
            await self._database.write(
                ended, *unsaved, *inserts, *_begin(run.tenant, response, None, Detached())
            )
        except RequiredRowMissing:
            return False
        return True

    def _unsaved(self, tenant: str, response: Response) -> list[Statement]:
        """Return the condition for this status: a run may fail or be cancelled only if nothing was saved, or
        if what was saved has failed too."""
        if response.status not in ("failed", "cancelled"):
            return []
        args = (tenant, response.id, self._expiry.now(), response.status)
        return [Statement(_NOT_SAVED_OTHERWISE, args, requires_row=True)]

    async def expired(self, now: float, limit: int) -> list[Run]:
        """Return up to ``limit`` open runs whose lease has expired, in the order of their leases."""
        return [Run(*row) for row in await self._database.read(_EXPIRED, float(now), limit)]

    async def touch(self, run: Run) -> bool:
        """Write to an open run without changing it, as soon as the store can write.

        False: the run has ended, or its owner or its lease has changed since ``run`` was read.
        """
        args = (run.tenant, run.response_id, run.epoch, run.lease_until)
        (rows,) = await self._database.write(Statement(_TOUCH, args))
        return bool(rows)

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a run and its events, which ends its lease. False: there was none."""
        (rows,) = await self._database.write(Statement(_DELETE, (tenant, response_id, self._expiry.now())))
        return bool(rows)
