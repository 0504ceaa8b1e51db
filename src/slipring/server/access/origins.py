"""Origins: which web pages may use the server from a browser."""

from collections.abc import Iterable, Mapping

from slipring.base.errors import PermissionDenied


class AllowedOrigins:
    """The origins that the operator has listed. Only browsers name one; other clients pass."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in origins)

    def require(self, headers: Mapping[str, str]) -> None:
        """Raise ``PermissionDenied`` if a web page of another origin sent the request."""
        origin = headers.get("Origin")
        if origin is not None and origin.rstrip("/").lower() not in self._allowed:
            raise PermissionDenied(f"Requests from the origin '{origin}' are not allowed by this server.")
