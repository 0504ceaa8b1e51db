"""The server that a client command connects to: its URL and the API key."""

import argparse
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from slipring.commands.argument_parser import UsageError

DEFAULT_URL = "http://127.0.0.1:8000/v1"
"""Where ``slipring serve`` listens."""
URL_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_web_url(text: str) -> bool:
    """Whether a text is a URL of a web server, as a client can use it."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def named_url(environ: Mapping[str, str]) -> str | None:
    """The URL in the environment; None if there is none."""
    return environ.get(URL_VARIABLE, "").strip() or None


def api_key(variable: str, environ: Mapping[str, str]) -> str:
    """The key in a variable, without the line end that a file may have added; empty if there is none. Raises
    ``UsageError``, whose message does not repeat it."""
    key = environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{variable}: a key consists of printable ASCII characters")
    return key


def variable_name(given: str) -> str:
    """The name of a variable, for argparse. A key that is given instead is not repeated in the message."""
    if not _NAME.fullmatch(given):
        raise argparse.ArgumentTypeError("must be the name of a variable that holds the key, not the key")
    return given
