"""The command line: ``slipring serve``, ``chat``, ``keys``, ``openapi`` and ``bench``.

Turns arguments into a ``Config`` or the ``Options`` of a chat or a bench, runs what was asked for, and turns
every foreseeable failure into one line on standard error and a non-zero exit code.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from slipring import __version__
from slipring.bench import options as bench_options
from slipring.bench.load import options as load_options
from slipring.bench.options import UsageError
from slipring.bench.probes import Unmeasurable
from slipring.bench.results import Unreadable
from slipring.bench.server import CannotStart
from slipring.bench.workloads.replay import BadRecording
from slipring.chat import options as chat_options
from slipring.chat.connection import Unreachable
from slipring.chat.run import chat
from slipring.config import Config, ConfigError, add_flags, from_namespace
from slipring.errors import StartupError
from slipring.keys import commands as keys
from slipring.openapi.document import document
from slipring.progress import Loading
from slipring.server.process.runtime import loop_factory, set_up_logging
from slipring.server.process.server import Server
from slipring.server.process.shutdown import MEANINGLESS, ignore
from slipring.server.process.supervisor import Supervisor, engine_names, refuse_private_store
from slipring.server.process.worker_messages import Serving

USAGE_ERROR = 2
STARTUP_ERROR = 3


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="slipring",
        description="The OpenAI Responses API over one persistent WebSocket, in front of any engine.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"slipring {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    serve = commands.add_parser(
        "serve", help="serve the Responses API", description="Serve the Responses API.", allow_abbrev=False
    )
    add_flags(serve)
    talk = commands.add_parser(
        "chat",
        help="chat in the terminal with any Responses endpoint",
        description="Chat with a Responses endpoint over one WebSocket. Without a MESSAGE, each line of the"
        " standard input is a turn.",
        allow_abbrev=False,
    )
    chat_options.add_flags(talk)
    manage = commands.add_parser(
        "keys",
        help="make, list and revoke the API keys in a store",
        description="Make, list and revoke the API keys in a store.",
        allow_abbrev=False,
    )
    keys.add_commands(manage)
    commands.add_parser(
        "openapi",
        help="print what the server accepts and returns, as an OpenAPI document",
        description="Print what the server accepts and returns, as an OpenAPI 3.1 document in JSON.",
        allow_abbrev=False,
    )
    measure = commands.add_parser(
        "bench",
        help="measure agent loops against any Responses endpoint, mode by mode",
        description="Run agent loops against a Responses endpoint in several modes, side by side, check every"
        " answer, and tell where the time goes. Without --url, against a slipring that is started for it.",
        allow_abbrev=False,
    )
    bench_options.add_flags(measure)
    load = measure.add_subparsers(dest="bench_command", metavar="COMMAND", parser_class=_Parser).add_parser(
        "load",
        help="many connections at once, until a service level breaks",
        description="Chat over many connections at once, more and more of them, until a service level breaks."
        " Without --url, against a slipring that is started for it.",
        argument_default=argparse.SUPPRESS,  # so that what was given before "load" stays
        allow_abbrev=False,
    )
    load_options.add_flags(load)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.command == "chat":
            options = chat_options.from_namespace(arguments, os.environ)
            return chat(options, " ".join(arguments.message))
        if arguments.command == "openapi":
            return describe()
        if arguments.command == "bench":
            return measure(arguments)
        config = from_namespace(arguments, os.environ)
        if arguments.command == "keys":
            return asyncio.run(keys.run(arguments, config))
        return serve(config)
    except (ConfigError, UsageError, BadRecording, Unreadable) as error:
        print(f"slipring: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (StartupError, Unreachable, Unmeasurable, CannotStart) as error:
        print(f"slipring: {error}", file=sys.stderr)
        return STARTUP_ERROR


def measure(arguments: argparse.Namespace) -> int:
    """Run a bench, or a load."""
    # Not above: these bring what draws tables, and nobody else needs it.
    if arguments.bench_command == "load":
        from slipring.bench.load.command import load

        return load(load_options.from_namespace(arguments, os.environ))
    from slipring.bench.command import bench

    return bench(bench_options.from_namespace(arguments, os.environ))


def describe() -> int:
    """Print the OpenAPI document."""
    print(msgspec.json.format(msgspec.json.encode(document())).decode())
    return 0


def serve(config: Config) -> int:
    """Run a server until it is told to stop."""
    ignore(*MEANINGLESS)
    set_up_logging(config.log_level, names_process=config.workers > 1)
    if config.workers > 1:
        refuse_private_store(config)
        serving = _supervise(Supervisor(config))
    else:
        serving = _serve(Server(config))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serving)
    with contextlib.suppress(OSError):  # the terminal may be gone
        print("slipring: stopped", flush=True)
    return 0


async def _serve(server: Server) -> None:
    engine = ", ".join(engine.name for engine in server.catalog.engines)
    models = tuple(model.name for model in server.catalog)
    with Loading(sys.stderr, engine, models[0]) as loading:

        def on_ready(server: Server) -> None:
            loading.end()
            announce(server.config, server.base_url, server.describe())

        await server.serve(on_ready)


async def _supervise(supervisor: Supervisor) -> None:
    engine = ", ".join(name.partition(":")[0] for name in engine_names(supervisor.config))
    with Loading(sys.stderr, engine, engine) as loading:

        def on_ready(supervisor: Supervisor, serving: Serving) -> None:
            loading.end()
            announce(supervisor.config, supervisor.base_url, serving)

        await supervisor.serve(on_ready)


def announce(config: Config, url: str, serving: Serving) -> None:
    """Say where the server is and how to point a client at it."""
    key = "any" if serving.is_open else "YOUR_KEY"
    lines = [
        f"slipring {__version__} serves {url}",
        f"  websocket  {url.replace('http', 'ws', 1)}/responses",
        *([f"  workers    {config.workers}"] if config.workers > 1 else []),
        f"  engine     {', '.join(engine_names(config))}",
        f"  model      {', '.join(serving.models)}",
        f"  store      {serving.store}",
        f"  API keys   {serving.keys}",
        "",
        "Point a client at it:",
        f"  OPENAI_BASE_URL={url} OPENAI_API_KEY={key}",
    ]
    print("\n".join(lines), flush=True)
