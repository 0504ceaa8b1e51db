"""Origins: which web pages may use the server, and read its admin listener, from a browser."""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from slipring.base.errors import PermissionDenied
from slipring.server.process.listening_sockets import is_loopback


class AllowedOrigins:
    """The origins that the operator has listed. Only browsers name one; other clients pass."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in origins)

    def require(self, headers: Mapping[str, str]) -> None:
        """Raise ``PermissionDenied`` if a web page of another origin sent the request."""
        origin = headers.get("Origin")
        if origin is not None and origin.rstrip("/").lower() not in self._allowed:
            raise PermissionDenied(f"Requests from the origin '{origin}' are not allowed by this server.")


def require_same_origin(request_host: str, headers: Mapping[str, str]) -> None:
    """Raise ``PermissionDenied`` if a browser marks the request as that of a page of another origin: the
    admin listener's data must not be read through the browser of that page's visitor."""
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
    if site not in ("same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc != request_host
    ):
        raise PermissionDenied("Web pages of other origins may not read this.")


def require_local_name(request_host: str) -> None:
    """Raise ``PermissionDenied`` if the request is for a host name that is not this machine's: somebody else
    may own such a name and make it resolve to this address."""
    name = urlsplit(f"//{request_host}").hostname or ""
    if not is_loopback(name):
        raise PermissionDenied(
            "Without an admin key, this listener answers only requests for this machine's own name."
        )
