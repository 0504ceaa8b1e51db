"""Inputs of custom tools, checked against the grammars of the tools for every engine.

Engines that can enforce grammars while they sample do so as well. Here, the response fails as soon as an
input cannot match the grammar of its tool.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from slipring.base.errors import ServerError
from slipring.core.generation import (
    Accepted,
    Begun,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Emit,
    Finished,
    Job,
    Prefilled,
    deliver,
)
from slipring.engines.constraints.grammar_compiler import Compiler, TextMatcher
from slipring.protocol.tools.grammars_and_schemas import Grammar

Grammars = dict[tuple[str | None, str], Grammar]
"""By the namespace and the name of the tool."""
_NO_OUTPUT = (Accepted, Begun, Prefilled)
"""Deltas that report progress. They do not end a call."""
_MATCHED_CHARS = 500
"""Characters that are matched at once before the event loop runs other tasks."""


def checked(compiler: Compiler, job: Job, emit: Emit) -> Emit:
    """What the engine emits to, for a job with tools: it emits the deltas after checking the inputs of custom
    tools that have a grammar.

    Raises ``ServerError`` if the model's input for a custom tool does not match the tool's grammar.
    """
    grammars = {
        (tool.namespace, tool.name): grammar
        for tool in job.offer.tools
        if (grammar := tool.grammar) is not None
    }
    if not job.generate or not grammars:
        return emit
    return _Checks(grammars, partial(compiler.text_matcher, job.tenant), emit).emit


class _Checks:
    """Emits the deltas of a job after checking the calls among them."""

    def __init__(
        self, grammars: Grammars, open_matcher: Callable[[Grammar], Awaitable[TextMatcher]], emit: Emit
    ) -> None:
        self._grammars = grammars
        self._open_matcher = open_matcher
        self._emit = emit
        self._call: _CheckedCall | None = None
        """The call that is being written, if its tool has a grammar."""

    def emit(self, deltas: list[Delta]) -> Awaitable[None] | None:
        if self._call is None and not any(type(delta) is CallStarted for delta in deltas):
            return self._emit(deltas)
        return self._emit_checked(deltas)

    async def _emit_checked(self, deltas: list[Delta]) -> None:
        for index, delta in enumerate(deltas):
            if type(delta) in _NO_OUTPUT:
                continue
            call = self._call
            if call is not None and not await call.accepts(delta):
                if index:
                    await deliver(self._emit, deltas[:index])
                raise ServerError(f"The model's input does not fit the grammar of the tool '{call.name}'.")
            if not isinstance(delta, CallArguments):
                self._call = _opened(delta, self._grammars, self._open_matcher)
        await deliver(self._emit, deltas)


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


def _opened(
    delta: Delta, grammars: Grammars, open_matcher: Callable[[Grammar], Awaitable[TextMatcher]]
) -> _CheckedCall | None:
    """The call that a delta begins, if its tool has a grammar."""
    if not isinstance(delta, CallStarted) or delta.kind != "custom":
        return None
    grammar = grammars.get((delta.namespace, delta.name))
    return _CheckedCall(delta.name, partial(open_matcher, grammar)) if grammar is not None else None
