"""Secrets with unique texts, and the search for them in what a server leaves behind."""

import base64
import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path


class Planted:
    """Secrets by what they are for. Each has a text that occurs nowhere else."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __getitem__(self, purpose: str) -> str:
        """The secret for a purpose, made up when it is first asked for."""
        return self._texts.setdefault(purpose, f"planted-{secrets.token_hex(12)}")

    def add(self, purpose: str, text: str) -> None:
        """Also search for a secret that somebody else has made."""
        self._texts[purpose] = text

    @property
    def purposes(self) -> set[str]:
        return set(self._texts)

    def leaks(self, traces: Mapping[str, bytes], ignored: Iterable[tuple[str, str]] = ()) -> list[str]:
        """Where which secret is found, as it is or encoded. ``ignored``: pairs of a secret and a place where
        it belongs."""
        allowed = set(ignored)
        found = []
        for purpose, text in self._texts.items():
            forms = _forms(text.encode())
            for place, data in traces.items():
                if (purpose, place) not in allowed and any(form in data for form in forms):
                    found.append(f"{purpose} in {place}")
        return found


def _forms(secret: bytes) -> list[bytes]:
    """A secret as it is, in hexadecimal, and in base64 at each of the three places where it may begin."""
    forms = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    for skipped in range(3):
        encoded = base64.b64encode(b"\0" * skipped + secret)
        # Characters at both ends also depend on what stands beside the secret.
        forms.append(encoded[4 if skipped else 0 : -4])
    return forms


def files_below(directory: Path) -> dict[str, bytes]:
    """The contents of all files, byte for byte."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def shared_secrets(database: Path) -> dict[str, str]:
    """The secrets that nodes keep in a store, by name."""
    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT name, value FROM slipring_secrets").fetchall()
    connection.close()
    return {name: value.decode("latin-1") for name, value in rows}
