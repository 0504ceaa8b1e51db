"""What can go wrong with the connection of a chat."""


class Unreachable(Exception):
    """A connection cannot be opened. The message is one line that names the URL and the reason."""


class ConnectionLost(Exception):
    """The connection ended while it was needed. The message contains the close code, if there is one."""
