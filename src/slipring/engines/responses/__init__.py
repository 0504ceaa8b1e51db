"""The responses engine: any server of the Responses API, over its WebSocket where it has one, else by SSE.

Items go there as they are and events come back. Over a WebSocket a chain stays on one socket, and a turn
sends only what is new. Where the upstream has lost what came before, the whole context is sent again, once,
before the client could notice.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from slipring.core.generation import Accepted, Begun, Delta, Finished, Job, Model
from slipring.engines.base import Engine, Level
from slipring.engines.remote.admission import Gate, Retryable
from slipring.engines.remote.cutting import Cut
from slipring.engines.remote.estimates import estimated_tokens
from slipring.engines.remote.upstream import Upstream, read_key
from slipring.engines.responses import context, faults, models
from slipring.engines.responses.answer import Answer
from slipring.engines.responses.faults import Lost, NoLanes
from slipring.engines.responses.options import Options, read_options
from slipring.engines.responses.pool import NoSockets, Pool, Route
from slipring.engines.responses.positions import Position, position_of
from slipring.engines.responses.request_body import count_body, create_body
from slipring.engines.responses.sockets import MOST_FRAME_BYTES, Frame, Lane
from slipring.errors import ApiError, InvalidRequest, ServerError

_COUNT_S = 10.0
"""How long a count may take. Somebody waits for more than that."""
_ROOM = 64 * 1024
"""For what a frame holds besides."""
Answers = AsyncGenerator[list[Delta], None]


class _Kind(msgspec.Struct, gc=False):
    type: str = ""


class _Counted(msgspec.Struct):
    input_tokens: int


_kind = msgspec.json.Decoder(_Kind)


class ResponsesEngine(Engine):
    """One upstream."""

    name = "responses"
    level = Level.ITEMS

    def __init__(self, options: Options) -> None:
        self.options = options
        headers = _key_headers(options)
        self._models = models.served(options, headers)
        self._keeps_reasoning = options.reasoning == "text"
        query = f"?{options.query}" if options.query else ""
        self._path, self._probe_path = f"/responses{query}", f"/models{query}"
        self._count_path = f"/responses/input_tokens{query}"
        self._counts = True
        """Whether the upstream may know how to count."""
        self._upstream = Upstream("responses", replace(options, key_env="", key_file=""), headers)
        self._pool = Pool(self._upstream, self._path, options)
        self._gate = Gate("the Responses server", options, self._probe)
        self._posts = options.transport == "sse"
        """Whether there are no sockets, or none any more."""

    @classmethod
    def from_options(cls, text: str) -> "ResponsesEngine":
        return cls(read_options(text))

    @property
    def trouble(self) -> str | None:
        return self._gate.trouble

    def models(self) -> Sequence[Model]:
        return self._models

    async def start(self) -> None:
        await self._upstream.start()
        await self._pool.start()

    async def close(self) -> None:
        await self._gate.close()
        await self._pool.close()
        await self._upstream.close()

    async def _probe(self) -> None:
        await self._upstream.get(self._probe_path)

    async def generate(self, job: Job) -> Answers:
        with self._gate.ticket(job.tenant) as ticket:
            yield [Accepted()]
            await ticket.turn()
            yield [Begun()]
            cut = Cut(job)
            try:
                async with aclosing(self._gate.stream(lambda: self._attempt(job))) as batches:
                    async for deltas in batches:
                        yield deltas
                        if cut.after(deltas):
                            break
            except ApiError as error:
                raise faults.without_ids(error) from error.__cause__
        if cut.is_made:
            yield [cut.finished()]  # the upstream has no such response: the next turn sends everything

    async def count(self, job: Job, enough: int | None = None) -> int:
        """As the upstream counts, where it can be asked; else a guess."""
        if self._counts:
            model = job.model.own_name or job.model.name
            items = context.everything(job, self, keep_reasoning=self._keeps_reasoning)
            try:
                async with asyncio.timeout(_COUNT_S):
                    told = await self._upstream.post(self._count_path, count_body(job, model, items))
                return msgspec.convert(told, _Counted).input_tokens
            except InvalidRequest as error:
                self._counts = error.status not in (404, 405)
            except (ApiError, TimeoutError, msgspec.ValidationError):
                pass  # it will be asked again; the job itself says what is wrong
        return await self.tokenizing.prepare(job, estimated_tokens, job)

    async def _attempt(self, job: Job) -> Answers:
        """By what the upstream has; where it has lost that, before a word was said, by the whole context."""
        position = position_of(job, self)
        answers = await self._continued(job, position) if position is not None else None
        if answers is not None:
            said = False
            try:
                async with aclosing(answers) as batches:
                    async for deltas in batches:
                        said = True
                        yield deltas
                return
            except (Lost, InvalidRequest) as error:
                if isinstance(error, NoLanes):
                    self._pool.forbid_lanes()
                # On a socket it is told by its name; servers that store have many ways to tell it.
                if said or not (isinstance(error, Lost) or self.options.chain):
                    raise
        async with aclosing(await self._whole(job)) as batches:
            async for deltas in batches:
                yield deltas

    # Ways.

    async def _continued(self, job: Job, position: Position) -> Answers | None:
        """The answer to what is new; None: the upstream cannot have the rest."""
        route = self._pool.resume(position, fork=job.fork)
        if route is None:
            if not (self.options.chain and position.upstream_id):
                return None
            route = await self._open(job)
        items = context.added(job, self, keep_reasoning=self._keeps_reasoning)
        return self._answers(job, route, items, position)

    async def _whole(self, job: Job) -> Answers:
        """The answer to the whole context."""
        items = context.everything(job, self, keep_reasoning=self._keeps_reasoning)
        size = sum(map(len, items)) + len(job.head.tools.raw) + len(bytes(job.head.instructions_json))
        route = await self._open(job) if size < MOST_FRAME_BYTES - _ROOM else None
        return self._answers(job, route, items, None)

    async def _open(self, job: Job) -> Route | None:
        """A new socket; None: there are none."""
        if self._posts:
            return None
        try:
            return await self._pool.open(job)
        except NoSockets as refused:
            if self.options.transport != "auto":
                raise refused.error from refused
            self._posts = True
            return None

    def _answers(self, job: Job, route: Route | None, items: list[bytes], parent: Position | None) -> Answers:
        if route is not None:
            return self._over(job, route, items, parent)
        return self._posted(job, items, parent) if job.generate else _nothing()

    async def _over(self, job: Job, route: Route, items: list[bytes], parent: Position | None) -> Answers:
        """The answer over a socket."""
        socket, lane = route.socket, route.lane
        opening: dict[str, object] = {"type": "response.create"}
        if lane.name is not None:
            opening["stream_id"] = lane.name
        answer, position = Answer(job), None
        deltas: list[Delta] = []
        said = False
        try:
            await socket.send(b"".join(self._body(job, items, opening, parent)))
            while not answer.ended:
                deltas, fault = _read(answer, await self._next(lane, patient=not said))
                if answer.ended:
                    position = self._position(job, answer, parent, route)
                elif deltas:
                    said = True
                    yield deltas
                if fault is not None:
                    raise fault
        finally:
            socket.give_back(lane, position)
        _leave_position(deltas, position)
        yield deltas  # whoever takes long to read it has given the lane back

    async def _next(self, lane: Lane, *, patient: bool) -> list[Frame]:
        """The next events. How long the first word may take is the gate's business."""
        try:
            async with asyncio.timeout(None if patient else self.options.idle_timeout_s):
                return await lane.get()
        except TimeoutError as error:
            raise ServerError("The engine has said nothing for too long.") from error

    async def _posted(self, job: Job, items: list[bytes], parent: Position | None) -> Answers:
        """The answer to a POST, by SSE."""
        body = self._body(job, items, {"stream": True}, parent)
        headers = self._upstream.affinity_headers(job)
        answer = Answer(job)
        said = False

        def patience() -> float | None:
            return self.options.idle_timeout_s if said else None  # until then it is the gate's business

        def is_over() -> bool:
            return answer.ended

        events = self._upstream.events(self._path, body, headers, idle_s=patience, is_over=is_over)
        async with aclosing(events) as batches:
            async for payloads in batches:
                deltas, fault = _read(answer, ((_kind_of(payload), payload) for payload in payloads))
                if answer.ended:
                    _leave_position(deltas, self._position(job, answer, parent, None))
                if deltas:
                    said = True
                    yield deltas
                if fault is not None:
                    raise fault
        if not answer.ended:
            raise Retryable("The engine's answer has no end.")

    def _body(
        self, job: Job, items: list[bytes], opening: dict[str, object], parent: Position | None
    ) -> list[bytes]:
        model = job.model.own_name or job.model.name
        previous_id = parent.upstream_id if parent is not None else None
        return create_body(job, model, self.options, items, opening=opening, previous_id=previous_id)

    def _position(
        self, job: Job, answer: Answer, parent: Position | None, route: Route | None
    ) -> Position | None:
        """What to leave with the response; None: nothing here would be of use."""
        thoughts = tuple(answer.thoughts) if self.options.reasoning == "encrypted" else ()
        is_kept = bool(answer.upstream_id) and (route is not None or self.options.chain)
        if not is_kept and not thoughts:
            return None
        return Position(
            answer.upstream_id,
            home=self,
            before=position_of(job, self),
            whole=parent is None,
            call_ids=tuple(answer.call_ids),
            thoughts=thoughts,
            socket=route.socket if route is not None else None,
            lane=route.lane if route is not None else None,
        )


def _read(answer: Answer, frames: Iterable[tuple[str, bytes | str]]) -> tuple[list[Delta], ApiError | None]:
    """What events say, up to the first that tells of a failure."""
    deltas: list[Delta] = []
    try:
        for kind, payload in frames:
            deltas += answer.take(kind, payload)
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
    """A warmup where there is nothing to warm."""
    yield [Finished("stop", input_tokens=0, cached_tokens=0, output_tokens=0)]


def _kind_of(payload: bytes) -> str:
    try:
        return _kind.decode(payload).type
    except msgspec.DecodeError as error:
        raise ServerError("The engine's answer cannot be read.") from error


def _key_headers(options: Options) -> dict[str, str]:
    key = read_key("responses", options)
    if not key:
        return {}
    return {options.key_header: key} if options.key_header else {"Authorization": f"Bearer {key}"}
