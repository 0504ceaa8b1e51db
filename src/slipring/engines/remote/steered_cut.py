"""Where an answer is cut off for steers, and how many tokens it took, for servers that do not count.

Engines that use it say so in their documentation.
"""

from collections.abc import Awaitable

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
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.core.token_estimates import estimated_text_tokens, estimated_tokens
from slipring.engines.remote.emission import CutOff, then_raise

_OF_TOOLS = frozenset({CallStarted, CallArguments, UpstreamItemStarted, UpstreamItemEvent, UpstreamItemEnded})


class SteeredCut:
    """Decides where to cut off an answer whose job was asked to stop, and estimates the tokens it took.

    For servers that cannot be asked to end an answer and report usage only at the end.
    """

    __slots__ = ("_is_in_text", "_job", "_text_length", "_thought_length", "is_made")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._is_in_text = True
        self._text_length = self._thought_length = 0
        self.is_made = False
        """Whether the answer is to be cut off here."""

    def after(self, deltas: list[Delta]) -> bool:
        """Whether to cut the answer behind these deltas, which have been sent."""
        # Hot path, once per token: an ``isinstance`` that fails takes longer than all of these comparisons.
        for delta in deltas:
            if type(delta) is Text or type(delta) is Refused:
                self._text_length += len(delta.text)
                self._is_in_text = True
            elif type(delta) is Thought or type(delta) is ThoughtSummary:
                self._thought_length += len(delta.text)
                self._is_in_text = False  # whether a thought is complete shows only in what follows it
            elif type(delta) in _OF_TOOLS:
                self._is_in_text = False
        if self._job.stop.asked:
            is_over = bool(deltas) and isinstance(deltas[-1], Finished)
            self.is_made = self._is_in_text and not is_over
        return self.is_made

    def emit(self, deltas: list[Delta]) -> Awaitable[None] | None:
        """Emit deltas of the job. Raises ``CutOff``, at once or by what is returned, if the answer is cut
        behind them."""
        assert self._job.emit is not None
        waiting = self._job.emit(deltas)
        return then_raise(waiting, CutOff()) if self.after(deltas) else waiting

    def finished(self) -> Finished:
        """The last delta of an answer that was cut off."""
        thought = estimated_text_tokens(self._thought_length)
        text = estimated_text_tokens(self._text_length)
        return Finished("steered", estimated_tokens(self._job), 0, thought + text, thought)
