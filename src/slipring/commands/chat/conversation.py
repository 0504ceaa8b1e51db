"""A conversation: sends each turn's new items over one connection, shows the answer as it arrives, and
recovers what the server has lost.

The server keeps the chain of responses. A copy of its items is kept here and sent again when the server no
longer has them. A turn that fails or is stopped does not become part of the conversation.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from slipring.commands.chat.connection import Connection, ConnectionLost, Event, refused_key
from slipring.commands.chat.options import ChatOptions
from slipring.commands.chat.terminal import Screen

_CHAIN_NOT_FOUND = "previous_response_not_found"
_CONNECTION_TOO_OLD = "websocket_connection_limit_reached"
_KEY_REFUSED = "invalid_api_key"
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


class Conversation:
    """One chain of responses at a time, on a connection that is opened again when it was closed."""

    def __init__(self, options: ChatOptions, screen: Screen) -> None:
        self._options = options
        self._screen = screen
        self._connection: Connection | None = None
        self._turn: asyncio.Task[Any] | None = None
        self._parent: str | None = None
        self._items: list[dict[str, Any]] = []
        """Input and output items of all turns so far."""
        self._pending_items: list[dict[str, Any]] = []
        """Items that the next turn must send first: outputs for the tool calls of the last one."""

    async def connect(self) -> bool:
        """Make sure that a connection is open, or raise ``Unreachable``; return whether it is a new one."""
        if self._connection is not None and self._connection.is_open:
            return False
        await self.disconnect()
        self._connection = await Connection.open(self._options)
        return True

    async def disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def models(self) -> list[str]:
        """Return the names of the server's models; empty if it does not list them."""
        assert self._connection is not None
        return await self._connection.models()

    def start_over(self) -> None:
        """Start a new chain."""
        self._parent = None
        self._items = []
        self._pending_items = []

    async def turn(self, text: str) -> bool:
        """Send a message and show the answer; return False if there was none."""
        self._turn = asyncio.current_task()
        new_items = [*self._pending_items, {"type": "message", "role": "user", "content": text}]
        try:
            response = await self._create(new_items)
        except TurnFailed as error:
            self._screen.error(refused_key(self._options) if error.code == _KEY_REFUSED else str(error))
            return False
        except ConnectionLost as error:
            self._screen.error(str(error))
            return False
        output = response["output"]
        self._parent = response["id"]
        self._items += [*new_items, *as_input(output)]
        self._pending_items = tool_outputs(output)
        return True

    async def stop(self) -> None:
        """Cancel the running turn. Closing the connection makes the server cancel it, too."""
        if self._turn is None or self._turn.done():
            return
        self._turn.cancel()
        await asyncio.wait([self._turn])
        await self.disconnect()
        if self._parent is None or self._options.store:
            self._screen.note("stopped")
            return
        self._parent = None
        self._screen.note("stopped; the next message sends the whole conversation again")

    async def _create(self, new_items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the response to these items; reconnect or resend the conversation where that helps."""
        while True:
            is_new = await self.connect()
            answer = StreamedAnswer(self._screen, time.monotonic)
            try:
                return await self._exchange(answer, new_items)
            except ConnectionLost:
                if is_new or answer.has_begun:
                    raise
            except TurnFailed as error:
                if error.code == _CHAIN_NOT_FOUND and self._parent is not None:
                    self._screen.note("the server no longer has this conversation: sending it again")
                    self._parent = None
                elif error.code == _CONNECTION_TOO_OLD and not is_new:
                    await self.disconnect()
                else:
                    raise

    async def _exchange(self, answer: "StreamedAnswer", new_items: list[dict[str, Any]]) -> dict[str, Any]:
        assert self._connection is not None
        await self._connection.send(self._request(new_items))
        while answer.response is None:
            answer.take(await self._connection.receive())
            if not self._connection.has_events:
                self._screen.refresh()  # once for all events that have arrived: rendering takes time
        return answer.response

    def _request(self, new_items: list[dict[str, Any]]) -> Event:
        options = self._options
        fields = {
            "model": options.model,
            "instructions": options.instructions,
            "max_output_tokens": options.max_output_tokens,
            "previous_response_id": self._parent,
        }
        return {
            "type": "response.create",
            "store": options.store,
            "input": new_items if self._parent is not None else [*self._items, *new_items],
            **{name: value for name, value in fields.items() if value is not None},
        }


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
