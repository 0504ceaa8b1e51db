"""A conversation: turns over one connection, each sending only what is new.

The server keeps the chain; a copy of its items is kept here, for the day the server no longer has them. A
turn that did not come to its end is no part of the conversation.
"""

import asyncio
import time
from typing import Any

from slipring.chat.answer import Answer, Refused, as_input, tool_outputs
from slipring.chat.connection import Connection, Event, Lost
from slipring.chat.options import Options
from slipring.chat.screen import Screen

_CHAIN_GONE = "previous_response_not_found"
_TOO_OLD = "websocket_connection_limit_reached"


class Conversation:
    """One chain at a time, on a connection that is opened again when it has ended."""

    def __init__(self, options: Options, screen: Screen) -> None:
        self._options = options
        self._screen = screen
        self._connection: Connection | None = None
        self._turn: asyncio.Task[Any] | None = None
        self._parent: str | None = None
        self._items: list[dict[str, Any]] = []
        """Everything said so far."""
        self._due: list[dict[str, Any]] = []
        """What the next turn has to send along: answers to the calls of the last."""

    async def connect(self) -> bool:
        """Have an open connection, or raise ``Unreachable``; whether it is a new one."""
        if self._connection is not None and self._connection.is_open:
            return False
        await self.disconnect()
        self._connection = await Connection.open(self._options.url, self._options.key)
        return True

    async def disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    def start_anew(self) -> None:
        """Begin a new chain."""
        self._parent = None
        self._items = []
        self._due = []

    async def turn(self, text: str) -> bool:
        """Ask, and show the answer; whether there was one."""
        self._turn = asyncio.current_task()
        asked = [*self._due, {"type": "message", "role": "user", "content": text}]
        try:
            response = await self._ask(asked)
        except (Refused, Lost) as error:
            self._screen.error(str(error))
            return False
        output = response["output"]
        self._parent = response["id"]
        self._items += [*asked, *as_input(output)]
        self._due = tool_outputs(output)
        return True

    async def stop(self) -> None:
        """Give up the turn that is running. To leave is the only way to tell the server."""
        if self._turn is None or self._turn.done():
            return
        self._turn.cancel()
        await asyncio.wait([self._turn])
        await self.disconnect()
        if self._parent is None or self._options.store:
            self._screen.note("stopped")
            return
        self._parent = None
        self._screen.note("stopped; the chain starts anew: the next message sends the conversation again")

    async def _ask(self, asked: list[dict[str, Any]]) -> dict[str, Any]:
        """The response to these items; what a connection or a chain can lose by itself is mended."""
        while True:
            is_new = await self.connect()
            answer = Answer(self._screen, time.monotonic)
            try:
                return await self._read(answer, asked)
            except Lost:
                if is_new or answer.has_begun:
                    raise
            except Refused as error:
                if error.code == _CHAIN_GONE and self._parent is not None:
                    self._screen.note("the server no longer has this conversation: sending it again")
                    self._parent = None
                elif error.code == _TOO_OLD and not is_new:
                    await self.disconnect()
                else:
                    raise

    async def _read(self, answer: Answer, asked: list[dict[str, Any]]) -> dict[str, Any]:
        assert self._connection is not None
        await self._connection.send(self._create(asked))
        while answer.response is None:
            answer.take(await self._connection.receive())
        return answer.response

    def _create(self, asked: list[dict[str, Any]]) -> Event:
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
            "input": asked if self._parent is not None else [*self._items, *asked],
            **{name: value for name, value in fields.items() if value is not None},
        }
