"""Listening sockets, and the rule that only loopback is served without API keys.

Several workers bind one socket each to the same port (SO_REUSEPORT), and the kernel distributes connections
over those that listen.
"""

import errno
import ipaddress
import socket

from slipring.base.errors import StartupError


def base_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int, *, flag: str = "") -> socket.socket:
    """A listening socket on an unshared port; 0: any free port. Raises ``StartupError``. ``flag``: the one
    that names the address, if not ``--host`` and ``--port`` do."""
    listener = _bind(host, port, shared=False, flag=flag)
    try:
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise _bind_error(host, port, error, flag) from None
    return listener


def bind_shared(host: str, port: int) -> socket.socket:
    """A socket on a shared port. It does not listen yet: the kernel would give it connections that a server
    still starting cannot serve."""
    return _bind(host, port, shared=True)


def reserve(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for workers that will ``bind_shared``; 0: any free port."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise StartupError("several workers cannot share a port on this platform")
    if port:
        # Fails if another server with workers uses the port: it would share the port and our connections.
        listen(host, port).close()
    return _bind(host, port, shared=True)


def _bind(host: str, port: int, *, shared: bool, flag: str = "") -> socket.socket:
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
        raise _bind_error(host, port, error, flag) from None
    return bound


def _bind_error(host: str, port: int, error: OSError, flag: str) -> StartupError:
    reason = error.strerror
    if error.errno == errno.EADDRINUSE:
        reason = f"the port is in use; stop the other server, or choose another port with {flag or '--port'}"
    elif error.errno == errno.EACCES:
        reason = f"this port needs privileges; choose one from 1024 up with {flag or '--port'}"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason = f"this machine does not have that address; choose another one with {flag or '--host'}"
    return StartupError(f"cannot listen on {host}:{port}: {reason}")
