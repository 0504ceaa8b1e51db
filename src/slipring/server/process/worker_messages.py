"""Messages between a supervisor and its workers: JSON lines on a worker's standard input and output.

They travel through pipes rather than as arguments, which every user of the machine can read, because they
contain keys.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from slipring.config.settings import Config
from slipring.engines.engine_hosts import Share
from slipring.observation import live_messages
from slipring.observation.metric_counts import Snapshot


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
    number: int = 0
    """Number of the worker."""


class EngineMoved(Struct, frozen=True, tag=True):
    """An engine has another URL, or none."""

    engine: str
    url: str | None


class Watch(Struct, frozen=True, tag=True):
    """Write live updates to the report line, beginning with a complete one."""


class EndWatch(Struct, frozen=True, tag=True):
    """Write no more live updates."""


class Describe(Struct, frozen=True, tag=True):
    """Describe one connection in a ``Described`` report."""

    request: int
    """Number of the request, repeated in the report."""
    connection: int


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


class Described(Struct, frozen=True, tag=True):
    """The answer to ``Describe``; None: the connection is not open."""

    request: int
    detail: live_messages.ConnectionDetail | None


class Measured(Struct, frozen=True, tag=True):
    """What the worker has counted since it started."""

    snapshot: Snapshot


Command = Assignment | EngineMoved | Watch | EndWatch | Describe | Stop | StopNow
"""From the supervisor."""
Report = Serving | Failed | Draining | EngineSuspected | Described | Measured
"""From a worker. It also writes live updates, which the supervisor does not decode."""

decode_command: Callable[[bytes], Command] = msgspec.json.Decoder(Command).decode
decode_report: Callable[[bytes], Report] = msgspec.json.Decoder(Report).decode


def encode(message: Command | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def is_update(line: bytes) -> bool:
    """Whether a line is a live update and no report."""
    return line.startswith(b'{"type":"update"')
