"""What holds whichever engine makes the answer: how many tools may be called, and with what.

An engine that can be told keeps to it by itself. Here it is seen to: calls past the bound are ignored, and a
call whose input does not fit its tool's grammar fails the response. Jobs that are not bound go straight to
their engine.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct, structs

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
from slipring.errors import ServerError
from slipring.protocol.grammars import Grammar, fits

_SILENT = (Accepted, Begun, Prefilled)
_LARGE = 1000
"""Characters that are matched in less than a few milliseconds."""


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
    return _watched(engine, job, _Watch(grammars, most))


async def _watched(engine: Engine, job: Job, watch: "_Watch") -> AsyncGenerator[list[Delta], None]:
    async with aclosing(engine.generate(job)) as batches:
        async for deltas in batches:
            told: list[Delta] = []
            for delta in deltas:
                written = watch.ended_by(delta)
                if written is not None and not await written.fits():
                    if told:
                        yield told
                    raise ServerError(
                        f"The model's input does not fit the grammar of the tool '{written.name}'."
                    )
                if (passed := watch.passed(delta)) is not None:
                    told.append(passed)
            if told:
                yield told


class _Written(Struct):
    """A call of a tool that has a grammar."""

    name: str
    grammar: Grammar
    pieces: list[str]

    async def fits(self) -> bool:
        """Whether it may stand; where nobody can tell, it may."""
        text = "".join(self.pieces)
        if len(text) <= _LARGE:
            return fits(self.grammar, text) is not False
        return await asyncio.to_thread(fits, self.grammar, text) is not False


class _Watch:
    """Reads along."""

    def __init__(self, grammars: dict[tuple[str | None, str], Grammar], most: int | None) -> None:
        self._grammars = grammars
        self._most = most
        self._calls = 0
        self._ignoring = self._has_ignored = False
        self._writing: _Written | None = None

    def ended_by(self, delta: Delta) -> _Written | None:
        """The call that is over now that this comes; one that was cut off is none."""
        if self._writing is None or isinstance(delta, CallArguments | Accepted | Begun | Prefilled):
            return None
        written, self._writing = self._writing, None
        return None if isinstance(delta, Finished) and delta.reason != "stop" else written

    def passed(self, delta: Delta) -> Delta | None:
        """What is told of a delta; None: nothing."""
        if isinstance(delta, CallArguments):
            if self._writing is not None:
                self._writing.pieces.append(delta.text)
            return None if self._ignoring else delta
        if isinstance(delta, _SILENT):
            return delta
        self._ignoring = False
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
            self._writing = _Written(started.name, grammar, []) if grammar is not None else None
        return started
