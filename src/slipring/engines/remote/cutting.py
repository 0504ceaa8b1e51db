"""Answers that are cut off, for servers that cannot be asked to end one and tell only then what it took.

What a cut answer took is estimated, and whoever documents an engine that uses this says so.
"""

from slipring.core.generation import (
    CallArguments,
    CallStarted,
    Delta,
    Finished,
    Job,
    Refused,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.engines.remote.estimates import estimated_tokens

_CHARACTERS_PER_TOKEN = 4


class Cut:
    """Whether an answer is to be cut off, by what it has said so far."""

    __slots__ = ("_in_words", "_job", "_said", "_thought", "is_made")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._in_words = True
        self._said = self._thought = 0
        self.is_made = False

    def after(self, deltas: list[Delta]) -> bool:
        """Whether to cut behind these deltas, which have been told."""
        for delta in deltas:
            if isinstance(delta, Text | Refused):
                self._said += len(delta.text)
                self._in_words = True
            elif isinstance(delta, Thought | ThoughtSummary):
                self._thought += len(delta.text)
                self._in_words = False  # nobody knows where a thought ends before something else is said
            elif isinstance(delta, CallArguments | CallStarted):
                self._in_words = False
        is_over = bool(deltas) and isinstance(deltas[-1], Finished)
        self.is_made = self._job.stop.asked and self._in_words and not is_over
        return self.is_made

    def finished(self) -> Finished:
        """The end of an answer that was cut off."""
        thought = -(-self._thought // _CHARACTERS_PER_TOKEN)
        said = -(-self._said // _CHARACTERS_PER_TOKEN)
        return Finished("steered", estimated_tokens(self._job), 0, thought + said, thought)
