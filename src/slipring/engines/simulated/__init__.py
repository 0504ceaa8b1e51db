"""The simulated engine: answers of a chosen length at a chosen speed, made by no model.

For trying clients, for tests, and for measuring everything around a model. It calls tools, obeys
``tool_choice``, formats and token limits, and keeps a prefix cache, so that what surrounds it behaves as it
would around a real engine. It is called *simulated* wherever it shows.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Literal

from slipring.core.generation import (
    Accepted,
    Begun,
    CallArguments,
    CallStarted,
    Capabilities,
    Delta,
    Finished,
    Job,
    Model,
    Thought,
    ThoughtSummary,
)
from slipring.engines.base import Engine, Level
from slipring.engines.simulated.context import PrefixCache, Tally, tally_job
from slipring.engines.simulated.options import Options, read_options
from slipring.engines.simulated.plan import Fail, Say, Stall, Step, plan_answer
from slipring.engines.simulated.script import Script, read_script

_MAX_LAG_S = 0.05
"""How far behind its schedule an answer may catch up in one burst."""


class SimulatedEngine(Engine):
    """Plays planned or scripted answers."""

    name = "simulated"
    level = Level.TOKENS

    def __init__(self, options: Options, script: Script | None = None) -> None:
        self.options = options
        self._script = script
        self._prefixes = PrefixCache()

    @classmethod
    def from_options(cls, text: str) -> "SimulatedEngine":
        options = read_options(text)
        return cls(options, read_script(options.script) if options.script else None)

    def models(self) -> Sequence[Model]:
        # Whatever a context holds is only counted, so images and files are welcome.
        capabilities = Capabilities(images=True, files=True)
        return [Model(name="simulated", owner="slipring", capabilities=capabilities)]

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        tally = tally_job(job)
        cached = self._prefixes.longest(tally) if self.options.prefix_cache else 0
        yield [Accepted(rendered_tokens=tally.new_tokens), Begun()]
        await self._prefill(tally.tokens - cached)
        self._prefixes.add(tally)
        reason: Literal["stop", "max_output_tokens", "steered"] = "stop"
        produced = thought = 0
        spoken: list[Delta] = []
        limit = job.settings.max_output_tokens
        pace = _Pace(self.options.tokens_per_s)
        for step in await self._plan(job, tally):
            if type(step) is not Say:
                await _interrupt(step)
                continue
            if job.stop.asked and _is_whole(spoken, step.deltas):
                reason = "steered"
                break
            if produced == limit:
                reason = "max_output_tokens"
                break
            if (delay_s := pace.next_delay_s()) is not None:
                await asyncio.sleep(delay_s)
            produced += 1
            thought += step.reasoning
            spoken += step.deltas
            yield step.deltas
        position = tally.after(spoken)
        self._prefixes.add(position)
        yield [Finished(reason, tally.tokens, cached, produced, thought, position)]

    async def count(self, job: Job) -> int:
        return tally_job(job).tokens

    async def _plan(self, job: Job, tally: Tally) -> Iterable[Step]:
        """The answer, after the time that a model would take to begin it. A warmup has none."""
        if not job.generate:
            return ()
        if self.options.ttft_ms:
            await asyncio.sleep(self.options.ttft_ms / 1000)
        if self._script is not None:
            return self._script.next()
        return plan_answer(job, tally.tool_outputs, self.options)

    async def _prefill(self, new_tokens: int) -> None:
        rate = self.options.prefill_tokens_per_s
        if rate and new_tokens:
            await asyncio.sleep(new_tokens / rate)


async def _interrupt(step: Step) -> None:
    if isinstance(step, Fail):
        raise step.error
    if isinstance(step, Stall):
        await asyncio.sleep(step.seconds)


def _is_whole(spoken: list[Delta], following: list[Delta]) -> bool:
    """Whether no thought and no call is half said between what was spoken and what follows."""
    before, after = (type(spoken[-1]) if spoken else None), (type(following[0]) if following else None)
    if before in (Thought, ThoughtSummary):
        return after is not before
    return before not in (CallStarted, CallArguments)


class _Pace:
    """Spreads tokens over time by an absolute schedule, so that small delays do not add up."""

    __slots__ = ("_clock", "_due", "_interval_s")

    def __init__(self, tokens_per_s: float) -> None:
        self._interval_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._clock = asyncio.get_running_loop().time
        self._due = self._clock()

    def next_delay_s(self) -> float | None:
        """How long to wait before the next token; None: it is due already."""
        if not self._interval_s:
            return 0.0  # as fast as possible, yet never alone on the loop
        now = self._clock()
        self._due = max(self._due + self._interval_s, now - _MAX_LAG_S)
        return self._due - now if self._due > now else None
