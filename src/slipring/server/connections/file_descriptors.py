"""File descriptors: how many the process may open, and how many of them connections may take.

A server that has no descriptor left can neither accept a client nor reach its engine or its store. So the
soft limit is raised to the hard one, and a part is kept back from connections.
"""

import logging

log = logging.getLogger("slipring")

_RESERVED = 64
"""At least so many stay free for files, the store, child processes and connections to engines."""
_RESERVED_SHARE = 0.2
"""And at least this part of all: engines elsewhere take one for every response that is being made."""
_FEW = 1000


def raise_limit() -> int | None:
    """Raise the number of descriptors that this process may open as far as it may; None: not known here."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a platform with a lower bound of its own
            return soft
        return hard
    return None if soft == resource.RLIM_INFINITY else soft


def room_for_connections(descriptors: int | None, max_connections: int) -> int:
    """How many connections are served at once: as many as are configured, or as descriptors allow."""
    if descriptors is None:
        return max_connections
    reserved = max(_RESERVED, int(descriptors * _RESERVED_SHARE))
    return max(1, min(max_connections, descriptors - reserved))


def tell_room(room: int, max_connections: int) -> None:
    """Say so where fewer connections are served than are configured."""
    if room < max_connections:
        log.log(
            logging.WARNING if room < _FEW else logging.INFO,
            "at most %d connections are served at once, not %d: the process has too few file descriptors",
            room,
            max_connections,
        )
