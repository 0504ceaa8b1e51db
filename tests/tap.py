"""Checks the output of every server in this process, in every test.

Every message that a connection or stream queues for its client is checked for types and order, even if no
client reads it. A fault fails the test that is running.
"""

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import get_args
from weakref import WeakKeyDictionary

import pytest
from openai.types.responses import Tool

from slipring.protocol.events import Event
from slipring.server.transports.outbox import Outbox
from tests import chat_wire, messages_wire, wire

_KNOWN_TOOLS = frozenset(
    literal
    for model in get_args(get_args(Tool)[0])
    for literal in get_args(model.model_fields["type"].annotation)
)
_OF_MESSAGES = (b"event: message_", b"event: content_block_", b"event: ping", b"event: error")
"""How events of the Messages API begin. Over SSE, the Responses API has no ``error``."""


class Tap:
    """Checks messages, and collects the faults that it finds."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._orders: WeakKeyDictionary[Outbox, wire.Order] = WeakKeyDictionary()
        self._chats: WeakKeyDictionary[Outbox, chat_wire.Order] = WeakKeyDictionary()
        self._messages: WeakKeyDictionary[Outbox, messages_wire.Order] = WeakKeyDictionary()

    def reset(self) -> None:
        """Forget all messages and faults so far."""
        self.faults.clear()
        self._orders.clear()
        self._chats.clear()
        self._messages.clear()

    def check(self, outbox: Outbox, message: bytes) -> None:
        try:
            if message.startswith(b"data: {") or outbox in self._chats:
                _check_chat(message, self._chats.setdefault(outbox, chat_wire.Order()))
            elif message.startswith(_OF_MESSAGES):
                _check_messages(message, self._messages.setdefault(outbox, messages_wire.Order()))
            else:
                _check(message, self._orders.setdefault(outbox, wire.Order()))
        except AssertionError as fault:
            self.faults.append(f"{fault}\nin {message[:2000]!r}")


@contextmanager
def tapped() -> Iterator[Tap]:
    """Check all messages while the block runs."""
    tap, post, deliver = Tap(), Outbox.post, Outbox.deliver
    is_delivering = False

    def checked_post(outbox: Outbox, message: bytes) -> None:
        if not is_delivering:
            tap.check(outbox, message)
        post(outbox, message)

    def checked_deliver(outbox: Outbox, events: list[Event]) -> Awaitable[None] | None:
        nonlocal is_delivering
        encode = outbox.encode

        def checked_encode(event: Event) -> bytes:
            message = encode(event)
            tap.check(outbox, message)
            return message

        outbox.encode, is_delivering = checked_encode, True  # it may call ``post``
        try:
            return deliver(outbox, events)
        finally:
            outbox.encode, is_delivering = encode, False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "post", checked_post)
        patch.setattr(Outbox, "deliver", checked_deliver)
        yield tap


def _check_chat(message: bytes, order: chat_wire.Order) -> None:
    for data in chat_wire.blocks(message.decode()):
        order.see(data)


def _check_messages(message: bytes, order: messages_wire.Order) -> None:
    for event in messages_wire.read_blocks(message.decode()):
        order.see(event)


def _check(message: bytes, order: wire.Order) -> None:
    if message.startswith(b"{"):
        order.see(_checked(partial(wire.check_frame, message), message))
    elif message.startswith(b"event: "):
        name, data = message.decode().removesuffix("\n\n").split("\n")
        name, data = name.removeprefix("event: "), data.removeprefix("data: ")
        order.see(_checked(partial(wire.check_sse_event, name, data), data))
    else:
        assert message in (b"data: [DONE]\n\n", b": keepalive\n\n", b""), "neither a frame nor an SSE block"


def _checked(check: Callable[[frozenset[str]], wire.Json], event: str | bytes) -> wire.Json:
    try:
        return check(wire.NO_TYPES)
    except AssertionError:
        foreign = _foreign(event)
        if not foreign:
            raise
    return check(foreign)


def _foreign(event: str | bytes) -> frozenset[str]:
    """Return the tool types that the SDK does not know; slipring echoes such tools as they were sent."""
    tools = json.loads(event).get("response", {}).get("tools", [])
    return frozenset(tool["type"] for tool in tools) - _KNOWN_TOOLS
