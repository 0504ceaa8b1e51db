"""Ends an answer early for the messages that its client has added while it is generated.

``Steers`` queues the steers of one response, writes the events about them, and decides where the answer may
be ended for them. ``core.session.steers`` accepts them, and starts the response that follows.
"""

import re
from collections.abc import Iterable

from msgspec import UNSET, Raw, Struct

from slipring.core.generation import Delta, RefusalText, Text
from slipring.core.turn.output.output_events import Output
from slipring.protocol.events import (
    Event,
    RequiredInput,
    SteerAccepted,
    SteerErrorBody,
    SteerErrorCode,
    SteerFailed,
    SteerPending,
    SteerRef,
)
from slipring.protocol.items.items import Item
from slipring.protocol.live_input import Steer

_SENTENCE_END = re.compile(r"""(?: [!?…。！？] | (?<!\d)\. ) ["')\]*_’”»]* \s* \Z | \n \s* \Z""", re.VERBOSE)
"""A full stop after a digit does not count: it may be inside a number, or number a list."""
_NO_ITEMS = Raw(b"[]")


class SteerRefused(Exception):
    """A steer is not accepted; ``body`` is the error sent to the client."""

    def __init__(self, code: SteerErrorCode, message: str) -> None:
        super().__init__(message)
        self.body = SteerErrorBody(code, message)


class _Queued(Struct, frozen=True):
    id: str
    steer: Steer


class Steers:
    """The accepted steers of one response, in order of arrival."""

    __slots__ = ("_left", "_output", "_queued", "lane", "response_id")

    def __init__(self, response_id: str, lane: str | None, output: Output, after_tokens: int) -> None:
        """``after_tokens``: pieces of text after which the answer is ended even within a sentence."""
        self.response_id = response_id
        self.lane = lane
        self._output = output
        self._queued: list[_Queued] = []
        self._left = after_tokens

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def size_bytes(self) -> int:
        return sum(queued.steer.size_bytes for queued in self._queued)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for queued in self._queued for item in queued.steer.items)

    def accept(self, steer: Steer, steer_id: str) -> Event:
        """Queue a steer; returns its ``accepted`` event."""
        self._queued.append(_Queued(steer_id, steer))
        return SteerAccepted(
            sequence_number=self._output.number(), stream_id=self._output.stream_id, steer=self._ref(steer_id)
        )

    def pending(self, required: Iterable[RequiredInput]) -> list[Event]:
        """Events for a finished response that only the client can continue, by sending ``required``."""
        stubs = list(required)
        return [
            SteerPending(
                sequence_number=self._output.number(),
                stream_id=self._output.stream_id,
                steer=self._ref(queued.id),
                required_input=stubs,
            )
            for queued in self._queued
        ]

    def failed(self, code: SteerErrorCode, message: str, *, is_blocked: bool = False) -> list[Event]:
        """Events that return the input of every queued steer to the client. ``is_blocked``: a safety check
        has refused something, perhaps in one of them: then they are returned without their content."""
        return [
            SteerFailed(
                sequence_number=self._output.number(),
                stream_id=self._output.stream_id,
                steer=SteerRef(self.response_id, queued.id, _NO_ITEMS if is_blocked else queued.steer.input),
                error=SteerErrorBody(code, message),
            )
            for queued in self._queued
        ]

    def may_end(self, deltas: list[Delta]) -> bool:
        """Whether the engine may end the answer now, after these deltas.

        Text may be ended after a sentence, or after the bound on pieces. Between message parts, true means
        that the engine ends after the reasoning in progress. An answer with a call that the client runs or
        approves is never ended early: only the client's output or decision could follow it.
        """
        output = self._output
        if output.asks_client:
            return False
        self._left -= sum(isinstance(delta, Text | RefusalText) for delta in deltas)
        text = output.last_words
        return text is None or self._left <= 0 or _SENTENCE_END.search(text) is not None

    def _ref(self, steer_id: str) -> SteerRef:
        return SteerRef(self.response_id, steer_id)


def failed_event(steer: Steer, refusal: SteerRefused, output: Output | None, lane: str | None) -> Event:
    """The event that refuses a steer and returns its input. Numbered within the response if it still runs."""
    return SteerFailed(
        sequence_number=output.number() if output is not None else 0,
        stream_id=UNSET if lane is None else lane,
        steer=SteerRef(steer.target, input=steer.input),
        error=refusal.body,
    )
