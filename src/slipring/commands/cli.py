"""The command line: ``slipring serve``, ``config``, ``doctor``, ``inspect``, ``models``, ``chat``,
``top``, ``launch``, ``keys``, ``openapi`` and ``bench``.

Parses the arguments, runs the command, and reports every expected failure as one line on standard error, with
a non-zero exit code. What only one command needs is imported when that command runs: most of the time that a
process takes to start, and of the memory that it has then, is for imports.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from slipring import __version__
from slipring.base.errors import StartupError, suggestion
from slipring.base.garbage_collection import collection_paused
from slipring.base.interruption import interruptible
from slipring.base.standard_streams import OutputFailed, discard_output, print_encoded
from slipring.commands.flags import CommandFailed, UsageError
from slipring.config.flags import add_flags, from_namespace
from slipring.config.settings import ConfigError

OUTPUT_ERROR = 1
USAGE_ERROR = 2
STARTUP_ERROR = 3
INTERRUPTED = 130

ENGINES = {
    "llama": (
        "a GGUF model in llama.cpp: a file, or ORG/REPO[:QUANTIZATION] of a hub; else the packaged SmolLM2",
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
    _deferred: "Callable[[_Parser], None] | None" = None
    _rest = ""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def add_subparsers(self, **kwargs: Any) -> Any:
        self._commands = super().add_subparsers(**{"metavar": "COMMAND", **kwargs})
        return self._commands

    def defer(self, add: "Callable[[_Parser], None]") -> None:
        """Let ``add`` add flags to this parser when they are first needed."""
        self._deferred = add

    def take_rest(self, name: str) -> None:
        """Keep what follows ``--`` as it is, as a list with this name."""
        self._rest = name

    def complete(self) -> None:
        """Add the deferred flags."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; report unknown arguments as an error of this parser, so that its own help is named."""
        self.complete()
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if self._rest and "--" in words else len(words)
        words, rest = words[:end], words[end + 1 :]
        if not words and self._commands is not None and self._commands.required:
            self.print_help()
            self.exit()
        self._check_first(words)
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self._refuse(unknown)
        if self._rest:
            setattr(parsed, self._rest, rest)
        return parsed, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, the version or a mistake. argparse's own method ignores that it cannot be written."""
        print(message, end="", file=file or sys.stderr, flush=True)

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
            command.complete()
            if flags[0] in command._option_string_actions:
                self.error(f"{flags[0]} is a flag of '{self.prog} {name}': write it after '{name}'")
        self.error(f"unknown flag {flags[0]}{suggestion(flags[0], self._option_string_actions)}")

    def _command_names(self) -> "dict[str, _Parser]":
        return dict(self._commands.choices or {}) if self._commands is not None else {}


class _Command(NamedTuple):
    """A command as the help shows it, and the module that adds its flags, if it has some."""

    name: str
    help: str
    description: str
    flags: str = ""
    usage: str | None = None


_DESCRIBED = (
    _Command(
        "inspect",
        "show what slipring makes of a model, without loading it",
        "Show how slipring writes contexts for a model and parses its answers, without loading its weights."
        " Exit code 1: the model would not work.",
        "inspection.command",
    ),
    _Command(
        "config",
        "check settings, and print the schema of the TOML file",
        "Check settings without starting a server, and print the schema of the TOML file.",
        "config",
    ),
    _Command(
        "doctor",
        "check the machine, the store and the engines that a server would use",
        "Check what 'slipring serve' would need with the same flags, variables and file: one line each, and"
        " what to do. Starts the engines and stops them again. Exit code 1: a server would not start.",
        "doctor",
        "%(prog)s [--json] [flags of 'slipring serve']",
    ),
    _Command(
        "models",
        "list the models of a hub that are on this machine",
        "List the GGUF models in the cache of the model hub, as 'slipring serve --model' takes them. 'serve'"
        " fetches those that are not there.",
        "models",
    ),
    _Command(
        "chat",
        "chat in the terminal with any Responses endpoint",
        "Chat with a Responses endpoint over one WebSocket. Without a MESSAGE, each line of standard input is"
        " a turn.",
        "chat.options",
    ),
    _Command(
        "launch",
        "start a client such as codex, pointed at a server",
        "Start an installed client that uses a server, without changing the client's settings. Without --url"
        " and OPENAI_BASE_URL: the server on port 8000, or a new one that runs as long as the client.",
        "launch.command",
        "%(prog)s CLIENT [--url URL] [--model NAME] [--api-key-env VARIABLE] [-- ARGUMENTS]",
    ),
    _Command(
        "top",
        "show what a running server does",
        "Show in the terminal what a running server does: connections, turns, engines, memory. q or Ctrl-C"
        " exits. Exit code 1: the server cannot be reached, or refuses the admin key.",
        "top.options",
    ),
    _Command(
        "keys",
        "create, list and revoke the API keys in a store",
        "Create, list and revoke the API keys in a store.",
        "keys",
    ),
    _Command(
        "completion",
        "print a script with which a shell completes commands and flags",
        "Print a script for a shell. For bash, in ~/.bashrc: source <(slipring completion bash)",
        "completion",
    ),
    _Command(
        "openapi",
        "print the OpenAPI document of the server",
        "Print what the server accepts and returns, as an OpenAPI 3.1 document in JSON.",
    ),
)


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
    serve.defer(add_flags)
    for name, text, description, flags, usage in _DESCRIBED:
        command = commands.add_parser(name, help=text, description=description, usage=usage)
        if flags:
            command.defer(_flags_of(flags))
        if name == "launch":
            command.take_rest("arguments")
    measure = commands.add_parser(
        "bench",
        help="measure agent loops against any Responses endpoint, mode by mode",
        description="Run agent loops against a Responses endpoint in several modes, check every answer, and"
        " report where the time goes. Without --url and OPENAI_BASE_URL, start a slipring server to measure.",
    )
    measure.defer(_add_bench_flags)
    return parser


def _flags_of(module: str) -> Callable[[_Parser], None]:
    """What adds the flags of a command. Its module is imported when they are needed."""

    def add(parser: _Parser) -> None:
        import_module(f"slipring.commands.{module}").add_flags(parser)

    return add


def _add_bench_flags(measure: _Parser) -> None:
    from slipring.commands.bench import options
    from slipring.commands.bench.load import options as load_options

    options.add_flags(measure)
    load = measure.add_subparsers(dest="bench_command", parser_class=_Parser).add_parser(
        "load",
        help="open more and more connections until a service level breaks",
        description="Chat over many connections at once, more and more of them, until a service level breaks."
        " Without --url and OPENAI_BASE_URL, start a slipring server to measure.",
        argument_default=argparse.SUPPRESS,  # keeps the values of flags that were given before "load"
    )
    load_options.add_flags(load)


def _engine_list() -> str:
    lines = ["engines:"]
    for kind, (meaning, example) in ENGINES.items():
        lines += [f"  {kind:<10} {meaning}", f"  {'':<10} --engine {example}"]
    return "\n".join(
        [*lines, "  Options follow as name=value, separated by commas: docs/engines.md lists them."]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        code = _COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that were not begun
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of standard output has ended, as in ``slipring openapi | head``.
        discard_output()
        return 0
    except OutputFailed as error:
        discard_output()
        print(f"slipring: {error}", file=sys.stderr)
        return OUTPUT_ERROR
    except (ConfigError, UsageError) as error:
        print(f"slipring: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (StartupError, CommandFailed) as error:
        print(f"slipring: {error}", file=sys.stderr)
        return STARTUP_ERROR


def _serve(arguments: argparse.Namespace) -> int:
    config = from_namespace(arguments, os.environ)
    with collection_paused():
        from slipring.commands.serve import serve
    return serve(config)


def _inspect(arguments: argparse.Namespace) -> int:
    from slipring.commands.inspection.command import inspect

    with interruptible():
        return inspect(arguments)


def _complete(arguments: argparse.Namespace) -> int:
    from slipring.commands.completion import script

    print(script(arguments.shell, build_parser()), end="")
    return 0


def _config(arguments: argparse.Namespace) -> int:
    config = from_namespace(arguments, os.environ) if arguments.config_command == "check" else None
    from slipring.commands.config import run

    return run(arguments, config)


def _doctor(arguments: argparse.Namespace) -> int:
    config = from_namespace(arguments, os.environ)
    from slipring.commands.doctor import doctor

    with interruptible():
        return doctor(arguments, config)


def _list_models(arguments: argparse.Namespace) -> int:
    from slipring.commands.models import list_models

    return list_models(arguments)


def _chat(arguments: argparse.Namespace) -> int:
    from slipring.commands.chat.options import from_namespace
    from slipring.commands.chat.run import chat

    with interruptible():
        return chat(from_namespace(arguments, os.environ), " ".join(arguments.message))


def _launch(arguments: argparse.Namespace) -> int:
    from slipring.commands.launch.command import launch

    with interruptible():
        return launch(arguments)


def _watch(arguments: argparse.Namespace) -> int:
    from slipring.commands.top.options import from_namespace
    from slipring.commands.top.run import top

    with interruptible():
        return top(from_namespace(arguments, os.environ))


def _manage_keys(arguments: argparse.Namespace) -> int:
    config = from_namespace(arguments, os.environ)
    import asyncio

    from slipring.commands.keys import run

    with interruptible():
        return asyncio.run(run(arguments, config))


def _print_openapi(arguments: argparse.Namespace) -> int:
    import msgspec

    from slipring.commands.openapi.operations import document

    print_encoded(msgspec.json.format(msgspec.json.encode(document())))
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    if arguments.bench_command == "load":
        from slipring.commands.bench.load.command import load
        from slipring.commands.bench.load.options import from_namespace as load_options

        with interruptible():
            return load(load_options(arguments, os.environ))
    from slipring.commands.bench.command import bench
    from slipring.commands.bench.options import from_namespace as bench_options

    with interruptible():
        return bench(bench_options(arguments, os.environ))


_COMMANDS = {
    "serve": _serve,
    "inspect": _inspect,
    "completion": _complete,
    "config": _config,
    "doctor": _doctor,
    "models": _list_models,
    "chat": _chat,
    "launch": _launch,
    "top": _watch,
    "keys": _manage_keys,
    "openapi": _print_openapi,
    "bench": _measure,
}
