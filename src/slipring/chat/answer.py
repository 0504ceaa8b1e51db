"""One answer: its events as they come, shown and timed until the last."""

from collections.abc import Callable
from typing import Any

from slipring.chat.connection import Event
from slipring.chat.screen import Screen

_TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_ANSWERS = ("response.output_text.delta", "response.refusal.delta")
_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that call a tool, and where they say with what."""


class Refused(Exception):
    """The server said no. The text is its own."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.code = body.get("code")
        message = body.get("message") or "the server gave no reason"
        super().__init__(f"{message} ({self.code})" if self.code else message)


class Answer:
    """An answer that is being made. ``take`` its events until it has its ``response``."""

    def __init__(self, screen: Screen, clock: Callable[[], float]) -> None:
        self._screen = screen
        self._clock = clock
        self._asked_at = clock()
        self._first_at: float | None = None
        self.has_begun = False
        self.response: dict[str, Any] | None = None

    def take(self, event: Event) -> None:
        """Show an event. Raises ``Refused`` where it says that there will be no answer."""
        kind = event.get("type", "")
        if kind == "error":
            raise Refused(event.get("error") or event)
        self.has_begun = True
        if kind.endswith(".delta") and self._first_at is None:
            self._first_at = self._clock()
        if kind in _ANSWERS:
            self._screen.answer(event["delta"])
        elif kind in _THOUGHTS:
            self._screen.thought(event["delta"])
        elif kind == "response.output_item.done":
            self._show_call(event["item"])
        elif kind in _TERMINAL:
            self._end(event["response"])

    def _show_call(self, item: dict[str, Any]) -> None:
        if item["type"] in _CALLS:
            given = item[_CALLS[item["type"]]]
            self._screen.note(f"calls {item['name']}({given}), but this chat has no tools")

    def _end(self, response: dict[str, Any]) -> None:
        self._screen.finish_line()
        if response["status"] == "failed":
            raise Refused(response.get("error") or {})
        if response["status"] == "incomplete":
            reason = (response.get("incomplete_details") or {}).get("reason", "no reason given")
            self._screen.note(f"the answer is cut short: {reason}")
        took_s = self._clock() - self._asked_at
        first_s = self._first_at - self._asked_at if self._first_at is not None else None
        self._screen.note(status(response.get("usage"), first_s, took_s))
        self.response = response


def status(usage: dict[str, Any] | None, first_s: float | None, took_s: float) -> str:
    """An answer in numbers, as far as the server gave any."""
    numbers = []
    if usage is not None:
        numbers += [_input(usage), f"{usage['output_tokens']} out"]
    if first_s is not None:
        numbers.append(f"first token {first_s * 1000:.0f} ms")
        later = usage["output_tokens"] - 1 if usage is not None else 0
        if later > 0 and took_s > first_s:
            numbers.append(f"{later / (took_s - first_s):.0f} tokens/s")
    return " · ".join([*numbers, f"{took_s:.2f} s"])


def _input(usage: dict[str, Any]) -> str:
    total, details = usage["input_tokens"], usage.get("input_tokens_details") or {}
    if "cached_tokens" not in details:
        return f"{total} tokens in"
    cached = details["cached_tokens"]
    return f"{total} tokens in ({cached} cached, {total - cached} new)"


def tool_outputs(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What to answer to calls: without an answer to each, no turn can follow."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "There are no tools here."}
        for item in output
        if item["type"] in _CALLS
    ]


def as_input(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An answer's items as they can be sent to a server that no longer knows them.

    Ids would be looked up there, and reasoning cannot be read without them.
    """
    return [
        {key: value for key, value in item.items() if key not in ("id", "status")}
        for item in output
        if item["type"] == "message" or item["type"] in _CALLS
    ]
