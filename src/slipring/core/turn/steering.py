"""Steering: what a client adds to a response while it is being made.

Owns what waits for one response, how it is told of, and where the answer may be ended for its sake. Knows
nothing of other responses, nor of what follows on one: that is ``core.succession``.
"""

import re
from collections.abc import Iterable

from msgspec import UNSET, Struct

from slipring.core.chain import lineage
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.generation import Delta, Refused, Text
from slipring.core.session import client_events
from slipring.core.turn.output import Output
from slipring.errors import quoted
from slipring.protocol.append import ANSWERS
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
from slipring.protocol.items import Body, FunctionCall, Item

_SENTENCE_END = re.compile(r"""(?: [!?…。！？] | (?<!\d)\. ) ["')\]*_’”»]* \s* \Z | \n \s* \Z""", re.VERBOSE)
"""A full stop behind a digit may be in the middle of a number, or number a list."""


_ANSWERED_BY = {call: answer for answer, call in ANSWERS.items()}


class Refusal(Exception):
    """A steer that is not accepted, and why."""

    def __init__(self, code: SteerErrorCode, message: str) -> None:
        super().__init__(message)
        self.body = SteerErrorBody(code, message)


class _Queued(Struct, frozen=True):
    id: str
    asked: client_events.Steer


class Steers:
    """What waits for the end of one response, in the order in which it came."""

    __slots__ = ("_left", "_output", "_queued", "lane", "response_id")

    def __init__(self, response_id: str, lane: str | None, output: Output, after_tokens: int) -> None:
        self.response_id = response_id
        self.lane = lane
        self._output = output
        self._queued: list[_Queued] = []
        self._left = after_tokens

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def size_bytes(self) -> int:
        return sum(steer.asked.size_bytes for steer in self._queued)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for steer in self._queued for item in steer.asked.items)

    def accept(self, asked: client_events.Steer, steer_id: str) -> Event:
        self._queued.append(_Queued(steer_id, asked))
        return SteerAccepted(
            sequence_number=self._output.number(), stream_id=self._output.stream_id, steer=self._ref(steer_id)
        )

    def pending(self, required: Iterable[RequiredInput]) -> list[Event]:
        """The response is over, and cannot be continued without the client."""
        stubs = list(required)
        return [
            SteerPending(
                sequence_number=self._output.number(),
                stream_id=self._output.stream_id,
                steer=self._ref(steer.id),
                required_input=stubs,
            )
            for steer in self._queued
        ]

    def failed(self, code: SteerErrorCode, message: str) -> list[Event]:
        """Give everything back."""
        return [
            SteerFailed(
                sequence_number=self._output.number(),
                stream_id=self._output.stream_id,
                steer=SteerRef(self.response_id, steer.id, steer.asked.input),
                error=SteerErrorBody(code, message),
            )
            for steer in self._queued
        ]

    def may_end(self, deltas: list[Delta]) -> bool:
        """Whether the answer may be ended where it is, now that these deltas have been said.

        What is thought or called is not cut: to ask for it means to end behind it. An answer that has called
        a tool is not ended at all: nothing could follow but what the client owes it.
        """
        output = self._output
        if output.calls:
            return False
        self._left -= sum(isinstance(delta, Text | Refused) for delta in deltas)
        said = output.last_words
        return said is None or self._left <= 0 or _SENTENCE_END.search(said) is not None

    def _ref(self, steer_id: str) -> SteerRef:
        return SteerRef(self.response_id, steer_id)


def refused(asked: client_events.Steer, refusal: Refusal, output: Output | None, lane: str | None) -> Event:
    """Give back what was not accepted, by the numbers of the response, where they are known."""
    return SteerFailed(
        sequence_number=output.number() if output is not None else 0,
        stream_id=UNSET if lane is None else lane,
        steer=SteerRef(asked.target, input=asked.input),
        error=refusal.body,
    )


def objection(asked: client_events.Steer, state: ResponseState | None) -> Refusal:
    """Why a response that is not being made here cannot be steered; ``state``: where it has been made."""
    if asked.error is not None:
        return Refusal("invalid_input", asked.error.message)
    if state is None:
        said = f"Response with id {quoted(asked.target)} is not known on this connection."
        return Refusal("response_not_found", said)
    if state.response.status == "completed":
        return Refusal("response_already_completed", "The response has been completed. Continue it instead.")
    return Refusal("response_not_active", "The response is over. Continue it instead.")


def requires_input(state: ResponseState) -> bool:
    """Whether a response can be continued only by what its client has to send."""
    return any(call.required for call in state.carry.open_calls.values())


def required_input(output: tuple[Item, ...], carry: Carry) -> list[RequiredInput]:
    """What that is. Calls of earlier responses were answered before this one was made."""
    stubs = []
    for item in output:
        call = carry.open_calls.get(item.call_id or "")
        if item.call_id is not None and call is not None and call.required and lineage.is_call(item):
            stubs.append(_stub(item.type, item.call_id, item.body()))
    return stubs


def _stub(kind: str, call_id: str, call: Body) -> RequiredInput:
    if kind == "tool_search_call":
        return RequiredInput(_ANSWERED_BY[kind], call_id, execution="client")
    return RequiredInput(_ANSWERED_BY[kind], call_id, call.name if isinstance(call, FunctionCall) else UNSET)
