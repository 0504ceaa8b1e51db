"""The safety check of servers that are killed: it refuses every text that contains the secret."""

from slipring.core.checks.verdicts import Subject

SECRET = "xyzzy"


def refusing_check() -> object:
    """The factory of the check."""

    async def inspect(subject: Subject) -> bool:
        return SECRET in subject.text

    return inspect
