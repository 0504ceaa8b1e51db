"""Authentication: finds the caller for the key in a request's headers, and rechecks callers later.

HTTP and WebSocket use it alike. Keys come from the configuration and from the store; as soon as there is one
of either kind, requests need a key. Keys are held as digests and compared in constant time: a request is
compared with all configured keys, and for an unknown key id with a digest that never matches. Unknown and
revoked keys get the same answer. Browsers are rejected unless their origin is listed, so that a web page
cannot use a server on its visitor's machine.
"""

import contextlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from slipring.base.errors import AuthenticationFailed, StartupError, Unavailable
from slipring.config.settings import Config, split_api_key
from slipring.server.access.origins_and_hosts import AllowedOrigins
from slipring.server.process.listening_sockets import is_loopback
from slipring.stores.keys import Key, Keys, Token, digest

DEFAULT_TENANT = "default"
_UNMATCHABLE = digest("")
"""Compared if there is no key with the given id. No token has an empty secret."""


class Caller(Struct, frozen=True):
    """The tenant and key of a request or connection."""

    tenant: str
    key: Key | None = None
    """The stored key that was presented, as it was then; None for configured keys and guests."""
    is_guest: bool = False
    """It was admitted while no key was required."""


_GUEST = Caller(DEFAULT_TENANT, is_guest=True)


class Keyring:
    """The accepted keys and their tenants. Without keys, all callers are guests of the default tenant."""

    def __init__(self, stored: Keys, entries: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._stored = stored
        self._has_stored = False
        self._configured: list[tuple[bytes, Caller]] = []
        for entry in entries:
            tenant, key = split_api_key(entry)
            self._add(digest(key), tenant or DEFAULT_TENANT)
        self._origins = AllowedOrigins(origins)

    def _add(self, key: bytes, tenant: str) -> None:
        for known, owner in self._configured:
            if known == key and owner.tenant != tenant:
                raise StartupError(f"one API key is given to two tenants, '{owner.tenant}' and '{tenant}'")
        self._configured.append((key, Caller(tenant)))

    @property
    def is_open(self) -> bool:
        """Whether requests need no key."""
        return not self._configured and not self._has_stored

    @property
    def may_have_several_tenants(self) -> bool:
        """Whether callers can belong to different tenants. Keys in the store can be added at any time."""
        return self._has_stored or len({caller.tenant for _, caller in self._configured}) > 1

    def __str__(self) -> str:
        """A description of the keys for the operator, without secrets."""
        configured = f"{len(self._configured)} configured" if self._configured else ""
        stored = "those in the store" if self._has_stored else ""
        return " and ".join(filter(None, (configured, stored))) or "none: any key is accepted"

    async def start(self) -> None:
        """Find out whether the store has keys. Raises ``Unavailable``, because a guess could admit anyone."""
        self._has_stored = await self._stored.exist()

    async def refresh(self) -> None:
        """Require keys from now on if the store has one. Later revocations do not undo that."""
        if not self._has_stored:
            with contextlib.suppress(Unavailable):  # checked again with the next refresh
                self._has_stored = await self._stored.exist()

    async def admit(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request. Raises ``PermissionDenied`` or ``AuthenticationFailed``."""
        self._origins.require(headers)
        presented = _presented(headers)
        caller = self._find_configured(presented) or await self._find_stored(presented)
        if caller is not None:
            return caller
        if self.is_open:
            return _GUEST
        raise _wrong_key() if presented else _no_key()

    async def recheck(self, caller: Caller) -> Key | None:
        """Return a caller's stored key as it is now, or None. Raises ``AuthenticationFailed``."""
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
        is_right = hmac.compare_digest(_UNMATCHABLE if key is None else key.digest, token.digest)
        if key is None:
            return None
        self._has_stored = True
        return Caller(key.tenant, key) if is_right and key.revoked_at is None else None


def _presented(headers: Mapping[str, str]) -> str:
    """The key of a request: that of the Authorization header, or else of the one that clients of the Messages
    API send; empty if it has none."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip()


def _no_key() -> AuthenticationFailed:
    return AuthenticationFailed(
        "You didn't provide an API key. Send it in an Authorization header, as 'Bearer KEY', or in an"
        " x-api-key header."
    )


def _wrong_key() -> AuthenticationFailed:
    return AuthenticationFailed("Incorrect API key provided.")


def require_admin_key(config: Config, host: str) -> None:
    """For an admin address on ``host``: raise ``StartupError`` if other machines could read it without a
    key."""
    if config.admin_key or is_loopback(host):
        return
    raise StartupError(
        f"refusing to show what this server does on {host} without a key: set --admin-key or"
        " SLIPRING_ADMIN_KEY, or choose a loopback address with --admin"
    )


class _Engine(Protocol):
    name: str
    serves_one_tenant: bool


def require_one_tenant(keyring: Keyring, engines: Iterable[_Engine]) -> None:
    """Raise ``StartupError`` if callers may belong to several tenants, and an engine serves one only."""
    if keyring.may_have_several_tenants:
        for engine in engines:
            if engine.serves_one_tenant:
                raise StartupError(
                    f"--engine {engine.name} serves one tenant only with these options, and the API keys"
                    " are for several: its response times would tell one what another wrote"
                )


def require_keys(config: Config) -> None:
    """For a server without API keys: raise ``StartupError`` if other machines could reach it."""
    if config.insecure_no_auth or is_loopback(config.host):
        return
    raise StartupError(
        f"refusing to serve on {config.host} without API keys: configure one with --api-key or"
        " SLIPRING_API_KEYS, create one with slipring keys create, or set --insecure-no-auth"
    )
