"""One streamed answer: shows its events on the screen and measures their times."""

from collections.abc import Callable
from typing import Any

from slipring.commands.chat.connection import Event
from slipring.commands.chat.screen import Screen

_TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta")
_REASONING_DELTAS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Item types that call a tool, and the field that holds the arguments."""


class TurnFailed(Exception):
    """The server sent an error in place of a response. The message is the server's, with its code."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.code = body.get("code")
        message = body.get("message") or "the server gave no reason"
        super().__init__(f"{message} ({self.code})" if self.code else message)


class StreamedAnswer:
    """Takes the events of one response, in order, until ``response`` is set."""

    def __init__(self, screen: Screen, clock: Callable[[], float]) -> None:
        self._screen = screen
        self._clock = clock
        self._asked_at = clock()
        self._first_at: float | None = None
        self.has_begun = False
        self.response: dict[str, Any] | None = None

    def take(self, event: Event) -> None:
        """Show an event. Raise ``TurnFailed`` for an error and for a failed response."""
        kind = event.get("type", "")
        if kind == "error":
            raise TurnFailed(event.get("error") or event)
        self.has_begun = True
        if kind.endswith(".delta") and self._first_at is None:
            self._first_at = self._clock()
        if kind in _TEXT_DELTAS:
            self._screen.answer(event["delta"])
        elif kind in _REASONING_DELTAS:
            self._screen.reasoning(event["delta"])
        elif kind == "response.output_item.done":
            self._show_call(event["item"])
        elif kind in _TERMINAL:
            self._end(event["response"])

    def _show_call(self, item: dict[str, Any]) -> None:
        if item["type"] in _CALLS:
            arguments = item[_CALLS[item["type"]]]
            self._screen.note(f"the model calls {item['name']}({arguments}), but this chat has no tools")

    def _end(self, response: dict[str, Any]) -> None:
        self._screen.finish_line()
        if response["status"] == "failed":
            raise TurnFailed(response.get("error") or {})
        if response["status"] == "incomplete":
            reason = (response.get("incomplete_details") or {}).get("reason", "no reason given")
            self._screen.note(f"the answer is cut short: {reason}")
        took_s = self._clock() - self._asked_at
        first_s = self._first_at - self._asked_at if self._first_at is not None else None
        self._screen.note(statistics(response, first_s, took_s))
        self.response = response


def statistics(response: dict[str, Any], first_s: float | None, took_s: float) -> str:
    """Return the line below an answer: the model, token counts as far as the server sent any, and times."""
    numbers = [str(response["model"])] if response.get("model") else []
    usage = response.get("usage")
    if usage is not None:
        numbers += [_input_tokens(usage), f"{usage['output_tokens']} out"]
    if first_s is not None:
        numbers.append(f"first token {first_s * 1000:.0f} ms")
        later = usage["output_tokens"] - 1 if usage is not None else 0
        if later > 0 and took_s > first_s:
            numbers.append(f"{later / (took_s - first_s):.0f} tokens/s")
    return " · ".join([*numbers, f"{took_s:.2f} s"])


def _input_tokens(usage: dict[str, Any]) -> str:
    total, details = usage["input_tokens"], usage.get("input_tokens_details") or {}
    if "cached_tokens" not in details:
        return f"{total} tokens in"
    cached = details["cached_tokens"]
    return f"{total} tokens in ({cached} cached, {total - cached} new)"


def tool_outputs(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an output item for each tool call: the API accepts no further turn without them."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "There are no tools here."}
        for item in output
        if item["type"] in _CALLS
    ]


def as_input(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return output items in the form in which a server that does not have them accepts them as input.

    Ids are left out, because the server would look them up, and reasoning, which is useless without its id.
    """
    return [
        {key: value for key, value in item.items() if key not in ("id", "status")}
        for item in output
        if item["type"] == "message" or item["type"] in _CALLS
    ]
