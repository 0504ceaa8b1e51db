"""A tap on every server that runs in this process: no test can look past what it says.

Whatever any connection or stream queues for its client is checked strictly, types and order, whoever reads it
and whether anybody does. What is wrong is kept, and the test during which it was said fails.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import pytest
from openai.types.responses import Tool

from slipring.server.transports.outbox import Outbox
from tests import wire

_KNOWN_TOOLS = frozenset(
    literal
    for model in get_args(get_args(Tool)[0])
    for literal in get_args(model.model_fields["type"].annotation)
)


@contextmanager
def tapped(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Check all that is said while the block runs; yields the list of faults."""
    faults: list[str] = []
    orders: dict[Outbox, wire.Order] = {}
    post = Outbox.post

    def checked_post(outbox: Outbox, message: bytes) -> None:
        try:
            _check(message, orders.setdefault(outbox, wire.Order()))
        except AssertionError as fault:
            faults.append(f"{fault}\nin {message[:2000]!r}")
        post(outbox, message)

    patch.setattr(Outbox, "post", checked_post)
    yield faults


def _check(message: bytes, order: wire.Order) -> None:
    if message.startswith(b"{"):
        order.see(wire.check_frame(message, _foreign(message)))
    elif message.startswith(b"event: "):
        name, data = message.decode().removesuffix("\n\n").split("\n")
        foreign = _foreign(data.removeprefix("data: ").encode())
        order.see(wire.check_sse_event(name.removeprefix("event: "), data.removeprefix("data: "), foreign))
    else:
        assert message in (b"data: [DONE]\n\n", b": keepalive\n\n", b""), "neither a frame nor an SSE block"


def _foreign(event: bytes) -> frozenset[str]:
    """Types of tools that only the client knows: slipring echoes them as they were sent."""
    tools = json.loads(event).get("response", {}).get("tools", [])
    return frozenset(tool["type"] for tool in tools) - _KNOWN_TOOLS
