"""The driver: carries out a session's actions, the same way for every transport.

Each running turn has one task, from its first piece of work (load, check, count, generate, save) to its last.
A task may end in any way, by a failure or because something has cancelled it: its turn has then ended too.
A transport passes a ``Sink`` that delivers events to its client; nothing else differs between a WebSocket, an
SSE stream and a plain POST.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeGuard

from msgspec import structs

from slipring.base.errors import ApiError, ServerError, Unavailable, conversation_not_found, forget_frames
from slipring.core import attachments
from slipring.core.attachments import Fetched
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Emit, Job
from slipring.core.hosted_tools import CallProgress
from slipring.core.session.actions import (
    Action,
    CallTool,
    Cancel,
    CancelCalls,
    ClaimApprovals,
    Close,
    CompileAppended,
    CompileGrammars,
    Compress,
    Counted,
    CountRefusal,
    CountTokens,
    EndPrefill,
    FetchImages,
    Flush,
    Generate,
    Inspect,
    ListTools,
    Load,
    Loaded,
    LogFault,
    ReadDocuments,
    Record,
    ReportOutput,
    ReportSteer,
    Resolved,
    ResolveTools,
    Save,
    Send,
    StartAudit,
    StartPrefill,
    Work,
)
from slipring.core.session.session import Session
from slipring.core.turn.delivery import Deliver
from slipring.core.turn.turn import Joined, Turn
from slipring.engines.constraints import custom_tool_inputs, stop_sequences
from slipring.protocol.events import Event
from slipring.protocol.items.item_pictures import image_count
from slipring.protocol.items.items import Item
from slipring.server import inspection_runner
from slipring.server.access.auth import Caller
from slipring.server.clock import now, unix_time
from slipring.server.hosted_tools import permitted_servers
from slipring.server.observation.ended_turns import EndedTurn, Origin, TurnContent
from slipring.server.service import Service
from slipring.server.state_lookup import StateLookup
from slipring.server.transports import obfuscation
from slipring.stores.conversations import Appended, appended_by, since_compaction
from slipring.stores.pictures import prepare
from slipring.stores.runs import Lease, LeaseLost

log = logging.getLogger("slipring")

_GOING_AWAY = 1001
_Beside = StartPrefill | EndPrefill | ReportOutput | ReportSteer | StartAudit | Compress
"""What belongs to responses, and not to a turn."""
_WORK = frozenset(
    {Generate, Load, ResolveTools, FetchImages, ReadDocuments, ListTools, CompileGrammars, ClaimApprovals}
    | {CountTokens, Save}
)
"""Work that takes time."""
Subject = Turn | CompileAppended | CallTool | Inspect | Compress
"""What a task of a driver belongs to."""


class Sink:
    """Delivers the events of a session to its client. Every method but ``send`` may be left as it is."""

    __slots__ = ()

    def send(self, events: list[Event]) -> None:
        """Queue events in order, without waiting."""
        raise NotImplementedError

    def flush(self) -> None:
        """Begin to write queued events, without waiting."""

    def room(self) -> Awaitable[None] | None:
        """An awaitable, to be awaited, while so much is queued that no more should be produced."""
        return None

    def deliver(self, events: list[Event]) -> Awaitable[None] | None:
        """``send``, ``flush``, then ``room``."""
        self.send(events)
        self.flush()
        return self.room()

    async def secure(self) -> None:
        """Wait until everything sent so far survives this process, if the sink keeps anything at all. Raises
        ``LeaseLost`` if that cannot be."""

    def close(self, code: int, reason: str) -> None:
        """Close the connection once everything has been sent."""

    def record(self, turn: EndedTurn) -> None:
        """Receive the report of a turn, after its last events."""

    def counted(self, tokens: int) -> None:
        """Receive the size of a context, if the session only counts tokens."""


class _NoSink(Sink):
    """The sink of a driver that has stopped: it drops all events."""

    __slots__ = ()

    def send(self, events: list[Event]) -> None:
        """Drop the events."""


_NO_SINK = _NoSink()


class Driver:
    """Carries out the actions of one session."""

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_lease",
        "_tasks",
        "caller",
        "counted_tokens",
        "origin",
        "service",
        "session",
        "sink",
        "states",
    )

    def __init__(
        self,
        service: Service,
        caller: Caller,
        session: Session,
        sink: Sink,
        *,
        origin: Origin,
        states: StateLookup,
        lease: "asyncio.Future[Lease] | None" = None,
    ) -> None:
        """``states``: looks up responses that the session does not have in memory. ``lease``: for a
        background run, the lease that must be valid when its response is saved."""
        self.service = service
        self.caller = caller
        self.session = session
        self.sink = sink
        self.origin = origin
        self.states = states
        self.counted_tokens: int | None = None
        """Set if further turns belong to a request that its key's quotas have counted: the tokens of their
        common context, which they have counted too."""
        self._lease = lease
        self._tasks: dict[Subject, asyncio.Task[None]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        """Tasks that the session has had cancelled, until they have ended: nothing follows from their end."""

    @property
    def in_flight(self) -> int:
        """Responses that are running."""
        return self.session.in_flight

    def run(self, actions: list[Action]) -> None:
        """Carry out actions in order; those that take time are started and not waited for."""
        for action in actions:
            if _is_work(action):
                self._spawn(action.turn, self._run_turn(action))
            elif type(action) is Flush:
                self.sink.flush()  # its client is the first to know that the turn has ended
                self.run(self.session.turns.done(action, None, now()))
            else:
                self._carry_out(action)

    async def stop(self) -> None:
        """Cancel the running turns, except those being saved, and wait until all tasks have ended. After
        that, or if the caller is cancelled meanwhile, the driver sends nothing to its sink any more."""
        try:
            self.run(self.session.closed())
            self._cancel_all(subject for subject in self._tasks if not isinstance(subject, Turn))
            if tasks := [*self._tasks.values(), *self._cancelled]:
                await asyncio.wait(tasks)
        finally:
            # Sinks refer to their drivers: without this, only a garbage collection would free what both hold,
            # which may be many megabytes.
            self.sink = _NO_SINK

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        """Let running turns finish within ``grace_s`` and refuse new ones with ``error``."""
        self.run(self.session.end(error, code=_GOING_AWAY, grace_s=grace_s, now=now()))

    def _carry_out(self, action: Action) -> None:
        """Carry out an action that needs no waiting."""
        if isinstance(action, Send):
            self.sink.send(action.events)
        elif isinstance(action, Record | CountRefusal | LogFault):
            self._report(action)
        elif isinstance(action, CompileAppended):
            self._spawn(action, self._compile_appended(action))
        elif isinstance(action, CallTool):
            self._spawn(action, self._call_tool(action))
        elif isinstance(action, Inspect):
            self._spawn(action, self._inspect(action))
        elif isinstance(action, Cancel | CancelCalls):
            self._cancel(action)
        elif isinstance(action, _Beside):
            self._run_beside(action)
        elif isinstance(action, Counted):
            self.sink.counted(action.tokens)
        elif isinstance(action, Close):
            self.sink.close(action.code, action.reason)

    def _inspecting(self, turn: Turn) -> list[asyncio.Task[None]]:
        """The tasks that wait for verdicts about a turn."""
        if turn.checks is None:
            return []
        subjects = self._tasks.items()
        return [task for subject, task in subjects if isinstance(subject, Inspect) and subject.turn is turn]

    def _report(self, ended: Record | CountRefusal | LogFault) -> None:
        if isinstance(ended, CountRefusal):
            self.service.refusals[ended.code] += 1
            return
        if isinstance(ended, LogFault):
            log.error("a turn failed unexpectedly", exc_info=ended.fault)
            forget_frames(ended.fault)
            return
        origin = self.origin
        traceparent = ended.traceparent or origin.traceparent
        started_at = unix_time(ended.arrived)
        counted = self.counted_tokens or 0
        turn = EndedTurn(ended.report, ended.lane, self.caller, origin, started_at, traceparent, counted)
        content = None
        if self.service.content_observers and (source := ended.turn) is not None:
            output = tuple(source.output.items)
            content = TurnContent(source.asked.request, source.input, output, source.response)
        self.service.turn_ended(turn, content)
        self.sink.record(turn)

    def _run_beside(self, action: _Beside) -> None:
        """Begin or end work that belongs to responses, and not to a turn."""
        if isinstance(action, StartPrefill):
            self._prefill(action)
        elif isinstance(action, EndPrefill):
            self.service.prefills.cancel(self.session.tenant, action.response_id)
        elif isinstance(action, ReportOutput):
            for engine in self.service.catalog.engines:
                engine.output_grew(action.response_id)
        elif isinstance(action, ReportSteer):
            for engine in self.service.catalog.engines:
                engine.was_steered(action.response_id)
        elif isinstance(action, Compress):
            self._spawn(action, self._compress(action))
        else:
            self.service.audits.start(action.audit)

    def _prefill(self, action: StartPrefill) -> None:
        def ended(tokens: int | None) -> None:
            self.run(self.session.turns.prefilled(action, tokens))

        if not self.service.draining:
            engine = self.service.catalog.engine_of(action.prefill.job.model)
            permit = partial(self.service.require_room, self.caller)
            self.service.prefills.start(action.response_id, action.prefill, engine, ended, permit)

    def _cancel(self, action: Cancel | CancelCalls) -> None:
        """Cancel the hosted calls of a turn; and its own task and its inspections too, unless only the calls
        are meant. The task that has found out that the turn must end goes on."""
        turn, current = action.turn, asyncio.current_task()
        kinds = CallTool if isinstance(action, CancelCalls) else CallTool | Inspect

        def is_meant(subject: Subject) -> bool:
            if isinstance(subject, kinds):
                return subject.turn is turn
            return subject is turn and isinstance(action, Cancel)

        subjects = self._tasks.items()
        self._cancel_all(each for each, task in subjects if is_meant(each) and task is not current)

    def _cancel_all(self, subjects: Iterable[Subject]) -> None:
        for subject in list(subjects):
            task = self._tasks.pop(subject)
            self._cancelled.add(task)
            task.cancel()

    def _spawn(self, subject: Subject, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[subject] = task
        task.add_done_callback(partial(self._ended, subject))

    def _ended(self, subject: Subject, task: asyncio.Task[None]) -> None:
        """A task has ended: report to the session what that means for its subject. A ``CancelledError`` that
        the session has not asked for is a failure: something that the task waited for was cancelled."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(subject, Compress) and error is not None:
            self.run(self.session.turns.compressed(subject, []))  # its cache may outlive the connection
        if task in self._cancelled:
            self._cancelled.discard(task)
            return
        if error is not None:
            log.error("work for a response failed unexpectedly", exc_info=error)
            forget_frames(error)
        if self._tasks.get(subject) is not task:
            return  # the turn has another one by now
        del self._tasks[subject]
        if isinstance(subject, Turn):
            self.run(self.session.turns.unattended(subject, now()))
        elif isinstance(subject, CallTool | Inspect) and error is not None:
            self.run(self.session.turns.broken(subject.turn, now()))
        elif isinstance(subject, CompileAppended) and error is not None:
            refused = structs.replace(subject.asked, error=ServerError())
            self.run(self.session.appended(refused, now()))
        self.sink.flush()

    async def _run_turn(self, first: Work[Any]) -> None:
        """Carry out a turn's work, one piece after the other, until none follows from the last. It does not
        wait for a slow client: a finished response must be saved even if its client never reads the end."""
        work: Work[Any] | None = first
        while work is not None:
            work = self._run_after(first.turn, await self._do(work))

    def _run_after(self, turn: Turn, actions: list[Action]) -> Work[Any] | None:
        """Carry out actions from within the task of a turn, and write what they send. Returns the turn's own
        next piece of work, which this task has to do itself."""
        own: Work[Any] | None = None
        for action in actions:
            if _is_work(action) and action.turn is turn:
                own = action
            else:
                self.run([action])
        self.sink.flush()
        return own

    async def _do(self, work: Work[Any]) -> list[Action]:
        """Do a piece of a turn's work and report its outcome to the session; returns what follows. A failure
        ends this turn and no other."""
        turns = self.session.turns
        try:
            result = await self._result(work)
        except ApiError as error:
            forget_frames(error)
            return turns.failed(work, _logged(error), now())
        except LeaseLost:
            return turns.failed(work, ServerError("The response was ended elsewhere."), now())
        except Exception as error:
            log.exception("a turn failed unexpectedly")
            forget_frames(error)
            return turns.failed(work, ServerError(), now())
        return turns.done(work, result, now())

    async def _result(self, work: Work[Any]) -> Any:
        """Do a piece of a turn's work; returns what the turn waits for."""
        if isinstance(work, Generate):
            return await self._generate(work)
        if isinstance(work, Load):
            # First, so that a caller who is refused learns nothing about what is stored.
            await self.service.admit_turn(self.caller, counts=self.counted_tokens is None)
            return await self._load(work)
        if isinstance(work, CompileGrammars):
            return await self.service.compiler.check(self.session.tenant, work.grammars)
        if isinstance(work, ResolveTools):
            return self._resolve(work)
        if isinstance(work, FetchImages):
            fetched = await self.service.images.fetch(self.session.tenant, work.urls)
            decoder, size = (
                self.service.decoder,
                sum(len(each) for each in fetched.values() if isinstance(each, str)),
            )
            return await decoder.if_large(self.session.tenant, size, _with_images, work.items, fetched)
        if isinstance(work, ReadDocuments):
            return await self.service.documents.read(self.session.tenant, work)
        if isinstance(work, ListTools):
            return await self._list_tools(work)
        if isinstance(work, ClaimApprovals):
            return await self.service.store.approvals.claim(self.session.tenant, work.ids)
        if isinstance(work, CountTokens):
            self._require_allowed(work.job)
            return await self.service.catalog.engine_of(work.job.model).count(work.job, work.enough)
        assert isinstance(work, Save)
        return await self._save(work.turn, work.state)

    async def _compile_appended(self, check: CompileAppended) -> None:
        """Compile the grammars of appended items. A failure refuses the append and nothing else."""
        asked = check.asked
        try:
            await self.service.compiler.check(self.session.tenant, check.grammars)
        except ApiError as error:
            asked = structs.replace(asked, error=error)
        except Exception:
            log.exception("a grammar could not be checked")
            asked = structs.replace(asked, error=ServerError())
        self.run(self.session.appended(asked, now()))
        self.sink.flush()

    async def _compress(self, action: Compress) -> None:
        """Compress the items of earlier responses."""
        items = await self.service.decoder.in_thread(self.session.tenant, _compressed, action.states)
        self.run(self.session.turns.compressed(action, items))

    async def _inspect(self, inspect: Inspect) -> None:
        """Have safety checks inspect texts, and tell the session what they say."""
        verdicts = await inspection_runner.inspect(
            self.service.inspector, inspect.inspection, self.session.tenant
        )
        send = self._send_of(inspect.turn)
        for action in self.session.turns.inspected(inspect, verdicts, now()):
            if isinstance(action, Send):
                send(action.events)
            else:
                self.run([action])
        self.sink.flush()

    def _resolve(self, asked: ResolveTools) -> Resolved:
        """Look up the hosted tools of a request."""
        runner = self.service.tool_runner
        servers = runner.resolve(self.caller, asked.servers, asked.turn.asked.request.tools)
        return Resolved(servers, runner.answers(self.caller, asked.builtins))

    async def _list_tools(self, asked: ListTools) -> None:
        """Fetch lists of tools, and report each to the session as it ends."""
        self.sink.flush()
        async with aclosing(self.service.tool_runner.lists(self.session.tenant, asked.servers)) as lists:
            async for label, fetched in lists:
                self.run(self.session.turns.listed(asked, label, fetched, now()))
                self.sink.flush()
                if asked.turn.wait is not asked:
                    return  # its response has failed for this list

    async def _call_tool(self, action: CallTool) -> None:
        """Run a hosted call, and tell the session of its progress and its end."""
        turn, call = action.turn, action.call

        def on_progress(progress: CallProgress) -> None:
            self.run(self.session.turns.call_progressed(turn, call.id, progress))
            self.sink.flush()

        try:
            # A call that may have run is never forgotten: its item is safe before it begins.
            await self.sink.secure()
        except LeaseLost:
            return  # the response was ended elsewhere, and this driver is about to be stopped
        rules = turn.prepared.draft.attachment_rules if turn.prepared is not None else None
        outcome = await self.service.tool_runner.call(call, self.session.tenant, on_progress, rules)
        self.run(self.session.turns.call_ended(turn, call.id, outcome, now()))
        self.sink.flush()

    async def _load(self, load: Load) -> Loaded:
        tenant = self.session.tenant
        joined: Joined | None = None
        state: ResponseState | None = None
        if load.conversation_id is not None:
            joined, state = await self._join(load.conversation_id)
        elif load.response_id is not None:
            state = await self.states.find(tenant, load.response_id)
        items: dict[str, Item] = {}
        if load.item_ids:
            items = await self.service.store.item_references.find(tenant, load.item_ids, load.conversation_id)
        compared: ResponseState | None = None
        is_comparable = True
        if load.compared_id is not None:
            try:
                compared = await self.states.find(tenant, load.compared_id)
            except Unavailable:
                is_comparable = False  # the turn itself does not need it
        return Loaded(state, items, joined, compared, is_comparable)

    async def _join(self, conversation_id: str) -> tuple[Joined, ResponseState | None]:
        """A conversation with the state to continue from; without such a state, with all its items."""
        tenant, conversations = self.session.tenant, self.service.store.conversations
        thread = await conversations.thread(tenant, conversation_id)
        if thread is None:
            raise conversation_not_found(conversation_id)
        if thread.tip is None:
            return Joined(conversation_id, thread.version, since_compaction(thread.added)), None
        tip = self.session.recall(thread.tip) or await self.states.find(tenant, thread.tip)
        if tip is not None:
            return Joined(conversation_id, thread.version, thread.added), tip
        everything = await conversations.all_items(tenant, conversation_id)
        return Joined(conversation_id, thread.version, since_compaction(everything)), None

    def _require_allowed(self, job: Job) -> None:
        if job.upstream_tools is not None:
            permitted_servers.require_unbound(self.caller, job.upstream_tools)

    async def _generate(self, work: Generate) -> None:
        job = work.job
        self._require_allowed(job)
        await self._admit_images(work)
        engine = self.service.catalog.engine_of(job.model)
        if self.service.prefills.tasks:
            await self.service.prefills.end_for(job)
        emit = self._emitter(work)
        if job.settings.stop:
            emit = stop_sequences.watched(job, emit)
        if job.offer.tools:
            emit = custom_tool_inputs.checked(engine.compiler, job, emit)
        await engine.generate(job, emit)

    async def _admit_images(self, work: Generate) -> None:
        """Count the images that are new in a job towards the quota. A turn that has begun is not refused."""
        key = self.caller.key
        if key is None or key.images_per_minute is None:
            return
        if images := sum(map(image_count, work.job.input)):
            await self.service.quotas.admit_images(key, images, refuses=not work.turn.progress.has_begun)

    def _emitter(self, work: Generate) -> Emit:
        """What takes the deltas of a turn's job: their events are delivered to its client."""
        turn, emitter = work.turn, self.session.turns.emitter
        deliver: Deliver = self.sink.deliver
        if turn.is_watched:
            deliver = partial(self._deliver_watched, turn, self._send_of(turn))
        elif turn.asked.request.is_padded:
            deliver = obfuscation.padded_send(deliver)
        return emitter(work, deliver)

    def _send_of(self, turn: Turn) -> Callable[[list[Event]], None]:
        """Sends events of a turn, without waiting for its client."""
        send = self.sink.send
        return obfuscation.padded_send(send) if turn.asked.request.is_padded else send

    def _deliver_watched(
        self, turn: Turn, send: Callable[[list[Event]], None], events: list[Event]
    ) -> Awaitable[None] | None:
        """Deliver events of a turn with checks or hosted tools, and begin the inspections and calls that are
        due. Returns an awaitable while too much waits for the checks, or for the client."""
        send(events)
        if turn.checks is not None and (turn.checks.gate.has_due or turn.checks.gate.is_full):
            self.run(self.session.turns.due(turn))
            if turn.checks.gate.is_full:
                return self._deliver_inspected(turn)
        return self._begin_calls(turn)

    async def _deliver_inspected(self, turn: Turn) -> None:
        """The rest of ``_deliver_watched``, as soon as less waits for the checks."""
        while turn.checks is not None and turn.checks.gate.is_full and (tasks := self._inspecting(turn)):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if (waiting := self._begin_calls(turn)) is not None:
            await waiting

    def _begin_calls(self, turn: Turn) -> Awaitable[None] | None:
        """Begin the hosted calls that are due, and write what was sent."""
        if turn.has_due_calls:
            self.run(self.session.turns.due(turn))
        self.sink.flush()
        waiting = self.sink.room()
        return None if waiting is None else turn.stages.while_client_reads(waiting)

    async def _save(self, turn: Turn, state: ResponseState) -> None:
        store, tenant = self.service.store, self.session.tenant
        # A failed response adds nothing to its conversation: its client sends the same input again.
        joined = turn.bound.joined if not turn.has_failed else None
        appended = await self._added(joined, state)
        if turn.stores:
            # Shielded: the future is the run's, and must not be cancelled with this turn.
            lease = await asyncio.shield(self._lease) if self._lease is not None else None
            await store.responses.save(tenant, state, appended=appended, lease=lease)
        elif appended is not None:
            await store.conversations.append(tenant, state.id, appended)

    async def _added(self, joined: Joined | None, state: ResponseState) -> Appended | None:
        """What a response adds to its conversation, if it has one."""
        if joined is None:
            return None
        size = sum(len(item.raw) for item in (*state.input, *state.output))
        return await self.service.decoder.if_large(self.session.tenant, size, appended_by, joined, state)


class Exchange:
    """A client of the server with a single response: it has no deadlines but that of a shutdown."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @property
    def in_flight(self) -> int:
        return self.driver.in_flight

    def tick(self) -> float | None:
        if self.driver.service.draining:
            self.driver.run(self.driver.session.tick(now()))
        return None

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self.driver.wind_down(error, grace_s)


def _compressed(states: Sequence[ResponseState]) -> list[bytes]:
    return [state.compressed() for state in states]


def _is_work(action: Action) -> TypeGuard[Work[Any]]:
    return type(action) in _WORK  # an ``isinstance`` that fails takes ten times as long


def _with_images(items: Sequence[Item], fetched: Fetched) -> tuple[Item, ...]:
    opened = attachments.with_fetched_images(items, fetched)
    prepare(item for item, sent in zip(opened, items, strict=True) if item is not sent)
    return opened


def _logged(error: ApiError) -> ApiError:
    """The same error. Logs what operators should know about it and its client will not see."""
    if error.detail:
        log.warning("a turn failed (%s): %s", error.code, error.detail)
    return error
