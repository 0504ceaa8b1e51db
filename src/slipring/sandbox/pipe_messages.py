"""What a sandbox and its child processes send each other: messages with their length before them.

Data only, as MessagePack: nothing that a client sends can become code on its way.
"""

from typing import Any

import msgspec
from msgspec import Struct

LENGTH_BYTES = 4


class Orders(Struct, frozen=True):
    """The first message to a child: which functions it may run, and what each may take."""

    tasks: dict[str, str]
    timeout_s: float
    memory_bytes: int
    result_bytes: int


class Call(Struct, frozen=True):
    """Run a function."""

    task: str
    arguments: list[Any]


class Done(Struct, frozen=True, tag=True):
    """What a function returned."""

    value: Any


class Refused(Struct, frozen=True, tag=True):
    """A function refused its arguments: an ``InvalidRequest``."""

    message: str
    param: str | None
    code: str


class Exceeded(Struct, frozen=True, tag=True):
    """A bound was exceeded, in words that follow on "it"."""

    reason: str


class Broken(Struct, frozen=True, tag=True):
    """A function failed for a reason of its own, which is a fault of ours."""

    traceback: str


Outcome = Done | Refused | Exceeded | Broken


class Ready(Struct, frozen=True, tag=True):
    """The child has set its bounds and takes calls."""


class Answer(Struct, frozen=True, tag=True):
    """The outcome of a call."""

    outcome: Outcome
    has_grown: bool
    """Whether so much memory is in use that the next call should be given to another child."""


Report = Ready | Answer

orders = msgspec.msgpack.Decoder(Orders)
call = msgspec.msgpack.Decoder(Call)
report: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def encode(message: Orders | Call | Report | Outcome) -> bytes:
    """A message without its length."""
    return msgspec.msgpack.encode(message)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
