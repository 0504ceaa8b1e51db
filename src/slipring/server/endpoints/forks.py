"""Several answers to one request: forks of one context that the engine has processed once.

A first turn only processes the context. Then each answer is a turn that continues it, on a lane of its own or
after another one on the same lane.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Protocol

from aiohttp import web
from msgspec import UNSET, structs

from slipring.core.session.session import Session
from slipring.core.turn.stages import Stages
from slipring.protocol.events import Completed, Error, Event, Failed, ResponseEvent
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response, ResponseError, Usage
from slipring.server.access.auth import Caller
from slipring.server.clock import clock, now
from slipring.server.driver import Driver, Sink
from slipring.server.observation.ended_turns import EndedTurn
from slipring.server.service import Service
from slipring.server.transports.http import JsonReply, PostedCreate, Reply, driving


class ForkingTranslation(Protocol):
    """What the translation of a request says about its forks."""

    def prefilled(self, prompt: Usage | None) -> None:
        """The context was processed, by a job with this usage."""

    def forks(self, request: CreateRequest, first_id: str) -> list[CreateRequest]:
        """The creates that continue the first response. Each names its lane."""

    def judged(self, event: Event, first: Response) -> Event:
        """An event of a fork, as the client's reply gets it."""


async def answer_with_forks(
    service: Service,
    caller: Caller,
    session: Session,
    reply: Reply,
    translation: ForkingTranslation,
    posted: PostedCreate,
) -> web.StreamResponse:
    """Run the turns of a request with several answers, and return its HTTP response."""
    forks = Forks(reply, translation, posted)
    async with driving(service, caller, session, reply, posted, forks) as driver:
        forks.start(driver)
        return await reply.finished()


class Forks(Sink):
    """Runs the turns of a request, and passes the events of its forks on to the client's reply."""

    _driver: Driver
    """Set by ``start``."""

    def __init__(self, reply: Reply, translation: ForkingTranslation, posted: PostedCreate) -> None:
        self._reply = reply
        self._translation = translation
        self._posted = posted
        self._first: Response | None = None
        """The response of the first turn, once it is created."""
        self._is_prefilled = False
        self._has_failed = False
        self._waiting: dict[str, deque[CreateRequest]] = {}
        """By lane: the forks that have not begun."""

    def start(self, driver: Driver) -> None:
        """Begin the turn that processes the context."""
        self._driver, posted = driver, self._posted
        posted.request.generate = False
        driver.run(
            driver.session.create(posted.request, posted.stages, size_bytes=posted.size_bytes, now=now())
        )

    def send(self, events: list[Event]) -> None:
        passed = [each for event in events if (each := self._passed(event)) is not None]
        if passed:
            self._reply.send(passed)

    def _passed(self, event: Event) -> Event | None:
        """The event as the client's reply gets it; None if it does not."""
        if self._is_prefilled and self._first is not None:
            event = self._translation.judged(event, self._first)
        if isinstance(event, Error | Failed):
            self._has_failed = True
        if isinstance(event, Error):
            if self._first is None or isinstance(self._reply, JsonReply):
                return event
            return _failed(event, self._first)  # a stream that has begun has a status already
        if event.stream_id is UNSET and isinstance(event, ResponseEvent):
            self._first = event.response
            if isinstance(event, Completed):
                self._translation.prefilled(event.response.usage)
                self._is_prefilled = True
                return None
        return event

    def record(self, turn: EndedTurn) -> None:
        self._reply.record(turn)
        if turn.lane is None:
            tokens = turn.report.tokens
            self._driver.counted_tokens = tokens.input if tokens is not UNSET else 0
        if self._is_prefilled:
            begin = self._begin if turn.lane is None else partial(self._go_on, turn.lane)
            asyncio.get_running_loop().call_soon(begin)

    def _begin(self) -> None:
        """Begin the first fork of each lane: the first turn has ended, and its context is in the session's
        cache."""
        assert self._first is not None
        for fork in self._translation.forks(self._posted.request, self._first.id):
            self._waiting.setdefault(fork.stream_id, deque()).append(fork)
        for each in list(self._waiting):
            self._go_on(each)

    def _go_on(self, lane: str) -> None:
        """Begin the next fork of a lane."""
        if (waiting := self._waiting.get(lane)) and not self._has_failed:
            driver = self._driver
            driver.run(driver.session.create(waiting.popleft(), Stages(clock), size_bytes=0, now=now()))
            self.flush()

    def flush(self) -> None:
        self._reply.flush()

    def room(self) -> Awaitable[None] | None:
        return self._reply.room()


def _failed(error: Error, first: Response) -> Failed:
    """A refusal of a fork as the failure of its response."""
    failure = ResponseError(error.error.code, error.error.message)
    response = structs.replace(first, status="failed", error=failure, usage=None)
    return Failed(sequence_number=0, stream_id=error.stream_id, response=response)
