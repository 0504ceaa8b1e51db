"""Charges the bytes of a connection's creates, steers and appends to the ledger of requests.

Bytes are charged to a holder: a turn, or the steers that wait for one. Releasing the holder returns its bytes
to the ledger. Closing the connection returns all bytes.

A turn that waits may pin the state that it forks, so that the state stays in memory even if the cache evicts
it. A pinned chain is charged once, however many turns of the connection pin it.
"""

from slipring.base.errors import OVERLOAD_RETRY_S, ApiError, RateLimited, Unavailable
from slipring.core.byte_ledger import ChainLedger, Ledger
from slipring.core.chain.state import ResponseState


class Charges:
    """The request bytes of one connection, by holder."""

    __slots__ = ("_held", "_ledger", "_pinned", "_pins", "_tenant")

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        self._ledger = ledger
        self._tenant = tenant
        self._held: dict[object, int] = {}
        self._pinned: dict[object, ResponseState] = {}
        self._pins: ChainLedger[ResponseState] = ChainLedger()

    def objection(self, size_bytes: int) -> ApiError | None:
        """The error that refuses this many more bytes; None if they fit."""
        return objection(self._ledger, self._tenant, size_bytes)

    def require_room(self, size_bytes: int, pinned: ResponseState | None = None) -> None:
        """Raise ``RateLimited`` or ``Unavailable`` if this many more bytes and a state to pin do not fit."""
        pinned_bytes = self._pins.weigh(pinned) if pinned is not None else 0
        if (error := self.objection(size_bytes + pinned_bytes)) is not None:
            raise error

    def take(self, holder: object, size_bytes: int, pinned: ResponseState | None = None) -> None:
        """Charge bytes to a holder, and a state that it pins. Does not check the limits."""
        self._ledger.add(self._tenant, size_bytes)
        self._held[holder] = self._held.get(holder, 0) + size_bytes
        if pinned is not None:
            self._pinned[holder] = pinned
            self._ledger.add(self._tenant, self._pins.hold(pinned))

    def hand_over(self, giver: object, taker: object) -> None:
        """Move the bytes of one holder to another."""
        self._held[taker] = self._held.get(taker, 0) + self._held.pop(giver, 0)

    def release(self, holder: object) -> None:
        """Return the bytes of a holder, if it has any."""
        size_bytes = self._held.pop(holder, 0)
        if (pinned := self._pinned.pop(holder, None)) is not None:
            size_bytes += self._pins.release(pinned)
        if size_bytes:
            self._ledger.remove(self._tenant, size_bytes)

    def close(self) -> None:
        """Return all bytes. The session charges nothing after it has closed."""
        for holder in list(self._held):
            self.release(holder)


def objection(ledger: Ledger, tenant: str, size_bytes: int) -> ApiError | None:
    """The error that refuses a tenant this many more bytes of requests; None if they fit."""
    if not ledger.fits_tenant(tenant, size_bytes):
        return RateLimited(
            "The requests that wait or run for this tenant are too large in total"
            f" (at most {ledger.tenant_limit_bytes} bytes). Wait for a response to finish.",
            retry_after_s=OVERLOAD_RETRY_S,
        )
    if not ledger.fits(size_bytes):
        return Unavailable(
            "The requests that wait or run on this server are too large in total. Try again later.",
            retry_after_s=OVERLOAD_RETRY_S,
        )
    return None
