"""Estimated token counts, for servers that do not count: of a context, and of an answer that is cut off.

Engines that use them say so in their documentation.
"""

import re
from collections.abc import Iterable

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
from slipring.protocol.items import Item

_BYTES_PER_TOKEN = 4
_CHARACTERS_PER_TOKEN = 4
_IMAGE_BYTES = 4 * 1500
"""An image takes about 1500 tokens of a context, however many bytes its data has."""
_OF_TOOLS = frozenset({CallStarted, CallArguments, UpstreamItemStarted, UpstreamItemEvent, UpstreamItemEnded})
_DATA = re.compile(rb'"data:[^"]*"')


def estimated_tokens(job: Job) -> int:
    """The tokens of a job's prompt: those that the engine reported for the parent, plus one per four new
    bytes."""
    parent = job.parent
    counted = parent.tokens if parent is not None else None
    head = len(bytes(job.head.instructions_json)) + len(job.head.tools.raw)
    if parent is None or counted is None:
        return (head + _bytes(job.context())) // _BYTES_PER_TOKEN
    return counted + ((0 if parent.head == job.head else head) + _bytes(job.input)) // _BYTES_PER_TOKEN


def _bytes(items: Iterable[Item]) -> int:
    return sum(map(_weight, items))


def _weight(item: Item) -> int:
    size = len(item.raw)
    if b'"data:' in item.raw:
        for found in _DATA.finditer(item.raw):
            size += _IMAGE_BYTES - (found.end() - found.start())
    return size


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

    def finished(self) -> Finished:
        """The last delta of an answer that was cut off."""
        thought = -(-self._thought_length // _CHARACTERS_PER_TOKEN)
        text = -(-self._text_length // _CHARACTERS_PER_TOKEN)
        return Finished("steered", estimated_tokens(self._job), 0, thought + text, thought)
