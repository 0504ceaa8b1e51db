"""Where long contexts are tokenized: in threads, so many at once, tenants in turn.

Tokenizing is CPU time. More threads than cores would only slow down everything else, and each holds what it
tokenizes in memory. Contexts whose tokens a server elsewhere makes are waited for in threads of their own:
whoever waits for a server must not keep others from computing.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from slipring.core.limits import Limits
from slipring.engines.gate import Places
from slipring.prompts.room import Room

T = TypeVar("T")
_ASKED_AT_ONCE = 32


class Tokenizing:
    """The threads of one process. They are started when they are first needed."""

    def __init__(self, limits: Limits) -> None:
        self.counted_contexts = limits.counted_contexts
        self._unsplit_chars = limits.max_unsplit_chars
        self._here = _Crew("tokenize", limits.max_tokenizing)
        self._elsewhere = _Crew("ask-tokens", _ASKED_AT_ONCE)

    def room(self, tokens: int) -> Room:
        """Room for so many tokens."""
        return Room(tokens, self._unsplit_chars)

    async def run(self, tenant: str, work: Callable[..., T], *given: object, is_local: bool) -> T:
        """Do work off the event loop, when it is the tenant's turn. ``is_local``: it waits for nobody."""
        crew = self._here if is_local else self._elsewhere
        return await crew.run(tenant, work, *given)


class _Crew:
    """Some threads, and the queue for them."""

    def __init__(self, name: str, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, name)
        # Whoever waits is a response that has been admitted; to bound their number is not done twice.
        self._places = Places(size, sys.maxsize)

    async def run(self, tenant: str, work: Callable[..., T], *given: object) -> T:
        with ExitStack() as stack:
            await stack.enter_context(self._places.ticket(tenant)).turn()
            running = asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
            place = stack.pop_all()
        # A thread cannot be stopped. Its place is free when its work is done, whether anybody waits or not.
        running.add_done_callback(partial(_release, place))
        return await asyncio.shield(running)


def _release(place: ExitStack, done: "asyncio.Future[T]") -> None:
    place.close()
    if not done.cancelled():
        done.exception()  # nobody may be there to see it
