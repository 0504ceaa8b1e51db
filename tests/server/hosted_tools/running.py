"""Runners of hosted tools for tests, with fakes as registered servers."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from msgspec import Raw

from slipring.config.settings import Config
from slipring.config.tables import HeaderVariable, McpRegistration
from slipring.core.hosted_tools import CallOutcome, CallProgress, FetchedList, HostedCall, ResolvedServer
from slipring.core.limits import Limits
from slipring.protocol.items.hosted_items import CallError
from slipring.protocol.tools.mcp_tools import ListedTool, McpTool, read_servers
from slipring.server.access.auth import Caller
from slipring.server.hosted_tools.permitted_servers import Registry
from slipring.server.hosted_tools.runner import ToolRunner
from tests.mcp.fakes import FakeServer

OPERATOR = "key-of-the-operator"
ENVIRONMENT = {"OPERATOR_KEY": OPERATOR}
CALLER = Caller("t")


def registered(fake: FakeServer, name: str = "fake", **settings: Any) -> McpRegistration:
    settings.setdefault("headers", (HeaderVariable("X-Key", "OPERATOR_KEY"),))
    return McpRegistration(name, url=fake.url, **settings)


@asynccontextmanager
async def running(
    *servers: McpRegistration, urls: str = "registered", **limits: Any
) -> AsyncIterator[ToolRunner]:
    bounds = Limits(**limits)
    runner = ToolRunner(Registry(Config(mcp=servers, mcp_urls=urls, limits=bounds), ENVIRONMENT), bounds)
    try:
        yield runner
    finally:
        await runner.close()


class Listed(NamedTuple):
    """A server that lists its tools."""

    server: ResolvedServer
    tools: tuple[ListedTool, ...]
    error: CallError | None


def find(runner: ToolRunner, *tools: McpTool | str, caller: Caller = CALLER) -> dict[str, ResolvedServer]:
    """Find servers, each of them after a function in the ``tools`` of a request."""
    servers = [McpTool(each) if isinstance(each, str) else each for each in tools]
    sent: list[Any] = []
    for server in servers:
        fields = {"type": "mcp", "server_label": server.server_label, "server_url": server.server_url}
        sent += [{"type": "function", "name": "f"}, fields]
    raw = Raw(json.dumps(sent).encode())
    assert len(read_servers(raw)) == len(servers)
    return runner.resolve(caller, servers, raw)


async def resolve(runner: ToolRunner, *tools: McpTool | str, caller: Caller = CALLER) -> dict[str, Listed]:
    """Find servers and fetch their lists. Raises for a list for which a response would fail."""
    found = find(runner, *tools, caller=caller)
    lists: dict[str, FetchedList] = {}
    async with aclosing(runner.lists(caller.tenant, found)) as ended:
        async for label, fetched in ended:
            if fetched.refusal is not None:
                raise fetched.refusal
            lists[label] = fetched
    return {label: Listed(server, lists[label].tools, lists[label].error) for label, server in found.items()}


async def call(
    runner: ToolRunner,
    server: ResolvedServer | Listed,
    tool: str = "add",
    arguments: str = '{"a": 1, "b": 2}',
    *,
    tenant: str = "t",
    progress: list[CallProgress] | None = None,
) -> CallOutcome:
    found = server.server if isinstance(server, Listed) else server
    wanted = HostedCall("mcp_1", found, "fake", tool, arguments)
    reports: list[CallProgress] = [] if progress is None else progress
    return await runner.call(wanted, tenant, reports.append)
