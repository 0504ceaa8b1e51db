"""Where long contexts are tokenized or otherwise prepared: in threads, so many at once, tenants in turn.

Tokenizing is CPU time. More threads than cores would only slow down everything else, and each holds what it
tokenizes in memory. Contexts whose tokens a server elsewhere makes are waited for in threads of their own:
whoever waits for a server must not keep others from computing.
"""

from collections.abc import Callable
from typing import TypeVar

from slipring.core.generation import Job
from slipring.core.limits import Limits
from slipring.engines.tokens.crew import Crew
from slipring.prompts.tokenization.token_budget import Room

T = TypeVar("T")
_ASKED_AT_ONCE = 32
_SHORT_BYTES = 64 * 1024
"""Of items that are read in a few milliseconds, however many they are."""


class Tokenizing:
    """The threads of one process, and what may be spent on a context."""

    def __init__(self, limits: Limits) -> None:
        self.counted_contexts = limits.counted_contexts
        self._unsplit_chars = limits.max_unsplit_chars
        self._here = Crew("tokenize", limits.max_tokenizing)
        self._elsewhere = Crew("ask-tokens", _ASKED_AT_ONCE)

    def room(self, tokens: int) -> Room:
        """Room for so many tokens."""
        return Room(tokens, self._unsplit_chars)

    async def run(self, tenant: str, work: Callable[..., T], *given: object, is_local: bool) -> T:
        """Do work off the event loop, when it is the tenant's turn. ``is_local``: it waits for nobody."""
        crew = self._here if is_local else self._elsewhere
        return await crew.run(tenant, work, *given)

    async def prepare(self, job: Job, work: Callable[..., T], *given: object) -> T:
        """Do work on what is new in a job: off the event loop where that is much."""
        known = job.parent is None or job.parent.position is not None
        items = job.input if known else job.context()
        if sum(len(item.raw) for item in items) <= _SHORT_BYTES:
            return work(*given)
        return await self.run(job.tenant, work, *given, is_local=True)
