"""Removes credentials from what a server sent back."""

from collections.abc import Iterable

import msgspec

REMOVED = "[redacted]"


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
        """Redact encoded JSON."""
        for secret in self._secrets:
            raw = raw.replace(msgspec.json.encode(secret)[1:-1], REMOVED.encode())
        return raw
