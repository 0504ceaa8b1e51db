"""Accepts connections from a listening socket while the registry has room for them.

The event loop's own acceptor handles a lack of file descriptors badly: uvloop closes connections silently,
and asyncio tries again every second and logs a traceback.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable

from slipring.server.connections.client_connection import HttpConnection
from slipring.server.connections.open_connections import Connections

log = logging.getLogger("slipring")

_BACKLOG = 1024
_AT_ONCE = 16
"""Connections that are accepted before the event loop may do other work."""
_NO_ROOM_S = 0.05
"""Pause when there is no room for another connection."""
_NO_DESCRIPTOR_S = 0.5
"""Pause when there is no file descriptor, not even to close a connection with."""
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
        """A file descriptor in reserve, to accept and close a connection when all others are used."""

    def start(self) -> None:
        """Begin to listen and to accept."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._reserve_descriptor()
        self._loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Stop accepting and close the socket; waits until accepted connections have been set up."""
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
        """Accept waiting connections. Only the first is certain to exist, so other connections are closed to
        make room for the first only."""
        if not self._connections.has_room and not self._connections.make_room():
            self._pause_accepting(_NO_ROOM_S)
            return
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._refuse_one()
                return  # no connection is waiting, or a client disconnected before it was accepted
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
        except OSError:  # the client has disconnected already
            self._connections.closed(connection)
            accepted.close()

    def _refuse_one(self) -> None:
        """Without a free file descriptor: close the next connection, which would otherwise wait in vain."""
        self._connections.exhausted()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                self._listener.accept()[0].close()
        self._reserve_descriptor()
        if self._spare is None:
            self._pause_accepting(_NO_DESCRIPTOR_S)

    def _pause_accepting(self, seconds: float) -> None:
        """Leave waiting connections in the kernel's backlog for a while."""
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(seconds, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._pause = None
        self._reserve_descriptor()
        self._loop.add_reader(self._listener, self._accept)

    def _reserve_descriptor(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)
