"""How the request of a job is sent to a token server: whole, in a session, or with pictures."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from slipring.base.errors import ApiError, forget_frames
from slipring.core.generation import Delta, Emit, Finished, Job
from slipring.engines.remote.http_client import Answered
from slipring.engines.remote.replica_affinity import affinity_key
from slipring.engines.remote.retries_and_breaker import GatewayFailed, RequestFailed, Retryable
from slipring.engines.tokens.sessions import Addressed, Lease, Sessions, gone_at_end
from slipring.engines.tokens.token_answer import PieceParser, TokenAnswer, TokenReader
from slipring.prompts.rendering import Rendered


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


class SessionExchange(JobExchange):
    """Sends the new ids in a session; or, if there is none or it fails before its first token, all ids. That
    includes a session whose replica is gone: routers send a whole prompt to another one."""

    def __init__(
        self,
        send: Send,
        job: Job,
        write: Write,
        answer: TokenAnswer,
        sessions: Sessions,
        sent: Rendered,
        write_new: Callable[[Addressed], Request],
    ) -> None:
        """``sent``: the context. ``write_new``: writes a request with the ids that a session lacks."""
        super().__init__(send, job, write, answer)
        self._sessions = sessions
        self._sent = sent
        self._write_new = write_new
        self._lease: Lease | None = None

    async def prepare(self) -> None:
        self._lease = await self._sessions.lease(self._job, self._sent)

    async def attempt(self, emit: Emit, begin: Callable[[], None]) -> None:
        if (lease := self._lease) is not None:
            try:
                await self.send(self._write_new(lease.addressed), emit, begin)
                return
            except ApiError as error:
                self.close()
                if isinstance(error, Retryable) and not isinstance(error, RequestFailed | GatewayFailed):
                    raise
                has_begun = self._answer.has_begun
                self._sessions.failed(lease.addressed, affinity_key(self._job), error, has_begun=has_begun)
                if has_begun:
                    raise
                forget_frames(error)
        await super().attempt(emit, begin)

    def keep(self, last: list[Delta]) -> None:
        finished, closing_ids = last[-1], self._answer.closing_ids
        if self._lease is None or closing_ids is None:
            return
        if isinstance(finished, Finished) and isinstance(position := finished.position, Rendered):
            self._lease.keep(
                position, closing_ids, gone_at_end(self._job, position), has_answer=self._job.generate
            )

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None
