"""Verifies by token counts that the server read the whole history.

Two checks. Along a loop, the input tokens must grow by what the model wrote and by what the client sent. And
the same turn in another mode must have read as many, except for the model's own words. Both leave some
tolerance, because servers count differently. Digests, where an endpoint reports them, are exact.
"""

import re
import statistics
from collections.abc import Iterator, Sequence

from slipring.commands.bench.results import Checked, LoopResult, TurnResult
from slipring.commands.bench.workloads.plan import Item, text_of

REFERENCE = "http-full"
"""The mode whose requests contain the whole history, so its token counts are the expected ones."""
_BYTES_PER_TOKEN = 12
"""More than any vocabulary averages per token on text without repetition."""
_OUTPUT_SHARE = 0.75
"""Share of the output tokens that surely count as input later: calls may be rendered differently."""
_SLACK_TOKENS = 16
_SLACK_SHARE = 0.03
_RUNS = re.compile(r"(.)\1+", re.DOTALL)


class TokenFloor:
    """Lower bound of the input tokens of the next turn of a loop."""

    def __init__(self) -> None:
        self._tokens: float = 0.0
        """Lower bound of the context after the last turn that was added."""

    def with_items(self, items: Sequence[Item]) -> int:
        """The bound if the next turn sends these items; 0 before the first turn."""
        if not self._tokens:
            return 0
        size = sum(len(_RUNS.sub(r"\1", _text(item)).encode()) for item in items)
        return max(0, int(self._tokens + size / _BYTES_PER_TOKEN) - _SLACK_TOKENS // 2)

    def copy(self) -> "TokenFloor":
        copied = TokenFloor()
        copied._tokens = self._tokens
        return copied

    def add(self, turn: TurnResult) -> None:
        """Raise the bound by a turn that has its own token counts."""
        if turn.input_tokens:
            kept = 0 if turn.reasoning_tokens is None else turn.output_tokens - turn.reasoning_tokens
            self._tokens = max(self._tokens, turn.input_tokens + _OUTPUT_SHARE * max(0, kept))


def how_checked(turns: Sequence[TurnResult], *, has_digests: bool) -> Checked:
    """How the history of a loop was verified. A rollout reports tokens once for all turns: not enough."""
    if has_digests:
        return "digest"
    return "tokens" if turns and all(turn.input_tokens for turn in turns) else "none"


def compare_with_full_history(loops: Sequence[LoopResult]) -> None:
    """Mark turns whose context differs in size from the same turn in ``http-full``. Updates the loops."""
    by_turn: dict[int, list[float]] = {}
    for loop in loops:
        if loop.mode == REFERENCE and not loop.faults:
            for turn, tokens, _ in _context_tokens(loop):
                by_turn.setdefault(turn.number, []).append(tokens)
    expected = {number: statistics.median(found) for number, found in by_turn.items()}
    for loop in loops:
        if loop.history_checked == "tokens" and loop.mode != REFERENCE:
            _compare(loop, expected)


def _compare(loop: LoopResult, expected: dict[int, float]) -> None:
    for turn, tokens, uncertainty in _context_tokens(loop):
        if (due := expected.get(turn.number)) is None:
            continue
        if abs(tokens - due) > _SLACK_TOKENS + _SLACK_SHARE * due + uncertainty:
            fault = f"the context was not what was sent: {tokens:.0f} tokens of it, {due:.0f} in {REFERENCE}"
            turn.wrong = fault if turn.wrong is None else f"{turn.wrong}; {fault}"
            return


def _context_tokens(loop: LoopResult) -> Iterator[tuple[TurnResult, float, float]]:
    """For each turn, the input tokens without those the model wrote itself, and their uncertainty."""
    spent = {0: (0, 0)}
    """By turn: what the model wrote in its context, without and as reasoning."""
    for turn in loop.turns:
        if not turn.input_tokens:
            return
        before = turn.number - 1 if turn.after is None else turn.after
        written, reasoned = spent.get(before, (0, 0))
        yield turn, turn.input_tokens - written, reasoned + (1 - _OUTPUT_SHARE) * written
        if turn.reasoning_tokens is None:
            return
        own = turn.output_tokens - turn.reasoning_tokens
        spent[turn.number] = (written + own, reasoned + turn.reasoning_tokens)


def _text(item: Item) -> str:
    if "output" in item:
        return text_of(item["output"])
    return text_of(item.get("content")) + str(item.get("name", "")) + str(item.get("arguments", ""))
