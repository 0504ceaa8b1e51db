"""Runners of hosted tools for tests, with fakes as registered servers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Raw

from slipring.config import Config
from slipring.core.hosted.tools import CallOutcome, CallProgress, HostedCall, ResolvedServer
from slipring.core.limits import Limits
from slipring.mcp_registrations import HeaderVariable, McpRegistration
from slipring.protocol.hosted.mcp_tools import McpTool, read_servers
from slipring.server.access.auth import Caller
from slipring.server.hosted_tools.registry import Registry
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


async def resolve(
    runner: ToolRunner, *tools: McpTool | str, fetch: bool = True, caller: Caller = CALLER
) -> dict[str, ResolvedServer]:
    """Resolve servers, each of them after a function in the ``tools`` of a request."""
    servers = [McpTool(each) if isinstance(each, str) else each for each in tools]
    sent: list[Any] = []
    for server in servers:
        fields = {"type": "mcp", "server_label": server.server_label, "server_url": server.server_url}
        sent += [{"type": "function", "name": "f"}, fields]
    raw = Raw(json.dumps(sent).encode())
    assert len(read_servers(raw)) == len(servers)
    labels = frozenset(server.server_label for server in servers)
    return await runner.resolve(caller, servers, labels if fetch else frozenset(), raw)


async def call(
    runner: ToolRunner,
    server: ResolvedServer,
    tool: str = "add",
    arguments: str = '{"a": 1, "b": 2}',
    *,
    tenant: str = "t",
    progress: list[CallProgress] | None = None,
) -> CallOutcome:
    wanted = HostedCall("mcp_1", server, "fake", tool, arguments)
    reports: list[CallProgress] = [] if progress is None else progress
    return await runner.call(wanted, tenant, reports.append)
