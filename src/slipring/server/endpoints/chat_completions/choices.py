"""Several choices of one completion: forks of one context that the engine has processed once.

A first turn only processes the prompt. Then each choice is a turn that continues it on a lane of its own. The
id of the lane is the index of the choice.
"""

import asyncio
from collections.abc import Awaitable

from msgspec import UNSET, structs

from slipring.core.turn.stages import Stages
from slipring.protocol.chat_completions.translation import ChatTranslation
from slipring.protocol.events import Completed, Error, Event, Failed, ResponseEvent
from slipring.protocol.responses import Response, ResponseError
from slipring.server.clock import clock, now
from slipring.server.driver import Driver, Sink
from slipring.server.observation.ended_turns import EndedTurn
from slipring.server.transports.http import JsonReply, PostedCreate, SseReply


class Choices(Sink):
    """Runs the turns of a completion, and passes the events of its choices on to the client's reply."""

    _driver: Driver
    """Set by ``start``."""

    def __init__(
        self, reply: JsonReply | SseReply, translation: ChatTranslation, posted: PostedCreate
    ) -> None:
        self._reply = reply
        self._translation = translation
        self._posted = posted
        self._first: Response | None = None
        """The response of the first turn, once it is created."""
        self._is_prefilled = False

    def start(self, driver: Driver) -> None:
        """Begin the turn that processes the prompt."""
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
        if self._is_prefilled and turn.lane is None:
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin all choices: the first turn has ended, and its context is in the session's cache."""
        driver, request, first = self._driver, self._posted.request, self._first
        assert first is not None
        for index in range(self._translation.form.choices):
            choice = structs.replace(
                request,
                generate=None,
                previous_response_id=first.id,
                stream_id=str(index),
                seed=None if request.seed is None else request.seed + index,
            )
            driver.run(driver.session.create(choice, Stages(clock), size_bytes=0, now=now()))
        self.flush()

    def flush(self) -> None:
        self._reply.flush()

    def room(self) -> Awaitable[None] | None:
        return self._reply.room()


def _failed(error: Error, first: Response) -> Failed:
    """A refusal of a choice as the failure of its response."""
    failure = ResponseError(error.error.code, error.error.message)
    response = structs.replace(first, status="failed", error=failure, usage=None)
    return Failed(sequence_number=0, stream_id=error.stream_id, response=response)
