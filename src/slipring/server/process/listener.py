"""The address that is served: who may be behind it without a key, and the sockets that listen there.

With several workers each has a socket of its own on the same port, and the kernel spreads the connections
over those that listen.
"""

import ipaddress
import socket

from slipring.config import Config
from slipring.errors import StartupError


def base_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def refuse_open_door(config: Config) -> None:
    """Where there are no keys, serve nobody but this machine."""
    if config.insecure_no_auth or _is_loopback(config.host):
        return
    raise StartupError(
        f"refusing to serve on {config.host} without API keys: configure one with --api-key or"
        " SLIPRING_API_KEYS, make one in the store with slipring keys create, or say --insecure-no-auth"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on a port of its own."""
    listener = _bind(host, port, shared=False)
    try:
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from None
    return listener


def join(host: str, port: int) -> socket.socket:
    """A socket on a port that is shared. It does not listen yet: while it did, the kernel would give it
    connections, and who is still starting cannot serve them."""
    return _bind(host, port, shared=True)


def reserve(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for those who will ``join`` it; 0: any free one."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise StartupError("several workers cannot share a port on this platform")
    if port:
        # Another server with workers would share it with us, and have a part of our connections.
        listen(host, port).close()
    return _bind(host, port, shared=True)


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"cannot use the address {host}: {error.strerror}") from None
    except UnicodeError:
        raise StartupError(f"cannot use the address {host}: not a host name") from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _taken(host, port, error) from None
    return bound


def _taken(host: str, port: int, error: OSError) -> StartupError:
    return StartupError(f"cannot listen on {host}:{port}: {error.strerror}")
