"""The command line: ``slipring serve``, ``chat``, ``keys``, ``openapi`` and ``bench``.

Parses the arguments, runs the command, and reports every expected failure as one line on standard error, with
a non-zero exit code.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from slipring import __version__
from slipring.bench import options as bench_options
from slipring.bench.errors import BadRecording, CannotMeasure, CannotStart, UnreadableRecord, UsageError
from slipring.bench.load import options as load_options
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
from slipring.server.process.shutdown import IGNORED_SIGNALS, block_stop_signals, ignore
from slipring.server.process.supervisor import Supervisor, engine_names, refuse_private_store
from slipring.server.process.worker_messages import Serving
from slipring.spelling import suggestion

USAGE_ERROR = 2
STARTUP_ERROR = 3

ENGINES = {
    "llama": (
        "a GGUF model in llama.cpp; without a path, the packaged SmolLM2",
        "llama:/models/qwen3-8b.gguf",
    ),
    "vllm": ("a vLLM server", "vllm:http://127.0.0.1:8001,tokenizer=/models/qwen3-8b"),
    "sglang": ("an SGLang server", "sglang:http://127.0.0.1:30000,tokenizer=/models/qwen3-8b"),
    "chat": ("a Chat Completions server: Ollama, LM Studio, …", "chat:http://127.0.0.1:11434/v1"),
    "responses": ("a Responses server: OpenAI, another slipring, …", "responses:https://api.openai.com/v1"),
    "simulated": ("no model: generated text, to test clients with", "simulated:tokens_per_s=1000,ttft_ms=50"),
}
"""For ``--help``: what each kind of engine is, and an example."""


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line that suggests the right spelling and names the help to read.

    A message never contains the value of an unknown flag, because it may be a secret.
    """

    _commands: "argparse.Action | None" = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def add_subparsers(self, **kwargs: Any) -> Any:
        self._commands = super().add_subparsers(**{"metavar": "COMMAND", **kwargs})
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; report unknown arguments as an error of this parser, so that its own help is named."""
        words = list(sys.argv[1:] if args is None else args)
        if not words and self._commands is not None and self._commands.required:
            self.print_help()
            self.exit()
        self._check_first(words)
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self._refuse(unknown)
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_first(self, words: list[str]) -> None:
        """Refuse an unknown first flag or command, before argparse takes its value for something else."""
        if not words:
            return
        first = words[0].partition("=")[0]
        if first.startswith("--") and first != "--" and " " not in first:
            if first not in self._option_string_actions:
                self._refuse([first])
        elif self._commands is not None and not first.startswith("-") and first not in self._command_names():
            self.error(f"unknown command '{first}'{suggestion(first, self._command_names())}")

    def _refuse(self, arguments: Sequence[str]) -> NoReturn:
        flags = [
            argument.partition("=")[0] if argument.startswith("--") else argument[:2]
            for argument in arguments
            if argument.startswith("-")
        ]
        if not flags:
            self.error("unexpected argument")
        for name, command in self._command_names().items():
            if flags[0] in command._option_string_actions:
                self.error(f"{flags[0]} is a flag of '{self.prog} {name}': write it after '{name}'")
        self.error(f"unknown flag {flags[0]}{suggestion(flags[0], self._option_string_actions)}")

    def _command_names(self) -> "dict[str, _Parser]":
        return dict(self._commands.choices or {}) if self._commands is not None else {}


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="slipring",
        description="Serve the OpenAI Responses API over one persistent WebSocket, in front of any engine.",
    )
    parser.add_argument("--version", action="version", version=f"slipring {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    serve = commands.add_parser(
        "serve",
        help="serve the Responses API",
        usage="%(prog)s [--engine KIND[:OPTIONS]] [--port PORT] [--store STORE] [flags below]",
        description="Serve the Responses API.",
        epilog=_engine_list(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(serve)
    talk = commands.add_parser(
        "chat",
        help="chat in the terminal with any Responses endpoint",
        description="Chat with a Responses endpoint over one WebSocket. Without a MESSAGE, each line of"
        " standard input is a turn.",
    )
    chat_options.add_flags(talk)
    manage = commands.add_parser(
        "keys",
        help="create, list and revoke the API keys in a store",
        description="Create, list and revoke the API keys in a store.",
    )
    keys.add_commands(manage)
    commands.add_parser(
        "openapi",
        help="print the OpenAPI document of the server",
        description="Print what the server accepts and returns, as an OpenAPI 3.1 document in JSON.",
    )
    measure = commands.add_parser(
        "bench",
        help="measure agent loops against any Responses endpoint, mode by mode",
        description="Run agent loops against a Responses endpoint in several modes, check every answer, and"
        " report where the time goes. Without --url, start a slipring server to measure.",
    )
    bench_options.add_flags(measure)
    load = measure.add_subparsers(dest="bench_command", parser_class=_Parser).add_parser(
        "load",
        help="open more and more connections until a service level breaks",
        description="Chat over many connections at once, more and more of them, until a service level breaks."
        " Without --url, start a slipring server to measure.",
        argument_default=argparse.SUPPRESS,  # keeps the values of flags that were given before "load"
    )
    load_options.add_flags(load)
    return parser


def _engine_list() -> str:
    lines = ["engines:"]
    for kind, (meaning, example) in ENGINES.items():
        lines += [f"  {kind:<10} {meaning}", f"  {'':<10} --engine {example}"]
    return "\n".join(
        [*lines, "  Options follow as name=value, separated by commas: docs/engines.md lists them."]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.command == "chat":
            options = chat_options.from_namespace(arguments, os.environ)
            return chat(options, " ".join(arguments.message))
        if arguments.command == "openapi":
            return print_openapi()
        if arguments.command == "bench":
            return measure(arguments)
        config = from_namespace(arguments, os.environ)
        if arguments.command == "keys":
            return asyncio.run(keys.run(arguments, config))
        return serve(config)
    except (ConfigError, UsageError, BadRecording, UnreadableRecord) as error:
        print(f"slipring: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (StartupError, Unreachable, CannotMeasure, CannotStart) as error:
        print(f"slipring: {error}", file=sys.stderr)
        return STARTUP_ERROR


def measure(arguments: argparse.Namespace) -> int:
    """Run ``slipring bench`` or ``slipring bench load``."""
    # Imported here because they import rich, which no other command needs to start.
    if arguments.bench_command == "load":
        from slipring.bench.load.command import load

        return load(load_options.from_namespace(arguments, os.environ))
    from slipring.bench.command import bench

    return bench(bench_options.from_namespace(arguments, os.environ))


def print_openapi() -> int:
    """Print the OpenAPI document."""
    print(msgspec.json.format(msgspec.json.encode(document())).decode())
    return 0


def serve(config: Config) -> int:
    """Run a server until a signal stops it."""
    ignore(*IGNORED_SIGNALS)
    set_up_logging(config.log_level, names_process=config.workers > 1)
    if config.workers > 1:
        refuse_private_store(config)
        serving = _supervise(Supervisor(config))
    else:
        serving = _serve(Server(config))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serving)
        block_stop_signals()
    with contextlib.suppress(OSError):  # the terminal may be closed
        print("slipring: stopped", flush=True)
    return 0


async def _serve(server: Server) -> None:
    engine = ", ".join(engine.name for engine in server.catalog.engines)
    # Engines in front of servers learn the names of their models when they start.
    named = [*server.config.model, *(model.name for model in server.config.models)]
    known = [model.name for each in server.catalog.engines for model in each.models()]
    with Loading(sys.stderr, engine, (named or known or [engine])[0]) as loading:

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
        "",
        "Point a client at it:",
        f"  OPENAI_BASE_URL={url} OPENAI_API_KEY={key}",
    ]
    if sys.stdout.isatty():
        lines += ["", "Try next, in another terminal:", *(f"  {line}" for line in _next_steps(url, serving))]
    print("\n".join(lines), flush=True)


def _is_simulated(engines: Sequence[str]) -> bool:
    return any(engine.partition(":")[0] == "simulated" for engine in engines)


def _next_steps(url: str, serving: Serving) -> list[str]:
    key = "" if serving.is_open else "OPENAI_API_KEY=YOUR_KEY "
    where = "" if url == chat_options.ChatOptions().url else f" --url {url}"
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
