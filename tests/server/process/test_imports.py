"""What a server imports when it starts: what its engine and store need, and nothing of what it does not use.

Most of the memory of a server that has just started is for imported modules.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.responses import FakeResponsesServer

START = """
import asyncio, sys
import slipring.commands.cli, slipring.commands.serve
from slipring.config.settings import Config
from slipring.server.process.server import Server

async def run(engine, store):
    server = Server(Config(engine=engine, store=store, port=0, admin="127.0.0.1:0"), has_admin=True)
    await server.start()
    print(*sys.modules)
    await server.stop()

asyncio.run(run(*sys.argv[1:]))
"""
OF_ENGINES = {
    "fastokens",
    "jinja2",
    "llguidance",
    "minijinja",
    "openai_harmony",
    "slipring.engines.llama",
    "slipring.engines.tokens.sglang",
    "slipring.engines.tokens.vllm",
    "slipring.prompts.templates.jinja_engines",
    "tokenizers",
    "xllamacpp",
}
OF_SETTINGS = {
    "asyncpg",
    "cryptography",
    "importlib.metadata",
    "prometheus_client",
    "opentelemetry",
    "slipring.mcp.pool",
    "slipring.commands.openapi",
    "slipring.safety.sources",
    "slipring.server.observation.recorder",
    "slipring.server.tracing.tracer",
    "slipring.stores.databases.postgres",
    "tomllib",
}
OF_OTHER_COMMANDS = {
    "difflib",
    "markdown_it",
    "rich",
    "slipring.commands.bench.measure",
    "slipring.commands.chat.connection",
    "slipring.commands.inspection",
    "slipring.commands.top.run",
}


async def imported(engine: str, directory: Path) -> set[str]:
    """The modules of a process that has started a server."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", START, engine, f"sqlite:{directory / 'store.db'}"),
        stdout=asyncio.subprocess.PIPE,
        # A child that is measured imports what the measurement needs.
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
    )
    output, _ = await child.communicate()
    assert child.returncode == 0
    return set(output.decode().split())


@pytest.mark.parametrize(
    ("kind", "make", "other"),
    [("chat", FakeChatServer, "responses"), ("responses", FakeResponsesServer, "chat")],
)
async def test_a_server_in_front_of_another_imports_nothing_that_it_does_not_need(
    kind: str, make: type[FakeChatServer | FakeResponsesServer], other: str, tmp_path: Path
) -> None:
    upstream = make()
    await upstream.start()
    try:
        found = await imported(f"{kind}:{upstream.url}", tmp_path)
    finally:
        await upstream.close()
    assert f"slipring.engines.{kind}" in found
    unneeded = OF_ENGINES | OF_SETTINGS | OF_OTHER_COMMANDS | {f"slipring.engines.{other}"}
    assert not unneeded & found
