"""Removes credentials from what a server sent back."""

from collections.abc import Iterable

import msgspec

from slipring.mcp.credentials import Credential
from slipring.mcp.servers import HttpServer, McpServer

REMOVED = "[redacted]"
_SHORTEST_IN_RESULTS = 16
"""Shorter values of headers may be ordinary words, such as the name of a region, and belong in results."""
_SHORTEST_IN_ERRORS = 4


class Redaction:
    """Replaces secrets wherever they occur as they were sent. Those of less than ``shortest`` characters may
    be ordinary words, and stay."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Iterable[str], shortest: int) -> None:
        kept = {secret for secret in secrets if len(secret) >= shortest}
        self._secrets = sorted(kept, key=len, reverse=True)  # a secret may contain another

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REMOVED)
        return text

    def json(self, raw: bytes) -> bytes:
        """Redact encoded JSON, however its strings are escaped. JSON without secrets is returned as it is."""
        forms = [msgspec.json.encode(secret)[1:-1] for secret in self._secrets]
        plain = _plainly_escaped(raw) if forms and b"\\" in raw else raw
        if not any(form in plain for form in forms):
            return raw
        for form in forms:
            plain = plain.replace(form, REMOVED.encode())
        return plain


def of_results(server: McpServer, caller: Credential) -> Redaction:
    """Removes the credentials of caller and operator from what a server returns."""
    operator = server.secrets() if isinstance(server, HttpServer) else server.credentials()
    return Redaction((*caller.secrets(), *operator), _SHORTEST_IN_RESULTS)


def of_errors(server: McpServer, caller: Credential) -> Redaction:
    """Removes all that caller and operator have sent from the text of an error."""
    return Redaction((*caller.secrets(), *server.secrets()), _SHORTEST_IN_ERRORS)


def _plainly_escaped(raw: bytes) -> bytes:
    """The same JSON with as few escapes as possible."""
    try:
        return msgspec.json.encode(msgspec.json.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return raw
