"""The simulated engine: answers of a chosen length at a chosen speed, made by no model.

For trying clients, for tests, and for measuring everything around a model. It calls tools, obeys
``tool_choice``, formats and token limits, and keeps a prefix cache, so that what surrounds it behaves as it
would around a real engine. It is called *simulated* wherever it shows.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from slipring.core.generation import Capabilities, Delta, Finished, Job, Model
from slipring.engines.base import Engine, Level
from slipring.engines.simulated.context import PrefixCache, Tally, tally_job
from slipring.engines.simulated.options import Options, read_options
from slipring.engines.simulated.plan import Fail, Stall, plan_answer
from slipring.engines.simulated.script import Script, read_script


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
        await self._prefill(tally.tokens - cached)
        self._prefixes.add(tally)
        usage = Finished("stop", input_tokens=tally.tokens, cached_tokens=cached, output_tokens=0)
        if not job.generate:
            usage.position = tally
            yield [usage]
            return
        if self.options.ttft_ms:
            await asyncio.sleep(self.options.ttft_ms / 1000)
        async for deltas in self._answer(job, tally, usage):
            yield deltas

    async def _answer(self, job: Job, tally: Tally, usage: Finished) -> AsyncGenerator[list[Delta], None]:
        steps = self._script.next() if self._script else plan_answer(job, tally.tool_outputs, self.options)
        pace = _Pace(self.options.tokens_per_s)
        spoken: list[Delta] = []
        for step in steps:
            if isinstance(step, Stall):
                await asyncio.sleep(step.seconds)
                continue
            if isinstance(step, Fail):
                raise step.error
            if usage.output_tokens == job.settings.max_output_tokens:
                usage.reason = "max_output_tokens"
                break
            await pace.next_token()
            usage.output_tokens += 1
            usage.reasoning_tokens += step.reasoning
            spoken += step.deltas
            yield step.deltas
        usage.position = tally.after(spoken)
        self._prefixes.add(usage.position)
        yield [usage]

    async def _prefill(self, new_tokens: int) -> None:
        rate = self.options.prefill_tokens_per_s
        if rate and new_tokens:
            await asyncio.sleep(new_tokens / rate)


class _Pace:
    """Spreads tokens over time by an absolute schedule, so that small delays do not add up."""

    def __init__(self, tokens_per_s: float) -> None:
        self._interval_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._clock = asyncio.get_running_loop().time
        self._due = self._clock()

    async def next_token(self) -> None:
        if not self._interval_s:
            await asyncio.sleep(0)  # as fast as possible, yet never alone on the loop
            return
        self._due += self._interval_s
        wait = self._due - self._clock()
        if wait > 0:
            await asyncio.sleep(wait)
