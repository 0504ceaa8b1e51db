"""Threads that tokenize long contexts: a bounded number at once, tenants in turn.

Tokenizing is CPU time. More threads than cores would only slow down everything else, and each thread holds
the context that it tokenizes in memory. Contexts that a remote server tokenizes have threads of their own, so
that waiting for that server does not delay local tokenizing.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Thread
from typing import Protocol, TypeVar

from slipring.core.generation import Job
from slipring.core.limits import Limits
from slipring.engines.scheduling.job_queue import JobQueue
from slipring.prompts.tokenization.token_budget import TokenBudget

T = TypeVar("T")
_REMOTE_THREADS = 32
_SHORT_BYTES = 64 * 1024
"""Items of this size are processed within a few milliseconds, however many they are."""


class Accelerable(Protocol):
    """The part of ``Vocabulary`` that makes it faster. Not every engine installs what that needs."""

    def is_worth_accelerating(self) -> bool: ...

    def accelerate(self) -> None: ...


class FairThreadPool:
    """A thread pool whose queue serves tenants in turn. Threads start when they are first needed."""

    def __init__(self, name: str, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, name)
        self._most_beside_spare = (size - 1) // 2
        # Every caller is a response that was admitted before: the queue needs no bound.
        self._queue = JobQueue(size, sys.maxsize)

    async def run(self, tenant: str, work: Callable[..., T], *arguments: object) -> T:
        """Call ``work`` in a thread when it is the tenant's turn; return or raise what it does."""
        with ExitStack() as stack:
            await stack.enter_context(self._queue.ticket(tenant)).turn()
            running = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
            slot = stack.pop_all()
        # A thread cannot be stopped: its slot is released when the work ends, also after a cancellation.
        running.add_done_callback(partial(_release, slot))
        return await asyncio.shield(running)

    async def run_spare(self, tenant: str, work: Callable[..., T], *arguments: object) -> T:
        """``run``, for work that others should not wait for: it begins only while nothing waits, and takes at
        most half of the threads, or the only one."""
        await self._queue.until_spare(self._most_beside_spare)
        return await self.run(tenant, work, *arguments)


def _release(slot: ExitStack, done: "asyncio.Future[T]") -> None:
    slot.close()
    if not done.cancelled():
        done.exception()  # marks it as retrieved, in case the caller was cancelled


class TokenizerThreads:
    """The tokenizer threads of one process, and the limits on what a context may cost."""

    def __init__(self, limits: Limits) -> None:
        self.counted_contexts = limits.counted_contexts
        self._unsplit_chars = limits.max_unsplit_chars
        self._local = FairThreadPool("tokenize", limits.max_tokenizing)
        self._remote = FairThreadPool("ask-tokens", _REMOTE_THREADS)

    def budget(self, tokens: int) -> TokenBudget:
        """A budget of ``tokens`` tokens, with the configured limit on unsplittable text."""
        return TokenBudget(tokens, self._unsplit_chars)

    async def run(self, tenant: str, work: Callable[..., T], *arguments: object, is_local: bool) -> T:
        """Call ``work`` in a thread when it is the tenant's turn. ``is_local``: it does not wait for a remote
        server."""
        pool = self._local if is_local else self._remote
        return await pool.run(tenant, work, *arguments)

    async def run_spare(self, tenant: str, work: Callable[..., T], *arguments: object, is_local: bool) -> T:
        """``run``, for contexts that no answer waits for: it leaves threads to all others."""
        pool = self._local if is_local else self._remote
        return await pool.run_spare(tenant, work, *arguments)

    def encoded(self, vocabulary: Accelerable) -> None:
        """Accelerate a vocabulary, in a thread of its own, once it has encoded enough to be worth it."""
        if vocabulary.is_worth_accelerating():
            # Not a daemon: the interpreter must not end while code outside of Python runs in a thread.
            Thread(target=vocabulary.accelerate, name="accelerate").start()

    async def prepare(self, job: Job, work: Callable[..., T], *arguments: object) -> T:
        """Call ``work``, which processes the new items of a job: in a local thread if they are large,
        otherwise right here."""
        is_parent_known = job.parent is None or job.parent.position is not None
        items = job.input if is_parent_known else job.context()
        if sum(len(item.raw) for item in items) <= _SHORT_BYTES:
            return work(*arguments)
        return await self.run(job.tenant, work, *arguments, is_local=True)
