"""Engines in front of servers elsewhere that are sent token ids and name the ids they emit.

What differs between such servers is how a request is written and how a stream is read; their engines add
just that.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from slipring.core.generation import Accepted, Begun, Capabilities, Delta, Finished, Job, Model
from slipring.engines.base import Engine, Level
from slipring.engines.constraints.constraint import Constraint, constraint_of
from slipring.engines.options import option, read_pairs
from slipring.engines.remote.admission import Gate, Retryable
from slipring.engines.remote.batches import read_each
from slipring.engines.remote.startup_queries import ask, at_start
from slipring.engines.remote.upstream import Upstream, UpstreamOptions, read_key, refusal
from slipring.engines.tokens.renderers import Manner, make_renderer
from slipring.engines.tokens.token_answer import Answer, Piece, count, learn, render
from slipring.errors import ApiError, ServerError, StartupError
from slipring.prompts.rendering import Rendered
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.responses import TopLogprob

_REASONS: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(UpstreamOptions):
    """Which server, and how contexts are written for its model."""

    tokenizer: str = option(
        "", "the model's `tokenizer.json`, or a directory that holds it and `tokenizer_config.json`"
    )
    dialect: str = option(
        "", "how contexts are written: chatml, llama3 or template; empty: as the model's template asks"
    )
    model: str = option("", "the model's name at the server; empty: the first that it serves")
    context: int = option(0, "tokens of context; 0: as the server says")


def read_options(kind: str, text: str) -> Options:
    """Read what stands behind ``KIND:``; what cannot be used is named in one line."""
    url, *pairs = text.split(",")
    if not url.startswith(("http://", "https://")):
        raise StartupError(f"--engine {kind}: name its address, as in {kind}:http://127.0.0.1:8000")
    return Options(url=url.rstrip("/").removesuffix("/v1"), **read_pairs(kind, Options, pairs))


class Served(NamedTuple):
    """A model as its server describes it."""

    name: str
    context: int
    root: str
    """Where it was loaded from."""


class Request(NamedTuple):
    """A request that is ready to be sent, as often as it takes."""

    path: str
    pieces: Sequence[bytes]
    headers: dict[str, str]
    read: Callable[[], "Reader"]
    """Makes what reads one answer to it."""


class Reader(Protocol):
    """Reads the stream that answers one request."""

    def read(self, payload: bytes) -> Piece:
        """What a payload says. Raises what a server's own report of a failure means."""


class TokenServer(Engine):
    """One such server and its model."""

    level = Level.TOKENS
    maker: ClassVar[str]
    """What it should be, in words."""
    spared: ClassVar[int] = 0
    """How many tokens of the context it keeps from prompts."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._key = read_key(self.name, options)
        self._upstream = Upstream(self.name, options)
        self._gate = Gate(f"{self.maker} at {options.url}", options, self._probe)
        self.served = self._find_model()
        vocabulary, manner = self.find_vocabulary()
        self.renderer = make_renderer(self.name, options.dialect, manner, vocabulary)

    @classmethod
    def from_options(cls, text: str) -> "TokenServer":
        return cls(read_options(cls.name, text))

    @property
    def trouble(self) -> str | None:
        return self._gate.trouble

    def models(self) -> Sequence[Model]:
        capabilities = Capabilities(logprobs=True)
        name, context = self.served.name, self.served.context
        return [Model(name=name, owner=self.name, capabilities=capabilities, context_tokens=context)]

    async def start(self) -> None:
        await self._upstream.start()
        await learn(self.renderer)

    async def close(self) -> None:
        await self._gate.close()
        await self._upstream.close()

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        rendering = await render(job, self.renderer, self.served.context - self.spared, self.tokenizing)
        sent = rendering.prompt if job.generate else rendering.context
        constraint = await self._constraint(job)
        with self._gate.ticket(job.tenant) as ticket:
            yield [Accepted(rendering.new_tokens, rendering.fallback, rendering.dropped_items)]
            await ticket.turn()
            yield [Begun()]
            if not sent.total:  # a warmup of nothing, which no server takes
                yield [Finished("stop", 0, 0, 0, position=sent)]
                return
            # Not before its turn: a request holds all ids as text.
            request = self.write(job, sent, self._limit(job, sent), constraint)
            answer = Answer(job, rendering, self.renderer, constrained=constraint is not None)
            async with aclosing(self._gate.stream(lambda: self._attempt(request, answer))) as batches:
                async for deltas in batches:
                    if deltas:
                        yield deltas
        yield answer.finish()  # whoever takes long to read it has given the place back

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await count(job, self.renderer, self.served.context, self.tokenizing, enough)

    async def _constraint(self, job: Job) -> Constraint | None:
        return await constraint_of(job, self.renderer.calls, self.compiler) if job.generate else None

    @abstractmethod
    def find_vocabulary(self) -> tuple[Vocabulary, Manner]:
        """The model's vocabulary, and how contexts are written for it."""

    @abstractmethod
    def write(self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None) -> Request:
        """A request for at most so many tokens after ``sent``."""

    def choose_model(self, told: Any) -> Served:
        """The model that is meant, of those that the server lists."""
        options = self.options
        cards = [card for card in told["data"] if options.model in ("", card["id"])]
        if not cards:
            raise StartupError(f"--engine {self.name}: {options.url} serves no model '{options.model}'")
        card = cards[0]
        context = options.context or int(card.get("max_model_len") or 0)
        if not context:
            raise StartupError(f"--engine {self.name}: {options.url} names no context; give it with context=")
        return Served(card["id"], context, str(card.get("root") or card["id"]))

    def ask(self, path: str) -> Any:
        """Wait for an answer, at start."""
        return ask(self.options.url, self._key, path)

    def ask_at_start(self, path: str, read: Callable[[Any], T]) -> T:
        """What the server says, read; what is wrong with it, in one line."""
        with at_start(self.name, self.options.url, self.maker):
            return read(self.ask(path))

    def top_logprob(self, id: int, logprob: float) -> TopLogprob:
        """What a token of a vocabulary that is here says, and how likely it was."""
        said = self.renderer.bytes_of(id)
        return TopLogprob(said.decode("utf-8", "replace"), logprob, list(said))

    def _limit(self, job: Job, sent: Rendered) -> int:
        """How much may be said. A warmup says one token, which nobody hears: servers prefill for no less."""
        room = self.served.context - sent.total
        return min(job.settings.max_output_tokens or room, room) if job.generate else 1

    def _find_model(self) -> Served:
        options = self.options
        if options.model and options.context:
            return Served(options.model, options.context, options.model)
        return self.ask_at_start("/v1/models", self.choose_model)

    async def _probe(self) -> None:
        # Its body may be empty, and a gateway before it may not know the path: it is there all the same.
        async with self._upstream.http.get(f"{self._upstream.url}/health") as answer:
            if answer.status >= 500:
                answer.raise_for_status()

    async def _attempt(self, request: Request, answer: Answer) -> AsyncGenerator[list[Delta], None]:
        """Send a request once. It yields as soon as the answer has begun, even if there is nothing to tell
        yet; until then the answer is as it was, for another attempt."""
        reader = request.read()

        def read(payload: bytes) -> Piece:
            try:
                return reader.read(payload)
            except (msgspec.DecodeError, UnicodeError) as error:
                raise ServerError("The engine's answer cannot be read.") from error

        is_told = False
        events = self._upstream.events(request.path, request.pieces, request.headers)
        async with aclosing(events) as batches:
            async for payloads in batches:
                if answer.ends_here():
                    return
                pieces, fault = read_each(read, payloads)
                deltas = answer.take_all(pieces)
                if deltas or (answer.has_begun and not is_told):
                    is_told = True
                    yield deltas
                if fault is not None:
                    raise fault
        if not answer.has_ended:
            raise Retryable("The engine ended its answer without saying so.")


class Fault(Struct):
    """A failure that a server reports within a stream."""

    message: str = ""
    code: int | str | None = None


def failure(fault: Fault, status: int | None = None) -> ApiError:
    """A failure within a stream means what it would have meant instead of one."""
    status = status or (fault.code if isinstance(fault.code, int) else 500)
    return refusal(status, wire.encode({"message": fault.message}), {})


def reason_of(name: str) -> Literal["stop", "length"]:
    """Why an answer ended. Any end that is not one of these is a failure."""
    if name not in _REASONS:
        raise ServerError(f"The engine broke off its answer: {name[:100]}")
    return _REASONS[name]
