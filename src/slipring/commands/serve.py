"""``slipring serve``: runs a server or a supervisor in this process, and prints where it serves.

A supervisor serves no clients: its process does not import the server, nor the HTTP library under it.
"""

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slipring import __version__
from slipring.base.garbage_collection import collection_paused, skip_last_collection
from slipring.base.interruption import interruptible
from slipring.base.progress_line import ProgressLine
from slipring.base.standard_streams import discard_output
from slipring.commands.client_environment import DEFAULT_URL, named_url
from slipring.config.settings import Config, refuse_private_store
from slipring.engines.hub.model_hub import ModelHub
from slipring.engines.hub.model_names import model_of_flag, opened_name
from slipring.server.observation.turn_log import set_up_logging
from slipring.server.process.event_loop import loop_factory
from slipring.server.process.shutdown import IGNORED_SIGNALS, block_stop_signals, ignore
from slipring.server.process.supervisor import Supervisor, engine_names
from slipring.server.process.worker_messages import Serving

if TYPE_CHECKING:
    from slipring.server.process.server import Server

log = logging.getLogger("slipring")


def serve(config: Config) -> int:
    """Run a server until a signal stops it."""
    ignore(*IGNORED_SIGNALS)
    set_up_logging(config.log_level, names_process=config.workers > 1)
    if config.record:
        whose = f"tenants {', '.join(config.record_tenant)}" if config.record_tenant else "all tenants"
        log.warning("recording the content of all turns of %s in %s", whose, config.record)
    _warn_of_ignored(config)
    if config.workers > 1:
        refuse_private_store(config)
    # What was fetched until then is kept, and the next start goes on from there.
    with interruptible(by_termination=True):
        config = _with_opened_names(config)
    if config.workers > 1:
        serving = _supervise(Supervisor(config))
    else:
        with collection_paused():
            from slipring.server.process.server import Server
        serving = _serve(Server(config, has_admin=True))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serving)
        block_stop_signals()
    # Closing the loop has restored Python's handlers, which a signal to another thread would still call.
    ignore(signal.SIGINT, signal.SIGTERM)
    try:
        print("slipring: stopped", flush=True)
    except OSError:  # the terminal may be closed
        discard_output()
    skip_last_collection()
    return 0


def _warn_of_ignored(config: Config) -> None:
    """Warn if settings have no effect, because the file has a table in their place."""
    given = {"engine": config.engine != Config().engine, "model": bool(config.model)}
    if config.models and (ignored := [name for name, is_given in given.items() if is_given]):
        log.warning("ignored: %s, because the file has a [models] table", " and ".join(ignored))


def _with_opened_names(config: Config) -> Config:
    """Fetch the models that the hub has, and put their paths in place of their names. Raises
    ``StartupError``."""
    hub = ModelHub(before_download=lambda: refuse_early(config))
    entries = tuple(replace(each, engine=opened_name(each.engine, hub)) for each in config.models)
    if entries:
        return replace(config, models=entries)
    engine, names = model_of_flag(config.engine, config.model)
    return replace(config, engine=opened_name(engine, hub), model=names)


def refuse_early(config: Config) -> None:
    """Raise ``StartupError`` for what would keep the server from starting, before gigabytes are fetched: a
    port in use, missing keys, a store or a setting that cannot be used."""
    from slipring.commands.config import check_settings
    from slipring.commands.doctor import require_start

    check_settings(config)
    require_start(config)


async def _serve(server: "Server") -> None:
    engine = ", ".join(engine.name for engine in server.catalog.engines)
    # Engines in front of servers learn the names of their models when they start.
    named = [*server.config.model, *(model.name for model in server.config.models)]
    known = [model.name for each in server.catalog.engines for model in each.models()]
    with ProgressLine(f"loading {(named or known or [engine])[0]}") as loading:

        def on_ready(server: "Server") -> None:
            loading.end()
            server.take_over_collections()
            announce(server.config, server.base_url, server.describe(), server.admin_url)

        await server.serve(on_ready)


async def _supervise(supervisor: Supervisor) -> None:
    engine = ", ".join(name.partition(":")[0] for name in engine_names(supervisor.config))
    with ProgressLine(f"loading {engine}") as loading:

        def on_ready(supervisor: Supervisor, serving: Serving) -> None:
            loading.end()
            announce(supervisor.config, supervisor.base_url, serving, supervisor.admin_url)

        await supervisor.serve(on_ready)


def announce(config: Config, url: str, serving: Serving, admin_url: str | None) -> None:
    """Print where the server listens and what it serves; on a terminal, also what to try next."""
    engines = engine_names(config)
    key = "any" if serving.is_open else "YOUR_KEY"
    lines = [
        f"slipring {__version__} serves {url}",
        f"  websocket  {url.replace('http', 'ws', 1)}/responses",
        *([f"  workers    {config.workers}"] if config.workers > 1 else []),
        f"  engine     {', '.join(engines)}",
        f"  model      {', '.join(serving.models)}",
        *(
            ["             simulated is no model: it generates text to test clients with"]
            if _is_simulated(engines)
            else []
        ),
        f"  store      {serving.store}",
        f"  API keys   {serving.keys}",
        *([f"  MCP        {', '.join(server.name for server in config.mcp)}"] if config.mcp else []),
        *([f"  checks     {', '.join(check.name for check in config.checks)}"] if config.checks else []),
        *([f"  recording  {config.record}, with the content of turns"] if config.record else []),
        *([f"  live page  {admin_url}"] if admin_url is not None else []),
        "",
        "Point a client at it:",
        f"  OPENAI_BASE_URL={url} OPENAI_API_KEY={key}",
    ]
    if sys.stdout.isatty():
        lines += ["", "Try next, in another terminal:", *(f"  {line}" for line in _next_steps(url, serving))]
    try:
        print("\n".join(lines), flush=True)
    except OSError as error:  # the server serves all the same
        discard_output()
        log.warning("serves %s; %s", url, error)


def _is_simulated(engines: Sequence[str]) -> bool:
    return any(engine.partition(":")[0] == "simulated" for engine in engines)


def _next_steps(url: str, serving: Serving) -> list[str]:
    key = "" if serving.is_open else "OPENAI_API_KEY=YOUR_KEY "
    where = "" if url == (named_url(os.environ) or DEFAULT_URL) else f" --url {url}"
    header = "" if serving.is_open else "-H 'Authorization: Bearer YOUR_KEY' "
    body = '{"input": "Say hello.", "max_output_tokens": 40}'
    return [
        f"{key}{_command_name()} chat{where}",
        f"curl {url}/responses {header}-H 'Content-Type: application/json' -d '{body}'",
        "docs/clients.md shows how to connect Codex, the SDKs and other clients",
    ]


def _command_name() -> str:
    """Return the shell command for slipring: by name if it is on the path, else as it was started."""
    if shutil.which("slipring"):
        return "slipring"
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m slipring"
    return shlex.quote(sys.argv[0])
