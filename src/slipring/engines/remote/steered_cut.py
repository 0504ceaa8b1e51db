"""Where an answer is cut off for steers, and how many tokens it took, for servers that do not count.

Engines that use it say so in their documentation.
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
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.core.token_estimates import estimated_text_tokens, estimated_tokens

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
        """Whether the answer was cut off."""

    def count(self, deltas: list[Delta]) -> None:
        """Count the next deltas of the answer."""
        # Hot path, once per token: an ``isinstance`` that fails takes longer than all of these comparisons.
        for delta in deltas:
            if type(delta) is Text or type(delta) is Refused:
                self._text_length += len(delta.text)
                self._is_in_text = True
            elif type(delta) is Thought or type(delta) is ThoughtSummary:
                self._thought_length += len(delta.text)
                self._is_in_text = False  # whether a thought is complete shows only in what follows it
            elif type(delta) in _OF_TOOLS or type(delta) is Finished:
                self._is_in_text = False

    def may_be_made(self) -> bool:
        """Whether to cut the answer behind the deltas that were counted, for a job that was asked to stop."""
        self.is_made = self._is_in_text
        return self.is_made

    def finished(self) -> Finished:
        """The last delta of an answer that was cut off."""
        thought = estimated_text_tokens(self._thought_length)
        text = estimated_text_tokens(self._text_length)
        return Finished("steered", estimated_tokens(self._job), 0, thought + text, thought)
