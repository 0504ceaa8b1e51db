"""What token servers with sessions share: a turn of a chain sends its new ids only, if it can."""

import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from slipring.base.errors import ApiError, ServerError, StartupError, forget_frames
from slipring.core.generation import Delta, Emit, Finished, Job, Prefill
from slipring.engines.constraints.answer_constraint import Constraint
from slipring.engines.options import option
from slipring.engines.remote.admission_and_retries import GatewayFailed, RequestFailed, Retryable
from slipring.engines.remote.affinity import affinity_key
from slipring.engines.tokens.chain_ends import gone_at_end
from slipring.engines.tokens.job_rendering import position_of
from slipring.engines.tokens.sessions import Addressed, Lease, Protocol, Sessions
from slipring.engines.tokens.token_answer import TokenAnswer, TokenReader
from slipring.engines.tokens.token_server import (
    JobExchange,
    Request,
    TokenServer,
    TokenServerOptions,
    Unended,
)
from slipring.prompts.rendering import Rendered

log = logging.getLogger("slipring")

_LEAST_AHEAD = 64
"""A session reads ahead no fewer tokens at once."""
_MOST_AHEAD = 1024
"""And no more: the next turn waits until they are read."""
_OWN_SETTINGS = "strict tools, required calls, formats, grammars, seeds, biases or log probabilities"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionServerOptions(TokenServerOptions):
    """The options of a server that may have sessions."""

    sessions: str = option(
        "auto",
        "sessions, in which turns send new ids only: auto (if the server has them), on or off",
        choices=("auto", "on", "off"),
    )
    max_sessions: int = option(
        64, "sessions open at once; at most half of the requests that the server runs at once"
    )
    session_idle_s: float = option(600.0, "seconds after which an idle session is closed", least=1)


class Offer(NamedTuple):
    """The sessions that a server offers."""

    most: int | None = None
    """How many may be open; None if the server does not say."""
    most_tokens: int | None = None
    """How many tokens all of them may hold; None if the server does not say."""
    refused: str = ""
    """Why there are none, in one line; empty if there are."""
    is_fault: bool = False
    """Whether operators should know that there are none: the server was started with sessions."""
    whole: str = ""
    """Why turns with settings of their own are sent whole, in one line; empty if they are not."""


class Mismatch(ServerError):
    """The server has read another prompt than the one that was meant."""


class SessionServer(TokenServer):
    """A token server that may have sessions."""

    options: SessionServerOptions
    sessions: Sessions | None = None
    """Set by ``start`` if the server has them and they are wanted."""
    offer: Offer = Offer()
    """Set by ``ask_for_sessions``."""

    async def start(self) -> None:
        await super().start()
        await self.ask_for_sessions()
        options, offer = self.options, self.offer
        if offer.refused:
            if options.sessions == "on":
                raise StartupError(f"--engine {self.name}: {options.url}: {offer.refused}")
            if offer.is_fault:
                log.warning("%s: sessions are not used: %s", options.url, offer.refused)
            return
        if offer.whole:
            log.warning("%s: sessions are %s", options.url, self.session_use)
        self.sessions = Sessions(
            self.session_protocol(),
            most=options.max_sessions if offer.most is None else min(options.max_sessions, offer.most),
            most_tokens=offer.most_tokens,
            idle_s=options.session_idle_s,
            schedule=self.schedule,
        )

    async def ask_for_sessions(self) -> None:
        """Find out which sessions the server offers."""
        if self.options.sessions == "off" or not self.options.max_sessions:
            self.offer = Offer(refused="they are switched off")
        else:
            self.offer = await self.offered_sessions()

    @property
    def session_use(self) -> str:
        if self.offer.refused:
            return f"not used: {self.offer.refused}"
        if self.sessions is not None and (refusal := self.sessions.refusal):
            return f"not opened at present: {refusal}"
        if self.offer.whole:
            return f"used, but turns with {_OWN_SETTINGS} are sent whole: {self.offer.whole}"
        return "used"

    @abstractmethod
    async def offered_sessions(self) -> Offer:
        """Ask the server for its sessions. The option ``sessions`` is ``auto`` or ``on``."""

    @abstractmethod
    def session_protocol(self) -> Protocol:
        """How its sessions are opened and closed."""

    async def close(self) -> None:
        if self.sessions is not None:
            await self.sessions.close()
        await super().close()

    @abstractmethod
    def write_in_session(
        self, job: Job, sent: Rendered, addressed: Addressed, limit: int, constraint: Constraint | None
    ) -> Request:
        """Encode the request with the ids that the session does not hold yet. ``limit`` is 0 if nothing is to
        become part of the session but these ids."""

    def takes_session(self, job: Job, constraint: Constraint | None) -> bool:
        """Whether the server can answer this job in a session."""
        return True

    def context_demoted(self, key: str) -> None:
        if self.sessions is not None:
            self.sessions.release(key)

    def distrust_sessions(self) -> None:
        """Use no more sessions: what the server holds in one is not what was sent."""
        if self.sessions is not None:
            self.sessions.refuse(
                "the server held another context than it was sent, so they are not used again"
            )

    async def prefill(self, prefill: Prefill) -> int:
        sessions, job = self.sessions, prefill.job
        position = position_of(job)
        # A context that is rewritten is not a session's; a session's context need not be in the prefix cache.
        is_appended = prefill.expects == "output" and position is not None
        if sessions is None or not is_appended or position is None or not sessions.has(job, position.body):
            return await super().prefill(prefill)
        foreseen = await self.foresee(prefill)
        if foreseen is None or foreseen.parent is None:
            return prefill.done_tokens
        done, total = max(position.total, prefill.done_tokens), foreseen.context.total
        async with self._prefilling:
            while total - done >= _LEAST_AHEAD:
                step = min(done + _MOST_AHEAD, total)
                sent = foreseen.first(step)
                if not await self._read_ahead(sessions, job, sent):
                    break
                done = step
        return done

    async def _read_ahead(self, sessions: Sessions, job: Job, sent: Rendered) -> bool:
        was_read = False

        async def send(addressed: Addressed) -> None:
            pieces = await self.ask_aside(self.write_in_session(job, sent, addressed, 0, None))
            if all(piece.reason is None for piece in pieces):
                raise Unended

        async def read() -> None:
            nonlocal was_read
            was_read = await sessions.read_ahead(job, sent, send)

        return await self._admission.run_spare(self.options.max_jobs // 2, read) and was_read

    def exchange(
        self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None, answer: TokenAnswer
    ) -> JobExchange:
        if self.sessions is None or not self.takes_session(job, constraint):
            return super().exchange(job, sent, limit, constraint, answer)
        return _SessionExchange(self, self.sessions, job, sent, limit, constraint, answer)


class _SessionExchange(JobExchange):
    """Sends the new ids in a session; or, if there is none or it fails before its first token, all ids. That
    includes a session whose replica is gone: routers send a whole prompt to another one."""

    def __init__(
        self,
        engine: SessionServer,
        sessions: Sessions,
        job: Job,
        sent: Rendered,
        limit: int,
        constraint: Constraint | None,
        answer: TokenAnswer,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._job, self._sent, self._limit, self._constraint = job, sent, limit, constraint
        self._answer = answer
        self._lease: Lease | None = None

    async def prepare(self) -> None:
        self._lease = await self._sessions.lease(self._job, self._sent)

    async def attempt(self, emit: Emit, begin: Callable[[], None]) -> None:
        job, sent, engine, lease = self._job, self._sent, self._engine, self._lease
        if lease is not None:
            # A warmup leaves nothing that it emits in the session.
            limit = self._limit if job.generate else 0
            request = engine.write_in_session(job, sent, lease.addressed, limit, self._constraint)
            try:
                reader = TokenReader(job, request.read(), self._answer, emit, begin)
                await engine.attempt(request, reader, self.answered)
                return
            except ApiError as error:
                self.close()
                if isinstance(error, Mismatch):
                    engine.distrust_sessions()
                elif isinstance(error, Retryable) and not isinstance(error, RequestFailed | GatewayFailed):
                    raise
                if self._answer.has_begun:
                    raise
                if not lease.addressed.held:
                    self._sessions.pause(error, affinity_key(job))
                forget_frames(error)
        request = engine.write(job, sent, self._limit, self._constraint)
        reader = TokenReader(job, request.read(), self._answer, emit, begin)
        await engine.attempt(request, reader, self.answered)

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
