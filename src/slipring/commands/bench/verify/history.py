"""Verifies that the server has read the whole history: by token counts, and by the digest of a context in
its answer.
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

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


_MARK = re.compile(r"digest=([0-9a-f]{16})")


class Digest:
    """The digest of a growing context. ``str()`` gives its first 16 hexadecimal digits."""

    def __init__(self, instructions: str) -> None:
        self._state = b""
        if instructions:
            self._add("system", instructions)

    def add(self, items: Iterable[Item]) -> None:
        """Append items to the context."""
        for item in items:
            kind = item.get("type", "message")
            if kind == "message":
                self._add(item["role"], text_of(item["content"]))
            elif kind == "function_call":
                self._add("call", item["name"] + item["arguments"])
            elif kind == "function_call_output":
                self._add("output", text_of(item["output"]))

    def __str__(self) -> str:
        return self._state.hex()[:16]

    def _add(self, kind: str, text: str) -> None:
        self._state = sha256(self._state + kind.encode() + b"\0" + text.encode() + b"\0").digest()


def find_digest(answer: Iterable[Item]) -> str | None:
    """The digest that an answer reports."""
    for item in answer:
        text = item.get("arguments") if item["type"] == "function_call" else text_of(item.get("content"))
        if found := _MARK.search(text or ""):
            return found.group(1)
    return None
