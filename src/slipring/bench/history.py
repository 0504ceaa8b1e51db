"""Whether the whole history was read, told by counts of tokens.

Along a loop a context grows by what was said and by what is sent. And the same turn of another mode has read
as much, but for what the model itself has said. Both are compared with some room, because texts are counted
by servers in their own ways. Digests, where an endpoint gives them, are sharper.
"""

import re
import statistics
from collections.abc import Iterator, Sequence

from slipring.bench.digests import text_of
from slipring.bench.results import Checked, Loop, Turn
from slipring.bench.workloads.plan import Item

REFERENCE = "http-full"
"""The mode whose requests hold the whole history, so that its counts are those of all of it."""
_BYTES_PER_TOKEN = 12
"""More than any vocabulary gets into a token, on average of texts in which nothing is repeated."""
_SAID_SHARE = 0.75
"""Of what was said, that which is surely read again: calls may be written otherwise."""
_SLACK_TOKENS = 16
_SLACK_SHARE = 0.03
_RUNS = re.compile(r"(.)\1+", re.DOTALL)


class Floor:
    """The least that the next turn of a loop can have read."""

    def __init__(self) -> None:
        self._read: float = 0.0
        """By the end of the last turn that was counted."""

    def with_new(self, items: Sequence[Item]) -> int:
        """With these items on top."""
        if not self._read:
            return 0
        size = sum(len(_RUNS.sub(r"\1", _text(item)).encode()) for item in items)
        return max(0, int(self._read + size / _BYTES_PER_TOKEN) - _SLACK_TOKENS // 2)

    def take(self, turn: Turn) -> None:
        """A turn that was counted by itself."""
        if turn.input_tokens:
            said = 0 if turn.reasoning_tokens is None else turn.output_tokens - turn.reasoning_tokens
            self._read = max(self._read, turn.input_tokens + _SAID_SHARE * max(0, said))


def how_checked(turns: Sequence[Turn], *, gives_digests: bool) -> Checked:
    """Turns of a rollout are counted once for all of them, which says little about any."""
    if gives_digests:
        return "digest"
    return "tokens" if turns and all(turn.input_tokens for turn in turns) else "none"


def hold_together(loops: Sequence[Loop]) -> None:
    """Note in the loops of a workload where a turn has read another amount than with the history sent."""
    by_turn: dict[int, list[float]] = {}
    for loop in loops:
        if loop.mode == REFERENCE and not loop.wrongs:
            for turn, tokens, _ in _told(loop):
                by_turn.setdefault(turn.number, []).append(tokens)
    full = {number: statistics.median(found) for number, found in by_turn.items()}
    for loop in loops:
        if loop.history_checked == "tokens" and loop.mode != REFERENCE:
            _hold(loop, full)


def _hold(loop: Loop, full: dict[int, float]) -> None:
    for turn, tokens, unsure in _told(loop):
        if (due := full.get(turn.number)) is None:
            continue
        if abs(tokens - due) > _SLACK_TOKENS + _SLACK_SHARE * due + unsure:
            wrong = f"the context was not what was sent: {tokens:.0f} tokens of it, {due:.0f} in {REFERENCE}"
            turn.wrong = wrong if turn.wrong is None else f"{turn.wrong}; {wrong}"
            return


def _told(loop: Loop) -> Iterator[tuple[Turn, float, float]]:
    """Each turn with the tokens that were not the model's own, and how far that may be wrong."""
    said = reasoned = 0
    for turn in loop.turns:
        if not turn.input_tokens:
            return
        yield turn, turn.input_tokens - said, reasoned + (1 - _SAID_SHARE) * said
        if turn.reasoning_tokens is None:
            return
        said += turn.output_tokens - turn.reasoning_tokens
        reasoned += turn.reasoning_tokens


def _text(item: Item) -> str:
    if "output" in item:
        return text_of(item["output"])
    return text_of(item.get("content")) + str(item.get("name", "")) + str(item.get("arguments", ""))
