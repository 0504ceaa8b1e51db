"""Which addresses requests to MCP servers may go to, and sockets that connect nowhere else.

A client's URLs lead to the public internet only, if the operator does not allow more, and never to a
registered server that has rules: the addresses of those are reserved.
"""

import asyncio
import enum
import socket
import time
from collections.abc import Iterable
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, ClassVar

from yarl import URL

from slipring.mcp.failures import Unreachable

_V4_EXCEPTIONS = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "192.0.0.0/24",  # protocol assignments; one cloud has its metadata service here
        "192.88.99.0/24",  # relays from IPv6
        "168.63.129.16/32",  # the platform address inside one cloud's machines
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_V6_EXCEPTIONS = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_FRESH_S = 5.0
_LOOKUP_S = 10.0
_NO_SUCH_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_DEFAULT_PORTS = (80, 443)
_THIS_MACHINE = "this machine"
_Place = tuple[str, int]
"""A canonical address, and a port."""


class Reach(enum.Enum):
    """Which addresses requests may be sent to."""

    PUBLIC = "those of the public internet, without the reserved ones"
    UNRESERVED = "all but the reserved ones"
    ALL = "all"


class AddressRefused(OSError):
    """A connection to an address was refused before it was made."""

    reason: ClassVar[str]

    def __init__(self) -> None:
        super().__init__(self.reason)


class AddressNotPublic(AddressRefused):
    reason = "the MCP server's address is not public"


class AddressIsRegistered(AddressRefused):
    reason = "a registered MCP server is at this address: name it by its registered name or URL"


def is_public_address(text: str) -> bool:
    """Whether an address, in any notation that the socket functions return, is on the public internet.

    IPv6 addresses that contain an IPv4 address (mapped, translated, tunnelled) are public if that one is and
    if the form is routed on the public internet at all.
    """
    if "%" in text:
        return False  # a zone: the address is meaningful on one link only
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return _is_public_v4(address) if isinstance(address, IPv4Address) else _is_public_v6(address)


def _is_public_v4(address: IPv4Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _V4_EXCEPTIONS)
    )


def _is_public_v6(address: IPv6Address) -> bool:
    contained = contained_v4(address)
    if contained is not None:
        return _is_public_v4(contained)
    return (
        address in _GLOBAL_UNICAST
        and address.is_global
        and not address.is_multicast
        and not any(address in network for network in _V6_EXCEPTIONS)
    )


def contained_v4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address to which an IPv6 address leads: mapped, translated or tunnelled."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def public_socket(address_info: tuple[Any, ...]) -> socket.socket:
    """Make the socket for one resolved address, for ``aiohttp.TCPConnector(socket_factory=…)``.

    aiohttp calls it for every address that it connects to, named by a host name or given as an address.
    """
    family, kind, protocol, _, where = address_info
    has_zone = family == socket.AF_INET6 and len(where) > 3 and where[3] != 0
    if family not in (socket.AF_INET, socket.AF_INET6) or has_zone or not is_public_address(where[0]):
        raise AddressNotPublic
    return socket.socket(family=family, type=kind, proto=protocol)


class RegisteredAddresses:
    """The addresses and ports of some registered servers. Their names are resolved again and again."""

    def __init__(self, urls: Iterable[URL]) -> None:
        self._hosts = {(_host_of(url), _port(url.port or 0)) for url in urls}
        self._places: dict[_Place, frozenset[_Place]] = {}
        """The known addresses of each host."""
        self._fresh_until = float("-inf")
        self._looking_up: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def are_named_by(self, url: URL) -> bool:
        """Whether a URL has the host and the port of one of the servers, whatever its path and query are."""
        return (_host_of(url), _port(url.port or 0)) in self._hosts

    async def look_up(self) -> None:
        """Resolve the names of the servers, unless that was done just now. Raises ``Unreachable`` if it is
        not known where one of them is."""
        if not self._hosts or time.monotonic() < self._fresh_until:
            return
        if self._looking_up is None:
            self._looking_up = asyncio.create_task(self._look_up())
            self._looking_up.add_done_callback(self._looked_up)
        await asyncio.shield(self._looking_up)

    def _looked_up(self, task: asyncio.Task[None]) -> None:
        self._looking_up = None
        _ = task.cancelled() or task.exception()  # marked as retrieved: no task may await it any more

    async def _look_up(self) -> None:
        found = await asyncio.gather(*(self._resolve(host) for host, _ in self._hosts))
        for host, addresses in zip(self._hosts, found, strict=True):
            if addresses is not None:
                self._places[host] = frozenset((canonical(each), host[1]) for each in addresses)
            elif host not in self._places:
                raise Unreachable("the address of a registered MCP server cannot be looked up")
        self._fresh_until = time.monotonic() + _FRESH_S

    async def _resolve(self, host: str) -> list[str] | None:
        """The addresses of a host; none if there is no such host; None if that cannot be found out."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except TimeoutError:
            return None
        except OSError as error:
            return [] if error.errno in _NO_SUCH_HOST else None
        return [str(each[4][0]) for each in found]

    def require_free(self, address: str, port: int) -> None:
        """Refuse to connect to one of the servers. Raises ``AddressIsRegistered``."""
        place = (canonical(address), _port(port))
        if any(place in places for places in self._places.values()):
            raise AddressIsRegistered

    def unreserved_socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """Make the socket for one resolved address, for ``aiohttp.TCPConnector(socket_factory=…)``."""
        family, kind, protocol, _, where = address_info
        self.require_free(where[0], where[1])
        return socket.socket(family=family, type=kind, proto=protocol)


NO_REGISTERED = RegisteredAddresses(())


def canonical(text: str) -> str:
    """An address in one spelling. All addresses of this machine are one: a server may listen at all of
    them."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = contained_v4(address) or address
    if address.is_loopback or address.is_unspecified or _is_of_this_machine(str(address)):
        return _THIS_MACHINE
    return str(address)


def _is_of_this_machine(address: str) -> bool:
    """Whether packets to an address would come from that address. None are sent to find out."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False  # there is no way to it


def _host_of(url: URL) -> str:
    return (url.host or "").rstrip(".")


def _port(port: int) -> int:
    """The port, where the defaults of http and https are one: most hosts that have both serve the same."""
    return _DEFAULT_PORTS[0] if port in _DEFAULT_PORTS else port
