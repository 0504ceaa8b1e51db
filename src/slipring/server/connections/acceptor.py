"""Accepts the connections of a listening socket, as far as there is room for them.

The event loop could do this by itself, but it has nothing to say when it runs out of file descriptors: uvloop
turns clients away without a word, and asyncio tries again every second with a traceback.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable

from slipring.server.connections.http_connection import HttpConnection
from slipring.server.connections.registry import Connections

log = logging.getLogger("slipring")

_BACKLOG = 1024
_AT_ONCE = 16
"""Connections that are accepted before others have their turn."""
_NO_ROOM_S = 0.05
"""How long nothing is accepted while there is no room for another connection."""
_NO_DESCRIPTOR_S = 0.5
"""The same where there is no descriptor, not even to turn a client away."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts connections from one socket until it is closed. Owns the socket."""

    def __init__(
        self, listener: socket.socket, connections: Connections, make: Callable[[], HttpConnection]
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._spare: int | None = None
        """A descriptor kept so that there is one to turn a client away with when all others are used."""

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._keep_spare()
        self._loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Accept no more, and let go of the socket. What was accepted is open when this returns."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        if self._pause is not None:
            self._pause.cancel()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        """Accept those who wait. It is known of the first only that there is one, so for the first only are
        others closed."""
        if not self._connections.has_room and not self._connections.make_room():
            self._rest(_NO_ROOM_S)
            return
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._turn_away()
                return  # nobody waits any more, or a client has left before it was accepted
            self._open(accepted)
            if not self._connections.has_room:
                return

    def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        connection = self._make()
        self._connections.opened(connection)
        task = self._loop.create_task(self._connect(connection, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, connection: HttpConnection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # the client has left already
            self._connections.closed(connection)
            accepted.close()

    def _turn_away(self) -> None:
        """No descriptor is left: close the next client's connection, since it would wait for nothing."""
        self._connections.exhausted()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                self._listener.accept()[0].close()
        self._keep_spare()
        if self._spare is None:
            self._rest(_NO_DESCRIPTOR_S)

    def _rest(self, seconds: float) -> None:
        """Let clients wait where the kernel keeps them."""
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._keep_spare()
        self._loop.add_reader(self._listener, self._accept)

    def _keep_spare(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)
