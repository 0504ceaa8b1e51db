"""The simulated engine: answers of a chosen length at a chosen speed, without a model.

For testing clients, and for measuring everything around a model. It calls tools, obeys ``tool_choice``,
formats and token limits, and keeps a prefix cache, so that the rest of the server behaves as it does with a
real engine. It is called *simulated* wherever it is named.
"""

import asyncio
import sys
from collections.abc import Iterable, Sequence

from msgspec import structs

from slipring.core.generation import (
    ALL_ROLES,
    Accepted,
    Capabilities,
    Delta,
    Emit,
    Finished,
    Job,
    Model,
    Prefill,
    deliver,
)
from slipring.engines.base import Engine, Level
from slipring.engines.scheduling.job_queue import JobQueue
from slipring.engines.simulated.context_digest import Trace, trace_job
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.pace import Pace, Ticks, TimedTokens
from slipring.engines.simulated.plan import (
    AnswerStep,
    Content,
    Fail,
    PlannedAnswer,
    Stall,
    plan_answer,
    prepare,
)
from slipring.engines.simulated.prefix_cache import (
    PrefixCache,
    Tally,
    begin_last_item,
    position_of,
    tally_job,
)
from slipring.engines.simulated.script import read_script
from slipring.observation import live_messages


class SimulatedEngine(Engine):
    """Plays planned or scripted answers, and estimates token counts from the length of texts."""

    name = "simulated"
    level = Level.TOKENS

    def __init__(self, options: SimulatedOptions) -> None:
        self.options = options
        self._script = read_script(options.script) if options.script else None
        self._prefixes = PrefixCache()
        self._queue = JobQueue(options.max_jobs or sys.maxsize, options.max_waiting)
        self._ticks = Ticks()

    def status(self) -> live_messages.Engine:
        return structs.replace(super().status(), running=self._queue.running, waiting=self._queue.waiting)

    def models(self) -> Sequence[Model]:
        # Images and files are only counted, so they are accepted.
        capabilities = Capabilities(images=True, image_roles=ALL_ROLES, files=True)
        return [Model(name="simulated", owner="slipring", capabilities=capabilities)]

    async def generate(self, job: Job, emit: Emit) -> None:
        self._queue.require_room(job.tenant)
        tally, cached, content, trace = await self._read(job)
        accepted = Accepted(rendered_tokens=tally.new_tokens, prompt_tokens=tally.tokens)
        with self._queue.ticket(job.tenant) as ticket:
            await ticket.begin(accepted, emit)
            await (pace := self._pace(job, tally.tokens - cached)).reached()
            self._prefixes.add(tally)
            answer = PlannedAnswer(job, self._plan(job, content, trace))
            while True:
                await TimedTokens(answer, pace, emit).run()
                if answer.interruption is None:
                    break
                await _interrupt(answer.take_interruption())
            last = Finished(answer.reason, tally.tokens, cached, answer.tokens, answer.reasoning_tokens)
            last.position, last.context = self._positions(tally, answer.emitted, trace)
        # After the ticket is given back: a slow reader must not hold up other jobs.
        await deliver(emit, [last])

    async def prefill(self, prefill: Prefill) -> int:
        job, done = prefill.job, prefill.done_tokens
        if not self.options.prefix_cache or prefill.expects != "output" or position_of(job) is None:
            return done
        begun = await self.tokenizing.prepare(job, begin_last_item, job)
        if rate := self.options.prefill_tokens_per_s:
            await asyncio.sleep(max(begun.tokens - done, 0) / rate)
        self._prefixes.add_begun(begun)
        return begun.tokens

    async def count(self, job: Job, enough: int | None = None) -> int:
        return (await self.tokenizing.prepare(job, tally_job, job)).tokens

    async def _read(self, job: Job) -> tuple[Tally, int, Content, Trace | None]:
        """The context of a job, how many of its tokens are cached, what the answer contains, and the trace of
        the context."""
        tally = await self.tokenizing.prepare(job, tally_job, job)
        trace = self._trace(job)
        cached = self._prefixes.longest(tally, job) if self.options.prefix_cache else 0
        return tally, cached, await self._prepare(job, tally), trace

    def _positions(self, tally: Tally, emitted: list[Delta], trace: Trace | None) -> tuple[Tally, Tally]:
        """The context with an answer, which is cached from now on, and the context without it."""
        position = tally.after(emitted, trace)
        self._prefixes.add(position)
        return position, tally.as_position(trace)

    async def _prepare(self, job: Job, tally: Tally) -> Content:
        """The content of a planned answer; a script brings its own."""
        if self._script is not None:
            return Content()
        return await prepare(job, tally.tool_outputs, self.options, self.compiler)

    def _plan(self, job: Job, content: Content, trace: Trace | None) -> Iterable[AnswerStep]:
        """The steps of the answer; a warmup has none."""
        if not job.generate:
            return ()
        if self._script is not None:
            return self._script.next()
        return plan_answer(job, content, self.options, trace.mark if trace is not None else "")

    def _pace(self, job: Job, new_tokens: int) -> Pace:
        """The pace of an answer whose prompt has so many tokens to read."""
        pace = Pace(self.options.tokens_per_s, self._ticks)
        if rate := self.options.prefill_tokens_per_s:
            pace.postpone(new_tokens / rate)
        if job.generate:
            pace.postpone(self.options.ttft_ms / 1000)
        return pace

    def _trace(self, job: Job) -> Trace | None:
        if not self.options.digest:
            return None
        position = position_of(job)
        return trace_job(job, position.trace if position is not None else None)


async def _interrupt(step: Fail | Stall) -> None:
    if isinstance(step, Fail):
        raise step.error
    await asyncio.sleep(step.seconds)
