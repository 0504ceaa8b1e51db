"""What the registry of open connections, and the watch over slow clients, know of a connection."""

from enum import Enum
from typing import Literal, Protocol

DropReason = Literal["head_timeout", "made_room", "unread", "message_timeout", "message_memory"]


class ConnectionState(Enum):
    AWAITING_HEAD = "awaiting head"
    """Waiting for the head of its first request, or of one that has begun to arrive."""
    IDLE = "idle"
    """Kept open for another request."""
    SERVING = "serving"


class TrackedConnection(Protocol):
    """What the registry uses of a connection."""

    tenant: str | None
    """The tenant of the key it has sent; None: no key yet."""
    state: ConnectionState
    is_surplus: bool
    """Whether it exceeds a limit on connections: its requests are refused."""
    unfinished_bytes: int
    """Bytes of the WebSocket message that is being received."""

    @property
    def is_reading_paused(self) -> bool:
        """Whether the server reads nothing that the client sends, because earlier messages wait."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the transport that the client has not read."""

    @property
    def undelivered_bytes(self) -> int:
        """Bytes in the transport and in the kernel that the client's system has not acknowledged."""

    @property
    def unread_bytes(self) -> int:
        """Bytes in the transport and in the outgoing queue."""

    def abort(self) -> None:
        """Close at once. Unread bytes are lost."""

    def expire(self) -> None:
        """Close because the head of a request did not arrive in time."""

    def refuse_message(self, code: int, reason: str) -> None:
        """Close a WebSocket because of the message that is being received."""
