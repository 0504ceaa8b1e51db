"""How many connections this process may open."""

from slipring.bench.options import UsageError

_OWN_FILES = 64
"""Beside the connections: the program itself, its pipes and its sockets."""


def allow_connections(count: int) -> None:
    """Ask the system for as many open files as that takes, for this process and those it starts."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OWN_FILES
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise UsageError(f"--connections {count}: this process may have {hard} open files (see ulimit -n)")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
