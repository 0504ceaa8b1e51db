"""What turns come to when their loop is over: figures, and whether each answer was right."""

from collections.abc import Callable
from typing import Any, NamedTuple

from slipring.bench import results
from slipring.bench.checks import Expectation, complaint
from slipring.bench.digests import Digest
from slipring.bench.exchange import FIRST_TOKENS, TERMINAL, Event, Exchange
from slipring.bench.history import Floor
from slipring.bench.workloads.plan import Item, Need


class Travelled(NamedTuple):
    """A turn that is over but not yet checked."""

    sent: list[Item]
    """What was new in it."""
    needs: Need
    exchange: Exchange
    previous_response_id: str | None
    is_part: bool
    """Whether it belongs to the response of the turn before."""
    cpu_ms: float | None


def turns(
    travelled: list[Travelled],
    digest: Digest,
    lane: str | None,
    *,
    gives_digests: bool,
    may_be_cut: bool,
    tell: Callable[[str], str],
) -> list[results.Turn]:
    """All turns of a loop, checked one after the other; ``digest``: of what the loop began with, ``tell``:
    makes of a server's texts such that may be kept."""
    accounted: list[results.Turn] = []
    events: list[Event] = []
    floor = Floor()
    for turn in travelled:
        events = [*events, *turn.exchange.events] if turn.is_part else turn.exchange.events
        digest.add(turn.sent)
        expected = Expectation(
            needs=turn.needs,
            previous_response_id=turn.previous_response_id,
            lane=lane,
            least_input_tokens=floor.with_new(turn.sent),
            digest=str(digest) if gives_digests else None,
            may_be_cut=may_be_cut,
        )
        answer = turn.exchange.answer
        wrong = complaint(events, answer, expected)
        accounted.append(_turn(turn, tell(wrong) if wrong is not None else None))
        _tell_stages(accounted, turn.exchange, tell)
        if not turn.is_part:  # or it is counted together with those before it
            floor.take(accounted[-1])
        digest.add(answer)
    return accounted


def _turn(travelled: Travelled, wrong: str | None) -> results.Turn:
    exchange = travelled.exchange
    usage: dict[str, Any] = (exchange.response or {}).get("usage") or {}
    has_reasoned = any(item["type"] == "reasoning" for item in exchange.answer)
    reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0
    return results.Turn(
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
        reasoning_tokens=None if has_reasoned and not reasoning else reasoning,
        cpu_ms=travelled.cpu_ms,
        wrong=wrong,
    )


def _tell_stages(accounted: list[results.Turn], exchange: Exchange, tell: Callable[[str], str]) -> None:
    """What is told at the end of a response is about all turns that belong to it."""
    steps = exchange.steps_ms
    if steps and len(steps) <= len(accounted):
        for turn, stages_ms in zip(accounted[-len(steps) :], steps, strict=True):
            turn.stages_ms = {tell(name): spent_ms for name, spent_ms in stages_ms.items()}
