"""Large requests are read in threads: as long as one is read, the event loop could do nothing else.

A small one is read where it arrives. A thread gives way to the loop after a few milliseconds, between items.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from slipring.core.betas import Betas
from slipring.core.byte_ledger import Ledger
from slipring.core.session import client_events
from slipring.engines.tokens.crew import Crew
from slipring.protocol import requests
from slipring.protocol.requests import CreateRequest

T = TypeVar("T")
_LARGE_BYTES = 64 * 1024
_AT_ONCE = 1
"""Reading holds the interpreter most of the time: a second thread would only keep the event loop waiting."""


class Reading:
    """Reads what clients send."""

    def __init__(self, requests: Ledger) -> None:
        """``requests``: where the bytes of requests are counted, those that wait to be read too."""
        self._crew = Crew("read", _AT_ONCE)
        self._requests = requests

    async def frame(self, tenant: str, frame: bytes | str, betas: Betas) -> bytes | str | client_events.Read:
        """A message of a socket, ready for its session."""
        if len(frame) <= _LARGE_BYTES:
            return frame
        with self._counted(tenant, len(frame)):
            return await self.aside(tenant, client_events.read_ahead, frame, betas)

    async def create(self, tenant: str, body: bytes, read: Callable[[bytes], CreateRequest]) -> CreateRequest:
        """The create that a body asks for."""
        return await self.body(tenant, body, partial(_with_items, read))

    async def body(self, tenant: str, body: bytes, read: Callable[[bytes], T]) -> T:
        """What a body asks for."""
        if len(body) <= _LARGE_BYTES:
            return read(requests.require_body(body))
        with self._counted(tenant, len(body)):
            return await self.aside(tenant, _of_text, read, body)

    async def aside(self, tenant: str, work: Callable[..., T], *given: object) -> T:
        """Do work that may take long off the event loop."""
        return await self._crew.run(tenant, work, *given)

    @contextmanager
    def _counted(self, tenant: str, size_bytes: int) -> Iterator[None]:
        self._requests.add(tenant, size_bytes)
        try:
            yield
        finally:
            self._requests.remove(tenant, size_bytes)


def _of_text(read: Callable[[bytes], T], body: bytes) -> T:
    return read(requests.require_body(body))


def _with_items(read: Callable[[bytes], CreateRequest], body: bytes) -> CreateRequest:
    """The create that a body asks for. The items of a large one are read here, or refused."""
    request = read(body)
    if len(body) > _LARGE_BYTES:
        _ = request.items
    return request
