"""What all drivers share: running the actions of the state machine, and waiting for operations."""

import abc
import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from slipring.mcp.failures import (
    ConnectionLost,
    HttpRejected,
    Malformed,
    McpFailure,
    ProtocolFailure,
    TimedOut,
    TooLarge,
    Unreachable,
)
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.json_rpc import INTERNAL_ERROR, decode_messages
from slipring.mcp.protocol.session import (
    Abandon,
    Action,
    Agreement,
    Finish,
    McpSession,
    ProgressUpdate,
    Report,
    Send,
    State,
    Subscribed,
    ToolsChanged,
)
from slipring.mcp.protocol.tools import Tool, ToolList, ToolResult

_log = logging.getLogger(__name__)

OnProgress = Callable[[ProgressUpdate], None]
_PROGRESS_INTERVAL_S = 0.05
"""Progress that comes faster is not handed on. It still counts as a sign of life."""
_LISTEN_RETRY_S = (1.0, 60.0)
_PASSING_STATUSES = frozenset({408, 425, 429})
_LASTING_STATUSES = frozenset({501, 505})
"""Those above 500 that do not pass. The others are what servers, and the proxies before them, answer while
they start, are full or are replaced: some have numbers of their own."""


class _Wait:
    """One caller that waits for an operation."""

    def __init__(self, progress: OnProgress | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()
        self.on_news: Callable[[], None] | None = None
        self._progress = progress
        self._reported_at = -1.0

    def report(self, update: ProgressUpdate) -> None:
        now = self.loop.time()
        if self.on_news is not None:
            self.on_news()
        if self._progress is not None and now - self._reported_at >= _PROGRESS_INTERVAL_S:
            self._reported_at = now
            try:
                self._progress(update)
            except Exception:
                _log.exception("a progress callback failed")


class Connection(abc.ABC):
    """One session with one server. ``open`` before use; ``close`` ends whatever still runs.

    A caller that is cancelled while it waits has its request cancelled at the server.
    """

    def __init__(
        self,
        session: McpSession,
        limits: McpLimits,
        on_tools_changed: Callable[[], None],
        on_unheard: Callable[[], None],
    ) -> None:
        """``on_tools_changed``: called when the server announces it. ``on_unheard``: called at the beginning
        and at the end of each time in which it could not be heard."""
        self.session = session
        self.limits = limits
        self._on_tools_changed = on_tools_changed
        self._on_unheard = on_unheard
        self._hears = False
        self._has_missed = False
        """Whether a stream of announcements has ended, or was refused."""
        self._waits: dict[int, _Wait] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unasked_bytes = 0
        self._callers = 0
        self._no_callers = asyncio.Event()
        self._no_callers.set()

    @property
    def is_usable(self) -> bool:
        return self.session.state is State.READY

    @property
    def is_listening(self) -> bool:
        """Whether the server can announce changes on it now."""
        return self._hears and self.is_usable

    @property
    def agreement(self) -> Agreement:
        assert self.session.agreement is not None, "not open"
        return self.session.agreement

    async def open(self) -> Agreement:
        """Connect and agree on a version, unless both are known. On failure everything is closed again."""
        if self.is_usable:
            return self.agreement
        try:
            async with asyncio.timeout(self.limits.handshake_timeout_s):
                await self._open()
                operation, actions = self.session.start()
                agreement = await self._wait(operation, actions, self.limits.handshake_timeout_s)
                await self._opened()
        except TimeoutError:
            await self.close()
            raise TimedOut(
                "the MCP server did not complete the handshake in time"
            ).before_the_call() from None
        except McpFailure as failure:
            await self.close()
            raise failure.before_the_call() from None
        except BaseException:
            await self.close()
            raise
        assert isinstance(agreement, Agreement)
        return agreement

    async def list_tools(self) -> ToolList:
        """Fetch all tools. Raises ``McpFailure``."""
        operation, actions = self.session.list_tools()
        with self._calling():
            found = await self._wait(operation, actions, self.limits.list_timeout_s)
        assert isinstance(found, ToolList)
        return found

    async def call(
        self, name: str, arguments: bytes, tool: Tool | None = None, progress: OnProgress | None = None
    ) -> ToolResult:
        """Call a tool. ``tool``: its definition, needed for the headers of the newer revision. Raises
        ``McpFailure``, whose ``outcome`` says whether the call may have run."""
        headers = tool.param_headers if tool is not None else ()
        operation, actions = self.session.call_tool(name, arguments, headers)
        limits = self.limits
        with self._calling():
            found = await self._wait(operation, actions, limits.call_timeout_s, limits.call_total_s, progress)
        assert isinstance(found, ToolResult)
        return found

    async def close(self) -> None:
        """End the session. Callers that wait get ``ConnectionLost``."""
        self._run(self.session.closed(ConnectionLost, "the connection to the MCP server was closed"))
        await self._close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def retire(self) -> None:
        """Close when the last caller has its answer."""
        await self._no_callers.wait()
        await self.close()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._callers += 1
        self._no_callers.clear()
        try:
            yield
        finally:
            self._callers -= 1
            if not self._callers:
                self._no_callers.set()

    # For drivers.

    @abc.abstractmethod
    async def _open(self) -> None:
        """Make the connection, so that messages can be sent. May raise ``McpFailure``."""

    async def _opened(self) -> None:  # noqa: B027
        """The handshake has ended well. Drivers that have something to do then override this."""

    @abc.abstractmethod
    async def _close(self) -> None:
        """Release the connection. May be called twice."""

    @abc.abstractmethod
    def _send(self, send: Send) -> None:
        """Send a message without waiting."""

    def _abandon(self, request_id: int) -> None:  # noqa: B027
        """Stop reading the response to a request, if it has one of its own."""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A bug in a task must not leave callers waiting."""
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            _log.error("a connection to an MCP server failed: %s", type(bug).__name__, exc_info=bug)
            self._end(ConnectionLost, "the connection to the MCP server failed")

    def _receive(self, data: bytes, request_id: int | None = None) -> None:
        """Take one message, or a batch. Raises ``Malformed``, ``TooLarge``.

        What comes on a channel that all requests share counts until something has been finished.
        """
        if request_id is None:
            self._unasked_bytes += len(data)
            if self._unasked_bytes > self.limits.max_stream_bytes:
                raise TooLarge(f"the MCP server sent more than {self.limits.max_stream_bytes} bytes unasked")
        for message in decode_messages(data):
            self._run(self.session.receive(message, request_id))

    def _end(self, kind: type[McpFailure], reason: str) -> None:
        """The connection is gone, or is given up. What changes from now on is not announced."""
        was_usable = self.is_usable
        self._run(self.session.closed(kind, reason))
        if was_usable and self.agreement.announces_tool_changes:
            self._on_unheard()

    def _heard(self) -> None:
        """The server can announce changes from now on."""
        if self._has_missed:
            self._on_unheard()
        self._hears = True

    async def _listen(self) -> None:
        """Read the server's announcements for as long as the session lasts. While a server refuses every
        stream from the first on, no change was missed: its list stays fresh until its time to live ends."""
        shortest, longest = _LISTEN_RETRY_S
        pause = shortest
        loop = asyncio.get_running_loop()
        while self.is_usable:
            began, has_stood, may_pass = loop.time(), True, True
            try:
                await self._listen_once()
            except McpFailure as failure:
                may_pass = _may_pass(failure)
                is_refusal = isinstance(failure, HttpRejected | ProtocolFailure | Unreachable)
                has_stood = self._hears or not (is_refusal or isinstance(failure, Malformed))
            if not self.is_usable:
                return
            self._hears = False
            if has_stood or (self._has_missed and not may_pass):
                self._on_unheard()  # the second has no end
            if not may_pass:
                return
            self._has_missed = True
            pause = shortest if loop.time() - began > longest else min(2 * pause, longest)
            await asyncio.sleep(pause)

    async def _listen_once(self) -> None:
        """Hold one subscription, of revision 2026-07-28, until it ends. Raises ``McpFailure``."""
        operation, actions = self.session.listen()
        await self._wait(operation, actions, None)

    def _run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Abandon(request_id):
                    self._abandon(request_id)
                case Report(operation, update):
                    if (wait := self._waits.get(operation)) is not None:
                        wait.report(update)
                case Finish(operation, result):
                    self._finish(operation, result)
                case ToolsChanged():
                    self._on_tools_changed()
                case Subscribed():
                    self._heard()

    def _finish(self, operation: int, result: Any) -> None:
        self._unasked_bytes = 0
        wait = self._waits.get(operation)
        if wait is None or wait.done.done():
            return
        if isinstance(result, McpFailure):
            wait.done.set_exception(result)
        else:
            wait.done.set_result(result)

    async def _wait(
        self,
        operation: int,
        actions: list[Action],
        quiet_s: float | None,
        total_s: float | None = None,
        progress: OnProgress | None = None,
    ) -> Any:
        """Run the first actions of an operation and wait for its end.

        ``quiet_s`` begins again with every progress if there is a ``total_s``, which does not.
        """
        wait = self._waits[operation] = _Wait(progress)
        last = None if total_s is None else wait.loop.time() + total_s
        try:
            async with asyncio.timeout(quiet_s) as timeout:
                if quiet_s is not None and last is not None:
                    wait.on_news = lambda: timeout.reschedule(min(wait.loop.time() + quiet_s, last))
                self._run(actions)
                return await wait.done
        except TimeoutError:
            outcome = self.session.outcome_if_lost(operation)
            self._run(self.session.cancel(operation, "timed out"))
            raise TimedOut("the MCP server did not answer in time", outcome) from None
        except asyncio.CancelledError:
            self._run(self.session.cancel(operation, "cancelled"))
            raise
        finally:
            del self._waits[operation]
            wait.on_news = None  # it refers to the wait, which holds the result
            if wait.done.done() and not wait.done.cancelled():
                wait.done.exception()  # retrieved, even if a cancellation came first


def _may_pass(failure: McpFailure) -> bool:
    """Whether a server that could not be listened to may allow it later."""
    if isinstance(failure, HttpRejected):
        status = failure.status
        return status in _PASSING_STATUSES or (status >= 500 and status not in _LASTING_STATUSES)
    if isinstance(failure, ProtocolFailure):
        return failure.code == INTERNAL_ERROR
    return isinstance(failure, ConnectionLost | Unreachable | TooLarge)
