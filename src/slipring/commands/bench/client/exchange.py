"""One turn on the wire: its events with arrival times, its byte counts, the errors that end it, and the types
that the fields must have that the bench reads.

The same for every transport. Whether the answer is correct is checked in ``verification``.
"""

import re
import time
from collections.abc import Mapping
from types import GenericAlias
from typing import Any, get_args

import msgspec
from msgspec import defstruct

Event = dict[str, Any]
Fields = dict[str, Any]

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
TIMING = "slipring.timing"
PAUSE = "response.done"
"""Ends a turn of a rollout: the response stays open and waits for the outputs of its calls."""
FIRST_TOKENS = (
    "response.output_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)
_ITEM_DONE = "response.output_item.done"
_CLIENT_STAGE = "client"
_STAGE = re.compile(r"([\w.-]+)[^,]*?;\s*dur=(\d{1,15}(?:\.\d*)?)(?=\s*[,;]|\s*$)")

encode = msgspec.json.encode
_decode = msgspec.json.Decoder().decode


class TurnFailed(Exception):
    """A turn has no usable answer. The text is one line with the reason."""


class RefusedByServer(TurnFailed):
    """The server answered with an error. The text is the server's message."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        """HTTP status; None if the error came as an event."""


class ConnectionLost(TurnFailed):
    """The connection ended before the answer did."""


class CannotConnect(ConnectionLost):
    """No connection could be opened."""


class MalformedAnswer(TurnFailed):
    """The server sent something that does not follow the API."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the answer does not follow the API: {reason}")


class TurnExchange:
    """The events and byte counts of one turn. Its clock starts when it is created."""

    __slots__ = (
        *("_begun_ns", "arrivals_ns", "events", "received_bytes"),
        *("sent_bytes", "server_timing", "total_ns"),
    )

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.arrivals_ns: list[int] = []
        """Arrival of each event, in nanoseconds since the start."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.total_ns = 0
        self.server_timing = ""
        """Value of the ``Server-Timing`` header; empty without one."""
        self._begun_ns = time.perf_counter_ns()

    def receive(self, text: str | bytes) -> Event:
        """Decode and record an event that has just arrived. Raises ``MalformedAnswer``."""
        at_ns = time.perf_counter_ns()
        return self.record(decode(text), at_ns)

    def record(self, event: Event, at_ns: int) -> Event:
        """Record an event that arrived at ``at_ns`` of ``time.perf_counter_ns``."""
        self.events.append(event)
        self.arrivals_ns.append(at_ns - self._begun_ns)
        return event

    def end(self) -> None:
        """Stop the clock."""
        self.total_ns = time.perf_counter_ns() - self._begun_ns

    @property
    def age_ms(self) -> float:
        """Time since the start."""
        return (time.perf_counter_ns() - self._begun_ns) / 1e6

    @property
    def silence_ms(self) -> float:
        """Time since the last event, or since the start if there is none."""
        return self.age_ms - (self.arrivals_ns[-1] / 1e6 if self.arrivals_ns else 0.0)

    def first_ms(self, *kinds: str) -> float | None:
        """Arrival of the first event of one of these types."""
        for event, at_ns in zip(self.events, self.arrivals_ns, strict=True):
            if event.get("type") in kinds:
                return at_ns / 1e6
        return None

    @property
    def response(self) -> dict[str, Any] | None:
        """The response object of the terminal event."""
        for event in reversed(self.events):
            if event.get("type") in TERMINAL:
                response = event.get("response")
                return response if isinstance(response, dict) else None
        return None

    @property
    def answer(self) -> list[dict[str, Any]]:
        """The items that the server produced, without the outputs that a rollout echoes."""
        done = (event.get("item") for event in self.events if event.get("type") == _ITEM_DONE)
        return [
            item for item in done if isinstance(item, dict) and not str(item.get("type")).endswith("_output")
        ]

    @property
    def can_continue(self) -> bool:
        """Whether another turn may follow."""
        response = self.response
        if response is not None:
            return response.get("status") in ("completed", "incomplete")
        return bool(self.events) and self.events[-1].get("type") == PAUSE

    @property
    def steps_ms(self) -> list[dict[str, float]]:
        """Time per stage as the server reports it, one dict per step. A rollout has one step for each turn,
        separated by the stage in which it waited for the client. Empty if the server reports none."""
        steps: list[dict[str, float]] = []
        if self.server_timing and not any(event.get("type") == TIMING for event in self.events):
            found = _STAGE.findall(self.server_timing)
            return [{name: float(spent_ms) for name, spent_ms in found}] if found else []
        for event in self.events:
            if event.get("type") == TIMING:
                steps.append({})
                for stage in event["timing"]["stages"]:
                    if stage["name"] == _CLIENT_STAGE:
                        steps.append({})
                    else:
                        name, spent_ms = stage["name"], stage["duration_ms"]
                        steps[-1][name] = steps[-1].get(name, 0.0) + spent_ms
        return steps


def decode(text: str | bytes) -> Event:
    """Decode one event, or an error body. Raises ``MalformedAnswer``."""
    try:
        event = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedAnswer(f"not JSON: {text[:80]!r}") from None
    if not isinstance(event, dict):
        raise MalformedAnswer(f"not a JSON object: {text[:80]!r}")
    return event


def refusal(event: Mapping[str, Any]) -> RefusedByServer:
    """The exception for an error event or an error body."""
    error = event.get("error")
    body = error if isinstance(error, dict) else event
    text = body.get("message") or (error if isinstance(error, str) else None) or _detail(body.get("detail"))
    message, code = text or "the server gave no reason", body.get("code")
    return RefusedByServer(f"{message} ({code})" if code else str(message))


def _detail(detail: object) -> str | None:
    """The ``detail`` field that FastAPI and similar frameworks send: a text, or a list of validation
    errors."""
    if isinstance(detail, list):
        texts = [
            each["msg"] for each in detail if isinstance(each, dict) and isinstance(each.get("msg"), str)
        ]
        return "; ".join(texts) or None
    return detail if isinstance(detail, str) else None


# --- Types of the fields that are read -------------------------------------------------------------


def _shape(**types: Any) -> Any:
    """The type of an object with fields of these types. Those that may be null may be missing."""
    fields = [
        (name, each, None) if type(None) in get_args(each) else (name, each) for name, each in types.items()
    ]
    return defstruct("Shape", fields, kw_only=True)


def _list_of(shape: Any) -> Any:
    return GenericAlias(list, (shape,))


_COUNT = int | None
_DETAILS = _shape(cached_tokens=_COUNT, reasoning_tokens=_COUNT) | None
_USAGE = _shape(
    **dict.fromkeys(("input_tokens", "output_tokens"), _COUNT),
    **dict.fromkeys(("input_tokens_details", "output_tokens_details"), _DETAILS),
)
_RESPONSE = _shape(id=str, output=list[dict[str, Any]], usage=_USAGE | None)
_EVENTS = {
    **dict.fromkeys(TERMINAL, _shape(response=_RESPONSE)),
    PAUSE: _shape(response_id=str),
    TIMING: _shape(timing=_shape(stages=_list_of(_shape(name=str, duration_ms=float)))),
}
_ITEMS = {
    "message": _shape(role=str, content=str | _list_of(_shape(text=str | None))),
    "function_call": _shape(call_id=str, name=str, arguments=str),
    "custom_tool_call": _shape(call_id=str, name=str, input=str),
}
_ANY_ITEM = _shape(type=str)
"""What the bench reads of events, and of items by their type."""


def validated(exchange: TurnExchange) -> TurnExchange:
    """Return the exchange if all fields have the right types. Raises ``MalformedAnswer``."""
    try:
        for event in exchange.events:
            if (shape := _EVENTS.get(str(event.get("type")))) is not None:
                msgspec.convert(event, shape)
        for item in exchange.answer:
            msgspec.convert(item, _ANY_ITEM)
            if (shape := _ITEMS.get(item["type"])) is not None:
                msgspec.convert(item, shape)
    except msgspec.ValidationError as error:
        raise MalformedAnswer(" ".join(str(error).split())) from None
    return exchange
