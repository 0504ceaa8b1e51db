"""Compiles the grammars of clients within limits, caches their matchers by tenant, and matches texts."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from slipring.base.errors import InvalidRequest, TooExpensive
from slipring.engines.constraints import grammar_checks
from slipring.protocol.tools.grammars_and_schemas import Compilable, Grammar
from slipring.sandbox.sandbox import InThread, Runner

_MAX_STATES = 10_000
_CACHED_MATCHERS = 16
"""Each may take some MiB."""


class TextMatcher:
    """Matches a text against a grammar while it arrives.

    Python's ``re`` is not used: some expressions take exponential time to fail, and a client can choose the
    expression and, through the model, the text.
    """

    def __init__(self, matcher: Any) -> None:
        """``matcher``: an llguidance matcher for this text alone; None: every text is accepted."""
        self._matcher = matcher

    def feed(self, text: str) -> bool:
        """Read more of the text. Returns False if no continuation can match the grammar."""
        if self._matcher is None:
            return True
        data = text.encode("utf-8", "surrogatepass")
        consumed = int(self._matcher.try_consume_tokens(list(data)))
        if consumed == len(data):
            return True
        if self._matcher.is_error():  # a limit was exceeded: the rest is not checked
            self._matcher = None
        return self._matcher is None

    def is_complete(self) -> bool | None:
        """Whether the text so far matches the grammar; None if that is unknown."""
        return bool(self._matcher.is_accepting()) if self._matcher is not None else None


class Compiler:
    """Compiles for one server and its engines.

    Work whose cost depends on client input goes through ``run``, into the sandbox. A grammar that passed the
    check there may be compiled in this process.
    """

    def __init__(self, runner: Runner, max_states: int = _MAX_STATES) -> None:
        self._runner = runner
        self.max_states = max_states
        """Most states that the parser of a grammar may have."""
        self._matchers: OrderedDict[tuple[str, Grammar], Any] = OrderedDict()
        """Least recently used first. By tenant: response times must not reveal another tenant's grammars."""

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        """Run a task of ``sandbox.TASKS``; returns and raises what ``Runner.run`` does."""
        return await self._runner.run(tenant, task, *arguments)

    async def check(self, tenant: str, compilables: Iterable[Compilable]) -> None:
        """Raise ``InvalidRequest``, with the field, for the first grammar that cannot be compiled."""
        for each in compilables:
            problem = await self._problem(tenant, each.grammar)
            if problem is not None:
                raise InvalidRequest.at(each.param, f"this grammar cannot be compiled: {problem}")

    async def text_matcher(self, tenant: str, grammar: Grammar) -> TextMatcher:
        """A new matcher for one text. It accepts every text if the grammar cannot be compiled."""
        key = tenant, grammar
        if key not in self._matchers:
            is_valid = await self._problem(tenant, grammar) is None
            compiled = (
                await asyncio.to_thread(grammar_checks.compile_grammar, grammar, self.max_states)
                if is_valid
                else None
            )
            self._matchers[key] = compiled
            if len(self._matchers) > _CACHED_MATCHERS:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(key)
        matcher = self._matchers[key]
        return TextMatcher(matcher.deep_copy() if matcher is not None else None)

    async def _problem(self, tenant: str, grammar: Grammar) -> str | None:
        """Why a grammar cannot be compiled; None if it can."""
        try:
            problem: str | None = await self._runner.run(
                tenant, "check_grammar", grammar.syntax, grammar.definition, self.max_states
            )
        except TooExpensive as error:
            return f"it {error.reason}"
        return problem


IN_THREAD = Compiler(InThread())
"""Compiles without limits: the default of engines used outside a server."""
