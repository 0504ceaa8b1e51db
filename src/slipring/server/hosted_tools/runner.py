"""Runs hosted tools: fetches the lists of servers, and calls tools. Owns the process's MCP connections.

Nothing here knows a turn. ``resolve``, ``lists`` and ``call`` are what a driver does for the actions of a
session.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Raw, Struct, UnsetType

from slipring.base.errors import ExternalConnectorError, InvalidRequest
from slipring.base.tenant_slots import TenantSlots
from slipring.core.attachments import AttachmentRules
from slipring.core.hosted_tools import (
    CallOutcome,
    CallProgress,
    FetchedList,
    HostedCall,
    ResolvedBuiltin,
    ResolvedServer,
)
from slipring.core.limits import Limits
from slipring.mcp.failures import McpFailure, Outcome
from slipring.mcp.protocol.session import ProgressUpdate
from slipring.mcp.protocol.tools import Tool
from slipring.mcp.result_redaction import Redaction, of_results
from slipring.protocol.items.hosted_items import CallError, ProtocolError
from slipring.protocol.tools.mcp_tools import ListedTool, McpTool, ToolHints, place_of
from slipring.protocol.tools.tool_types import MOST_TOOLS, BuiltinKind
from slipring.server.access.auth import Caller
from slipring.server.clock import clock
from slipring.server.hosted_tools.call_results import (
    INTERNAL_ERROR,
    INVALID_ARGUMENTS,
    call_error,
    list_error,
    one_line,
    outcome_of,
    stated,
)
from slipring.server.hosted_tools.permitted_servers import Registry, ServerRefused, Target
from slipring.server.observation.turn_log import plain

if TYPE_CHECKING:
    from slipring.mcp.pool import Pool

log = logging.getLogger("slipring.tools")

_MOST_MESSAGE_CHARS = 1000
"""Of a progress message."""
_object = msgspec.json.Decoder(dict[str, Raw])

Ending = Literal["completed", "tool_error", "failed", "unknown", "cancelled"]
"""``tool_error``: the tool says that it failed; ``failed``: it did not run, or its server says that it
failed; ``unknown``: it may have run."""


class EndedCall(Struct, frozen=True):
    """A call that has ended, for the log and metrics: no arguments, no content."""

    tenant: str
    server: str | None
    """Its registered name; None: a URL of the client."""
    label: str
    """What the request calls it."""
    tool: str
    ending: Ending
    seconds: float
    result_bytes: int


class ToolRunner:
    """Lists and calls the tools of MCP servers, for all tenants of this process."""

    def __init__(self, registry: Registry, limits: Limits) -> None:
        self.registry = registry
        self.observers: list[Callable[[EndedCall], None]] = []
        self._pool: Pool | None = None
        """None until it is needed: most servers get no request with MCP tools."""
        self._slots = TenantSlots(limits.tenant_tool_calls)
        self._most_chars = limits.max_tool_result_chars
        self._most_list_bytes = limits.max_frame_bytes

    async def close(self) -> None:
        """End all connections and processes."""
        if self._pool is not None:
            await self._pool.close()

    @property
    def pool(self) -> "Pool":
        """The connections to MCP servers."""
        if self._pool is None:
            from slipring.mcp.pool import Pool

            self._pool = Pool(reserved=self.registry.reserved)
        return self._pool

    def resolve(
        self, caller: Caller, servers: Iterable[McpTool], tools: Raw | UnsetType
    ) -> dict[str, ResolvedServer]:
        """Find the servers of a request, by label. None of them is asked anything.

        ``tools`` is that field of the request, for messages. Raises ``InvalidRequest`` for a server that the
        caller may not use.
        """
        return {server.server_label: _resolved(self._find(caller, server, tools)) for server in servers}

    async def lists(
        self, tenant: str, servers: Mapping[str, ResolvedServer]
    ) -> AsyncGenerator[tuple[str, FetchedList], None]:
        """Fetch the lists of servers, all at once, and yield each when it has ended, by its label. They have
        only what operator and key permit, and are together no larger than the tools that a client could send
        itself. A caller that stops before the end cancels the others."""
        tasks = {
            label: asyncio.create_task(self._list(label, server, tenant)) for label, server in servers.items()
        }
        left = _Room(MOST_TOOLS, self._most_list_bytes)
        try:
            while tasks:
                await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                for label in [label for label, task in tasks.items() if task.done()]:
                    yield label, left.fitting(tasks.pop(label).result())
        finally:
            for task in tasks.values():
                task.cancel()

    def answers(self, caller: Caller, kinds: Iterable[BuiltinKind]) -> dict[BuiltinKind, ResolvedBuiltin]:
        """What answers these built-in tools for a caller. Those that nothing answers are left out."""
        found: dict[BuiltinKind, ResolvedBuiltin] = {}
        for kind in kinds:
            if (answer := self.registry.answering(kind, caller.key)) is not None:
                target, mapping = answer
                fields = dict(mapping.fields)
                found[kind] = ResolvedBuiltin(_resolved(target), mapping.tool, mapping.argument, fields)
        return found

    def _find(self, caller: Caller, server: McpTool, tools: Raw | UnsetType) -> Target:
        try:
            return self.registry.find(server, caller.key)
        except ServerRefused as refusal:
            param = f"{place_of(tools, server.server_label)}.{refusal.field}"
            raise InvalidRequest.at(param, f"{refusal.reason}") from None

    async def _list(self, label: str, server: ResolvedServer, tenant: str) -> FetchedList:
        target = _target(server)
        try:
            found = await self.pool.tools(target.server, target.credential, tenant=tenant)
        except McpFailure as failure:
            log.warning("list tenant=%s server=%s: %s", plain(tenant), label, stated(failure))
            message = f"Error retrieving the tool list of the MCP server '{label}': {stated(failure)}"
            refusal = None if target.goes_on else ExternalConnectorError(message, param="tools")
            return FetchedList(error=list_error(failure), refusal=refusal)
        redaction = of_results(target.server, target.credential)
        return FetchedList(
            tuple(
                _listed(tool, redaction)
                for tool in found.tools
                if target.permitted is None or tool.name in target.permitted
            )
        )

    async def call(
        self,
        call: HostedCall,
        tenant: str,
        progress: Callable[[CallProgress], None],
        rules: AttachmentRules | None = None,
    ) -> CallOutcome:
        """Run a call once. ``rules``: of the model that reads the result. Raises nothing but
        ``CancelledError``, after the server was asked to cancel."""
        target = _target(call.server)
        began = clock()
        ended = _CANCELLED
        try:
            async with self._slots.hold(tenant):
                ended = await self._call(call, target, tenant, progress, rules)
            return ended.outcome
        finally:
            self._report(
                EndedCall(
                    tenant=tenant,
                    server=target.name,
                    label=call.label,
                    tool=call.tool,
                    ending=ended.ending,
                    seconds=clock() - began,
                    result_bytes=ended.result_bytes,
                )
            )

    async def _call(
        self,
        call: HostedCall,
        target: Target,
        tenant: str,
        progress: Callable[[CallProgress], None],
        rules: AttachmentRules | None,
    ) -> "_Ended":
        arguments = _arguments(call.arguments)
        if arguments is None:
            return _failed(ProtocolError(INVALID_ARGUMENTS, "The arguments are not a JSON object."))
        if target.permitted is not None and call.tool not in target.permitted:
            return _failed(ProtocolError(INVALID_ARGUMENTS, "There is no tool of this name."))
        redaction = of_results(target.server, target.credential)

        def on_progress(update: ProgressUpdate) -> None:
            message = None if update.message is None else redaction.text(update.message)[:_MOST_MESSAGE_CHARS]
            progress(CallProgress(update.progress, update.total, message))

        try:
            result = await self.pool.call(
                target.server, call.tool, arguments, target.credential, tenant=tenant, progress=on_progress
            )
        except McpFailure as failure:
            ending: Ending = "unknown" if failure.outcome is Outcome.UNKNOWN else "failed"
            return _failed(call_error(failure, self._most_chars), ending)
        except Exception:
            log.exception("a call of a tool failed unexpectedly")
            message = "The call failed. Outcome unknown: the call may have run."
            return _failed(ProtocolError(INTERNAL_ERROR, message), "unknown")
        outcome = outcome_of(result, redaction, self._most_chars, rules)
        size = sum(map(len, result.raw_content)) + len(result.structured or b"")
        return _Ended(outcome, "tool_error" if result.is_error else "completed", size)

    def _report(self, ended: EndedCall) -> None:
        log.info(
            "call tenant=%s server=%s label=%s tool=%s ending=%s ms=%.1f bytes=%d",
            *(plain(ended.tenant), ended.server or "-", ended.label, plain(ended.tool), ended.ending),
            *(ended.seconds * 1000, ended.result_bytes),
        )
        for observe in self.observers:
            observe(ended)


class _Ended(Struct, frozen=True):
    outcome: CallOutcome
    ending: Ending
    result_bytes: int = 0


_CANCELLED = _Ended(CallOutcome(), "cancelled")


def _failed(error: CallError, ending: Ending = "failed") -> _Ended:
    return _Ended(CallOutcome(error=error), ending)


def _arguments(text: str) -> bytes | None:
    """Arguments as a model wrote them, nothing for none; None if they are no JSON object."""
    try:
        encoded = text.encode() if text.strip() else b"{}"
        _object.decode(encoded)
    except (UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        return None
    return encoded


def _listed(tool: Tool, redaction: Redaction) -> ListedTool:
    return ListedTool(
        name=tool.name,
        input_schema=one_line(redaction.json(bytes(tool.input_schema))),
        description=None if tool.description is None else redaction.text(tool.description),
        annotations=ToolHints(tool.annotations.read_only_hint),
    )


def _resolved(target: Target) -> ResolvedServer:
    return ResolvedServer(
        handle=target,
        identity=target.identity,
        permitted=target.permitted,
        always_approve=target.always_approve,
    )


def _target(server: ResolvedServer) -> Target:
    target = server.handle
    assert isinstance(target, Target)
    return target


class _Room:
    """What lists may have together."""

    def __init__(self, tools: int, size: int) -> None:
        self._most_tools, self._most_bytes = tools, size
        self._tools, self._bytes = 0, 0

    def fitting(self, fetched: FetchedList) -> FetchedList:
        """The list; a failed one in its place if it does not fit behind those before."""
        self._tools += len(fetched.tools)
        self._bytes += sum(len(tool.input_schema) + len(tool.description or "") for tool in fetched.tools)
        if self._tools <= self._most_tools and self._bytes <= self._most_bytes:
            return fetched
        message = (
            f"Invalid 'tools': the MCP servers have more than {self._most_tools} tools in all, or their"
            f" definitions more than {self._most_bytes} bytes. Name fewer servers."
        )
        refusal = InvalidRequest(message, param="tools")
        return FetchedList(error=ProtocolError(INTERNAL_ERROR, message), refusal=refusal)
