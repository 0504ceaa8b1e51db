"""What an engine is.

Engines differ in how much of the work they leave to us, and ``Level`` says how much: a *tokens* engine is
sent token ids, a *messages* engine chat messages, an *items* engine the items themselves. Whatever the level,
the job is the same and so are the deltas: each engine takes from the job the view of the context it can use.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from enum import Enum

from msgspec import structs

from slipring.core.generation import Delta, Finished, Job, Model
from slipring.core.limits import Limits
from slipring.engines.constraints.compiler import IN_THREAD, Compiler
from slipring.engines.tokens.tokenizing import Tokenizing


class Level(Enum):
    """What an engine is sent."""

    TOKENS = "tokens"
    MESSAGES = "messages"
    ITEMS = "items"


class Engine(ABC):
    """Makes responses. One engine serves many connections; every method is called on the event loop.

    Whatever an engine remembers between jobs belongs to ``job.tenant``: neither counts nor times may tell one
    tenant what another has sent.
    """

    name: str
    level: Level
    compiler: Compiler = IN_THREAD
    """Compiles what clients define. A server gives its own, which is bounded."""
    tokenizing = Tokenizing(Limits())
    """Where long contexts are tokenized. A server gives all of its engines one of its own."""

    @property
    def trouble(self) -> str | None:
        """Why it cannot work just now, in words for whoever looks after it; None while it can."""
        return None

    async def start(self) -> None:
        """Get ready. Raises ``StartupError`` with one line for the operator when that cannot be."""
        return

    async def close(self) -> None:
        """Let go of everything that ``start`` took."""
        return

    @abstractmethod
    def models(self) -> Sequence[Model]:
        """The models it serves, the default one first."""

    @abstractmethod
    def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        """Run a job, yielding batches of deltas; the first accepts the job, the very last is ``Finished``.

        A job with ``generate`` false is a warmup: prepare the context as far as the engine can, then yield
        ``Finished``. Raise an ``ApiError`` to fail the response with its message. When the generator is
        closed early, nobody wants the rest: stop and free what the job used, at once.
        """

    async def count(self, job: Job, enough: int | None = None) -> int:
        """The tokens of a job's prompt, without doing the job. With ``enough``, any number from there on says
        that there are more; without, a context that is far too long may be refused.

        As it stands, by a warmup: engines that know a cheaper way take that. An engine that cannot count says
        in its documentation that it guesses.
        """
        async with aclosing(self.generate(structs.replace(job, generate=False))) as batches:
            async for deltas in batches:
                if deltas and isinstance(finished := deltas[-1], Finished):
                    return finished.input_tokens
        raise RuntimeError("the engine ended its stream without a Finished delta")
