"""The API key of an engine's server: from a variable or a file, and the header that carries it.

Never from the command line, which every user of the machine can read.
"""

import os
from pathlib import Path

from slipring.base.errors import StartupError


def key_headers(kind: str, variable: str, file: str, header: str) -> dict[str, str]:
    """The header with a server's key, which is in an environment variable or in a file; none if neither is
    named. ``header``: its name, if it is not the usual one. Raises ``StartupError``."""
    if variable:
        key = key_of_variable(kind, variable)
    elif file:
        key = _key_of_file(kind, file)
    else:
        return {}
    return {header: key} if header else {"Authorization": f"Bearer {key}"}


def key_of_variable(kind: str, variable: str) -> str:
    """The key in an environment variable. Raises ``StartupError`` if there is none that can be used."""
    return _usable(kind, f"the variable {variable} (key_env)", os.environ.get(variable, ""))


def _key_of_file(kind: str, file: str) -> str:
    source = f"{file} (key_file)"
    try:
        given = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StartupError(f"--engine {kind}: cannot read {source}: {reason}") from None
    return _usable(kind, source, given)


def _usable(kind: str, source: str, given: str) -> str:
    """A key that was read from ``source``, without the line end that a file may have added. Raises
    ``StartupError`` if it is empty or no header can carry it."""
    key = given.strip()
    if not key:
        raise StartupError(f"--engine {kind}: {source} is empty")
    if not (key.isascii() and key.isprintable()):
        raise StartupError(f"--engine {kind}: {source} holds more than a key: no header can carry it")
    return key
