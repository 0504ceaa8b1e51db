"""Raises the limit of open files of this process, which limits its connections."""

from slipring.commands.errors import UsageError

_OTHER_FILES = 64
"""Open files that are not connections: libraries, pipes, listening sockets."""


def raise_file_limit(connections: int) -> None:
    """Allow this process and its children as many open files as the connections need. Raises ``UsageError``
    if the system's hard limit is lower."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(f"--connections {connections}: the limit of open files is {hard} (see ulimit -n)")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def raise_as_far_as_allowed() -> None:
    """Allow this process as many open files as the system's hard limit does."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
