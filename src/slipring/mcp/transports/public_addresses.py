"""Which addresses are on the public internet, and connections that go nowhere else."""

import enum
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, ClassVar

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
