"""What a supervisor and its workers tell each other: a line of JSON each, over a worker's standard input and
output.

Data only. Over pipes rather than as arguments, which everybody on the machine can read: there are keys in it.
"""

import msgspec
from msgspec import Struct

from slipring.config import Config
from slipring.engines.sharing import Share


class Loan(Struct, frozen=True):
    """A worker's share of an engine that the supervisor runs, and the way there."""

    share: Share
    key: str
    url: str | None


class Assignment(Struct, frozen=True, tag=True):
    """The first order: what to serve, with the supervisor's engines by their names in the configuration."""

    config: Config
    loans: dict[str, Loan]


class Move(Struct, frozen=True, tag=True):
    """An engine is there no more, or at another address."""

    engine: str
    url: str | None


class Stop(Struct, frozen=True, tag=True):
    """Take nothing new and finish what runs."""


class Hurry(Struct, frozen=True, tag=True):
    """Stop, and wait for nobody."""


class Serving(Struct, frozen=True, tag=True):
    """The worker serves."""

    models: tuple[str, ...]
    store: str
    keys: str
    """In words."""
    is_open: bool
    """Whether it serves without a key."""


class Failed(Struct, frozen=True, tag=True):
    """The worker cannot start, for a reason that the operator can mend."""

    reason: str


class Suspicion(Struct, frozen=True, tag=True):
    """An engine has not answered for too long at this address."""

    engine: str
    url: str


Order = Assignment | Move | Stop | Hurry
Report = Serving | Failed | Suspicion

_order: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_report: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def read_order(line: bytes) -> Order:
    return _order.decode(line)


def read_report(line: bytes) -> Report:
    return _report.decode(line)
