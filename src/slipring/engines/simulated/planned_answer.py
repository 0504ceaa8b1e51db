"""Takes the steps of a planned answer one by one, and counts what it has emitted."""

from collections.abc import Iterable
from typing import Literal

from slipring.core.generation import CallArguments, CallStarted, Delta, Job, Thought, ThoughtSummary
from slipring.engines.simulated.plan import AnswerStep, Emit, Fail, Stall


class PlannedAnswer:
    """The tokens of a job's answer, up to the next interruption, the job's limit or a stop that it asks for.
    Implements ``timed_tokens.Tokens``."""

    __slots__ = (
        "_has_ended",
        "_job",
        "_next",
        "_steps",
        "emitted",
        "interruption",
        "reason",
        "reasoning_tokens",
        "tokens",
    )

    def __init__(self, job: Job, steps: Iterable[AnswerStep]) -> None:
        self._job = job
        self._steps = iter(steps)
        self._next: Emit | None = None
        self._has_ended = False
        self.emitted: list[Delta] = []
        """All deltas so far."""
        self.tokens = self.reasoning_tokens = 0
        self.reason: Literal["stop", "max_output_tokens", "steered"] = "stop"
        """Why the answer ends, once it has no more tokens."""
        self.interruption: Fail | Stall | None = None
        """What has to happen before the next token, if it is not just the next."""

    def has_next(self) -> bool:
        if self._next is not None:
            return True
        if self._has_ended or self.interruption is not None:
            return False
        step = next(self._steps, None)
        if not isinstance(step, Emit):
            self.interruption, self._has_ended = step, step is None
            return False
        job = self._job
        if job.stop.asked and _is_between_items(self.emitted, step.deltas):
            self.reason, self._has_ended = "steered", True
        elif self.tokens == job.settings.max_output_tokens:
            self.reason, self._has_ended = "max_output_tokens", True
        else:
            self._next = step
        return not self._has_ended

    def take(self, count: int) -> list[Delta]:
        deltas: list[Delta] = []
        while count and self.has_next():
            step = self._next
            assert step is not None
            self._next = None
            count -= 1
            self.tokens += 1
            self.reasoning_tokens += step.is_reasoning
            self.emitted += step.deltas
            deltas = deltas + step.deltas if deltas else step.deltas
        return deltas

    def take_interruption(self) -> Fail | Stall:
        """What has to happen now; there is an interruption."""
        assert self.interruption is not None
        step, self.interruption = self.interruption, None
        return step


def _is_between_items(emitted: list[Delta], following: list[Delta]) -> bool:
    """Whether the answer may stop between these deltas: not within a thought, and not within a call."""
    before, after = (type(emitted[-1]) if emitted else None), (type(following[0]) if following else None)
    if before in (Thought, ThoughtSummary):
        return after is not before
    return before not in (CallStarted, CallArguments)
