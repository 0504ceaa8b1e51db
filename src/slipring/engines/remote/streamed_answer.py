"""Reads one streamed answer of a server, and emits its deltas.

Decides where an answer is cut off for steers, and after which silence it fails.
"""

import asyncio
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
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.core.token_estimates import estimated_text_tokens, estimated_tokens

_LOOK_S = 1.0
"""How often to look whether silence is limited by now."""
Patience = Callable[[], float | None]
"""Returns after how many seconds of silence an answer fails; None: it does not."""


class Silence:
    """Fails an answer that is silent for too long. One timer for each answer checks now and then: a timeout
    around every read costs more than the read."""

    __slots__ = ("_fail", "_idle_s", "_timer", "clock", "since")

    def __init__(self, fail: Callable[[], None], idle_s: Patience) -> None:
        self._fail = fail
        self._idle_s = idle_s
        self.clock = asyncio.get_running_loop().time
        self.since: float | None = None
        """When the server was heard last; None while nothing is expected of it."""
        self._timer: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """From now on the server is expected to go on."""
        self.since = self.clock()
        if self._timer is None:
            self._check()

    def forget(self) -> None:
        """The answer has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """Fail the answer, or check again when it could have been silent long enough."""
        idle_s, since = self._idle_s(), self.since
        left_s = _LOOK_S if idle_s is None else idle_s
        if idle_s is not None and since is not None:
            left_s = since + idle_s - self.clock()
            if left_s <= 0:
                self._fail()
                return
        self._timer = asyncio.get_running_loop().call_later(max(left_s, 0.001), self._check)


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
            if type(delta) is Text or type(delta) is RefusalText:
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


_MOST_TOKENS = 2**53


def token_count(usage: Any, *path: str) -> int:
    """The count at a path of a usage object; 0 if there is none, or it is no sensible number."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    is_number = isinstance(usage, int | float) and 0 <= usage < _MOST_TOKENS
    return int(usage) if is_number else 0
