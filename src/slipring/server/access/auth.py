"""Who is asking: from an Authorization header to a caller, and whether it may still ask.

One way for HTTP and WebSocket. There are keys of the configuration and keys of the store; once there is one,
of either kind, a key is needed. They are kept as digests and compared in constant time: the configured ones
all of them every time, a stored one with something even where there is none. Unknown and revoked keys get the
same answer. Browsers are kept out unless their origin is listed: a page that a user happens to visit must not
reach a server on the user's machine.
"""

import contextlib
import hmac
from collections.abc import Iterable, Mapping

from msgspec import Struct

from slipring.config import split_api_key
from slipring.errors import AuthenticationFailed, PermissionDenied, StartupError, Unavailable
from slipring.keys.token import Token, digest
from slipring.stores.base import Key, Keys

DEFAULT_TENANT = "default"
_NOBODY = digest("")
"""What is compared where there is no key of that id. No token has an empty secret."""


class Caller(Struct, frozen=True):
    """Whoever is behind a request or a connection."""

    tenant: str
    key: Key | None = None
    """The stored key that it came with, as it was then."""
    is_guest: bool = False
    """It came while no key was needed."""


_GUEST = Caller(DEFAULT_TENANT, is_guest=True)


class Keyring:
    """The keys that are accepted and the tenants they belong to. Without keys, everybody is one tenant."""

    def __init__(self, stored: Keys, entries: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._stored = stored
        self._has_stored = False
        self._configured: list[tuple[bytes, Caller]] = []
        for entry in entries:
            tenant, key = split_api_key(entry)
            self._add(digest(key), tenant or DEFAULT_TENANT)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def _add(self, key: bytes, tenant: str) -> None:
        for known, owner in self._configured:
            if known == key and owner.tenant != tenant:
                raise StartupError(f"one API key is given to two tenants, '{owner.tenant}' and '{tenant}'")
        self._configured.append((key, Caller(tenant)))

    @property
    def is_open(self) -> bool:
        """Whether everybody may come in."""
        return not self._configured and not self._has_stored

    def __str__(self) -> str:
        """Which keys there are, for the operator."""
        configured = f"{len(self._configured)} configured" if self._configured else ""
        stored = "those in the store" if self._has_stored else ""
        return " and ".join(filter(None, (configured, stored))) or "none: any key is accepted"

    async def start(self) -> None:
        """Find out whether the store has keys. Raises ``Unavailable``: a guess could open the door."""
        self._has_stored = await self._stored.exist()

    async def refresh(self) -> None:
        """Notice a first key in the store. That there was one stays true."""
        if not self._has_stored:
            with contextlib.suppress(Unavailable):  # until it is back, nobody can have made one
                self._has_stored = await self._stored.exist()

    async def admit(self, headers: Mapping[str, str]) -> Caller:
        """Who a request comes from, or the error that refuses it."""
        origin = headers.get("Origin")
        if origin is not None and origin.rstrip("/").lower() not in self._origins:
            raise PermissionDenied(f"Requests from the origin '{origin}' are not allowed by this server.")
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        presented = key.strip() if scheme.lower() == "bearer" else ""
        caller = self._find_configured(presented) or await self._find_stored(presented)
        if caller is not None:
            return caller
        if self.is_open:
            return _GUEST
        raise _wrong_key() if presented else _no_key()

    async def recheck(self, caller: Caller) -> Key | None:
        """Whether a caller would still be let in; its stored key as it is now, if it has one."""
        if caller.is_guest and not self.is_open:
            raise _no_key()
        if caller.key is None:
            return None
        key = await self._stored.find(caller.key.id)
        if key is None or key.revoked_at is not None:
            raise _wrong_key()
        return key

    def _find_configured(self, presented: str) -> Caller | None:
        candidate = digest(presented)
        found = None
        for key, caller in self._configured:
            if hmac.compare_digest(key, candidate):
                found = caller
        return found

    async def _find_stored(self, presented: str) -> Caller | None:
        token = Token.parse(presented)
        if token is None:
            return None
        key = await self._stored.find(token.id)
        is_right = hmac.compare_digest(_NOBODY if key is None else key.digest, token.digest)
        if key is None:
            return None
        self._has_stored = True
        return Caller(key.tenant, key) if is_right and key.revoked_at is None else None


def _no_key() -> AuthenticationFailed:
    return AuthenticationFailed(
        "You didn't provide an API key. Send it in an Authorization header, as 'Bearer KEY'."
    )


def _wrong_key() -> AuthenticationFailed:
    return AuthenticationFailed("Incorrect API key provided.")
