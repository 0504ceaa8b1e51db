"""How commands fail. The command line prints the text of each as one line, and exits with its code."""


class UsageError(Exception):
    """Flags, variables or files are invalid, or contradict each other. Messages do not repeat secrets."""


class CommandFailed(Exception):
    """A server cannot be reached, started or measured, or a client is not installed."""
