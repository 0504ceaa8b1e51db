"""The responses engine: generates with any server of the Responses API, over its WebSocket or by SSE.

Items are sent as the client wrote them. Over a WebSocket a chain stays on one socket, and a turn sends only
its new items. If the upstream no longer has the earlier ones, the whole context is sent again, once, before
anything has been emitted, and before the upstream can have called a tool that it runs itself.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import get_args

import msgspec
from msgspec import structs

from slipring.base.errors import ApiError, InvalidRequest, ServerError, forget_frames
from slipring.core.generation import Accepted, Begun, Capabilities, Delta, Finished, Hosting, Job, Model
from slipring.core.token_estimates import estimated_tokens
from slipring.engines.base import Level
from slipring.engines.remote.admission_and_retries import Admission, BegunStream, Retryable
from slipring.engines.remote.emission import CutOff, emit_until
from slipring.engines.remote.gated_engine import GatedEngine
from slipring.engines.remote.steered_cut import SteeredCut
from slipring.engines.remote.upstream import Upstream
from slipring.engines.responses import context, faults
from slipring.engines.responses.answer import ResponsesAnswer
from slipring.engines.responses.events import Event, decode_event
from slipring.engines.responses.faults import ContextLost, LanesUnsupported
from slipring.engines.responses.options import ResponsesOptions, read_options
from slipring.engines.responses.pool import PATH, Pool, Route, SocketsUnsupported
from slipring.engines.responses.position_codec import PositionCodec
from slipring.engines.responses.positions import KeptStep, Position, earlier_step, position_of
from slipring.engines.responses.request_body import count_body, create_body
from slipring.engines.responses.sockets import MOST_FRAME_BYTES, Lane

log = logging.getLogger("slipring")

_COUNT_S = 10.0
"""How long a count may take before an estimate is used."""
_POSTS_S = 60.0
"""How long requests are POSTs after an upgrade that was not answered."""
_ROOM = 64 * 1024
"""Bytes of a frame that are left for everything but items, tools and instructions."""
_CAPABILITIES = Capabilities(logprobs=True, images=True, files=True)
"""Of every model: servers do not list them, and refuse what a model cannot do."""
_ENCRYPTED = "encrypted"
"""Occurs in messages of servers that cannot decrypt what they are sent."""
Answers = AsyncGenerator[list[Delta], None]


class _Counted(msgspec.Struct):
    input_tokens: int


class ResponsesEngine(GatedEngine):
    """One upstream and its models."""

    name = "responses"
    level = Level.ITEMS

    def __init__(self, options: ResponsesOptions) -> None:
        self.options = options
        self._models = [_model(options.model, options)] if options.model else []
        self._keeps_reasoning = options.reasoning == "text"
        self._counts = True
        """Whether the upstream may have an endpoint for counts."""
        self._upstream = Upstream("responses", options)
        self._pool = Pool(self._upstream, options)
        self._gate = Admission("the Responses server", options, self._probe)
        if options.chain or options.reasoning == "encrypted":
            self.positions = PositionCodec(self, options)
        self._posts = options.transport == "sse"
        """Whether every request is a POST: by option, or since the upstream refused a WebSocket."""
        self._posts_until = 0.0
        """Until when requests are POSTs because an upgrade was not answered."""

    @classmethod
    def from_options(cls, text: str) -> "ResponsesEngine":
        return cls(read_options(text))

    def models(self) -> Sequence[Model]:
        return self._models

    async def start(self) -> None:
        await self._upstream.start()
        if not self._models:
            names = await self._upstream.list_models("/models")
            self._models = [_model(name, self.options) for name in names]
        await self._pool.start()

    async def close(self) -> None:
        await self._gate.close()
        await self._pool.close()
        await self._upstream.close()

    async def _probe(self) -> None:
        await self._upstream.get("/models")

    async def generate(self, job: Job) -> Answers:
        with self._gate.admission(job.tenant, job.model.name) as ticket:
            yield [Accepted()]
            await ticket.turn()
            yield [Begun()]
            cut = SteeredCut(job)
            watched = structs.replace(job, emit=cut.emit) if job.emit is not None else job
            try:
                async with aclosing(
                    await self._gate.begin(lambda: self._attempt(watched), job.model.name)
                ) as batches:
                    async for deltas in batches:
                        yield deltas
                        if cut.after(deltas):
                            break
            except CutOff:
                pass
            except ApiError as error:
                raise faults.without_ids(error, job.upstream_tools) from error.__cause__
        if cut.is_made:
            finished = cut.finished()
            finished.position = self._position_of_cut(job)
            yield [finished]  # the next turn sends the whole context

    async def count(self, job: Job, enough: int | None = None) -> int:
        """The upstream's own count, if it has an endpoint for that; else an estimate."""
        if self._counts:
            model = job.model.own_name or job.model.name
            items = context.everything(job, self, keep_reasoning=self._keeps_reasoning)
            try:
                async with asyncio.timeout(_COUNT_S):
                    answer = await self._upstream.post(
                        "/responses/input_tokens", count_body(job, model, items)
                    )
                return msgspec.convert(answer, _Counted).input_tokens
            except InvalidRequest as error:
                self._counts = error.status not in (404, 405)
            except (ApiError, TimeoutError, msgspec.ValidationError):
                pass  # the next count asks again; the job itself reports what is wrong
        return await self.tokenizing.prepare(job, estimated_tokens, job)

    async def _attempt(self, job: Job) -> BegunStream[list[Delta]]:
        """Begin an answer: continue the parent's response if the upstream has it, else send everything."""
        position = position_of(job, self)
        answers = await self._continued(job, position) if position is not None else None
        if answers is not None:
            try:
                return await BegunStream.begin(answers)
            except (ContextLost, InvalidRequest) as error:
                self._note_lanes(error)
                # Over a socket it is a known code; servers that store responses refuse in many ways.
                if not (isinstance(error, ContextLost) or self.options.chain):
                    raise
                forget_frames(error)
        return await self._begin_whole(job)

    async def _continued(self, job: Job, position: Position) -> Answers | None:
        """Send only the new items; None if the upstream cannot have the others."""
        route = self._pool.resume(position, fork=job.fork)
        if route is None:
            if not (self.options.chain and position.upstream_id):
                return None
            route = await self._open(job)
        items = context.added(job, self, keep_reasoning=self._keeps_reasoning)
        return self._answers(job, route, items, position)

    async def _begin_whole(self, job: Job) -> BegunStream[list[Delta]]:
        """Send the whole context, without encrypted reasoning if the upstream cannot read that any more."""
        items = context.everything(job, self, keep_reasoning=self._keeps_reasoning)
        try:
            return await self._send_whole(job, items)
        except InvalidRequest as error:
            # The account may be another one than that which the reasoning was encrypted for.
            if _ENCRYPTED not in error.message.lower():
                raise
            readable = context.everything(
                job, self, keep_reasoning=self._keeps_reasoning, keep_encrypted=False
            )
            if len(readable) == len(items):
                raise
            log.warning("the Responses server refuses its earlier encrypted reasoning: sent without it")
            forget_frames(error)
            return await self._send_whole(job, readable)

    async def _send_whole(self, job: Job, items: list[bytes]) -> BegunStream[list[Delta]]:
        """Send a context over a socket that the tenant has, if one can take it, else over a new one.

        A context that is too large for a frame is posted.
        """
        size = sum(map(len, items)) + len(job.head.tools.raw) + len(bytes(job.head.instructions_json))
        if size >= MOST_FRAME_BYTES - _ROOM:
            return await BegunStream.begin(self._answers(job, None, items, None))
        if (route := self._pool.reuse(job.tenant)) is not None:
            try:
                return await BegunStream.begin(self._answers(job, route, items, None))
            except ContextLost as lost:
                self._note_lanes(lost)
                forget_frames(lost)
        return await BegunStream.begin(self._answers(job, await self._open(job), items, None))

    def _note_lanes(self, error: ApiError) -> None:
        if isinstance(error, LanesUnsupported):
            self._pool.forbid_lanes()

    async def _open(self, job: Job) -> Route | None:
        """Open a socket; None if the engine posts instead."""
        clock = asyncio.get_running_loop().time
        if self._posts or clock() < self._posts_until:
            return None
        try:
            return await self._pool.open(job)
        except SocketsUnsupported as refused:
            if self.options.transport != "auto":
                raise refused.error from refused
            self._posts = refused.for_good
            self._posts_until = clock() + _POSTS_S
            return None

    def _answers(self, job: Job, route: Route | None, items: list[bytes], parent: Position | None) -> Answers:
        if route is not None:
            return self._over(job, route, items, parent)
        return self._posted(job, items, parent) if job.generate else _nothing()

    async def _over(self, job: Job, route: Route, items: list[bytes], parent: Position | None) -> Answers:
        """Send a request over a socket and translate the events of its lane."""
        socket, lane = route.socket, route.lane
        opening: dict[str, object] = {"type": "response.create"}
        if lane.name is not None:
            opening["stream_id"] = lane.name
        answer, position = ResponsesAnswer(job), None
        deltas: list[Delta] = []
        has_yielded = False
        try:
            with self._upstream.api_errors():
                await socket.send(b"".join(self._body(job, items, opening, parent)))
                while not answer.ended:
                    deltas, fault = _read(answer, await self._next(lane, is_first=not has_yielded))
                    if answer.ended:
                        position = self._position(job, answer, parent, route)
                    elif deltas or (answer.may_have_called and not has_yielded):
                        has_yielded = True
                        yield deltas
                    if fault is not None:
                        raise fault
        finally:
            socket.give_back(lane, position)
        _leave_position(deltas, position)
        yield deltas  # after the lane is given back: a slow reader must not occupy it

    async def _next(self, lane: Lane, *, is_first: bool) -> list[Event]:
        """The next events of a lane. The gate bounds the time until the first deltas."""
        try:
            async with asyncio.timeout(None if is_first else self.options.idle_timeout_s):
                return await lane.get()
        except TimeoutError as error:
            raise ServerError("The engine has sent nothing for too long.") from error

    async def _posted(self, job: Job, items: list[bytes], parent: Position | None) -> Answers:
        """POST a request and translate the events of the SSE stream."""
        body = self._body(job, items, {"stream": True}, parent)
        headers = self._upstream.affinity_headers(job)
        answer = ResponsesAnswer(job)
        has_yielded = False

        def idle_s() -> float | None:
            return self.options.idle_timeout_s if has_yielded else None  # the gate bounds the beginning

        def is_over() -> bool:
            return answer.ended

        def read(payloads: list[bytes]) -> tuple[list[Delta], ApiError | None]:
            deltas, fault = _read(answer, map(decode_event, payloads))
            if answer.ended and fault is None:
                _leave_position(deltas, self._position(job, answer, parent, None))
            return deltas, fault

        stream = self._upstream.events(PATH, body, headers, idle_s=idle_s, is_over=is_over)
        async with stream as batches:
            async for payloads in batches:
                deltas, fault = read(payloads)
                if deltas or (answer.may_have_called and not has_yielded):
                    has_yielded = True
                    yield deltas
                if fault is not None:
                    raise fault
                if (emit := job.emit) is not None and has_yielded:
                    await batches.pump(lambda payloads: emit_until(emit, *read(payloads)))
        if not answer.ended:
            raise Retryable("The engine ended its answer without a terminal event.")

    def _body(
        self, job: Job, items: list[bytes], opening: dict[str, object], parent: Position | None
    ) -> list[bytes]:
        model = job.model.own_name or job.model.name
        previous_id = parent.upstream_id if parent is not None else None
        return create_body(job, model, self.options, items, opening=opening, previous_id=previous_id)

    def _position(
        self, job: Job, answer: ResponsesAnswer, parent: Position | None, route: Route | None
    ) -> Position | None:
        """The position to leave with the response; None if the next turn could not use it."""
        step = KeptStep(
            answer.call_ids,
            answer.thoughts if self.options.reasoning == "encrypted" else (),
            others=answer.others,
            whole=parent is None,
            before=earlier_step(job, self),
        )
        is_kept = bool(answer.upstream_id) and (route is not None or self.options.chain)
        if not is_kept and not step.has_thoughts:
            return None
        return Position(
            answer.upstream_id,
            home=self,
            before=position_of(job, self),
            step=step,
            socket=route.socket if route is not None else None,
            lane=route.lane if route is not None else None,
        )

    def _position_of_cut(self, job: Job) -> Position | None:
        """The position to leave with an answer that was cut off, which no turn can continue by its id: it has
        the thoughts of the steps before."""
        earlier = earlier_step(job, self)
        if earlier is None or not earlier.has_thoughts:
            return None
        return Position(
            "", home=self, before=position_of(job, self), step=KeptStep(before=earlier, whole=True)
        )


def _read(answer: ResponsesAnswer, events: Iterable[Event]) -> tuple[list[Delta], ApiError | None]:
    """The deltas of events up to the first that reports a failure, and that failure."""
    deltas: list[Delta] = []
    try:
        for event in events:
            deltas += answer.take(event)
            if answer.ended:
                break
    except ApiError as fault:
        return deltas, fault
    return deltas, None


def _leave_position(deltas: list[Delta], position: Position | None) -> None:
    finished = deltas[-1]
    assert isinstance(finished, Finished)
    finished.position = position


async def _nothing() -> Answers:
    """A warmup without a WebSocket, which does nothing."""
    yield [Finished("stop", input_tokens=0, cached_tokens=0, output_tokens=0)]


def _model(name: str, options: ResponsesOptions) -> Model:
    return Model(
        name=name,
        owner="upstream",
        capabilities=_CAPABILITIES,
        is_upstream=True,
        hosted_tools=next(each for each in get_args(Hosting) if each == options.hosted_tools),
    )
