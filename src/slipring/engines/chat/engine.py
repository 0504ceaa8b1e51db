"""The chat engine: generates with any server of the Chat Completions API.

That API takes the whole conversation with every turn. Each message is encoded once and its bytes are spliced
into every later request: a turn costs its own messages and the upload.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import structs

from slipring.base.errors import ApiError, InvalidRequest, NotFound, RateLimited, ServerError
from slipring.core.generation import (
    ANY_ID,
    Accepted,
    Capabilities,
    Delta,
    Emit,
    Finished,
    Job,
    Model,
    deliver,
)
from slipring.core.token_estimates import estimated_tokens
from slipring.engines.base import Level
from slipring.engines.chat.answer import ChatAnswer, ChatReader
from slipring.engines.chat.options import ChatOptions, read_options
from slipring.engines.chat.request_body import MessageWriter, Request, write_request
from slipring.engines.chat.returned_fields import PositionCodec
from slipring.engines.remote.http_connection import HttpFailure
from slipring.engines.remote.retries_and_breaker import Admission
from slipring.engines.remote.streamed_answer import CutOff, SteeredCut
from slipring.engines.remote.upstream import RemoteEngine, Upstream

_PATH = "/chat/completions"
_LAST_CHUNK_S = 10.0
"""How long a server may take to send the usage after the finish reason."""


class ChatEngine(RemoteEngine):
    """One server and its models."""

    name = "chat"
    level = Level.MESSAGES

    def __init__(self, options: ChatOptions) -> None:
        self.options = options
        self._names = [name.strip() for name in options.model.split(";") if name.strip()]
        self._upstream = Upstream("chat", options)
        self._admission = Admission("the chat server", options, self._probe)
        self._writer = MessageWriter(send_reasoning=options.send_reasoning)
        self.positions = PositionCodec(self._writer, options)

    @classmethod
    def from_options(cls, text: str) -> "ChatEngine":
        return cls(read_options(text))

    def models(self) -> Sequence[Model]:
        capabilities = Capabilities(
            logprobs=self.options.logprobs,
            images=self.options.images,
            resolves_urls=self.options.images and self.options.image_urls,
            biased_ids=ANY_ID,
        )
        return [Model(name=name, owner="chat", capabilities=capabilities) for name in self._names]

    async def start(self) -> None:
        await self._upstream.start()
        if not self._names:
            self._names = await self._upstream.list_models("/models")

    async def close(self) -> None:
        await self._admission.close()
        await self._upstream.close()

    async def generate(self, job: Job, emit: Emit) -> None:
        if job.generate:
            self._admission.require_admission(job.tenant, job.model.name)
        request = await self.tokenizing.prepare(job, write_request, job, self.options, self._writer)
        accepted, position = Accepted(fallback=request.fallback), request.position
        if not job.generate and not (self.options.warmup and request.has_messages):
            finished = Finished("stop", 0, 0, 0, position=position, context=position)
            await deliver(emit, [accepted, finished])
            return
        with self._admission.admission(job.tenant, job.model.name) as ticket:
            await ticket.begin(accepted, emit)
            answer = ChatAnswer(position, logprobs=job.settings.logprobs, think_tags=self.options.think_tags)
            cut = SteeredCut(job)

            async def attempt(begin: Callable[[], None]) -> None:
                await self._attempt(job, request, ChatReader(job, answer, cut, emit, begin))

            with suppress(CutOff):
                await self._admission.run(attempt, job.model.name)
            if cut.is_made:
                last: list[Delta] = [structs.replace(cut.finished(), position=position, context=position)]
            else:
                last = answer.finish() if job.generate else answer.prepared()
        # After the ticket is given back: a slow reader must not hold up other jobs.
        await deliver(emit, last)

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await self.tokenizing.prepare(job, estimated_tokens, job)

    async def _attempt(self, job: Job, request: Request, reader: ChatReader) -> None:
        """Send the request once."""
        answer, headers = reader.answer, self._upstream.affinity_headers(job)

        def idle_s() -> float:
            return _LAST_CHUNK_S if answer.has_reason else self.options.idle_timeout_s

        try:
            await self._upstream.stream(_PATH, request.pieces, headers, reader, idle_s=idle_s)
        except ApiError as error:
            # If the stream breaks off behind the finish reason, only the usage may be missing.
            if not answer.has_reason or not isinstance(error.__cause__, HttpFailure):
                raise

    async def _probe(self) -> None:
        # A server that refuses to list its models is up.
        with suppress(InvalidRequest, NotFound, RateLimited, ServerError):
            await self._upstream.get("/models")
