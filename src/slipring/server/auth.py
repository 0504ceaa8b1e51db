"""Who is asking: from an Authorization header to a tenant.

One function for HTTP and WebSocket. Keys are kept as digests and compared in constant time, all of them every
time. Browsers are kept out unless their origin is listed: a page that a user happens to visit must not reach
a server on the user's machine.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from slipring.config import split_api_key
from slipring.errors import AuthenticationFailed, PermissionDenied, StartupError

DEFAULT_TENANT = "default"


class Keyring:
    """The keys that are accepted and the tenants they belong to. Without keys, everybody is one tenant."""

    def __init__(self, entries: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._keys: list[tuple[bytes, str]] = []
        for entry in entries:
            tenant, key = split_api_key(entry)
            self._add(_digest(key), tenant or DEFAULT_TENANT)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def _add(self, digest: bytes, tenant: str) -> None:
        for known, owner in self._keys:
            if known == digest and owner != tenant:
                raise StartupError(f"one API key is given to two tenants, '{owner}' and '{tenant}'")
        self._keys.append((digest, tenant))

    def __len__(self) -> int:
        return len(self._keys)

    def admit(self, headers: Mapping[str, str]) -> str:
        """The tenant that a request speaks for, or the error that refuses it."""
        origin = headers.get("Origin")
        if origin is not None and origin.rstrip("/").lower() not in self._origins:
            raise PermissionDenied(f"Requests from the origin '{origin}' are not allowed by this server.")
        if not self._keys:
            return DEFAULT_TENANT
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationFailed(
                "You didn't provide an API key. Send it in an Authorization header, as 'Bearer KEY'."
            )
        tenant = self._find(key.strip())
        if tenant is None:
            raise AuthenticationFailed("Incorrect API key provided.")
        return tenant

    def _find(self, key: str) -> str | None:
        presented = _digest(key)
        found = None
        for digest, tenant in self._keys:
            if hmac.compare_digest(digest, presented):
                found = tenant
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
