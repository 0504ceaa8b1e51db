"""Runs one loop from its first turn to its last, and measures it as its client sees it.

Between turns, answers are examined only as far as the next turn needs it. They are checked after the loop, so
that the time of checking is not part of any measurement.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

from msgspec import Struct

from slipring.commands.bench import results
from slipring.commands.bench.client.exchange import (
    FIRST_TOKENS,
    TERMINAL,
    Event,
    Fields,
    RefusedByServer,
    TurnExchange,
    TurnFailed,
)
from slipring.commands.bench.client.transports import Transport
from slipring.commands.bench.client.turn_requests import KEEP_REASONING, Context
from slipring.commands.bench.measure.modes import Mode
from slipring.commands.bench.subject.processes import Meter
from slipring.commands.bench.verification import (
    Digest,
    Expectation,
    TokenFloor,
    calls_of,
    failure_reason,
    find_faults,
    how_checked,
)
from slipring.commands.bench.workloads.plan import Item, Plan, PlanStep

_UNCOUNTED = "before the first turn"


class LoopSettings(Struct, frozen=True, kw_only=True):
    """Settings that all loops of a run share."""

    model: str
    tool_ms: float = 0.0
    tools_vary: float = 0.0
    """The share of ``tool_ms`` by which the time of a tool is shorter or longer, at random."""
    replays_pauses: bool = False
    """Whether tools take as long as in the recording, instead of ``tool_ms``."""
    forces_tools: bool = False
    """Whether ``tool_choice`` forces the kind of answer that each turn needs."""
    has_digests: bool = False
    """Whether the endpoint reports digests."""
    keeps_reasoning: bool = False
    """Whether to request reasoning in a form that can be sent back."""
    max_output_tokens: int | None = None
    """Limit of each answer."""
    nonce: str = ""
    """Makes the loops of this run differ from those of other runs in prefix caches."""


async def run_loops(
    plan: Plan,
    mode: Mode,
    settings: LoopSettings,
    transport: Transport,
    repeat: int,
    *,
    lanes: int,
    meter: Meter | None,
    on_turn: Callable[[int], None],
) -> list[results.LoopResult]:
    """Run one loop, or with lanes one on each of them at the same time: CPU time per turn is not known then.
    ``on_turn`` is called with the number of each turn that has ended, between turns."""
    numbers = range(lanes) if mode.has_lanes else (None,)
    running = [_Loop(plan, mode, settings, transport, repeat, number) for number in numbers]
    before, counted = plan.steps[: plan.uncounted], plan.steps[plan.uncounted :]
    await asyncio.gather(*(loop.run(before, None, on_turn) for loop in running))
    before_ms = meter.cpu_ms() if meter is not None else 0.0
    turn_meter = None if mode.has_lanes else meter
    await asyncio.gather(*(loop.run(counted, turn_meter, on_turn) for loop in running))
    cpu_ms = (meter.cpu_ms() - before_ms) / len(running) if meter is not None else None
    return [loop.result(cpu_ms) for loop in running]


class AtOnce(NamedTuple):
    """Loops that have run at the same time."""

    wall_ms: float
    """From the beginning of all to the end of the last."""
    client_ms: float
    """CPU time of this process until then."""
    loops: list[results.LoopResult]


async def run_at_once(
    plan: Plan,
    mode: Mode,
    settings: LoopSettings,
    transports: Sequence[Transport],
    *,
    on_turn: Callable[[int], None],
) -> AtOnce:
    """Run a loop over each transport, all at the same time."""
    running = [
        _Loop(plan, mode, settings, transport, number, None) for number, transport in enumerate(transports)
    ]
    begun_at, spent_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(loop.run(plan.steps, None, on_turn) for loop in running))
    wall_s, client_s = time.perf_counter() - begun_at, time.process_time() - spent_s
    return AtOnce(wall_s * 1000, client_s * 1000, [loop.result(None) for loop in running])


class _FinishedTurn(NamedTuple):
    """A turn that was run and is not checked yet."""

    sent: list[Item]
    """Its new items."""
    step: PlanStep
    exchange: TurnExchange
    previous_response_id: str | None
    continues_response: bool
    """Whether it belongs to the same response as the turn before, as in a rollout."""
    cpu_ms: float | None


class _Branch(NamedTuple):
    """A conversation after one of its turns."""

    context: Context
    calls: list[Item]
    """The calls of the last answer."""


class _Loop:
    """One running loop. An error that ends it early is stored in its result; only cancellation is raised."""

    def __init__(
        self,
        plan: Plan,
        mode: Mode,
        settings: LoopSettings,
        transport: Transport,
        repeat: int,
        lane: int | None,
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._is_rollout = mode.is_rollout
        self._keeps_reasoning = mode.sends_history and settings.keeps_reasoning
        self._transport = transport
        self._stream_id = f"lane-{lane}" if lane is not None else None
        self._name = f"{settings.nonce} {plan.workload.name} {mode.name} {repeat} {lane or 0}"
        self._chance = random.Random(self._name)
        self._new_context = mode.context
        self._returned = mode.returned
        self._branches: list[_Branch] = []
        """After each turn."""
        self._turns: list[_FinishedTurn] = []
        self._has_ended = False
        self._result = results.LoopResult(
            workload=plan.workload.name, mode=mode.name, repeat=repeat, lane=lane or 0
        )

    async def run(self, steps: list[PlanStep], meter: Meter | None, on_turn: Callable[[int], None]) -> None:
        """Run these turns, until one fails or its answer does not allow another."""
        try:
            for step in steps:
                if not self._has_ended:
                    await self._turn(step, meter)
                    on_turn(len(self._turns))
        except TurnFailed as error:
            self._fail(str(error))
        except TimeoutError:
            self._fail("no answer in time")

    async def _turn(self, step: PlanStep, meter: Meter | None) -> None:
        if step.outputs and (tool_ms := self._tool_ms(step)):
            await asyncio.sleep(tool_ms / 1000)
        context, calls = self._branch_of(step)
        new = step.input(calls)
        previous, continues = context.previous_response_id, context.is_open
        fields = context.request(self._head(step), new)
        before_ms = meter.cpu_ms() if meter is not None else 0.0
        exchange = await self._transport.turn(fields, self._stream_id)
        cpu_ms = meter.cpu_ms() - before_ms if meter is not None else None
        if exchange.response is not None and exchange.response.get("status") == "failed":
            raise RefusedByServer(f"the response failed: {failure_reason(exchange.response)}")
        self._turns.append(_FinishedTurn(new, step, exchange, previous, continues, cpu_ms))
        calls = calls_of(exchange.answer)
        self._has_ended = not exchange.can_continue or (step.needs == "call" and not calls)
        if not self._has_ended:
            context.learn(exchange)
            self._branches.append(_Branch(context, calls))

    def _tool_ms(self, step: PlanStep) -> float:
        settings = self._settings
        if settings.replays_pauses:
            return step.pause_ms
        return settings.tool_ms * self._chance.uniform(1 - settings.tools_vary, 1 + settings.tools_vary)

    def _branch_of(self, step: PlanStep) -> _Branch:
        """The conversation that a step continues."""
        if step.begins or not self._branches:
            return _Branch(self._new_context(), [])
        if step.continues is None:
            return self._branches[-1]
        context, calls = self._branches[step.continues]
        return _Branch(context.fork(), calls)

    def _head(self, step: PlanStep) -> Fields:
        """The fields that every request repeats, because the API inherits none of them."""
        own = self._plan.head_of(step)
        head: Fields = {"model": self._settings.model, **own.settings}
        head["instructions"] = self._instructions(step)
        if (limit := self._settings.max_output_tokens) is not None:
            assert not self._is_rollout, "the limit would be that of all answers together"
            head["max_output_tokens"] = limit
        if self._keeps_reasoning:
            include = [*own.settings.get("include", []), *KEEP_REASONING["include"]]
            head["include"] = list(dict.fromkeys(include))
        if own.tools:
            head["tools"] = own.tools
            if self._settings.forces_tools or self._plan.forces_tools:
                head["tool_choice"] = "required" if step.needs == "call" else "none"
        return head

    def _instructions(self, step: PlanStep) -> str:
        return unique_instructions(self._plan.head_of(step).instructions, self._name)

    def _fail(self, reason: str) -> None:
        self._has_ended = True
        number = len(self._turns) + 1 - self._plan.uncounted
        reason = self._transport.redact(reason)
        self._result.error = f"turn {number}: {reason}" if number > 0 else f"{_UNCOUNTED}: {reason}"

    def result(self, cpu_ms: float | None) -> results.LoopResult:
        """Check all answers and return the figures."""
        result, has_digests = self._result, self._settings.has_digests
        result.cpu_ms = cpu_ms
        turns = self._checked_turns()
        result.history_checked = how_checked(turns, has_digests=has_digests)
        for number, turn in enumerate(turns, start=1 - self._plan.uncounted):
            turn.number = number
            step = self._plan.steps[number - 1 + self._plan.uncounted]
            if step.begins:
                turn.after = 0
            elif step.continues is not None and step.continues != number - 2 + self._plan.uncounted:
                turn.after = step.continues + 1 - self._plan.uncounted
            if self._is_rollout and self._plan.uncounted:
                # Reported once for all turns, including those that are not counted.
                turn.input_tokens = turn.cached_tokens = turn.output_tokens = 0
            if number > 0:
                result.turns.append(turn)
            elif turn.wrong is not None:
                result.wrong = f"{_UNCOUNTED}: {turn.wrong}"
        result.wall_ms = sum(turn.total_ms for turn in result.turns)
        return result

    def _checked_turns(self) -> list[results.TurnResult]:
        checked: list[results.TurnResult] = []
        events: list[Event] = []
        redact = self._transport.redact
        known: list[tuple[Digest, TokenFloor]] = []
        for turn in self._turns:
            exchange, step = turn.exchange, turn.step
            digest, floor = self._known_before(step, known)
            known.append((digest, floor))
            events = [*events, *exchange.events] if turn.continues_response else exchange.events
            digest.add(turn.sent)
            expected = Expectation(
                needs=step.needs,
                previous_response_id=turn.previous_response_id,
                lane=self._stream_id,
                least_input_tokens=floor.with_items(turn.sent),
                digest=str(digest) if self._settings.has_digests else None,
                may_be_truncated=self._settings.max_output_tokens is not None,
            )
            faults = find_faults(events, exchange.answer, expected)
            checked.append(_turn_result(turn, redact(faults) if faults is not None else None))
            _add_stages(checked, exchange, redact)
            if not turn.continues_response:  # else its tokens include those of the turns before
                floor.add(checked[-1])
            digest.add(self._returned(exchange.answer))
        return checked

    def _known_before(
        self, step: PlanStep, known: list[tuple[Digest, TokenFloor]]
    ) -> tuple[Digest, TokenFloor]:
        """The digest and the size of the context that a step continues; ``known``: those after each turn."""
        if step.begins or not known:
            return Digest(self._instructions(step)), TokenFloor()
        index = len(known) - 1 if step.continues is None else step.continues
        digest, floor = known[index]
        if self._plan.head_of(step).instructions != self._plan.head_of(self._turns[index].step).instructions:
            return self._digest_after(index, self._instructions(step)), TokenFloor()
        return copy(digest), copy(floor)

    def _digest_after(self, index: int, instructions: str) -> Digest:
        """The digest of the context after a turn, with other instructions."""
        turns: list[_FinishedTurn] = []
        while not self._turns[index].step.begins and index > 0:
            turns.append(self._turns[index])
            continued = self._turns[index].step.continues
            index = index - 1 if continued is None else continued
        digest = Digest(instructions)
        for turn in reversed([*turns, self._turns[index]]):
            digest.add(turn.sent)
            digest.add(self._returned(turn.exchange.answer))
        return digest


def _turn_result(turn: _FinishedTurn, faults: str | None) -> results.TurnResult:
    exchange = turn.exchange
    usage: dict[str, Any] = (exchange.response or {}).get("usage") or {}
    has_reasoning = any(item["type"] == "reasoning" for item in exchange.answer)
    reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0
    return results.TurnResult(
        number=0,
        created_ms=exchange.first_ms("response.created"),
        first_token_ms=exchange.first_ms(*FIRST_TOKENS),
        total_ms=exchange.total_ns / 1e6,
        terminal_ms=exchange.first_ms(*TERMINAL),
        sent_bytes=exchange.sent_bytes,
        received_bytes=exchange.received_bytes,
        input_tokens=usage.get("input_tokens") or 0,
        cached_tokens=(usage.get("input_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
        reasoning_tokens=None if has_reasoning and not reasoning else reasoning,
        cpu_ms=turn.cpu_ms,
        wrong=faults,
    )


def _add_stages(
    checked: list[results.TurnResult], exchange: TurnExchange, redact: Callable[[str], str]
) -> None:
    """Distribute the stage times of a response, which arrive at its end, over the turns that it spans."""
    steps = exchange.steps_ms
    if steps and len(steps) <= len(checked):
        for turn, stages_ms in zip(checked[-len(steps) :], steps, strict=True):
            turn.stages_ms = {redact(name): spent_ms for name, spent_ms in stages_ms.items()}


def unique_instructions(instructions: str, loop: str) -> str:
    """Instructions that start with a line unique to ``loop``, so that no loop hits a prefix that another has
    left in a cache."""
    return f"Loop {Digest(loop)}.\n\n{instructions}"
