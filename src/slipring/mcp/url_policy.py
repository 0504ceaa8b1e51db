"""Which URLs of MCP servers may be called: their form, their scheme and port, and whether they must be
public.
"""

import enum
import re
from ipaddress import ip_address

from yarl import URL

from slipring.mcp.failures import RequestRefused
from slipring.mcp.limits import DEFAULT_LIMITS, McpLimits
from slipring.mcp.servers import HttpServer
from slipring.mcp.transports.addresses import (
    NO_REGISTERED,
    AddressIsRegistered,
    Reach,
    RegisteredAddresses,
    is_public_address,
)

_MAX_URL_CHARACTERS = 2048


_PUBLIC_PORTS = (443, 8443)


_UNSAFE_URL = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


_AUTHORITY_END = re.compile(r"[/?#]")


class UrlPolicy(enum.Enum):
    """Which URLs of requests are called."""

    REGISTERED = "registered"
    """Only those that the operator registered."""
    PUBLIC = "public"
    """Also others: https, to addresses of the public internet only."""
    ANY = "any"
    """Every URL that slipring can reach, private networks included."""


def parse_url(text: str) -> URL:
    """Parse the URL of a server. Raises ``RequestRefused`` for anything but a plain http or https URL."""
    if len(text) > _MAX_URL_CHARACTERS or _UNSAFE_URL.search(text):
        raise RequestRefused("the server's URL is too long or has characters that are not allowed")
    try:
        url = URL(text)
        host, port = url.host, url.port
    except ValueError:
        raise RequestRefused("the server's URL is invalid") from None
    if url.scheme not in ("http", "https") or not host or not port:
        raise RequestRefused("the server's URL must be an absolute http or https URL")
    if "@" in _AUTHORITY_END.split(text.partition("//")[2], maxsplit=1)[0]:
        raise RequestRefused("the server's URL must not contain a user name or password")
    if "#" in text:
        raise RequestRefused("the server's URL must not have a fragment")
    return url


def admit(
    name: str,
    url: URL,
    policy: UrlPolicy,
    limits: McpLimits | None = None,
    reserved: RegisteredAddresses = NO_REGISTERED,
) -> HttpServer:
    """Return the server at a URL of a request that is not registered. Raises ``RequestRefused`` if the policy
    does not allow it.

    It must not lead to a ``reserved`` address. Whether an address is public or reserved is decided here only
    for what the URL says itself; for names, when they are connected to.
    """
    if policy is UrlPolicy.REGISTERED:
        raise RequestRefused("the server's URL is not registered here")
    if reserved.are_named_by(url):
        raise RequestRefused(AddressIsRegistered.reason)
    if policy is UrlPolicy.PUBLIC:
        _require_public(url)
    reach = Reach.PUBLIC if policy is UrlPolicy.PUBLIC else Reach.UNRESERVED
    return HttpServer(name=name, url=url, reach=reach, limits=limits or DEFAULT_LIMITS)


def _require_public(url: URL) -> None:
    if url.scheme != "https":
        raise RequestRefused("the server's URL must begin with https://")
    if url.port not in _PUBLIC_PORTS:
        raise RequestRefused(f"the server's URL must have one of the ports {_PUBLIC_PORTS}")
    host = (url.host or "").rstrip(".")
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        is_local = (
            host == "localhost" or host.endswith((".localhost", ".local", ".internal")) or "." not in host
        )
        if is_local or host.rpartition(".")[2].isdecimal():
            raise RequestRefused("the server's URL must name a public host") from None
    else:
        if not is_public_address(host):
            raise RequestRefused("the server's URL must name a public host")
