"""The driver: runs what a session wants done, the same way for every transport.

One task per running turn. A transport gives a ``Sink`` that knows how to tell its client something; nothing
else differs between a socket, an SSE stream and a plain POST.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from msgspec import structs

from slipring.core.chain import item_ids
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job
from slipring.core.session.actions import (
    Action,
    Cancel,
    Check,
    CheckAppended,
    Close,
    Load,
    Record,
    Save,
    Send,
    Start,
    Weigh,
)
from slipring.core.session.loaded import Joined, Loaded
from slipring.core.session.session import Session
from slipring.core.turn.turn import Turn
from slipring.engines.constraints import call_limits
from slipring.errors import ApiError, ServerError, conversation_not_found
from slipring.protocol.events import Event
from slipring.protocol.items import Item, with_id
from slipring.protocol.timing import TurnReport
from slipring.server.access.auth import Caller
from slipring.server.clock import clock, now
from slipring.server.cluster.state_lookup import States
from slipring.server.service import Service
from slipring.server.transports import padding
from slipring.stores.base import Appended, LeaseLost, Tenure

log = logging.getLogger("slipring")
turns = logging.getLogger("slipring.turns")
"""One line per turn."""


Work = Start | Load | Check | Weigh | Save
"""What takes time."""


class Sink(Protocol):
    """How a transport tells its client something."""

    def send(self, events: list[Event]) -> None:
        """Take events in order, without waiting."""

    def flush(self) -> Awaitable[None] | None:
        """Get them out; returns what to wait for while the client cannot take more."""

    def close(self, code: int, reason: str) -> None:
        """End the connection once everything has been sent."""

    def record(self, report: TurnReport) -> None:
        """Take note of how a turn went. Its last events have been taken before."""


class _Line:
    """A line of the log that is made only if somebody reads it."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def __str__(self) -> str:
        return self._record.report.as_line(self._record.lane)


class Driver:
    """Carries out the actions of one session."""

    __slots__ = ("__weakref__", "_tasks", "_tenure", "caller", "service", "session", "sink", "states")

    def __init__(
        self,
        service: Service,
        caller: Caller,
        session: Session,
        sink: Sink,
        *,
        states: States,
        tenure: "asyncio.Future[Tenure] | None" = None,
    ) -> None:
        """``states``: where responses that the session does not remember are looked for. ``tenure``: for a
        run in the background, what has to hold when its response is saved."""
        self.service = service
        self.caller = caller
        self.session = session
        self.sink = sink
        self.states = states
        self._tenure = tenure
        self._tasks: dict[Turn | CheckAppended, asyncio.Task[None]] = {}

    def run(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sink.send(action.events)
            elif isinstance(action, Work):
                self._spawn(action.turn, self._work(action))
            elif isinstance(action, CheckAppended):
                self._spawn(action, self._check_appended(action))
            elif isinstance(action, Cancel):
                if (task := self._tasks.get(action.turn)) is not None:
                    task.cancel()
            elif isinstance(action, Record):
                turns.info("%s", _Line(action))
                self.service.count(action.report, self.caller)
                self.sink.record(action.report)
            elif isinstance(action, Close):
                self.sink.close(action.code, action.reason)

    async def stop(self) -> None:
        """The client is gone: cancel what runs and wait until it has let go."""
        self.run(self.session.closed())
        for subject, task in self._tasks.items():
            if isinstance(subject, CheckAppended):
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _spawn(self, subject: Turn | CheckAppended, work: Coroutine[Any, Any, None]) -> None:
        """Do a piece of work in a task of its own: a turn's next, or one beside all turns."""
        task = asyncio.create_task(work)
        self._tasks[subject] = task
        task.add_done_callback(partial(self._forget, subject))

    def _forget(self, subject: Turn | CheckAppended, task: asyncio.Task[None]) -> None:
        if self._tasks.get(subject) is task:
            del self._tasks[subject]

    async def _work(self, action: Work) -> None:
        """Carry out a piece of work and what follows from it; a failure is the turn's, never more."""
        turn = action.turn
        try:
            if isinstance(action, Start):
                actions = await self._generate(turn, action.job)
            elif isinstance(action, Load):
                actions = await self._load(action)
            elif isinstance(action, Check):
                await self.service.compiler.check(self.session.tenant, action.grammars)
                actions = self.session.checked(action)
            elif isinstance(action, Weigh):
                engine = self.service.catalog.engine_of(action.job.model)
                tokens = await engine.count(action.job, action.enough)
                actions = self.session.weighed(action, tokens)
            else:
                actions = await self._save(turn, action.state)
        except ApiError as error:
            actions = self.session.failed(turn, error, now())
        except LeaseLost:
            actions = self.session.failed(turn, ServerError("The response was ended elsewhere."), now())
        except Exception:
            log.exception("a turn failed unexpectedly")
            actions = self.session.failed(turn, ServerError(), now())
        await self._finish(actions)

    async def _check_appended(self, check: CheckAppended) -> None:
        """Compile what is to be appended to a response; a failure is told about it, never about more."""
        asked = check.asked
        try:
            await self.service.compiler.check(self.session.tenant, check.grammars)
        except ApiError as error:
            asked = structs.replace(asked, error=error)
        except Exception:
            log.exception("a grammar could not be checked")
            asked = structs.replace(asked, error=ServerError())
        await self._finish(self.session.appended(asked, now()))

    async def _finish(self, actions: list[Action]) -> None:
        """Do what follows from a piece of work, and wait until the client has been told."""
        self.run(actions)
        if (waiting := self.sink.flush()) is not None:
            await waiting

    async def _load(self, load: Load) -> list[Action]:
        refusal, loaded = await asyncio.gather(
            self.service.check(self.caller), self._read(load), return_exceptions=True
        )
        if refusal is not None:
            raise refusal  # whatever the store says, whoever may not ask is told nothing else
        if isinstance(loaded, BaseException):
            raise loaded
        return self.session.loaded(load.turn, loaded, now())

    async def _read(self, load: Load) -> Loaded:
        tenant = self.session.tenant
        joined: Joined | None = None
        state: ResponseState | None = None
        if load.conversation_id is not None:
            joined, state = await self._join(load.conversation_id)
        elif load.response_id is not None:
            state = await self.states.find(tenant, load.response_id)
        items = await self.service.store.responses.load_items(tenant, load.item_ids) if load.item_ids else {}
        return Loaded(state, items, joined)

    async def _join(self, conversation_id: str) -> tuple[Joined, ResponseState | None]:
        """A conversation, and the state to go on from; without one, everything that was said in it."""
        tenant, conversations = self.session.tenant, self.service.store.conversations
        thread = await conversations.thread(tenant, conversation_id)
        if thread is None:
            raise conversation_not_found(conversation_id)
        if thread.tip is None:
            return Joined(conversation_id, thread.version, _in_force(thread.added)), None
        tip = self.session.recall(thread.tip) or await self.states.find(tenant, thread.tip)
        if tip is not None:
            return Joined(conversation_id, thread.version, thread.added), tip
        everything = await conversations.all_items(tenant, conversation_id)
        return Joined(conversation_id, thread.version, _in_force(everything)), None

    async def _generate(self, turn: Turn, job: Job) -> list[Action]:
        session, flush = self.session, self.sink.flush
        send = padding.telling(turn.request, self.sink.send)
        engine = self.service.catalog.engine_of(job.model)
        async with aclosing(call_limits.generate(engine, job)) as batches:
            async for deltas in batches:
                send(session.deltas(turn, deltas))
                if (waiting := flush()) is not None:
                    before = clock()
                    await waiting
                    turn.stages.send_s += clock() - before
        return session.finished(turn, now())

    async def _save(self, turn: Turn, state: ResponseState) -> list[Action]:
        store, tenant = self.service.store, self.session.tenant
        appended = _appended(turn.joined, state) if turn.joined is not None else None
        if turn.stores:
            tenure = await self._tenure if self._tenure is not None else None
            await store.responses.save(tenant, state, appended=appended, tenure=tenure)
        elif appended is not None:
            await store.conversations.append(tenant, state.id, appended)
        return self.session.saved(turn, now())


def _appended(joined: Joined, state: ResponseState) -> Appended:
    """What a response adds to its conversation: its own items, each with an id."""
    known = len(joined.items)
    asked = (
        with_id(item, _lasting_id(item, state.id, index))
        for index, item in enumerate(state.input)
        if index >= known
    )
    return Appended(joined.conversation_id, joined.version, (*asked, *state.output))


def _in_force(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """What a conversation's context is, from all of its items: a compaction that a response has made stands
    for everything before it."""
    for index in range(len(items) - 1, -1, -1):
        place = item_ids.place_of(items[index].id or "")
        if items[index].type == "compaction" and place is not None and not place.of_input:
            return items[index:]
    return items


def _lasting_id(item: Item, response_id: str, index: int) -> str:
    """An id that no other item of a conversation has. Those that clients make up may come again."""
    is_ours = item.id is not None and item_ids.place_of(item.id) is not None
    return item.id if is_ours and item.id else item_ids.place_id(item, response_id, index)
