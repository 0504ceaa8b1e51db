"""File descriptors: raises the limit of the process, and reserves some for other uses than connections."""

from slipring.core.limits import Limits
from slipring.server.connections.open_connections import log

_RESERVED = 64
"""Reserved at least, for files, the store, child processes and connections to engines."""


_RESERVED_SHARE = 0.2
"""Reserved at least, as a share of all: a remote engine needs one for every running response."""


_FEW = 1000
"""Fewer connections than this are worth a warning, also if no other number was asked for."""


def raise_limit() -> int | None:
    """Raise the soft limit of open descriptors to the hard limit; returns it, None if there is none."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # the platform has a lower limit of its own
            return soft
        return hard
    return None if soft == resource.RLIM_INFINITY else soft


def room_for_connections(descriptors: int | None, max_connections: int) -> int:
    """The most connections at once: the configured number, or fewer if descriptors do not suffice."""
    if descriptors is None:
        return max_connections
    reserved = max(_RESERVED, int(descriptors * _RESERVED_SHARE))
    return max(1, min(max_connections, descriptors - reserved))


def is_reduced(room: int, max_connections: int) -> bool:
    """Whether fewer connections are possible than were asked for, or than a server usually needs."""
    return room < min(max_connections, _FEW) or (room < max_connections != Limits().max_connections)


def log_reduced_room(room: int, max_connections: int) -> None:
    """Log if the room is reduced."""
    if is_reduced(room, max_connections):
        log.warning(
            "at most %d connections at once, not %d: the process may open too few files (ulimit -n)",
            room,
            max_connections,
        )
