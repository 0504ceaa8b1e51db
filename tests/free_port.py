"""A port for a program that cannot be given port 0, because others must know its port before it listens."""

import random
import socket

_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to sockets that ask for any: no other test takes the port meanwhile."""


def free_port() -> int:
    """A port of the loopback on which nothing listens."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
