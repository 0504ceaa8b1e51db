"""A conversation: sends each turn's new items over one connection and recovers what the server has lost.

The server keeps the chain of responses. A copy of its items is kept here and sent again when the server no
longer has them. A turn that fails or is stopped does not become part of the conversation.
"""

import asyncio
import time
from typing import Any

from slipring.commands.chat.answer import StreamedAnswer, TurnFailed, as_input, tool_outputs
from slipring.commands.chat.connection import Connection, ConnectionLost, Event, refused_key
from slipring.commands.chat.options import ChatOptions
from slipring.commands.chat.screen import Screen

_CHAIN_NOT_FOUND = "previous_response_not_found"
_CONNECTION_TOO_OLD = "websocket_connection_limit_reached"
_KEY_REFUSED = "invalid_api_key"


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

    async def _exchange(self, answer: StreamedAnswer, new_items: list[dict[str, Any]]) -> dict[str, Any]:
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
