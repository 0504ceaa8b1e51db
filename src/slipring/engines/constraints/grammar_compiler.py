"""Compiling what clients define, for whoever serves them: where it is done, and how large it may become."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from slipring.engines.constraints import grammar_matcher
from slipring.engines.constraints.grammar_matcher import Proof
from slipring.errors import InvalidRequest
from slipring.protocol.definitions import Compilable, Grammar
from slipring.sandbox.sandbox import InThread, Runner, TooExpensive

_MOST_STATES = 10_000
_KEPT = 16
"""Matchers that are kept. Each may take some MiB."""


class Compiler:
    """What an engine and the server that it is part of compile with.

    ``run`` is for everything that a client's input can make expensive. What has passed there may be used in
    this process.
    """

    def __init__(self, runner: Runner, max_states: int = _MOST_STATES) -> None:
        self._runner = runner
        self.max_states = max_states
        """Of the parser of a grammar."""
        self._matchers: OrderedDict[tuple[str, Grammar], Any] = OrderedDict()
        """By tenant: from its speed nobody may learn what another has sent."""

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        """What a task of ``sandbox.TASKS`` returns; raises what ``Runner.run`` raises."""
        return await self._runner.run(tenant, task, *arguments)

    async def check(self, tenant: str, found: Iterable[Compilable]) -> None:
        """Refuse grammars that cannot be compiled, by the field that is wrong."""
        for each in found:
            complaint = await self._complaint(tenant, each.grammar)
            if complaint is not None:
                raise InvalidRequest(
                    f"Invalid '{each.param}': this grammar cannot be compiled: {complaint}.", param=each.param
                )

    async def proof(self, tenant: str, grammar: Grammar) -> Proof:
        """What holds a text against a grammar, if that can be done."""
        key = tenant, grammar
        if key not in self._matchers:
            passed = await self._complaint(tenant, grammar) is None
            made = (
                await asyncio.to_thread(grammar_matcher.matcher, grammar, self.max_states) if passed else None
            )
            self._matchers[key] = made
            if len(self._matchers) > _KEPT:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(key)
        matcher = self._matchers[key]
        return Proof(matcher.deep_copy() if matcher is not None else None)

    async def _complaint(self, tenant: str, grammar: Grammar) -> str | None:
        try:
            complaint: str | None = await self._runner.run(
                tenant, "check_grammar", grammar.syntax, grammar.definition, self.max_states
            )
        except TooExpensive as error:
            return f"it {error.reason}"
        return complaint


IN_THREAD = Compiler(InThread())
"""For engines that no server has given its own."""
