"""What holds whichever engine makes the answer: how many tools may be called, and with what.

An engine that can be told keeps to it by itself. Here it is seen to: calls past the bound are ignored, and a
call fails the response as soon as its input cannot fit its tool's grammar any more. Jobs that are not bound
go straight to their engine.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

from msgspec import structs

from slipring.core.generation import (
    Accepted,
    Begun,
    CallArguments,
    CallStarted,
    Delta,
    Finished,
    Job,
    Prefilled,
)
from slipring.engines.base import Engine
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.grammar_matcher import Proof
from slipring.errors import ServerError
from slipring.protocol.definitions import Grammar

_SILENT = (Accepted, Begun, Prefilled)
_AT_ONCE = 500
"""Characters that are held against a grammar before others have their turn."""


def generate(engine: Engine, job: Job) -> AsyncGenerator[list[Delta], None]:
    """Run a job, within its bounds."""
    grammars = {
        (tool.namespace, tool.name): grammar
        for tool in job.offer.tools
        if (grammar := tool.grammar) is not None
    }
    most = job.settings.max_tool_calls
    if not job.generate or (most is None and not grammars):
        return engine.generate(job)
    return _watched(engine, job, _Watch(engine.compiler, job.tenant, grammars, most))


async def _watched(engine: Engine, job: Job, watch: "_Watch") -> AsyncGenerator[list[Delta], None]:
    async with aclosing(engine.generate(job)) as batches:
        async for deltas in batches:
            told: list[Delta] = []
            for delta in deltas:
                written = watch.writing
                if written is not None and type(delta) not in _SILENT and not await written.fits(delta):
                    if told:
                        yield told
                    raise ServerError(
                        f"The model's input does not fit the grammar of the tool '{written.name}'."
                    )
                if (passed := watch.passed(delta)) is not None:
                    told.append(passed)
            if told:
                yield told


class _Written:
    """A call of a tool that has a grammar, as it grows."""

    def __init__(self, name: str, open_proof: Callable[[], Awaitable[Proof]]) -> None:
        self.name = name
        self._open_proof = open_proof
        self._proof: Proof | None = None

    async def fits(self, delta: Delta) -> bool:
        """Whether it may still stand now that this comes; where nobody can tell, it may."""
        if self._proof is None:
            self._proof = await self._open_proof()
        if isinstance(delta, CallArguments):
            for start in range(0, len(delta.text), _AT_ONCE):
                if not self._proof.take(delta.text[start : start + _AT_ONCE]):
                    return False
                if len(delta.text) > _AT_ONCE:
                    await asyncio.sleep(0)
            return True
        # One that was cut off need not be whole.
        is_cut_off = isinstance(delta, Finished) and delta.reason != "stop"
        return is_cut_off or self._proof.ends() is not False


class _Watch:
    """Reads along."""

    def __init__(
        self,
        compiler: Compiler,
        tenant: str,
        grammars: dict[tuple[str | None, str], Grammar],
        most: int | None,
    ) -> None:
        self._open_proof = partial(compiler.proof, tenant)
        self._grammars = grammars
        self._most = most
        self._calls = 0
        self._ignoring = self._has_ignored = False
        self.writing: _Written | None = None
        """The call at hand, if its tool has a grammar."""

    def passed(self, delta: Delta) -> Delta | None:
        """What is told of a delta; None: nothing."""
        if isinstance(delta, CallArguments):
            return None if self._ignoring else delta
        if type(delta) in _SILENT:
            return delta
        self._ignoring = False
        self.writing = None
        if isinstance(delta, CallStarted):
            return self._call(delta)
        if isinstance(delta, Finished) and self._has_ignored:
            # The engine remembers calls that nobody will answer: the next turn must not go on from there.
            return structs.replace(delta, position=None)
        return delta

    def _call(self, started: CallStarted) -> CallStarted | None:
        if self._calls == self._most:
            self._ignoring = self._has_ignored = True
            return None
        self._calls += 1
        if started.kind == "custom":
            grammar = self._grammars.get((started.namespace, started.name))
            if grammar is not None:
                self.writing = _Written(started.name, partial(self._open_proof, grammar))
        return started
