"""The responses engine: generates with any server of the Responses API, over its WebSocket or by SSE.

Items are sent as the client wrote them. Over a WebSocket a chain stays on one socket, and a turn sends only
its new items. If the upstream no longer has the earlier ones, the whole context is sent again, once, before
anything has been emitted, and before the upstream can have called a tool that it runs itself.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, get_args

import msgspec

from slipring.base.errors import ApiError, InvalidRequest, forget_frames
from slipring.core.generation import (
    ALL_ROLES,
    Accepted,
    Capabilities,
    Delta,
    Emit,
    Finished,
    Hosting,
    Job,
    Model,
    deliver,
)
from slipring.core.token_estimates import estimated_tokens
from slipring.engines.base import Level
from slipring.engines.remote.retries_and_breaker import Admission, Retryable
from slipring.engines.remote.streamed_answer import AnswerReader, CutOff, Patience, SteeredCut
from slipring.engines.remote.upstream import RemoteEngine, Upstream
from slipring.engines.responses import reported_errors, request_body
from slipring.engines.responses.answer import ResponsesAnswer
from slipring.engines.responses.events import Event, decode_event
from slipring.engines.responses.options import ResponsesOptions, read_options
from slipring.engines.responses.positions import KeptStep, Position, PositionCodec, earlier_step, position_of
from slipring.engines.responses.reported_errors import ContextLost, LanesUnsupported
from slipring.engines.responses.request_body import count_body, create_body
from slipring.engines.responses.sockets import MOST_FRAME_BYTES, PATH, Route, SocketPool

log = logging.getLogger("slipring")

_COUNT_S = 10.0
"""How long a count may take before an estimate is used."""
_ROOM = 64 * 1024
"""Bytes of a frame that are left for everything but items, tools and instructions."""
_CAPABILITIES = Capabilities(
    logprobs=True, images=True, image_roles=ALL_ROLES, resolves_urls=True, files=True
)
"""Of every model: servers do not list them, and refuse what a model cannot do."""
_ENCRYPTED = "encrypted"
"""Occurs in messages of servers that cannot decrypt what they are sent."""
T = TypeVar("T")


class _Counted(msgspec.Struct):
    input_tokens: int


class ResponsesEngine(RemoteEngine):
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
        self._pool = SocketPool(self._upstream, options)
        self._admission = Admission("the Responses server", options, self._probe)
        if options.chain or options.reasoning == "encrypted":
            self.positions = PositionCodec(self, options)

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
        await self._admission.close()
        await self._pool.close()
        await self._upstream.close()

    async def _probe(self) -> None:
        await self._upstream.get("/models")

    async def generate(self, job: Job, emit: Emit) -> None:
        with self._admission.admission(job.tenant, job.model.name) as ticket:
            await ticket.begin(Accepted(), emit)
            run = _Run(job, emit)
            try:
                await self._admission.run(partial(self._attempt, run), job.model.name)
            except CutOff:
                finished = run.cut.finished()
                finished.position = self._position_of_cut(job)
                run.last = [finished]  # the next turn sends the whole context
            except ApiError as error:
                raise reported_errors.without_ids(error, job.upstream_tools) from error.__cause__
        # After ticket and lane are given back: a slow reader must not hold up other jobs.
        await deliver(emit, run.last)

    async def count(self, job: Job, enough: int | None = None) -> int:
        """The upstream's own count, if it has an endpoint for that; else an estimate."""
        if self._counts:
            model = job.model.own_name or job.model.name
            items = request_body.everything(job, self, keep_reasoning=self._keeps_reasoning)
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

    async def _attempt(self, run: "_Run", begin: Callable[[], None]) -> None:
        """Ask for an answer once: continue the parent's response if the upstream has it, else send
        everything."""
        run.on_begin = begin
        position = position_of(run.job, self)
        if position is not None:
            try:
                if await self._continue(run, position):
                    return
            except (ContextLost, InvalidRequest) as error:
                self._note_lanes(error)
                # Over a socket it is a known code; servers that store responses refuse in many ways.
                if run.has_begun or not (isinstance(error, ContextLost) or self.options.chain):
                    raise
                forget_frames(error)
        await self._send_everything(run)

    async def _continue(self, run: "_Run", position: Position) -> bool:
        """Send only the new items; False if the upstream cannot have the others."""
        job = run.job
        route = self._pool.resume(position, fork=job.fork)
        if route is None:
            if not (self.options.chain and position.upstream_id):
                return False
            route = await self._pool.open(job)
        items = request_body.added(job, self, keep_reasoning=self._keeps_reasoning)
        await self._ask(run, route, items, position)
        return True

    async def _send_everything(self, run: "_Run") -> None:
        """Send the whole context, without encrypted reasoning if the upstream cannot read that any more."""
        job = run.job
        items = request_body.everything(job, self, keep_reasoning=self._keeps_reasoning)
        try:
            await self._send_whole(run, items)
        except InvalidRequest as error:
            # The account may be another one than that which the reasoning was encrypted for.
            if run.has_begun or _ENCRYPTED not in error.message.lower():
                raise
            readable = request_body.everything(
                job, self, keep_reasoning=self._keeps_reasoning, keep_encrypted=False
            )
            if len(readable) == len(items):
                raise
            log.warning(
                "the Responses server refuses encrypted reasoning that it made earlier;"
                " the context is sent without it"
            )
            forget_frames(error)
            await self._send_whole(run, readable)

    async def _send_whole(self, run: "_Run", items: list[bytes]) -> None:
        """Send a context over a socket that the tenant has, if one can take it, else over a new one.

        A context that is too large for a frame is posted.
        """
        job = run.job
        size = sum(map(len, items)) + len(job.head.tools.raw) + len(bytes(job.head.instructions_json))
        if size >= MOST_FRAME_BYTES - _ROOM:
            await self._ask(run, None, items, None)
            return
        if (route := self._pool.reuse(job.tenant)) is not None:
            try:
                await self._ask(run, route, items, None)
                return
            except ContextLost as lost:
                if run.has_begun:
                    raise
                self._note_lanes(lost)
                forget_frames(lost)
        await self._ask(run, await self._pool.open(job), items, None)

    def _note_lanes(self, error: ApiError) -> None:
        if isinstance(error, LanesUnsupported):
            self._pool.forbid_lanes()

    async def _ask(
        self, run: "_Run", route: Route | None, items: list[bytes], parent: Position | None
    ) -> None:
        """Send a request, over a socket or by a POST, and emit its answer but for the last deltas."""
        if route is not None:
            await self._ask_over(run, route, items, parent)
        elif run.job.generate:
            await self._post(run, items, parent)
        else:  # a warmup without a WebSocket, which does nothing
            run.last = [Finished("stop", input_tokens=0, cached_tokens=0, output_tokens=0)]

    async def _ask_over(self, run: "_Run", route: Route, items: list[bytes], parent: Position | None) -> None:
        """Send a request over a socket and translate the events of its lane."""
        socket, lane = route.socket, route.lane
        opening: dict[str, object] = {"type": "response.create"}
        if lane.name is not None:
            opening["stream_id"] = lane.name
        reader, position = _Reader(run, _decoded), None
        try:
            with self._upstream.api_errors():
                await socket.send(b"".join(self._body(run.job, items, opening, parent)))
                await lane.deliver(reader, self._idle_s(run))
            position = self._position(run.job, reader.answer, parent, route)
        finally:
            socket.give_back(lane, position)
        run.leave(position)

    async def _post(self, run: "_Run", items: list[bytes], parent: Position | None) -> None:
        """POST a request and translate the events of the SSE stream."""
        body = self._body(run.job, items, {"stream": True}, parent)
        headers = self._upstream.affinity_headers(run.job)
        reader = _Reader[bytes](run, decode_event)
        await self._upstream.stream(PATH, body, headers, reader, idle_s=self._idle_s(run))
        if not reader.answer.ended:
            raise Retryable("The engine ended its answer without a terminal event.")
        run.leave(self._position(run.job, reader.answer, parent, None))

    def _idle_s(self, run: "_Run") -> Patience:
        """How long an answer may be silent. ``Admission`` bounds the time until it begins."""
        return lambda: self.options.idle_timeout_s if run.has_begun else None

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
            tuple(answer.call_ids),
            tuple(answer.thoughts) if self.options.reasoning == "encrypted" else (),
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


class _Run:
    """A job, and how far it has come."""

    on_begin: Callable[[], None]
    """Called when an answer begins. Set by each attempt."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.cut = SteeredCut(job)
        self.has_begun = False
        self.last: list[Delta] = []
        """The last deltas of the answer, once it has ended."""

    def begin(self) -> None:
        self.has_begun = True
        self.on_begin()

    def leave(self, position: Position | None) -> None:
        """Leave a position with the response."""
        finished = self.last[-1]
        assert isinstance(finished, Finished)
        finished.position = position


class _Reader(AnswerReader[T]):
    """Reads the events of an answer, and keeps the last deltas. ``decode``: of what arrives."""

    def __init__(self, run: _Run, decode: Callable[[T], Event]) -> None:
        super().__init__(run.job, run.emit, run.begin)
        self._run = run
        self._decode = decode
        self.answer = ResponsesAnswer(run.job)

    def read(self, batch: list[T]) -> tuple[list[Delta], Exception | None]:
        answer, deltas = self.answer, list[Delta]()
        try:
            for each in batch:
                deltas += answer.take(self._decode(each))
                if answer.ended:
                    self._run.last, self.has_ended = deltas, True
                    return [], None
        except ApiError as fault:
            return deltas, fault
        finally:
            self._run.cut.count(deltas)
        return deltas, None

    def may_be_cut(self) -> bool:
        return self._run.cut.may_be_made()

    def begins_without_deltas(self) -> bool:
        return self.answer.may_have_called


def _decoded(event: Event) -> Event:
    """Sockets decode events, to find their lanes."""
    return event


def _model(name: str, options: ResponsesOptions) -> Model:
    return Model(
        name=name,
        owner="upstream",
        capabilities=_CAPABILITIES,
        is_upstream=True,
        hosted_tools=next(each for each in get_args(Hosting) if each == options.hosted_tools),
    )
