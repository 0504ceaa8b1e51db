"""What travels in one turn, and when: the same account for every transport.

Knows events as JSON and their order of arrival; what they mean is checked elsewhere.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

Event = dict[str, Any]
Fields = dict[str, Any]

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
TIMING = "slipring.timing"
PAUSE = "response.done"
"""A response that stays open waits for the outputs of its calls."""
FIRST_TOKENS = (
    "response.output_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)
_ITEM_DONE = "response.output_item.done"
_WAITING = "client"
_STAGE = re.compile(r"([\w.-]+)[^,]*?;\s*dur=(\d{1,15}(?:\.\d*)?)(?=\s*[,;]|\s*$)")

encode = msgspec.json.encode
_decode = msgspec.json.Decoder().decode


class Refused(Exception):
    """The server said no. The text is its own."""


class Lost(Exception):
    """The connection ended, or what came over it cannot be read. The text says how."""


class Odd(Lost):
    """What came is JSON, but not what the API has."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not as the API has it: {what}")


class Exchange:
    """One turn as it travelled. Times are in nanoseconds since it was begun."""

    __slots__ = (
        *("_begun_ns", "arrivals_ns", "events", "received_bytes"),
        *("sent_bytes", "server_timing", "total_ns"),
    )

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.arrivals_ns: list[int] = []
        self.sent_bytes = 0
        self.received_bytes = 0
        self.total_ns = 0
        self.server_timing = ""
        """The value of that header, where there is one."""
        self._begun_ns = time.perf_counter_ns()

    def take(self, text: str | bytes) -> Event:
        """An event that has just come."""
        at_ns = time.perf_counter_ns()
        return self.note(read(text), at_ns)

    def note(self, event: Event, at_ns: int) -> Event:
        """An event that came at this moment."""
        self.events.append(event)
        self.arrivals_ns.append(at_ns - self._begun_ns)
        return event

    def end(self) -> None:
        """The turn is over, as far as its time goes."""
        self.total_ns = time.perf_counter_ns() - self._begun_ns

    @property
    def age_ms(self) -> float:
        """How long ago it was begun."""
        return (time.perf_counter_ns() - self._begun_ns) / 1e6

    @property
    def silence_ms(self) -> float:
        """How long ago the last event came, or how long none has come."""
        return self.age_ms - (self.arrivals_ns[-1] / 1e6 if self.arrivals_ns else 0.0)

    def first_ms(self, *kinds: str) -> float | None:
        """When the first event of these types came."""
        for event, at_ns in zip(self.events, self.arrivals_ns, strict=True):
            if event.get("type") in kinds:
                return at_ns / 1e6
        return None

    @property
    def response(self) -> dict[str, Any] | None:
        """The response as the terminal event tells it."""
        for event in reversed(self.events):
            if event.get("type") in TERMINAL:
                response = event.get("response")
                return response if isinstance(response, dict) else None
        return None

    @property
    def answer(self) -> list[dict[str, Any]]:
        """The items that came in this turn, but for those that were sent in it."""
        done = (event.get("item") for event in self.events if event.get("type") == _ITEM_DONE)
        return [
            item for item in done if isinstance(item, dict) and not str(item.get("type")).endswith("_output")
        ]

    @property
    def can_go_on(self) -> bool:
        """Whether another turn may follow."""
        response = self.response
        if response is not None:
            return response.get("status") in ("completed", "incomplete")
        return bool(self.events) and self.events[-1].get("type") == PAUSE

    @property
    def steps_ms(self) -> list[dict[str, float]]:
        """Where the server says that its time went: for the response, or for each of the steps between which
        it waited for its client. Empty where it does not say so."""
        steps: list[dict[str, float]] = []
        if self.server_timing and not any(event.get("type") == TIMING for event in self.events):
            found = _STAGE.findall(self.server_timing)
            return [{name: float(spent_ms) for name, spent_ms in found}] if found else []
        for event in self.events:
            if event.get("type") == TIMING:
                steps.append({})
                for stage in event["timing"]["stages"]:
                    if stage["name"] == _WAITING:
                        steps.append({})
                    else:
                        name, spent_ms = stage["name"], stage["duration_ms"]
                        steps[-1][name] = steps[-1].get(name, 0.0) + spent_ms
        return steps


def read(text: str | bytes) -> Event:
    try:
        event = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Lost(f"not JSON: {text[:80]!r}") from None
    if not isinstance(event, dict):
        raise Lost(f"not an event: {text[:80]!r}")
    return event


def refusal(event: Mapping[str, Any]) -> Refused:
    """What an error says, whether it is an event or a body."""
    error = event.get("error")
    body = error if isinstance(error, dict) else event
    said = body.get("message") or (error if isinstance(error, str) else None) or _detail(body.get("detail"))
    message, code = said or "the server gave no reason", body.get("code")
    return Refused(f"{message} ({code})" if code else str(message))


def _detail(detail: object) -> str | None:
    """As frameworks have it that do not know the API: a text, or a list of what is wrong with a request."""
    if isinstance(detail, list):
        told = [each["msg"] for each in detail if isinstance(each, dict) and isinstance(each.get("msg"), str)]
        return "; ".join(told) or None
    return detail if isinstance(detail, str) else None
