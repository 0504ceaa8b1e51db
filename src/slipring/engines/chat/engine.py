"""The chat engine: generates with any server of the Chat Completions API.

That API takes the whole conversation with every turn. Each message is encoded once and its bytes are spliced
into every later request: a turn costs its own messages and the upload.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, suppress

from msgspec import structs

from slipring.base.errors import ApiError, InvalidRequest, NotFound, RateLimited, ServerError
from slipring.core.generation import Accepted, Begun, Capabilities, Delta, Emit, Finished, Job, Model
from slipring.core.token_estimates import estimated_tokens
from slipring.engines.base import Level
from slipring.engines.chat.answer import ChatAnswer
from slipring.engines.chat.messages import Writer
from slipring.engines.chat.options import ChatOptions, read_options
from slipring.engines.chat.position_codec import PositionCodec
from slipring.engines.chat.request_body import Request, write_request
from slipring.engines.remote.admission_and_retries import Admission, BegunStream
from slipring.engines.remote.emission import CutOff, emit_until
from slipring.engines.remote.gated_engine import GatedEngine
from slipring.engines.remote.steered_cut import SteeredCut
from slipring.engines.remote.upstream import Upstream

_PATH = "/chat/completions"
_LAST_CHUNK_S = 10.0
"""How long a server may take to send the usage after the finish reason."""


class ChatEngine(GatedEngine):
    """One server and its models."""

    name = "chat"
    level = Level.MESSAGES

    def __init__(self, options: ChatOptions) -> None:
        self.options = options
        self._names = [name.strip() for name in options.model.split(";") if name.strip()]
        self._upstream = Upstream("chat", options)
        self._gate = Admission("the chat server", options, self._probe)
        self._writer = Writer(send_reasoning=options.send_reasoning)
        self.positions = PositionCodec(self._writer, options)

    @classmethod
    def from_options(cls, text: str) -> "ChatEngine":
        return cls(read_options(text))

    def models(self) -> Sequence[Model]:
        capabilities = Capabilities(logprobs=self.options.logprobs, images=self.options.images)
        return [Model(name=name, owner="chat", capabilities=capabilities) for name in self._names]

    async def start(self) -> None:
        await self._upstream.start()
        if not self._names:
            self._names = await self._upstream.list_models("/models")

    async def close(self) -> None:
        await self._gate.close()
        await self._upstream.close()

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        if job.generate:
            self._gate.require_admission(job.tenant, job.model.name)
        request = await self.tokenizing.prepare(job, write_request, job, self.options, self._writer)
        accepted = Accepted(fallback=request.fallback)
        if not job.generate and not (self.options.warmup and request.has_messages):
            yield [accepted]
            yield [Finished("stop", 0, 0, 0, position=request.position, context=request.position)]
            return
        with self._gate.admission(job.tenant, job.model.name) as ticket:
            yield [accepted]
            await ticket.turn()
            yield [Begun()]
            answer = ChatAnswer(
                request.position, logprobs=job.settings.logprobs, think_tags=self.options.think_tags
            )
            cut = SteeredCut(job)
            emit = cut.emit if job.emit is not None and job.generate else None

            def attempt() -> Awaitable[BegunStream[list[Delta]]]:
                return BegunStream.begin(self._attempt(job, request, answer, emit))

            with suppress(CutOff):
                async with aclosing(await self._gate.begin(attempt, job.model.name)) as batches:
                    async for deltas in batches:
                        if job.generate:
                            yield deltas
                            if cut.after(deltas):
                                break
            if cut.is_made:
                position = request.position
                last: list[Delta] = [structs.replace(cut.finished(), position=position, context=position)]
            else:
                last = answer.finish() if job.generate else answer.prepared()
        yield last  # after the ticket is given back: a slow reader must not hold up other jobs

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await self.tokenizing.prepare(job, estimated_tokens, job)

    async def _attempt(
        self, job: Job, request: Request, answer: ChatAnswer, emit: Emit | None
    ) -> AsyncGenerator[list[Delta], None]:
        """Send the request once. ``answer`` is unchanged until the first deltas, for another attempt; those
        that follow are emitted, if that is possible."""
        headers = self._upstream.affinity_headers(job)

        def idle_s() -> float:
            return _LAST_CHUNK_S if answer.has_reason else self.options.idle_timeout_s

        try:
            async with self._upstream.events(_PATH, request.pieces, headers, idle_s=idle_s) as batches:
                async for payloads in batches:
                    deltas, fault = answer.read(payloads)
                    if deltas:
                        yield deltas
                    if fault is not None:
                        raise fault
                    if deltas and emit is not None:
                        await batches.pump(lambda payloads: emit_until(emit, *answer.read(payloads)))
        except ApiError:
            if not answer.has_reason:
                raise
            # The answer is complete: only its usage may be missing.

    async def _probe(self) -> None:
        # A server that refuses to list its models is up.
        with suppress(InvalidRequest, NotFound, RateLimited, ServerError):
            await self._upstream.get("/models")
