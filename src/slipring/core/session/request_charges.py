"""The bytes of creates, steers and appends that one connection has in the ledger of requests.

Bytes are held in the name of whatever they belong to, a turn or what waits for one, and go back to the ledger
together with it. When the connection is gone, all that is left goes back, and nothing is charged any more.
"""

from slipring.core.byte_ledger import Ledger
from slipring.errors import ApiError, RateLimited, Unavailable


class Charges:
    """The bytes of requests that a connection holds, by who holds them."""

    __slots__ = ("_held", "_is_closed", "_ledger", "_tenant")

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        self._ledger = ledger
        self._tenant = tenant
        self._held: dict[object, int] = {}
        self._is_closed = False

    def objection(self, size_bytes: int) -> ApiError | None:
        """Why so many bytes more cannot be taken; None: they can."""
        if not self._ledger.fits_tenant(self._tenant, size_bytes):
            return RateLimited(
                "The requests that wait or run for this tenant are too large together"
                f" (at most {self._ledger.tenant_limit_bytes} bytes). Wait for a response to finish."
            )
        if not self._ledger.fits(size_bytes):
            return Unavailable(
                "The requests that wait or run on this server are too large together. Try again later."
            )
        return None

    def require_room(self, size_bytes: int) -> None:
        """Raise what refuses so many bytes more, if anything does."""
        if (error := self.objection(size_bytes)) is not None:
            raise error

    def take(self, holder: object, size_bytes: int) -> None:
        """Charge bytes in a holder's name."""
        if not self._is_closed:
            self._ledger.add(self._tenant, size_bytes)
            self._held[holder] = self._held.get(holder, 0) + size_bytes

    def hand_over(self, giver: object, taker: object) -> None:
        """Let one holder have what another held."""
        size_bytes = self._held.pop(giver, 0)
        if size_bytes:
            self._held[taker] = self._held.get(taker, 0) + size_bytes

    def release(self, holder: object) -> None:
        """Give back what a holder holds, if it holds anything."""
        size_bytes = self._held.pop(holder, 0)
        if size_bytes:
            self._ledger.remove(self._tenant, size_bytes)

    def close(self) -> None:
        """Give back everything, for good."""
        self._is_closed = True
        for holder in list(self._held):
            self.release(holder)
