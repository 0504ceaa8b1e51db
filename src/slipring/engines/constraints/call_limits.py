"""Limits on tool calls, enforced for every engine: their number, and the grammars of custom tools.

Engines that can enforce them while they sample do so as well. Here, calls past ``max_tool_calls`` are
dropped, and the response fails as soon as the input of a custom tool cannot match the tool's grammar.
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
    CallEnded,
    CallStarted,
    Delta,
    Finished,
    Job,
    Prefilled,
)
from slipring.engines.base import Engine
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.grammar_matcher import TextMatcher
from slipring.errors import ServerError
from slipring.protocol.definitions import Grammar

_NO_OUTPUT = (Accepted, Begun, Prefilled)
"""Deltas that report progress. They do not end a call."""
_MATCHED_CHARS = 500
"""Characters that are matched at once before the event loop runs other tasks."""


def generate(engine: Engine, job: Job) -> AsyncGenerator[list[Delta], None]:
    """Run a job and enforce its limits on calls; a job without limits goes straight to the engine.

    Raises ``ServerError`` if the model's input for a custom tool does not match the tool's grammar.
    """
    grammars = {
        (tool.namespace, tool.name): grammar
        for tool in job.offer.tools
        if (grammar := tool.grammar) is not None
    }
    max_calls = job.settings.max_tool_calls
    if not job.generate or (max_calls is None and not grammars):
        return engine.generate(job)
    return _limited(engine, job, _CallFilter(engine.compiler, job.tenant, grammars, max_calls))


async def _limited(engine: Engine, job: Job, calls: "_CallFilter") -> AsyncGenerator[list[Delta], None]:
    async with aclosing(engine.generate(job)) as batches:
        async for deltas in batches:
            passed: list[Delta] = []
            for delta in deltas:
                checked = calls.checked
                if checked is not None and type(delta) not in _NO_OUTPUT and not await checked.accepts(delta):
                    if passed:
                        yield passed
                    raise ServerError(
                        f"The model's input does not fit the grammar of the tool '{checked.name}'."
                    )
                if (kept := calls.filter(delta)) is not None:
                    passed.append(kept)
            if passed:
                yield passed


class _CheckedCall:
    """A running call of a tool that has a grammar."""

    def __init__(self, name: str, open_matcher: Callable[[], Awaitable[TextMatcher]]) -> None:
        self.name = name
        self._open_matcher = open_matcher
        self._matcher: TextMatcher | None = None

    async def accepts(self, delta: Delta) -> bool:
        """Whether the input can still match the grammar after ``delta``, which continues or ends the call.

        True also if that is unknown.
        """
        if self._matcher is None:
            self._matcher = await self._open_matcher()
        if isinstance(delta, CallArguments):
            for start in range(0, len(delta.text), _MATCHED_CHARS):
                if not self._matcher.feed(delta.text[start : start + _MATCHED_CHARS]):
                    return False
                if len(delta.text) > _MATCHED_CHARS:
                    await asyncio.sleep(0)
            return True
        # An input that a token limit cut off need not be complete.
        if isinstance(delta, CallEnded):
            is_cut_off = not delta.is_complete
        else:
            is_cut_off = isinstance(delta, Finished) and delta.reason != "stop"
        return is_cut_off or self._matcher.is_complete() is not False


class _CallFilter:
    """Drops the calls of one response past the limit, and tracks the call that has to match a grammar."""

    def __init__(
        self,
        compiler: Compiler,
        tenant: str,
        grammars: dict[tuple[str | None, str], Grammar],
        max_calls: int | None,
    ) -> None:
        self._open_matcher = partial(compiler.text_matcher, tenant)
        self._grammars = grammars
        self._max_calls = max_calls
        self._calls = 0
        self._is_dropping = self._has_dropped = False
        self.checked: _CheckedCall | None = None
        """The running call, if its tool has a grammar."""

    def filter(self, delta: Delta) -> Delta | None:
        """The delta to pass on; None if it belongs to a dropped call."""
        if isinstance(delta, CallArguments):
            return None if self._is_dropping else delta
        if type(delta) in _NO_OUTPUT:
            return delta
        was_dropping, self._is_dropping = self._is_dropping, False
        self.checked = None
        if was_dropping and isinstance(delta, CallEnded):
            return None
        if isinstance(delta, CallStarted):
            return self._start_call(delta)
        if isinstance(delta, Finished) and self._has_dropped:
            # The engine's context has calls that the client never sees: the next turn must not continue it.
            return structs.replace(delta, position=None)
        return delta

    def _start_call(self, started: CallStarted) -> CallStarted | None:
        if self._calls == self._max_calls:
            self._is_dropping = self._has_dropped = True
            return None
        self._calls += 1
        if started.kind == "custom":
            grammar = self._grammars.get((started.namespace, started.name))
            if grammar is not None:
                self.checked = _CheckedCall(started.name, partial(self._open_matcher, grammar))
        return started
