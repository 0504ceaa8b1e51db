"""Fake servers for engines to talk to, and the steps that tests script them with.

A fake speaks the protocol of one kind of server on a real socket. Tests give it scripts, one per request, and
check what it was sent. It behaves as the real server was seen to, or as its documentation says.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from slipring.core.limits import Limits
from slipring.engines.base import Engine
from tests.harness import Running, serve

F = TypeVar("F", bound="FakeServer")

PATIENT = {"connect_timeout_s": 600.0}
"""Options of engines in front of fakes. A busy machine may stop the process of a test for seconds."""


@dataclass(frozen=True)
class Say:
    """Text, one chunk per word; ``annotations`` if the protocol has them."""

    words: tuple[str, ...]
    annotations: tuple[dict[str, Any], ...] = ()
    rest: asyncio.Event | None = None
    """The words after the first are sent once this is set."""


@dataclass(frozen=True)
class Deny:
    """A refusal, one chunk each."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Think:
    """Reasoning, one chunk each. ``secret``: its encrypted form, where a protocol has one."""

    words: tuple[str, ...]
    secret: str = "c2VjcmV0"


@dataclass(frozen=True)
class Call:
    """A call, its arguments in any number of chunks. Kinds that a protocol does not have become functions:
    custom tools, whose one argument is ``input``, and searches for tools."""

    name: str
    arguments: str
    kind: Literal["function", "custom", "tool_search"] = "function"
    namespace: str | None = None


@dataclass(frozen=True)
class Host:
    """An item of a tool that the server runs: its events, each with its fields, between ``begun`` and
    ``item``. Only for servers that run tools."""

    item: dict[str, Any]
    begun: dict[str, Any] = field(default_factory=dict)
    """What differs when the item begins."""
    events: tuple[tuple[str, dict[str, Any]], ...] = ()
    ends: bool = True
    later: tuple[str, ...] = ()
    """Keys that the item does not have when it begins."""


@dataclass(frozen=True)
class Stop:
    """The end: `stop`, `length`, or `content_filter`."""

    reason: str = "stop"
    input_tokens: int = 7
    cached_tokens: int = 3
    output_tokens: int = 5


@dataclass(frozen=True)
class Refuse:
    """An HTTP error instead of a stream."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Garbage:
    """Malformed data in the middle of the stream."""


@dataclass(frozen=True)
class HangUp:
    """Cut the connection, before or after text."""


@dataclass(frozen=True)
class Stall:
    """Send nothing more until the client leaves."""


@dataclass(frozen=True)
class Ids:
    """Token ids in one chunk, whatever they spell. Only for servers that are sent ids."""

    ids: tuple[int, ...]


Step = Say | Deny | Think | Call | Host | Stop | Refuse | Garbage | HangUp | Stall | Ids


class FakeServer(ABC):
    """A server under a test's control. Without a script it answers `ok`."""

    can_think = True
    can_refuse_content = True
    can_deny = False
    """Whether its protocol distinguishes refusals from other text."""
    with_logprobs: ClassVar[dict[str, Any]] = {}
    """The options that make its engine accept logprobs."""

    def __init__(self) -> None:
        self.scripts: deque[tuple[Step, ...]] = deque()
        self.requests: list[dict[str, Any]] = []
        """The JSON bodies that it was sent, in order."""
        self.headers: list[dict[str, str]] = []
        self.left = asyncio.Event()
        """Set when a client disconnects before its answer is complete."""
        self.stalled = asyncio.Event()
        """Set when a script reaches its `Stall`."""

    def script(self, *steps: Step) -> None:
        """Set the steps of the next request that has none yet."""
        self.scripts.append(steps)

    def next_script(self) -> tuple[Step, ...]:
        return self.scripts.popleft() if self.scripts else (Say(("ok",)), Stop())

    @abstractmethod
    async def start(self) -> None:
        """Listen on a free port of the loopback."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def engine(self, **options: Any) -> Engine:
        """An engine that talks to this fake; ``options`` are fields of its options."""


def set_patience(server: Running, **options: float) -> None:
    """Change timeouts of a server's engines. Waits that have begun are not changed: what follows a failure
    that a short timeout brings must not meet it too."""
    for engine in server.service.catalog.engines:
        for name, value in options.items():
            object.__setattr__(engine.options, name, value)


E = TypeVar("E", bound=Engine)


@asynccontextmanager
async def started(engine: E) -> AsyncIterator[E]:
    """Start an engine, and close it at the end, also if it did not start."""
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def in_front_of(fake: F, **options: Any) -> AsyncIterator[tuple[F, Running]]:
    """A fake, and a slipring whose engine talks to it, with long timeouts and no retries. It does not ping
    clients: a test may set the clock forward."""
    await fake.start()
    try:
        patient = {"first_token_timeout_s": 600.0, "idle_timeout_s": 600.0, "retries": 0}
        engine = fake.engine(**{**patient, **options})
        async with serve(engine, limits=Limits(ping_interval_s=0)) as server:
            yield fake, server
    finally:
        await fake.close()
