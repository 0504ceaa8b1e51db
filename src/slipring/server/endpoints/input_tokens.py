"""``POST /v1/responses/input_tokens``: how long a context would be.

The request goes the way of any other up to the point where its engine would begin. Then the engine counts
instead of answering.
"""

import asyncio

from aiohttp import web

from slipring.core.generation import Job
from slipring.core.session.actions import Action
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError
from slipring.protocol.endpoints.small_objects import InputTokens
from slipring.protocol.events import Error, Event
from slipring.protocol.timing import TurnReport
from slipring.server.access.auth import Caller
from slipring.server.clock import clock, now
from slipring.server.cluster.state_lookup import StoredStates
from slipring.server.connections.request_bodies import read_body
from slipring.server.driver import Driver
from slipring.server.endpoints.replies import json_response, refusal
from slipring.server.service import Service
from slipring.server.transports.http import read_create


class _Answer:
    """A number of tokens, or why there is none."""

    def __init__(self) -> None:
        self.given: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()

    def give(self, tokens: int) -> None:
        self.given.set_result(json_response(InputTokens(tokens)))

    def send(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Error) and not self.given.done():
                self.given.set_result(refusal(event))

    def flush(self) -> None:
        return

    def close(self, code: int, reason: str) -> None:
        return

    def record(self, report: TurnReport) -> None:
        return


class _Scales(Driver):
    """Has jobs counted instead of done."""

    __slots__ = ("answer",)
    answer: _Answer

    def tick(self) -> None:
        if self.service.draining:
            self.run(self.session.tick(now()))

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self.run(self.session.end(error, code=1001, grace_s=grace_s, now=now()))

    async def _generate(self, turn: Turn, job: Job) -> list[Action]:
        self.answer.give(await self.service.catalog.engine_of(job.model).count(job))
        return []


async def count_tokens(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    body = await read_body(service, request, caller)
    stages = Stages(clock)
    create = await service.reading.create(caller.tenant, body, read_create)
    create.store, create.background, create.context_management = False, None, None
    answer = _Answer()
    session = service.open_exchange(caller)
    scales = _Scales(service, caller, session, answer, states=StoredStates(service.store.responses))
    scales.answer = answer
    with service.serving(scales):
        try:
            scales.run(session.create(create, stages, size_bytes=len(body), now=now()))
            return await answer.given
        finally:
            await scales.stop()
