"""Sessions at a token server: a chain whose context the server keeps is sent its new ids only.

The server holds the context of a session as ids and KV, and appends what a request brings and what the model
emits: all of it, or all but the last id, which was never computed. Whatever it holds is known here exactly;
nothing is appended to a session whose context is not a prefix of the prompt, token for token. A request that
fails in a session before its first token is sent again with all ids.

A session belongs to the newest position of its chain. It is closed when the chain has ended (its client has
left, or its state was evicted), even if the position is still known, because histories are recognised by it;
when an answer does not end regularly; when it has been idle for too long; or to make room for another.
"""

import asyncio
import logging
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from slipring.base.errors import ApiError, ServerError, forget_frames
from slipring.core.generation import Delta, Emit, Finished, Job
from slipring.engines.remote.http_connection import HttpFailure, TimedOut
from slipring.engines.remote.replica_affinity import affinity_key
from slipring.engines.remote.retries_and_breaker import GatewayFailed, RequestFailed, Retryable
from slipring.engines.scheduling.chain_ends import gone_at_end
from slipring.engines.scheduling.loop_schedule import Loop
from slipring.engines.scheduling.replica_placement import ReplicaSchedules
from slipring.engines.tokens.job_exchange import JobExchange, Request, Send, Write
from slipring.engines.tokens.job_rendering import position_of
from slipring.engines.tokens.token_answer import TokenAnswer
from slipring.prompts.rendering import Body, EncodedIds, Rendered
from slipring.protocol import wire

log = logging.getLogger("slipring")
_PAUSE_S = 60.0
"""How long no session is opened after the server has refused one."""
_SHORT_PAUSE_S = 1.0
"""How long at first where other sessions are open: an answer that has just ended may have taken the room."""
_EARLY_S = 5.0
"""A session is given up this long before the server ends it, so that no request meets its end."""
_CLOSING_S = 2.0
"""How long to wait until the server has closed sessions: those that make room for another, and all of them
when the engine is closed."""
_REVIEW_S = 15.0
"""How often sessions are looked at that are idle."""
_SPARED_S = 60.0
"""A session that has been idle for no longer is closed only for another's sake. After so long a pause it does
not matter that the next turn sends its context whole."""
_PATIENCE_S = 10.0
"""How long a turn waits for the server before it is sent: until a session has read what it reads ahead, and
until a new one is open. Then the turn does without that session."""


class SessionProtocol(NamedTuple):
    """How a kind of server opens and closes sessions, and what it keeps. Failures are ``ApiError`` or
    ``HttpFailure``."""

    maker: str
    """What the server is, for messages: "SGLang"."""
    open: Callable[[str, str], Awaitable[None]] | None
    """Opens the session with an id, for a chain with an affinity key; None if the first request does."""
    close: Callable[[str, str], Awaitable[None]]
    keeps_last: bool
    """Whether the server keeps the last id that a request emits."""
    is_stuck: Callable[[], Awaitable[bool]] | None = None
    """Whether the server answers nobody, although requests wait, because its sessions have taken the places
    of running requests; None if they take none."""


class Mismatch(ServerError):
    """The server has read another prompt than the one that was meant."""


class Addressed(NamedTuple):
    """A session as a request names it, and the ids to send."""

    id: str
    held: int
    """How many ids the server holds already; 0 in a new session."""
    pieces: list[bytes]
    """The ids that it does not hold, as elements of a JSON array."""


SendToSession = Callable[[Addressed], Awaitable[None]]
"""Sends ids to a session, without an answer. Raises ``ApiError`` or ``HttpFailure``."""


class Session:
    """A session at the server, and the context that the server holds in it."""

    __slots__ = (
        *("body", "end", "id", "is_busy", "later_ids", "limit", "loop", "missing_ids"),
        *("reading", "route", "since", "tenant", "tokens", "used_at"),
    )

    def __init__(self, job: Job, loop: Loop | None, now: float) -> None:
        self.id = secrets.token_hex(16)
        self.tenant = job.tenant
        self.loop = loop
        """The loop of its latest turn, if a schedule knows the loops. It goes on also with turns that are not
        in the session, and its key changes with each."""
        self.route = affinity_key(job)
        """What all its requests are routed by."""
        self.used_at = now
        self.is_busy = True
        self.tokens = 0
        """What it holds, or will hold when the running turn has been prefilled."""
        self.since = 0
        """The length of the context that its latest turn has continued."""
        self.body: weakref.ref[Body] | None = None
        """Of the position that the session belongs to; None while a turn runs."""
        self.end: weakref.ref[object] | None = None
        """Of what is gone when the chain of that position has ended."""
        self.later_ids: list[int] = []
        """What the server holds after that position: the id that ended the answer, and what it has read
        ahead."""
        self.missing_ids: list[int] = []
        """The last ids of that position, if the server does not hold them; then ``later_ids`` is empty."""
        self.limit: asyncio.Timeout | None = None
        """Ends the request of a turn that has no token yet."""
        self.reading: asyncio.Task[None] | None = None
        """Reads ahead. It is cancelled only when the session is given up: the server then forgets the whole
        context."""


class _Lacking(NamedTuple):
    """What there is too little of: sessions, or tokens."""

    needed: int
    weight: Callable[[Session], int]
    """How much of it a session has."""


class Lease:
    """A turn's exclusive use of a session. ``close`` ends the session unless ``keep`` was called."""

    def __init__(self, sessions: "Sessions", session: Session, addressed: Addressed) -> None:
        self._sessions = sessions
        self._session = session
        self._is_kept = False
        self.addressed = addressed

    def wait(self) -> asyncio.Timeout:
        """A block that ends with ``TimeoutError`` if the session is given up before ``begun`` was called."""
        self._session.limit = asyncio.timeout(None)
        return self._session.limit

    def begun(self) -> None:
        """The answer has begun."""
        self._session.limit = None

    def keep(
        self, position: Rendered, closing_ids: list[int], ends_with: object, *, has_answer: bool
    ) -> None:
        """Bind the session to the position where the turn has ended, after which the server has emitted
        ``closing_ids``. ``ends_with``: is gone when the chain has ended. ``has_answer``: what the server
        emitted belongs to the chain; a warmup has none."""
        self._is_kept = True
        self._sessions._release(self._session, position, closing_ids, ends_with, has_answer=has_answer)

    def close(self) -> None:
        if not self._is_kept:
            self._sessions._discard(self._session)


class Sessions:
    """The open sessions of one engine: on each replica at most ``most``, which hold at most ``most_tokens``
    tokens.

    When there is no room, for another one or for what a turn adds to one, the tenant that has most of what is
    short loses the session that it has not used for longest. If a schedule knows the loops, the session used
    longest ago of those whose loops are silent makes room; else the latest of a tenant that has more than the
    one that asks; else no session is opened, because among agents that take turns the session used longest
    ago is the one that is needed next, and one that cannot grow is closed. Sessions whose turn runs are never
    closed for another's sake, and none is where that would not make enough room.

    A session of a silent loop is closed after a while even if nothing here needs its room: nobody else at the
    server can use what it holds.
    """

    def __init__(
        self,
        protocol: SessionProtocol,
        *,
        most: int,
        most_tokens: int | None,
        idle_s: float,
        schedule: ReplicaSchedules | None,
    ) -> None:
        """``schedule``: decides whose contexts are kept, if there is one, and knows the replicas."""
        self._protocol = protocol
        self._most = most
        self._most_tokens = most_tokens
        self._idle_s = idle_s
        self._schedule = schedule
        self._open: dict[str, Session] = {}
        self._by_body: dict[int, Session] = {}
        """By the identity of the body; an entry is removed before that is free."""
        self._closing: dict[asyncio.Task[None], Session] = {}
        """What tells the server which sessions have ended. Until it knows, they take its room."""
        self._is_refused = False
        """Whether sessions are not used any more."""
        self._pauses: dict[str, tuple[float, float]] = {}
        """Until when no session is opened on a replica, and how long that pause is."""
        self._refusal = ""
        """Why none is opened, where that is so."""
        self._loop = asyncio.get_running_loop()
        self._review: asyncio.TimerHandle | None = None
        """Looks for idle sessions again, while there are any sessions."""
        self._asking: asyncio.Task[None] | None = None
        """Asks the server whether it answers nobody."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def refusal(self) -> str:
        """Why no session is opened at present, on some replica at least, in one line; empty if all may be."""
        now = time.monotonic()
        is_paused = any(now < until for until, _ in self._pauses.values())
        return self._refusal if self._is_refused or is_paused else ""

    async def lease(self, job: Job, sent: Rendered, loop: Loop | None) -> Lease | None:
        """The session that the job's parent left or, for a chain that is continued for the first time, a new
        one. None if the whole prompt is to be sent without a session. A server that does not answer delays
        this, and does not fail it. ``loop``: the one that the job belongs to, if that is known."""
        self._close_idle()
        if job.parent is None:
            return None  # perhaps the only turn; its context enters the cache that all requests share
        found = None if job.fork else self._find(job.tenant, sent.body)
        if found is not None and found[0].reading is not None:
            await self._until_read(found[0], found[0].reading)
            found = self._find(job.tenant, sent.body)
        parent = position_of(job)
        since = 0 if parent is None else parent.total
        if found is not None and not found[0].is_busy:
            session, steps = found
            self._unbind(session)
            addressed = appended_by(session, steps)
            if addressed is not None and (closing := self._grow(session, sent.total)) is not None:
                session.is_busy, session.since, session.loop = True, since, loop
                await self._until_closed(session, closing)
                return Lease(self, session, addressed)
            self._discard(session)
        if job.recognised and parent is not None:
            self._discard_replaced(job.tenant, parent.body)
        return await self._new(job, sent, since, loop)

    def _discard_replaced(self, tenant: str, context: Body) -> None:
        """Close the sessions whose latest answer a client has changed: its history now goes on from the
        context before that answer."""
        for session in [each for each in self._open.values() if each.tenant == tenant and not each.is_busy]:
            answered = session.body() if session.body is not None else None
            if answered is not None and session.since < context.total and answered.continues(context):
                self._discard(session)

    def has(self, job: Job, body: Body) -> bool:
        """Whether a session belongs to the position, with this body, of the job's parent."""
        return not job.fork and self._find(job.tenant, body) is not None

    async def read_ahead(self, job: Job, sent: Rendered, send: SendToSession) -> bool:
        """Send what a session does not hold yet of a context with which the next turn will probably begin.
        Returns whether it was read. If the caller is cancelled, it is read nevertheless, and the next turn
        waits for it."""
        found = None if job.fork else self._find(job.tenant, sent.body)
        if found is None or found[0].is_busy:
            return False
        session, steps = found
        addressed = appended_by(session, steps)
        if addressed is None or (closing := self._grow(session, sent.total)) is None:
            return False
        later_ids = [id for step in steps for id in step.ids]

        async def send_then() -> None:
            await self._until_closed(session, closing)
            await send(addressed)

        session.is_busy = True
        session.reading = self._loop.create_task(self._read(session, later_ids, send_then))
        await asyncio.shield(session.reading)
        return session.id in self._open

    async def _until_read(self, session: Session, reading: asyncio.Task[None]) -> None:
        """Wait until a session has read what it reads ahead. If that takes too long, the session is closed
        instead."""
        done, _ = await asyncio.wait([reading], timeout=_PATIENCE_S)
        if not done and session.id in self._open:
            log.info("%s takes too long to read ahead in a session, which is closed", self._protocol.maker)
            self._discard(session)
            reading.cancel()

    async def _read(
        self, session: Session, later_ids: list[int], send: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await send()
        except asyncio.CancelledError:
            # ``_until_read`` has closed the session: the caller goes on without it and is not cancelled.
            return
        except (HttpFailure, ApiError) as error:
            log.info("%s has read nothing ahead in a session: %s", self._protocol.maker, error)
            forget_frames(error)
            self._discard(session)
        else:
            session.later_ids, session.missing_ids = later_ids, []
        finally:
            session.is_busy, session.reading, session.used_at = False, None, time.monotonic()
            self._discard_if_refused(session)

    def failed(self, session: Addressed, route: str, error: Exception, *, has_begun: bool) -> None:
        """A turn in a session has failed: what the server holds may be another context than it was sent, or
        it has refused to open one, if the answer has not begun."""
        if isinstance(error, Mismatch):
            self._distrust()
        elif not session.held and not has_begun:
            self._pause(error, route)

    def _pause(self, error: Exception, route: str) -> None:
        """Open no session for a while where this one was to be, because the server has refused it."""
        log.warning("%s opens no session: %s", self._protocol.maker, error)
        now, replica = time.monotonic(), self._replica_of(route)
        self._pauses = {name: pause for name, pause in self._pauses.items() if pause[0] + _PAUSE_S > now}
        length = _PAUSE_S
        if self._on(replica) and not isinstance(error, TimedOut):
            length = min(2 * self._pauses.get(replica, (0.0, _SHORT_PAUSE_S / 2))[1], _PAUSE_S)
        self._pauses[replica] = now + length, length
        self._refusal = str(error)

    def release(self, loop: Loop) -> None:
        """Close the session of a loop whose context need not be kept any longer. It may be reading ahead."""
        for session in [each for each in self._open.values() if each.loop is loop]:
            if not session.is_busy or session.reading is not None:
                self._discard(session)

    def _distrust(self) -> None:
        """Use no more sessions: what the server holds in one is not what was sent. None is opened, and those
        that are in use are closed after that."""
        log.error(
            "%s's session holds another context than it was sent; sessions are not used any more",
            self._protocol.maker,
        )
        self._is_refused = True
        self._refusal = "the server held another context than it was sent, so they are not used again"
        for session in [each for each in self._open.values() if not each.is_busy]:
            self._discard(session)

    async def close(self) -> None:
        """Close all sessions, as far as the server answers."""
        if self._review is not None:
            self._review.cancel()
        if self._asking is not None:
            self._asking.cancel()
        for session in list(self._open.values()):
            self._discard(session)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSING_S)
        for task in self._closing:
            task.cancel()

    async def _new(self, job: Job, sent: Rendered, since: int, loop: Loop | None) -> Lease | None:
        now = time.monotonic()
        session = Session(job, loop, now)
        replica = self._replica_of(session.route)
        if self._is_refused or now < self._pauses.get(replica, (0.0, 0.0))[0]:
            return None
        if self._make_room(sent.total, replica, job.tenant) is None:
            return None
        session.tokens, session.since = sent.total, since
        self._open[session.id] = session
        try:
            if closing := self._closing_on(replica):  # the server may have no room before they are closed
                await asyncio.wait(closing, timeout=_CLOSING_S)
            if self._protocol.open is not None:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._protocol.open(session.id, session.route)
        except (HttpFailure, ApiError) as error:
            self._open.pop(session.id, None)  # the engine may have been closed meanwhile
            self._pause(error, session.route)
            return None
        except TimeoutError:
            self._pause(TimedOut("timed out"), session.route)
            self._discard(session)  # perhaps it is open in the meantime
            return None
        except BaseException:
            self._discard(session)
            raise
        return Lease(self, session, Addressed(session.id, 0, sent.json_pieces()))

    def _find(self, tenant: str, body: Body) -> tuple[Session, list[EncodedIds]] | None:
        """The session of the nearest ancestor that has one, with the steps since then, oldest first."""
        steps: list[EncodedIds] = []
        for node in body.lineage():
            session = self._by_body.get(id(node))
            if session is not None and session.tenant == tenant:
                assert session.body is not None
                assert session.body() is node
                return session, steps[::-1]
            steps.append(node.step)
        return None

    def _replica_of(self, route: str) -> str:
        """The replica that requests with an affinity key reach."""
        return "" if self._schedule is None else self._schedule.replica_of(route)

    def _on(self, replica: str) -> list[Session]:
        return [each for each in self._open.values() if self._replica_of(each.route) == replica]

    def _closing_on(self, replica: str) -> dict[asyncio.Task[None], Session]:
        return {task: each for task, each in self._closing.items() if self._replica_of(each.route) == replica}

    def _grow(self, session: Session, total: int) -> list[asyncio.Task[None]] | None:
        """Count so many tokens for a session, and close others if they need the room. Returns what the server
        must have closed before; None if there cannot be room, and then nothing has changed."""
        replica = self._replica_of(session.route)
        closing = self._make_room(total - session.tokens, replica, session.tenant, session)
        if closing is not None:
            session.tokens = total
        return closing

    async def _until_closed(self, session: Session, closing: list[asyncio.Task[None]]) -> None:
        """Wait until the server has closed the sessions that make room for one that grows, which is given up
        if the caller is cancelled."""
        if not closing:
            return
        try:
            await asyncio.wait(closing, timeout=_CLOSING_S)
        except BaseException:
            self._discard(session)
            raise

    def _make_room(
        self, tokens: int, replica: str, tenant: str, grown: Session | None = None
    ) -> list[asyncio.Task[None]] | None:
        """Close sessions until a tenant may have so many further tokens, in the session that grows or in a
        new one. Returns what the server must have closed before it has the room; None, and none is closed, if
        that would not be enough."""
        rest, chosen = self._on(replica), list[Session]()
        lacking = self._lacking(rest, tokens, grown)
        idle = []
        if lacking is not None:
            idle = [each for each in rest if not each.is_busy and each is not grown]
            if self._lacking([each for each in rest if each not in idle], tokens, grown) is not None:
                return None
        silent = [each for each in idle if self._is_silent(each)]
        silent.sort(key=lambda session: session.used_at, reverse=True)
        while lacking is not None:
            closed = silent.pop() if silent else self._yielding(rest, tenant, lacking, grown)
            if closed is None:
                return None
            rest.remove(closed)
            chosen.append(closed)
            lacking = self._lacking(rest, tokens, grown)
        for each in chosen:
            self._discard(each)
        # Those that were closed a moment ago, for whatever reason, may still have the room.
        closing = self._closing_on(replica)
        has_room = self._lacking([*rest, *closing.values()], tokens, grown) is None
        return [] if has_room else list(closing)

    def _lacking(self, there: list[Session], tokens: int, grown: Session | None) -> _Lacking | None:
        """What those that are open on a replica leave too little of; None if there is enough."""
        if grown is None and len(there) >= self._most:
            return _Lacking(1, lambda _: 1)
        held = sum(session.tokens for session in there)
        if self._most_tokens is not None and held + tokens > self._most_tokens:
            return _Lacking(tokens, lambda session: session.tokens)
        return None

    def _yielding(
        self, there: list[Session], tenant: str, lacking: _Lacking, grown: Session | None
    ) -> Session | None:
        """The idle session of those on a replica that makes room for a tenant; None if none does."""
        idle = [session for session in there if not session.is_busy and session is not grown]
        weights = {tenant: 0}
        for session in there:
            weights[session.tenant] = weights.get(session.tenant, 0) + lacking.weight(session)
        if self._schedule is None:
            return min(idle, key=lambda each: (-weights[each.tenant], each.used_at), default=None)
        idle = [each for each in idle if weights[each.tenant] > weights[tenant] + lacking.needed]
        idle.reverse()  # the one that was opened last is the first of its tenant
        return max(idle, key=lambda session: weights[session.tenant], default=None)

    def _is_silent(self, session: Session) -> bool:
        """Whether the loop of an idle session has probably ended; False if no schedule knows the loops."""
        if self._schedule is None or session.loop is None:
            return False
        return self._schedule.is_silent(session.loop, self._loop.time())

    def _release(
        self,
        session: Session,
        position: Rendered,
        closing_ids: list[int],
        ends_with: object,
        *,
        has_answer: bool,
    ) -> None:
        """End a turn: its session belongs to the position now."""
        self._discard_if_refused(session)
        if session.id not in self._open:
            return
        body = position.body
        session.is_busy, session.used_at = False, time.monotonic()
        session.later_ids, session.missing_ids = closing_ids, []
        if has_answer and not self._protocol.keeps_last:
            session.later_ids = closing_ids[:-1]
            session.missing_ids = [] if closing_ids else list(body.step.ids[-1:])
        session.tokens = position.total + len(session.later_ids) - len(session.missing_ids)
        key = id(body)
        session.body = weakref.ref(body, lambda _: self._dropped(key, session))
        # The position may be known for longer than its chain goes on: histories are recognised by it.
        session.end = weakref.ref(ends_with, lambda _: self._dropped(key, session))
        if (former := self._by_body.get(key)) is not None:  # of another chain, which has come to the same
            self._discard(former)
        self._by_body[key] = session
        if self._grow(session, session.tokens) is None:
            self._discard(session)
        self._review_later()

    def _dropped(self, key: int, session: Session) -> None:
        """A position is gone, or its chain has ended, in whichever thread the last reference was."""
        # A turn that takes the session meanwhile, in the event loop's thread, keeps it.
        if self._by_body.get(key) is session and self._by_body.pop(key, None) is not None:
            try:
                self._loop.call_soon_threadsafe(self._discard, session)
            except RuntimeError:  # the loop has closed, and the engine with it
                return

    def _unbind(self, session: Session) -> None:
        body = session.body() if session.body is not None else None
        if body is not None and self._by_body.get(id(body)) is session:
            self._by_body.pop(id(body), None)  # its chain may end now, in another thread
        session.body = None

    def _review_later(self) -> None:
        if self._review is None and self._open:
            self._review = self._loop.call_later(_REVIEW_S, self._reviewed)

    def _reviewed(self) -> None:
        self._review = None
        self._close_idle()
        if self._protocol.is_stuck is not None and self._asking is None:
            self._asking = self._loop.create_task(self._free_places(self._protocol.is_stuck))
        self._review_later()

    async def _free_places(self, is_stuck: Callable[[], Awaitable[bool]]) -> None:
        """Use half as many sessions from now on if the server answers nobody because of them. Other slipring
        servers may have sessions there as well."""
        try:
            if not await is_stuck() or not self._open or self._closing:
                return  # what is being closed will make room
        except (HttpFailure, ApiError):
            return  # perhaps it does not tell
        finally:
            self._asking = None
        self._most = len(self._open) // 2
        log.warning(
            "%s answers nobody: its sessions have taken the places of all requests that may run; there are at"
            " most %d from here now",
            *(self._protocol.maker, self._most),
        )
        if not self._most:
            self._is_refused = True
            self._refusal = "its sessions took the places of all requests that may run"
        by_use = sorted(self._open.values(), key=lambda session: (session.is_busy, session.used_at))
        for session in by_use[: len(by_use) - self._most]:
            self._give_up(session)

    def _give_up(self, session: Session) -> None:
        """End a session at once, unless its answer has begun. Its turn sends everything then."""
        if session.reading is not None:
            self._discard(session)
            session.reading.cancel()
        elif not session.is_busy:
            self._discard(session)
        elif session.limit is not None:
            session.limit.reschedule(self._loop.time())

    def _close_idle(self) -> None:
        """Close the sessions that have been idle for too long, and those of silent loops."""
        now = time.monotonic()
        oldest = now - max(self._idle_s - _EARLY_S, self._idle_s / 2)
        for session in [each for each in self._open.values() if not each.is_busy]:
            if session.used_at < oldest or (session.used_at < now - _SPARED_S and self._is_silent(session)):
                self._discard(session)

    def _discard(self, session: Session) -> None:
        """Forget a session, and tell the server that it has ended."""
        if self._open.pop(session.id, None) is None:
            return
        self._unbind(session)
        task = self._loop.create_task(self._report_end(session))
        self._closing[task] = session
        task.add_done_callback(self._closing.pop)

    def _discard_if_refused(self, session: Session) -> None:
        if self._is_refused:
            self._discard(session)

    async def _report_end(self, session: Session) -> None:
        try:
            await self._protocol.close(session.id, session.route)
        except (HttpFailure, ApiError) as error:
            # The server closes it by itself when it has been idle for too long.
            log.info("a session could not be closed at %s: %s", self._protocol.maker, error)


def appended_by(session: Session, steps: list[EncodedIds]) -> Addressed | None:
    """The ids of a prompt after those that a session holds; None if the session does not hold the prompt's
    beginning, or holds all of it."""
    held = session.later_ids
    pieces = [_encoded(session.missing_ids)] if session.missing_ids else []
    if not held:
        pieces += [step.json for step in steps if step.json]
    else:
        ids = [id for step in steps for id in step.ids]
        if len(ids) <= len(held) or ids[: len(held)] != held:
            return None
        pieces.append(_encoded(ids[len(held) :]))
    return Addressed(session.id, session.tokens, pieces) if pieces else None


def _encoded(ids: Iterable[int]) -> bytes:
    return wire.encode(list(ids))[1:-1]


class SessionExchange(JobExchange):
    """Sends the new ids in a session; or, if there is none or it fails before its first token, all ids. That
    includes a session whose replica is gone: routers send a whole prompt to another one."""

    def __init__(
        self,
        send: Send,
        job: Job,
        write: Write,
        answer: TokenAnswer,
        sessions: Sessions,
        sent: Rendered,
        write_new: Callable[[Addressed], Request],
    ) -> None:
        """``sent``: the context. ``write_new``: writes a request with the ids that a session lacks."""
        super().__init__(send, job, write, answer)
        self._sessions = sessions
        self._sent = sent
        self._write_new = write_new
        self._lease: Lease | None = None

    async def prepare(self) -> None:
        self._lease = await self._sessions.lease(self._job, self._sent, self.loop)

    async def attempt(self, emit: Emit, begin: Callable[[], None]) -> None:
        if (lease := self._lease) is not None:

            def begun() -> None:
                lease.begun()
                begin()

            try:
                async with lease.wait() as limit:
                    await self.send(self._write_new(lease.addressed), emit, begun)
                return
            except TimeoutError:
                if not limit.expired():
                    raise
                self.close()
            except ApiError as error:
                self.close()
                if isinstance(error, Retryable) and not isinstance(error, RequestFailed | GatewayFailed):
                    raise
                has_begun = self._answer.has_begun
                self._sessions.failed(lease.addressed, affinity_key(self._job), error, has_begun=has_begun)
                if has_begun:
                    raise
                forget_frames(error)
        await super().attempt(emit, begin)

    def keep(self, last: list[Delta]) -> None:
        finished, closing_ids = last[-1], self._answer.closing_ids
        if self._lease is None or closing_ids is None:
            return
        if isinstance(finished, Finished) and isinstance(position := finished.position, Rendered):
            self._lease.keep(
                position, closing_ids, gone_at_end(self._job, position), has_answer=self._job.generate
            )

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None
