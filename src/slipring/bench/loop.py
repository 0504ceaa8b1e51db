"""One loop from its first turn to its last, measured as its client sees it.

Answers are looked at between turns only as far as the next turn needs them; whether they were right is
checked when the loop is over, so that checking costs no mode any time.
"""

import asyncio
from typing import Any, NamedTuple

from msgspec import Struct

from slipring.bench import results
from slipring.bench.checks import Expectation, calls_of, complaint
from slipring.bench.digests import Digest
from slipring.bench.exchange import FIRST_TOKENS, Exchange, Fields, Lost, Refused
from slipring.bench.modes import Context, Mode
from slipring.bench.processes import Meter
from slipring.bench.transports import Transport
from slipring.bench.workloads.plan import Item, Plan, Step


class Conduct(Struct, frozen=True, kw_only=True):
    """What holds for all loops of a run."""

    model: str
    tool_ms: float = 0.0
    forces_tools: bool = False
    """Whether ``tool_choice`` says in each turn what the loop needs."""
    gives_digests: bool = False
    """Whether the endpoint says what it has read."""


class _Travelled(NamedTuple):
    """A turn that is over but not yet checked."""

    sent: list[Item]
    step: Step
    exchange: Exchange
    previous_response_id: str | None
    cpu_ms: float | None


class Runner:
    """Runs loops, one at a time or several on the lanes of one transport."""

    def __init__(self, plan: Plan, mode: Mode, conduct: Conduct, meter: Meter | None) -> None:
        self._plan = plan
        self._mode = mode
        self._conduct = conduct
        self._meter = meter

    async def alone(self, transport: Transport, repeat: int) -> results.Loop:
        cpu_ms = self._cpu_ms()
        loop = await _Loop(self._plan, self._mode, self._conduct, self._meter).run(transport, repeat, 0, None)
        if cpu_ms is not None and loop.cpu_ms is None:
            loop.cpu_ms = (self._cpu_ms() or 0.0) - cpu_ms
        return loop

    async def side_by_side(self, transport: Transport, repeat: int, lanes: int) -> list[results.Loop]:
        cpu_ms = self._cpu_ms()
        loops = await asyncio.gather(
            *(
                _Loop(self._plan, self._mode, self._conduct, None).run(
                    transport, repeat, lane, f"lane-{lane}"
                )
                for lane in range(lanes)
            )
        )
        if cpu_ms is not None:
            share = ((self._cpu_ms() or 0.0) - cpu_ms) / lanes
            for loop in loops:
                loop.cpu_ms = share
        return loops

    def _cpu_ms(self) -> float | None:
        return self._meter.cpu_ms() if self._meter is not None else None


class _Loop:
    """A loop that is running."""

    def __init__(self, plan: Plan, mode: Mode, conduct: Conduct, meter: Meter | None) -> None:
        self._plan = plan
        self._mode = mode
        self._conduct = conduct
        self._meter = meter
        self._context: Context = mode.context()
        self._travelled: list[_Travelled] = []

    async def run(self, transport: Transport, repeat: int, lane: int, stream_id: str | None) -> results.Loop:
        """The loop, checked. What ends it early is told in it; only being cancelled is raised."""
        instructions = named(self._plan.instructions, f"{self._mode.name} {repeat} {lane}")
        head = self._head(instructions)
        loop = results.Loop(workload=self._plan.workload.name, mode=self._mode.name, repeat=repeat, lane=lane)
        try:
            await self._turns(transport, head, stream_id)
        except (Refused, Lost) as error:
            loop.error = f"turn {len(self._travelled) + 1}: {error}"
        except TimeoutError:
            loop.error = f"turn {len(self._travelled) + 1}: no answer in time"
        self._account(loop, Digest(instructions), stream_id)
        return loop

    def _head(self, instructions: str) -> Fields:
        head: Fields = {"model": self._conduct.model, **self._plan.settings, "instructions": instructions}
        if self._plan.tools:
            head["tools"] = self._plan.tools
        return head

    async def _turns(self, transport: Transport, head: Fields, stream_id: str | None) -> None:
        calls: list[Item] = []
        forces = self._conduct.forces_tools or self._plan.forces_tools
        for step in self._plan.steps:
            if self._conduct.tool_ms and step.outputs:
                await asyncio.sleep(self._conduct.tool_ms / 1000)
            new = step.input(calls)
            previous = self._context.previous_response_id
            fields = {**head, **self._context.fields(new)}
            if forces and self._plan.tools:
                fields["tool_choice"] = "required" if step.needs == "call" else "none"
            cpu_ms = self._meter.cpu_ms() if self._meter is not None else None
            exchange = await transport.turn(fields, stream_id)
            if self._meter is not None and cpu_ms is not None:
                cpu_ms = self._meter.cpu_ms() - cpu_ms
            self._travelled.append(_Travelled(new, step, exchange, previous, cpu_ms))
            response = exchange.response
            if response is None or response.get("status") != "completed":
                return
            self._context.learn(response)
            calls = calls_of(response)
            if step.needs == "call" and not calls:
                return

    def _account(self, loop: results.Loop, digest: Digest, stream_id: str | None) -> None:
        """What was measured, and whether it was right."""
        least_tokens = 0
        for place, travelled in enumerate(self._travelled):
            digest.add(travelled.sent)
            expected = Expectation(
                needs=travelled.step.needs,
                previous_response_id=travelled.previous_response_id,
                lane=stream_id,
                least_input_tokens=least_tokens,
                digest=str(digest) if self._conduct.gives_digests else None,
            )
            number = place + 1 - self._plan.uncounted
            turn = _turn(number, travelled, complaint(travelled.exchange, expected))
            least_tokens = turn.input_tokens
            digest.add((travelled.exchange.response or {}).get("output") or [])
            if number > 0:
                loop.turns.append(turn)
            elif turn.wrong is not None:
                loop.error = f"before the first turn: {turn.wrong}"
        loop.wall_ms = sum(turn.total_ms for turn in loop.turns)
        if self._meter is not None and self._plan.uncounted:
            loop.cpu_ms = sum(turn.cpu_ms or 0.0 for turn in loop.turns)


def _turn(number: int, travelled: _Travelled, wrong: str | None) -> results.Turn:
    exchange = travelled.exchange
    usage: dict[str, Any] = (exchange.response or {}).get("usage") or {}
    return results.Turn(
        number=number,
        created_ms=exchange.first_ms("response.created"),
        first_token_ms=exchange.first_ms(*FIRST_TOKENS),
        total_ms=exchange.total_ns / 1e6,
        sent_bytes=exchange.sent_bytes,
        received_bytes=exchange.received_bytes,
        input_tokens=usage.get("input_tokens") or 0,
        cached_tokens=(usage.get("input_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
        stages_ms=exchange.stages_ms,
        cpu_ms=travelled.cpu_ms,
        wrong=wrong,
    )


def named(instructions: str, loop: str) -> str:
    """Instructions of one loop alone: no loop finds in a prefix cache what another has left there."""
    return f"Loop {Digest(loop)}.\n\n{instructions}"
