"""How the request of a job is sent to a token server: whole, in a session, or with pictures."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from slipring.base.errors import ApiError, InvalidRequest, ServerError, forget_frames
from slipring.core.generation import Delta, Emit, Finished, Job
from slipring.engines.remote.affinity import affinity_key
from slipring.engines.remote.http_client import Answered
from slipring.engines.remote.retries_and_breaker import GatewayFailed, RequestFailed, Retryable
from slipring.engines.tokens.chain_ends import gone_at_end
from slipring.engines.tokens.refused_pictures import (
    Refuses,
    may_be_refused_for_pictures,
    naming,
    new_pictures,
    refused_picture,
)
from slipring.engines.tokens.sessions import Addressed, Lease, Sessions
from slipring.engines.tokens.token_answer import PieceParser, TokenAnswer, TokenReader
from slipring.prompts.rendering import Rendered

_NAMING_S = 5.0
"""How long the server is asked which picture it refuses. The time counts as that in which its answer has to
begin, and a server that does not answer in time counts as failed."""


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


class PicturedExchange(JobExchange):
    """Sends a request that takes long to write, because it has pictures: it is written in a thread. Names the
    pictures that the server should know; sends all of them if it does not."""

    def __init__(
        self,
        send: Send,
        job: Job,
        write: Write,
        answer: TokenAnswer,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        refuses: Refuses,
        write_lean: Write | None = None,
    ) -> None:
        """``write_lean``: writes a request without what the server should know; None if that is nothing.
        ``refuses``: asks the server which pictures it refuses, if it has refused the request."""
        super().__init__(send, job, write, answer)
        self._in_thread = in_thread
        self._refuses = refuses
        self._write_lean = write_lean
        self._lean: Request | None = None

    async def prepare(self) -> None:
        if self._write_lean is None:
            self._request = await self._in_thread(self._write)
        else:
            self._lean = await self._in_thread(self._write_lean)

    async def attempt(self, emit: Emit, begin: Callable[[], None]) -> None:
        try:
            await self._try_requests(emit, begin)
        except InvalidRequest as error:
            raise await self._naming_picture(error) from error.__cause__

    async def _try_requests(self, emit: Emit, begin: Callable[[], None]) -> None:
        if self._lean is not None:
            lean, self._lean = self._lean, None
            try:
                await self.send(lean, emit, begin)
                return
            except (InvalidRequest, ServerError):
                if self._answer.has_begun:
                    raise
        if self._request is None:
            self._request = await self._in_thread(self._write)
        await super().attempt(emit, begin)

    async def _naming_picture(self, error: InvalidRequest) -> InvalidRequest:
        """The refusal of a request; of a picture, with its field."""
        if self._answer.has_begun or not may_be_refused_for_pictures(error):
            return error
        new = await self._in_thread(partial(new_pictures, self._job))
        picture = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_NAMING_S):
                picture = await refused_picture(new, self._refuses)
        return error if picture is None else naming(error, picture)
