"""The MCP servers that slipring talks to: sessions kept and renewed, lists kept while they are fresh, calls
never repeated.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from slipring import __version__
from slipring.mcp import result_redaction
from slipring.mcp.credentials import NO_CREDENTIAL, Credential
from slipring.mcp.failures import (
    ConnectionLost,
    HttpRejected,
    McpFailure,
    NoStreamableHttp,
    Outcome,
    ProtocolFailure,
    RequestRefused,
    SessionExpired,
)
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.json_rpc import HEADER_MISMATCH, UNSUPPORTED_VERSION
from slipring.mcp.protocol.session import Agreement, McpSession
from slipring.mcp.protocol.tools import Tool, ToolList, ToolResult
from slipring.mcp.servers import HttpServer, McpServer, StdioServer
from slipring.mcp.transports.addresses import NO_REGISTERED, RegisteredAddresses
from slipring.mcp.transports.connection import Connection, OnProgress
from slipring.mcp.transports.http_transports import (
    Endpoint,
    HttpSseConnection,
    StreamableHttpConnection,
    WebClient,
)
from slipring.mcp.transports.stdio import StdioConnection

_log = logging.getLogger(__name__)
_encode = msgspec.json.encode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MOST_LOGGED = 5

_Key = tuple[str, str, str]
_T = TypeVar("_T")


class CachedList:
    """The list of a server: that of one caller, or one that all callers may be given."""

    def __init__(self) -> None:
        self._tools: ToolList | None = None
        self._fresh_until = 0.0
        self.changes = 0
        """How often the server announced that its list changed."""

    def fresh(self) -> ToolList | None:
        return self._tools if time.monotonic() < self._fresh_until else None

    def unchanged(self) -> ToolList | None:
        """The list, fresh or not, unless the server has announced another one."""
        return self._tools if self._fresh_until else None

    def changed(self) -> None:
        """The server has announced another list."""
        self.changes += 1
        self._fresh_until = 0.0

    def keep(self, found: ToolList, limits: McpLimits, *, is_outdated: bool) -> None:
        """Keep a list for as long as its server says. ``is_outdated``: it changed while it was fetched."""
        ttl_s = limits.default_ttl_s if found.ttl_s is None else min(found.ttl_s, limits.max_ttl_s)
        self._tools, self._fresh_until = found, 0.0 if is_outdated else time.monotonic() + ttl_s


@dataclass
class _Entry:
    """What the pool keeps for one tenant, server and credential."""

    server: McpServer
    credential: Credential
    slots: asyncio.Semaphore
    connection: Connection | None = None
    connecting: asyncio.Task[Connection] | None = None
    listing: asyncio.Task[ToolList] | None = None
    list: CachedList = field(default_factory=CachedList)
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)

    def connected(self, task: asyncio.Task[Connection]) -> None:
        self.connecting = None
        _ = task.cancelled() or task.exception()  # marked as retrieved: no task may await it any more

    def listed(self, task: asyncio.Task[ToolList]) -> None:
        self.listing = None
        _ = task.cancelled() or task.exception()


@dataclass
class _Learned:
    """What was found out about a server, for all who call it."""

    agreement: Agreement | None = None
    speaks_sse: bool = False
    public_list: CachedList = field(default_factory=CachedList)


class Pool:
    """All connections to MCP servers of one process. Belongs to one event loop; ``close`` ends everything.

    Connections are kept per tenant, server and credential. Lists are kept for as long as their server says,
    and shared between credentials only if it says that too. To cancel a list or a call, cancel the task that
    awaits it: the client then sends a cancellation to the server.
    """

    def __init__(
        self, limits: McpLimits | None = None, reserved: RegisteredAddresses = NO_REGISTERED
    ) -> None:
        """``limits`` bound the pool itself; each server has its own for the rest. ``reserved``: where only
        servers may be that can be anywhere."""
        self._limits = limits or McpLimits()
        self._web = WebClient(self._limits.connect_timeout_s, reserved)
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._learned: OrderedDict[str, _Learned] = OrderedDict()
        self._closing: set[asyncio.Task[Any]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def tools(
        self, server: McpServer, credential: Credential = NO_CREDENTIAL, *, tenant: str = ""
    ) -> ToolList:
        """Return the tools of a server, from the cache while it is fresh. Raises ``McpFailure``."""
        entry = self._enter(server, credential, tenant)
        try:
            return await self._tools(entry)
        except McpFailure as failure:
            raise _redacted(failure, entry) from None
        finally:
            self._leave(entry)

    async def call(
        self,
        server: McpServer,
        tool: str,
        arguments: bytes | Mapping[str, Any],
        credential: Credential = NO_CREDENTIAL,
        *,
        tenant: str = "",
        progress: OnProgress | None = None,
    ) -> ToolResult:
        """Call a tool once, and return what it returned, errors of the tool included.

        ``arguments`` is a JSON object, encoded or not. ``progress`` is called with the server's reports, at
        most 20 times a second. Raises ``McpFailure``: its ``outcome`` says whether the call may have run. The
        call is sent again only if it is certain that it was not run.
        """
        limits = server.limits
        encoded = arguments if isinstance(arguments, bytes) else _encode(arguments)
        _require_object(encoded, limits.max_arguments_bytes)
        entry = self._enter(server, credential, tenant)
        try:
            async with entry.slots:
                return await self._call(entry, tool, encoded, progress)
        except McpFailure as failure:
            raise _redacted(failure, entry) from None
        finally:
            self._leave(entry)

    async def close(self) -> None:
        """End every request, connection and process."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for entry in self._entries.values():
            self._discard(entry)
        self._entries.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._web.close()

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Entries.

    def _enter(self, server: McpServer, credential: Credential, tenant: str) -> _Entry:
        if isinstance(server, StdioServer):
            credential = NO_CREDENTIAL
            tenant = tenant if server.per_tenant else ""
        key = (tenant, server.key, credential.digest)
        entry = self._entries.get(key)
        if entry is None:
            self._make_room()
            entry = _Entry(server, credential, asyncio.Semaphore(server.parallel))
            self._entries[key] = entry
        self._entries.move_to_end(key)
        entry.users += 1
        if self._sweep is None:
            self._schedule_sweep()
        return entry

    def _leave(self, entry: _Entry) -> None:
        entry.users -= 1
        entry.used_at = time.monotonic()

    def _make_room(self) -> None:
        """Drop the entry that was unused for longest. Raises ``RequestRefused`` if all are in use."""
        if len(self._entries) < self._limits.max_connections:
            return
        for key, entry in self._entries.items():
            if entry.users == 0:
                del self._entries[key]
                self._discard(entry)
                return
        raise RequestRefused("too many MCP servers are in use at once")

    def _schedule_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._limits.idle_s / 4, self._drop_idle)

    def _drop_idle(self) -> None:
        self._sweep = None
        oldest = time.monotonic() - self._limits.idle_s
        for key in [k for k, entry in self._entries.items() if entry.users == 0 and entry.used_at <= oldest]:
            self._discard(self._entries.pop(key))
        if self._entries:
            self._schedule_sweep()

    def _discard(self, entry: _Entry) -> None:
        """Close what an entry holds, beside everything else."""
        for task in (entry.connecting, entry.listing):
            if task is not None:
                task.cancel()
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        connection, entry.connection = entry.connection, None
        if connection is None:
            return
        self._beside(connection.close())
        if connection.agreement.announces_tool_changes and not self._is_heard(entry.server):
            self._known_of(entry.server).public_list.changed()

    def _is_heard(self, server: McpServer) -> bool:
        """Whether a connection is left on which the server can announce that its list changed."""
        return any(
            entry.server.key == server.key and entry.connection is not None and entry.connection.is_listening
            for entry in self._entries.values()
        )

    def _retire(self, entry: _Entry, connection: Connection) -> None:
        """Use a connection for nothing new. Other callers that wait for an answer on it still get it."""
        if entry.connection is connection:
            entry.connection = None
            if connection.is_usable and connection.agreement.announces_tool_changes:
                self._unheard(entry)  # what changes until there is another one is not announced
            self._beside(connection.retire())

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # Connecting.

    async def _connection(self, entry: _Entry) -> Connection:
        """Return a usable connection: the one at hand, or a new one that all callers wait for together."""
        connection = entry.connection
        if connection is not None and connection.is_usable:
            return connection
        if connection is not None:
            self._retire(entry, connection)
        if entry.connecting is None:
            entry.connecting = asyncio.create_task(self._connect(entry))
            entry.connecting.add_done_callback(entry.connected)
        return await _shared(entry.connecting)

    async def _connect(self, entry: _Entry) -> Connection:
        server = entry.server
        learned = self._known_of(server)
        if isinstance(server, StdioServer):
            connection = await self._connect_stdio(entry, server, learned)
        else:
            connection = await self._connect_http(entry, server, learned)
        learned.agreement = connection.agreement
        entry.connection = connection
        if isinstance(connection, StreamableHttpConnection):
            connection.listen()
        return connection

    def _known_of(self, server: McpServer) -> _Learned:
        learned = self._learned.setdefault(server.key, _Learned())
        self._learned.move_to_end(server.key)
        if len(self._learned) > 4 * self._limits.max_connections:
            self._learned.popitem(last=False)
        return learned

    def _endpoint(self, entry: _Entry, server: HttpServer) -> Endpoint:
        headers = _merged(server.credential, entry.credential)
        return Endpoint(self._web, server.url, headers, server.reach)

    async def _connect_http(self, entry: _Entry, server: HttpServer, learned: _Learned) -> Connection:
        if server.transport == "sse" or learned.speaks_sse:
            return await self._connect_sse(entry, server)
        known = learned.agreement
        session = McpSession(
            server.limits,
            client_version=__version__,
            is_modern=server.is_modern if known is None else known.is_modern,
            agreement=known if known is not None and known.is_modern else None,
        )
        connection = StreamableHttpConnection(
            self._endpoint(entry, server),
            session,
            server.limits,
            lambda: self._changed(entry),
            lambda: self._unheard(entry),
        )
        try:
            await connection.open()
        except NoStreamableHttp as failure:
            if server.transport != "auto":
                raise
            try:
                older = await self._connect_sse(entry, server)
            except McpFailure:
                raise failure from None  # what the URL itself says is more telling
            learned.speaks_sse = True
            return older
        except (ProtocolFailure, HttpRejected):
            learned.agreement = None  # it may have changed since
            raise
        return connection

    async def _connect_sse(self, entry: _Entry, server: HttpServer) -> Connection:
        connection = HttpSseConnection(
            self._endpoint(entry, server),
            McpSession(server.limits, client_version=__version__, is_modern=False, over_http=False),
            server.limits,
            lambda: self._changed(entry),
            lambda: self._unheard(entry),
        )
        await connection.open()
        return connection

    async def _connect_stdio(self, entry: _Entry, server: StdioServer, learned: _Learned) -> Connection:
        known = server.is_modern if learned.agreement is None else learned.agreement.is_modern
        eras = (None, False) if known is None else (known,)
        for is_modern in eras:
            session = McpSession(
                server.limits, client_version=__version__, is_modern=is_modern, over_http=False
            )
            connection = StdioConnection(
                server, session, lambda: self._changed(entry), lambda: self._unheard(entry)
            )
            try:
                await connection.open()
            except ConnectionLost:
                # Some old servers exit when the first request is not "initialize".
                if is_modern is not None:
                    raise
            else:
                return connection
        raise AssertionError("unreachable")

    # Lists.

    def _changed(self, entry: _Entry) -> None:
        """A server has announced another list."""
        entry.list.changed()
        self._known_of(entry.server).public_list.changed()

    def _unheard(self, entry: _Entry) -> None:
        """A server could announce nothing to a caller for a time. Perhaps it could to others."""
        entry.list.changed()
        if not self._is_heard(entry.server):
            self._known_of(entry.server).public_list.changed()

    async def _tools(self, entry: _Entry) -> ToolList:
        fresh = entry.list.fresh() or self._known_of(entry.server).public_list.fresh()
        if fresh is not None:
            return fresh
        if entry.listing is None:
            entry.listing = asyncio.create_task(self._list(entry))
            entry.listing.add_done_callback(entry.listed)
        return await _shared(entry.listing)

    async def _list(self, entry: _Entry) -> ToolList:
        """Fetch the list; once more if the connection turns out to be gone, for listing changes nothing."""
        connection = await self._connection(entry)
        changes = self._changes(entry)
        try:
            found = await connection.list_tools()
        except (SessionExpired, ConnectionLost):
            self._retire(entry, connection)
            connection = await self._connection(entry)
            changes = self._changes(entry)
            found = await connection.list_tools()
        except ProtocolFailure as failure:
            self._relearn(entry, connection, failure)
            raise
        self._keep(entry, found, changes)
        return found

    def _changes(self, entry: _Entry) -> tuple[int, int]:
        """How often the lists of an entry have changed: its own, and the one for all."""
        return entry.list.changes, self._known_of(entry.server).public_list.changes

    def _keep(self, entry: _Entry, found: ToolList, before: tuple[int, int]) -> None:
        """Keep a list. ``before``: how often there were changes when it was asked for."""
        if found.left_out:
            first = "; ".join(f"{name[:60]!r}: {reason}" for name, reason in found.left_out[:_MOST_LOGGED])
            count = len(found.left_out)
            _log.warning("MCP server '%s': %d tools are left out, as %s", entry.server.name, count, first)
        kept = [entry.list]
        if found.scope == "public":
            kept.append(self._known_of(entry.server).public_list)
        for each, changes in zip(kept, before, strict=False):
            each.keep(found, entry.server.limits, is_outdated=each.changes != changes)

    # Calls.

    async def _call(
        self, entry: _Entry, name: str, arguments: bytes, progress: OnProgress | None
    ) -> ToolResult:
        has_renewed = has_listed = False
        while True:
            connection, tool = await self._ready_to_call(entry, name)
            try:
                return await connection.call(name, arguments, tool, progress)
            except (SessionExpired, ConnectionLost) as failure:
                # A session or process that ended before the call, and not because of it.
                if has_renewed or failure.outcome not in (Outcome.NOT_SENT, Outcome.REFUSED):
                    raise
                has_renewed = True
                self._retire(entry, connection)
            except ProtocolFailure as failure:
                self._relearn(entry, connection, failure)
                if failure.code != HEADER_MISMATCH or has_listed:
                    raise
                # Rejected before it was run: the headers were made from an outdated list.
                has_listed = True
                self._changed(entry)

    async def _ready_to_call(self, entry: _Entry, name: str) -> tuple[Connection, Tool | None]:
        """Return a connection, and the tool's definition where requests need it. What fails here fails before
        the call."""
        try:
            connection = await self._connection(entry)
            if not isinstance(connection, StreamableHttpConnection) or not connection.agreement.is_modern:
                return connection, None
            tools = entry.list.unchanged() or await self._tools(entry)
            for left_out, reason in tools.left_out:
                if left_out == name:
                    raise RequestRefused(f"the tool cannot be used: {reason}")
            return await self._connection(entry), tools.get(name)
        except McpFailure as failure:
            raise failure.before_the_call() from None

    def _relearn(self, entry: _Entry, connection: Connection, failure: ProtocolFailure) -> None:
        """A server that no longer speaks the version that was agreed on is asked again next time."""
        if failure.code == UNSUPPORTED_VERSION:
            self._known_of(entry.server).agreement = None
            self._retire(entry, connection)


async def _shared(task: "asyncio.Task[_T]") -> _T:
    """Await a task that others await too: cancelling one of them leaves it running."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and not (current is not None and current.cancelling()):
            raise ConnectionLost("the connection to the MCP server was closed", Outcome.NOT_SENT) from None
        raise


def _merged(operator: Credential, caller: Credential) -> dict[str, str]:
    given = {name.lower() for name in caller.headers}
    kept = {name: value for name, value in operator.headers.items() if name.lower() not in given}
    return {**kept, **caller.headers}


def _require_object(arguments: bytes, most: int) -> None:
    if len(arguments) > most:
        raise RequestRefused(f"the arguments have more than {most} bytes")
    try:
        arguments.decode()
        _object.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise RequestRefused("the arguments are not a JSON object") from None


def _redacted(failure: McpFailure, entry: _Entry) -> McpFailure:
    """Remove credentials that a server repeated in its error."""
    text = result_redaction.of_errors(entry.server, entry.credential).text(failure.message)
    if text != failure.message:
        failure.message = text
        failure.args = (text,)
    return failure
