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
        """Redact encoded JSON, however its strings are escaped. JSON without secrets is returned as it is."""
        forms = [msgspec.json.encode(secret)[1:-1] for secret in self._secrets]
        plain = _plainly_escaped(raw) if forms and b"\\" in raw else raw
        if not any(form in plain for form in forms):
            return raw
        for form in forms:
            plain = plain.replace(form, REMOVED.encode())
        return plain


def _plainly_escaped(raw: bytes) -> bytes:
    """The same JSON with as few escapes as possible."""
    try:
        return msgspec.json.encode(msgspec.json.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return raw
