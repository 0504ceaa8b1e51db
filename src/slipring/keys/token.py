"""A stored key as its holder writes it: ``sk-slip-ID.SECRET``.

The id finds the key and is no secret. Of the secret only a digest is ever kept. It is 256 random bits, so a
plain hash is as good as a slow one: there is nothing to guess from.
"""

import hashlib
import re
import secrets

from msgspec import Struct

_PREFIX = "sk-slip-"
_ID_BYTES = 8
_SECRET_BYTES = 32
_FORM = re.compile(_PREFIX + r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")


def digest(secret: str) -> bytes:
    """What is kept of a secret. One with bytes that are not text is as good as any other wrong one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Token(Struct, frozen=True):
    """The two parts of a key. Its repr shows no secret."""

    id: str
    secret: str

    @classmethod
    def draw(cls) -> "Token":
        """A new key that nobody has."""
        return cls(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))

    @classmethod
    def read(cls, text: str) -> "Token | None":
        """The parts of a key as it was presented; None: it has not the form of a stored key."""
        found = _FORM.fullmatch(text)
        return cls(*found.groups()) if found is not None else None

    @property
    def digest(self) -> bytes:
        return digest(self.secret)

    def reveal(self) -> str:
        """The key in full, for the one time that it is shown."""
        return f"{_PREFIX}{self.id}.{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.id!r})"
