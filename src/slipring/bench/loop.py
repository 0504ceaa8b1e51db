"""One loop from its first turn to its last, measured as its client sees it.

Answers are looked at between turns only as far as the next turn needs them; whether they were right is
checked when the loop is over, so that checking costs no mode any time.
"""

import asyncio

from msgspec import Struct

from slipring.bench import results
from slipring.bench.accounts import Travelled, turns
from slipring.bench.checks import calls_of, why
from slipring.bench.digests import Digest
from slipring.bench.exchange import Fields, Lost, Refused
from slipring.bench.history import how_checked
from slipring.bench.modes import KEEP_REASONING, Context, Mode
from slipring.bench.processes import Meter
from slipring.bench.transports import Transport
from slipring.bench.workloads.plan import Item, Plan, Step

_EARLY = "before the first turn"


class Conduct(Struct, frozen=True, kw_only=True):
    """What holds for all loops of a run."""

    model: str
    tool_ms: float = 0.0
    forces_tools: bool = False
    """Whether ``tool_choice`` says in each turn what the loop needs."""
    gives_digests: bool = False
    """Whether the endpoint says what it has read."""
    keeps_reasoning: bool = False
    """Whether reasoning is asked for in a form that can be sent back."""
    max_output_tokens: int | None = None
    """Of each answer."""
    nonce: str = ""
    """Of the run: what another run has left in a prefix cache is not found."""


class Runner:
    """Runs loops, one at a time or several on the lanes of one transport."""

    def __init__(self, plan: Plan, mode: Mode, conduct: Conduct, meter: Meter | None) -> None:
        self._plan = plan
        self._mode = mode
        self._conduct = conduct
        self._meter = meter

    async def alone(self, transport: Transport, repeat: int) -> list[results.Loop]:
        running = _Loop(self._plan, self._mode, self._conduct, transport, repeat)
        return await self._run([running], self._meter)

    async def side_by_side(self, transport: Transport, repeat: int, lanes: int) -> list[results.Loop]:
        """One loop on each lane. What a single turn costs the server cannot be told."""
        running = [_Loop(self._plan, self._mode, self._conduct, transport, repeat, n) for n in range(lanes)]
        return await self._run(running, None)

    async def _run(self, running: "list[_Loop]", turn_meter: Meter | None) -> list[results.Loop]:
        uncounted = self._plan.uncounted
        await asyncio.gather(*(loop.take(self._plan.steps[:uncounted], None) for loop in running))
        before_ms = self._meter.cpu_ms() if self._meter is not None else 0.0
        await asyncio.gather(*(loop.take(self._plan.steps[uncounted:], turn_meter) for loop in running))
        cpu_ms = (self._meter.cpu_ms() - before_ms) / len(running) if self._meter is not None else None
        return [loop.account(cpu_ms) for loop in running]


class _Loop:
    """A loop that is running. What ends it early is told in its account; only being cancelled is raised."""

    def __init__(
        self,
        plan: Plan,
        mode: Mode,
        conduct: Conduct,
        transport: Transport,
        repeat: int,
        lane: int | None = None,
    ) -> None:
        self._plan = plan
        self._conduct = conduct
        self._is_rollout = mode.is_rollout
        self._keeps_reasoning = mode.sends_history and conduct.keeps_reasoning
        self._transport = transport
        self._stream_id = f"lane-{lane}" if lane is not None else None
        self._instructions = named(
            plan.instructions, f"{conduct.nonce} {plan.workload.name} {mode.name} {repeat} {lane or 0}"
        )
        self._context: Context = mode.context()
        self._calls: list[Item] = []
        self._travelled: list[Travelled] = []
        self._has_ended = False
        self._loop = results.Loop(workload=plan.workload.name, mode=mode.name, repeat=repeat, lane=lane or 0)

    async def take(self, steps: list[Step], meter: Meter | None) -> None:
        """Go through these turns, as far as the answers allow it."""
        try:
            for step in steps:
                if not self._has_ended:
                    await self._turn(step, meter)
        except (Refused, Lost) as error:
            self._fail(str(error))
        except TimeoutError:
            self._fail("no answer in time")

    async def _turn(self, step: Step, meter: Meter | None) -> None:
        if self._conduct.tool_ms and step.outputs:
            await asyncio.sleep(self._conduct.tool_ms / 1000)
        new = step.input(self._calls)
        previous, is_part = self._context.previous_response_id, self._context.is_open
        fields = self._context.request(self._head(step), new)
        before_ms = meter.cpu_ms() if meter is not None else 0.0
        exchange = await self._transport.turn(fields, self._stream_id)
        cpu_ms = meter.cpu_ms() - before_ms if meter is not None else None
        if exchange.response is not None and exchange.response.get("status") == "failed":
            raise Refused(f"the response failed: {why(exchange.response)}")
        self._travelled.append(Travelled(new, step.needs, exchange, previous, is_part, cpu_ms))
        self._calls = calls_of(exchange.answer)
        self._has_ended = not exchange.can_go_on or (step.needs == "call" and not self._calls)
        if not self._has_ended:
            self._context.learn(exchange)

    def _head(self, step: Step) -> Fields:
        """What every turn says anew, because the API inherits none of it."""
        head: Fields = {"model": self._conduct.model, **self._plan.settings}
        head["instructions"] = self._instructions
        if (most := self._conduct.max_output_tokens) is not None:
            head["max_output_tokens"] = most * len(self._plan.steps) if self._is_rollout else most
        if self._keeps_reasoning:
            wanted = [*self._plan.settings.get("include", []), *KEEP_REASONING["include"]]
            head["include"] = list(dict.fromkeys(wanted))
        if self._plan.tools:
            head["tools"] = self._plan.tools
            if self._conduct.forces_tools or self._plan.forces_tools:
                head["tool_choice"] = "required" if step.needs == "call" else "none"
        return head

    def _fail(self, reason: str) -> None:
        self._has_ended = True
        number = len(self._travelled) + 1 - self._plan.uncounted
        reason = self._transport.tell(reason)
        self._loop.error = f"turn {number}: {reason}" if number > 0 else f"{_EARLY}: {reason}"

    def account(self, cpu_ms: float | None) -> results.Loop:
        """What was measured, and whether it was right."""
        self._loop.cpu_ms = cpu_ms
        accounted = turns(
            self._travelled,
            Digest(self._instructions),
            self._stream_id,
            gives_digests=self._conduct.gives_digests,
            may_be_cut=self._conduct.max_output_tokens is not None,
            tell=self._transport.tell,
        )
        self._loop.history_checked = how_checked(accounted, gives_digests=self._conduct.gives_digests)
        for place, turn in enumerate(accounted, start=1 - self._plan.uncounted):
            turn.number = place
            if self._is_rollout and self._plan.uncounted:
                # Told once for all turns, and those that are not counted are among them.
                turn.input_tokens = turn.cached_tokens = turn.output_tokens = 0
            if place > 0:
                self._loop.turns.append(turn)
            elif turn.wrong is not None:
                self._loop.wrong = f"{_EARLY}: {turn.wrong}"
        self._loop.wall_ms = sum(turn.total_ms for turn in self._loop.turns)
        return self._loop


def named(instructions: str, loop: str) -> str:
    """Instructions of one loop alone: no loop finds in a prefix cache what another has left there."""
    return f"Loop {Digest(loop)}.\n\n{instructions}"
