"""What can go wrong between ``slipring top`` and a server. Every message is one line."""


class UnusableOption(Exception):
    """An option has a value that cannot be used. The message names the option."""


class Unreachable(Exception):
    """The stream cannot be opened. The message names the URL and the reason."""


class StreamRefused(Unreachable):
    """The server has refused the admin key, or is not an admin listener: trying again does not help."""


class StreamLost(Exception):
    """An open stream has ended. The message is the reason."""
