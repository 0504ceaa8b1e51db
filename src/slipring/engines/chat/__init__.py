"""The chat engine: any server that speaks Chat Completions.

It is sent the whole conversation with every turn, for that is its API. We write each message once and splice:
a turn costs us its delta and the upload.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from itertools import chain

from msgspec import structs

from slipring.core.generation import Accepted, Begun, Capabilities, Delta, Finished, Job, Model
from slipring.engines.base import Engine, Level
from slipring.engines.chat.answer import Answer
from slipring.engines.chat.messages import Writer
from slipring.engines.chat.models import model_names
from slipring.engines.chat.options import Options, read_options
from slipring.engines.chat.request_body import Request, write_request
from slipring.engines.remote.admission import Gate
from slipring.engines.remote.batches import read_each
from slipring.engines.remote.cutting import Cut
from slipring.engines.remote.estimates import estimated_tokens
from slipring.engines.remote.upstream import Upstream
from slipring.errors import InvalidRequest, RateLimited, ServerError

_PATH = "/chat/completions"


class ChatEngine(Engine):
    """One server, and the models it has."""

    name = "chat"
    level = Level.MESSAGES

    def __init__(self, options: Options) -> None:
        self.options = options
        self._names = model_names(options)
        self._upstream = Upstream("chat", options)
        self._gate = Gate("the chat server", options, self._probe)
        self._writer = Writer(send_reasoning=options.send_reasoning)

    @classmethod
    def from_options(cls, text: str) -> "ChatEngine":
        return cls(read_options(text))

    @property
    def trouble(self) -> str | None:
        return self._gate.trouble

    def models(self) -> Sequence[Model]:
        capabilities = Capabilities(logprobs=self.options.logprobs, images=self.options.images)
        return [Model(name=name, owner="chat", capabilities=capabilities) for name in self._names]

    async def start(self) -> None:
        await self._upstream.start()

    async def close(self) -> None:
        await self._gate.close()
        await self._upstream.close()

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        request = await self.tokenizing.prepare(job, write_request, job, self.options, self._writer)
        accepted = Accepted(fallback=request.fallback)
        if not job.generate and not (self.options.warmup and request.has_messages):
            yield [accepted]
            yield [Finished("stop", 0, 0, 0, position=request.position)]
            return
        with self._gate.ticket(job.tenant) as ticket:
            yield [accepted]
            await ticket.turn()
            yield [Begun()]
            answer = Answer(
                request.position, logprobs=job.settings.logprobs, think_tags=self.options.think_tags
            )
            cut = Cut(job)
            async with aclosing(self._gate.stream(lambda: self._ask(job, request, answer))) as batches:
                async for deltas in batches:
                    if job.generate:
                        yield deltas
                        if cut.after(deltas):
                            break
            if cut.is_made:
                last: list[Delta] = [structs.replace(cut.finished(), position=request.position)]
            else:
                last = answer.finish() if job.generate else answer.prepared()
        yield last  # whoever takes long to read it has given its place back

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await self.tokenizing.prepare(job, estimated_tokens, job)

    async def _ask(self, job: Job, request: Request, answer: Answer) -> AsyncGenerator[list[Delta], None]:
        """Send the request once. An answer that has said nothing can be begun again."""
        headers = self._upstream.affinity_headers(job)
        async with aclosing(self._upstream.events(_PATH, request.pieces, headers)) as batches:
            async for payloads in batches:
                told, fault = read_each(answer.read, payloads)
                if deltas := list(chain.from_iterable(told)):
                    yield deltas
                if fault is not None:
                    raise fault

    async def _probe(self) -> None:
        # A server that refuses to list its models is there all the same.
        with suppress(InvalidRequest, RateLimited, ServerError):
            await self._upstream.get("/models")
