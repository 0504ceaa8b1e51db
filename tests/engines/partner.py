"""Partners: servers that an engine talks to, played by a test, and what they are asked to do.

A partner speaks the wire of one kind of server on a real socket. Tests give it scripts, one per request, and
look at what it was sent. Whatever it does is what the real one was seen to do, or documents.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from slipring.engines.base import Engine
from tests.harness import Running, serve

Played = TypeVar("Played", bound="Partner")


@dataclass(frozen=True)
class Say:
    """Words, one chunk each; ``annotations`` where the wire has them."""

    words: tuple[str, ...]
    annotations: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Deny:
    """A refusal, one chunk each."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Think:
    """Reasoning, one chunk each."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A call, its arguments in as many chunks as the wire likes. What has no form of its own there is a
    function: so custom tools, whose one argument is ``input``, and searches for tools."""

    name: str
    arguments: str
    kind: Literal["function", "custom", "tool_search"] = "function"


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
    """Something that is none of its wire, in the middle of the stream."""


@dataclass(frozen=True)
class HangUp:
    """The connection is cut, before or after words."""


@dataclass(frozen=True)
class Stall:
    """Nothing more comes until the client leaves."""


@dataclass(frozen=True)
class Ids:
    """Tokens in one chunk, for servers whose wire has ids."""

    ids: tuple[int, ...]


Step = Say | Deny | Think | Call | Stop | Refuse | Garbage | HangUp | Stall | Ids


class Partner(ABC):
    """A server under a test's control. Without a script it answers `ok`."""

    can_think = True
    can_refuse_content = True
    can_deny = False
    """Whether its wire tells refusals apart from other words."""
    with_logprobs: ClassVar[dict[str, Any]] = {}
    """The options by which its engine takes logprobs."""

    def __init__(self) -> None:
        self.scripts: deque[tuple[Step, ...]] = deque()
        self.requests: list[dict[str, Any]] = []
        """The JSON bodies that it was sent, in order."""
        self.headers: list[dict[str, str]] = []
        self.left = asyncio.Event()
        """Set when a client has gone before its answer was done."""
        self.stalled = asyncio.Event()
        """Set when a script has come to its `Stall`."""

    def script(self, *steps: Step) -> None:
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
        """An engine that talks to this partner; ``options`` are fields of its options."""


@asynccontextmanager
async def played(partner: Played, **options: Any) -> AsyncIterator[tuple[Played, Running]]:
    """A partner, and a server whose engine talks to it: patient, and without further attempts."""
    await partner.start()
    try:
        patient = {"first_token_timeout_s": 10.0, "idle_timeout_s": 10.0, "retries": 0}
        async with serve(partner.engine(**{**patient, **options})) as server:
            yield partner, server
    finally:
        await partner.close()
