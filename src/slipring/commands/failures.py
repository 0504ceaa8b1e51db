"""The errors by which commands end with one line and an exit code."""


class UsageError(Exception):
    """Flags, variables or files are invalid, or contradict each other. Messages do not repeat secrets."""


class CommandFailed(Exception):
    """A server cannot be reached, started or measured, or a client is not installed."""
