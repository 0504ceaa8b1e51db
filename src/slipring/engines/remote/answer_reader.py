"""Reads one streamed answer of a server, emits its deltas, and decides where it is cut off for steers."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from slipring.core.generation import (
    CallArguments,
    CallStarted,
    Delta,
    Emit,
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

T = TypeVar("T")
_OF_TOOLS = frozenset({CallStarted, CallArguments, UpstreamItemStarted, UpstreamItemEvent, UpstreamItemEnded})


class Consumer(Protocol[T]):
    """Takes a streamed answer, as it arrives."""

    has_ended: bool
    """Whether no more of the answer is to be read. Set by ``take``."""
    fault: Exception | None
    """Why, if the answer is not complete: raised once everything that was taken has been awaited."""

    def take(self, batch: list[T]) -> Awaitable[None] | None:
        """Take what one read of the socket has brought, at least one piece, from within that read. Returns an
        awaitable if the next batch has to wait. What it raises ends the request."""


def raise_fault(consumer: Consumer[Any]) -> NoReturn:
    """Raise the fault of a consumer, which keeps it no longer: its traceback leads to the consumer."""
    fault, consumer.fault = consumer.fault, None
    assert fault is not None
    try:
        raise fault
    finally:
        del fault


class CutOff(Exception):
    """The job was asked to stop, and its answer may end here. The rest of the answer is not read."""


class AnswerReader(ABC, Generic[T]):
    """Decodes an answer and emits its deltas, as it arrives. Implements ``Consumer``.

    ``T``: what arrives. Subclasses decode it. A fault in the stream is raised to its reader after the deltas
    before it have been delivered.
    """

    has_begun = False
    """Whether the answer has begun, with or without deltas: from then on it cannot be asked for again."""
    has_ended = False
    fault: Exception | None = None

    def __init__(self, job: Job, emit: Emit, begin: Callable[[], None] | None = None) -> None:
        """``begin`` is called once, when the answer begins."""
        self._stop = job.stop
        self._emit = emit
        self._begin = begin or _ignore

    def take(self, batch: list[T]) -> Awaitable[None] | None:
        # Hot path: runs once per token of every answer.
        deltas, fault = self.read(batch)
        if not self.has_begun and (deltas or self.begins_without_deltas()):
            self.has_begun = True
            self._begin()
        waiting = self._emit(deltas) if deltas else None
        if fault is None and self._stop.asked and self.may_be_cut():
            fault = CutOff()
        if fault is not None:
            self.fault = fault
            self.has_ended = True
        return waiting

    @abstractmethod
    def read(self, batch: list[T]) -> tuple[list[Delta], Exception | None]:
        """The deltas of what has arrived, up to the first report of a failure, and that failure."""

    def may_be_cut(self) -> bool:
        """Whether the answer may end behind what was read, if the job is asked to stop."""
        return False

    def begins_without_deltas(self) -> bool:
        """Whether what was read is the beginning of the answer, although it has no deltas."""
        return False


class SteeredCut:
    """Decides where to cut off an answer whose job was asked to stop, and estimates the tokens it took.

    For servers that cannot be asked to end an answer and report usage only at the end. The documentation of
    the engines that use it says so.
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


def _ignore() -> None:
    return
