"""Why a client was not started."""


class CannotLaunch(Exception):
    """The client is not installed, or no server was found for it. The message says what to do."""


class KeyRefused(CannotLaunch):
    """There is a server, which does not accept the API key."""
