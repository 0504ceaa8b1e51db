"""Messages between a supervisor and its workers: JSON lines on a worker's standard input and output.

They travel through pipes rather than as arguments, which every user of the machine can read, because they
contain keys.
"""

import msgspec
from msgspec import Struct

from slipring.config import Config
from slipring.engines.sharing import Share


class Loan(Struct, frozen=True):
    """A worker's share of an engine that the supervisor runs, with its key and its URL."""

    share: Share
    key: str
    url: str | None
    """None while the engine is not running."""


class Assignment(Struct, frozen=True, tag=True):
    """The first command: what to serve. ``loans`` has the supervisor's engines by their configured names."""

    config: Config
    loans: dict[str, Loan]


class EngineMoved(Struct, frozen=True, tag=True):
    """An engine has another URL, or none."""

    engine: str
    url: str | None


class Stop(Struct, frozen=True, tag=True):
    """Accept nothing new, finish running responses, then exit."""


class StopNow(Struct, frozen=True, tag=True):
    """Exit without waiting for running responses."""


class Serving(Struct, frozen=True, tag=True):
    """The worker serves."""

    models: tuple[str, ...]
    store: str
    keys: str
    """A description of the accepted API keys."""
    is_open: bool
    """Whether requests without a key are accepted."""


class Failed(Struct, frozen=True, tag=True):
    """The worker cannot start, for a reason that the operator can fix."""

    reason: str


class Draining(Struct, frozen=True, tag=True):
    """The worker is stopping and waits for this many running responses."""

    responses: int


class EngineSuspected(Struct, frozen=True, tag=True):
    """An engine has not answered for too long at this URL."""

    engine: str
    url: str


Command = Assignment | EngineMoved | Stop | StopNow
"""From the supervisor."""
Report = Serving | Failed | Draining | EngineSuspected
"""From a worker."""

_command: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_report: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Command | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_command(line: bytes) -> Command:
    return _command.decode(line)


def decode_report(line: bytes) -> Report:
    return _report.decode(line)
