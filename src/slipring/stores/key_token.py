"""API keys of the store as clients send them: ``sk-slip-ID.SECRET``.

The id identifies the key and is not secret. The store keeps only a digest of the secret. A plain hash is
enough: the secret has 256 random bits, so it cannot be guessed.
"""

import hashlib
import re
import secrets

from msgspec import Struct

_PREFIX = "sk-slip-"
_ID_BYTES = 8
_SECRET_BYTES = 32
_FORM = re.compile(_PREFIX + r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
_NAMED = re.compile(rf"(?:{_PREFIX})?([0-9a-f]{{16}})(?:\..*)?")


def digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret. Bytes that are not UTF-8 are hashed as they were received."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Token(Struct, frozen=True):
    """The two parts of a key. The repr omits the secret."""

    id: str
    secret: str

    @classmethod
    def generate(cls) -> "Token":
        """Return a new random key."""
        return cls(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> "Token | None":
        """Return the parts of a key, or None if the text does not have the form of a stored key."""
        match = _FORM.fullmatch(text)
        return cls(*match.groups()) if match is not None else None

    @staticmethod
    def id_in(text: str) -> str | None:
        """Return the id in what a person gives to name a key: the id itself, or the key, whole or cut off.
        None if there is no id in the text."""
        match = _NAMED.fullmatch(text.strip())
        return match.group(1) if match is not None else None

    @property
    def digest(self) -> bytes:
        return digest(self.secret)

    def reveal(self) -> str:
        """Return the complete key, which is shown only when it is created."""
        return f"{_PREFIX}{self.id}.{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.id!r})"
