"""How the request of a job is sent to a token server, and its answer read. Sessions and pictures have
exchanges of their own."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from slipring.core.generation import Delta, Emit, Job
from slipring.engines.remote.http_client import Answered
from slipring.engines.scheduling.loop_schedule import Loop
from slipring.engines.tokens.token_answer import PieceParser, TokenAnswer, TokenReader


class Request(NamedTuple):
    """An encoded request. It can be sent more than once."""

    path: str
    pieces: Sequence[bytes]
    headers: dict[str, str]
    read: Callable[[], PieceParser]
    """Makes a parser for one answer to it."""


Send = Callable[[Request, TokenReader, Answered | None], Awaitable[None]]
"""Sends a request once, and gives its answer to a reader."""
Write = Callable[[], Request]


class JobExchange:
    """One job's request and its answer: sends it whole, as often as ``Admission`` asks for."""

    answered: Answered | None = None
    """Called with the headers of an answer."""
    loop: Loop | None = None
    """The loop that the job belongs to, if jobs are scheduled."""

    def __init__(self, send: Send, job: Job, write: Write, answer: TokenAnswer) -> None:
        self._send = send
        self._job = job
        self._write = write
        self._answer = answer
        self._request: Request | None = None

    async def prepare(self) -> None:
        """Write the request, and wait for what it needs. Called once, before the time begins in which an
        answer has to begin. No failure of the server fails it."""
        self._request = self._write()

    async def attempt(self, emit: Emit, begin: Callable[[], None]) -> None:
        """Send the request once and emit its answer; ``begin`` is called when that begins."""
        self._request = self._request or self._write()
        await self.send(self._request, emit, begin)

    async def send(self, request: Request, emit: Emit, begin: Callable[[], None]) -> None:
        reader = TokenReader(self._job, request.read(), self._answer, emit, begin)
        await self._send(request, reader, self.answered)

    def keep(self, last: list[Delta]) -> None:
        """Keep what the next turn of the chain can use. Called with the last deltas of a complete answer."""
        return

    def close(self) -> None:
        """Free what is not kept, however the answer has ended."""
        return
