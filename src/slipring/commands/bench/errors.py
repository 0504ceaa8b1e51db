"""Exceptions that end a bench. The command line prints the text of each as one line."""


class UsageError(Exception):
    """Flags are invalid or contradict each other."""


class BadRecording(Exception):
    """The file given with ``--replay`` cannot be replayed."""


class UnreadableRecord(Exception):
    """A file is not a record of a bench, or has another format."""


class CannotMeasure(Exception):
    """The endpoint cannot be reached, refuses every mode, or is not a Responses server."""


class CannotStart(Exception):
    """The server that the bench starts has ended before it served."""
