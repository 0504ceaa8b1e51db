"""The interface of engines.

``Level`` says what an engine is sent: token ids, chat messages, or the items of the API. Jobs and deltas are
the same at every level; an engine takes from the job the form of the context that it needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec import structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Delta, Emit, Finished, Job, Model, Position, Prefill
from slipring.core.limits import Limits
from slipring.engines.constraints.grammar_compiler import IN_THREAD, Compiler
from slipring.engines.tokens.tokenizer_threads import TokenizerThreads
from slipring.observation import live_messages


class Level(Enum):
    """What an engine is sent."""

    TOKENS = "tokens"
    MESSAGES = "messages"
    ITEMS = "items"


class PositionCodec(Protocol):
    """Encodes positions that engines leave with responses. Refuses those of other engines by None."""

    def pack(self, position: object, parent: object) -> bytes | None: ...

    def unpack(self, data: bytes, parent: object, head: Head) -> Position | None: ...


class Engine(ABC):
    """Generates responses. One engine serves many connections; every method is called on the event loop.

    Constructors do no network I/O: ``start`` connects and asks. What an engine caches between jobs belongs to
    ``job.tenant``: neither counts nor response times may reveal to one tenant what another has sent.
    """

    name: str
    level: Level
    leaves_renderings: bool = False
    """Whether the positions that it leaves with responses are ``Rendered`` contexts, which can be stored."""
    positions: PositionCodec | None = None
    """Encodes positions that only this engine, or the same one in another process, can use; None if it leaves
    none that can be stored."""
    serves_one_tenant: bool = False
    """Whether its response times depend on all that was sent to it. The server refuses to start with such an
    engine if it may have several tenants."""
    compiler: Compiler = IN_THREAD
    """Compiles grammars and schemas of clients. The server replaces it by its own, which is bounded."""
    tokenizing = TokenizerThreads(Limits())
    """Tokenizes long contexts in threads. The server replaces it by one that all its engines share."""

    @property
    def trouble(self) -> str | None:
        """Why the engine cannot generate at present, for operators; None if it can."""
        return None

    @property
    def session_use(self) -> str | None:
        """How turns use sessions of the engine's server, in one line for operators; None if it has no such
        thing."""
        return None

    def status(self) -> live_messages.Engine:
        """What operators see of it. This default is for engines without a queue."""
        return live_messages.Engine(
            name=self.name, models=[model.name for model in self.models()], trouble=self.trouble
        )

    async def start(self) -> None:
        """Connect, load, and find out which models there are, without blocking the event loop.

        Raises ``StartupError`` with one line for the operator. ``close`` is called also after a failed start.
        """
        return

    async def close(self) -> None:
        """Release everything that ``start`` acquired."""
        return

    @abstractmethod
    def models(self) -> Sequence[Model]:
        """The models it serves, the default one first. Complete once the engine has started."""

    @abstractmethod
    async def generate(self, job: Job, emit: Emit) -> None:
        """Run a job and emit its deltas in batches; the first accepts the job, the very last delta is
        ``Finished``. Returns when that was emitted.

        Engines call ``emit`` from within the callback of the event loop that brings the tokens, while this
        coroutine waits: no task is resumed for a token. Await what it returns before the next call. What it
        raises, at once or by what it returns, ends the job and is raised here.

        A job with ``generate`` false is a warmup: prepare the context as far as the engine can, then emit
        ``Finished``. Raise an ``ApiError`` to fail the response with its message. Cancelling the coroutine
        cancels the job: stop, emit nothing more, and free what it used.
        """

    async def prefill(self, prefill: Prefill) -> int:
        """Process a context that a chain will probably continue with, while no response needs the engine.

        Returns how many tokens of the context are processed. Never delays a response: one that arrives
        interrupts the prefill. Closing (cancelling) it early keeps what has been processed. This default is
        for engines that cannot prefill, and does nothing.
        """
        return 0

    def output_grew(self, response_id: str) -> None:
        """The output has grown of a tool for which the loop of a response waits, perhaps of another engine's.
        This default is for engines that keep nothing for loops that pause."""
        return

    def was_steered(self, response_id: str) -> None:
        """A response, perhaps of another engine, was steered while it runs: another turn follows at once.
        This default is for engines that keep nothing for loops that pause."""
        return

    async def count(self, job: Job, enough: int | None = None) -> int:
        """Count the tokens of a job's prompt without generating.

        With ``enough``, any result from there on means "at least so many"; without, a context that is far too
        long may be refused. This default runs a warmup; engines that can count cheaper override it. An engine
        that cannot count says in its documentation that it estimates.
        """
        emitted: list[Delta] = []
        await self.generate(structs.replace(job, generate=False), emitted.extend)
        if not isinstance(finished := emitted[-1], Finished):
            raise RuntimeError("the engine ended the job without a Finished delta")
        return finished.input_tokens
