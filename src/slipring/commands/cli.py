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
from typing import NamedTuple

from slipring import __version__
from slipring.base.errors import StartupError
from slipring.base.garbage_collection import collection_paused
from slipring.base.interruption import interruptible
from slipring.base.standard_streams import OutputFailed, discard_output
from slipring.commands.argument_parser import USAGE_ERROR, CommandFailed, Parser, UsageError
from slipring.config.settings import ConfigError, add_flags, from_namespace

OUTPUT_ERROR = 1
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


class _Command(NamedTuple):
    """A command as the help shows it, and where its code is, within this package."""

    name: str
    help: str
    description: str
    runs: str
    """The module and the function that takes the arguments, and the settings if it needs them."""
    flags: str = ""
    """The module that adds its flags, if it has some."""
    usage: str | None = None
    has_settings: bool = False


_DESCRIBED = (
    _Command(
        "inspect",
        "show what slipring makes of a model, without loading it",
        "Show how slipring writes contexts for a model and parses its answers, without loading its weights."
        " Exit code 1: the model would not work.",
        "inspection.printed_report.inspect",
        "inspection.printed_report",
    ),
    _Command(
        "config",
        "check settings, and print the schema of the TOML file",
        "Check settings without starting a server, and print the schema of the TOML file.",
        "config.run",
        "config",
    ),
    _Command(
        "doctor",
        "check the machine, the store and the engines that a server would use",
        "Check what 'slipring serve' would need with the same flags, variables and file: one line each, and"
        " what to do. Starts the engines and stops them again. Exit code 1: a server would not start.",
        "doctor.doctor",
        "doctor",
        "%(prog)s [--json] [flags of 'slipring serve']",
        has_settings=True,
    ),
    _Command(
        "models",
        "list the models of a hub that are on this machine",
        "List the GGUF models in the cache of the model hub, as 'slipring serve --model' takes them. 'serve'"
        " fetches those that are not there.",
        "models.list_models",
        "models",
    ),
    _Command(
        "chat",
        "chat in the terminal with any Responses endpoint",
        "Chat with a Responses endpoint over one WebSocket. Without a MESSAGE, each line of standard input is"
        " a turn.",
        "chat.run.chat",
        "chat.options",
    ),
    _Command(
        "launch",
        "start a client such as codex, pointed at a server",
        "Start an installed client that uses a server, without changing the client's settings. Without --url"
        " and OPENAI_BASE_URL: the server on port 8000, or a new one that runs as long as the client.",
        "launch.launch",
        "launch",
        "%(prog)s CLIENT [--url URL] [--model NAME] [--api-key-env VARIABLE] [-- ARGUMENTS]",
    ),
    _Command(
        "top",
        "show what a running server does",
        "Show in the terminal what a running server does: connections, turns, engines, memory. q or Ctrl-C"
        " exits. Exit code 1: the server cannot be reached, or refuses the admin key.",
        "top.run.top",
        "top.options",
    ),
    _Command(
        "keys",
        "create, list and revoke the API keys in a store",
        "Create, list and revoke the API keys in a store.",
        "keys.manage",
        "keys",
        has_settings=True,
    ),
    _Command(
        "completion",
        "print a script with which a shell completes commands and flags",
        "Print a script for a shell. For bash, in ~/.bashrc: source <(slipring completion bash)",
        "",
        "completion",
    ),
    _Command(
        "openapi",
        "print the OpenAPI document of the server",
        "Print what the server accepts and returns, as an OpenAPI 3.1 document in JSON.",
        "openapi.print_document",
    ),
)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="slipring",
        description="Serve the OpenAI Responses API over one persistent WebSocket, in front of any engine.",
    )
    parser.add_argument("--version", action="version", version=f"slipring {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    serve = commands.add_parser(
        "serve",
        help="serve the Responses API",
        usage="%(prog)s [--engine KIND[:OPTIONS]] [--port PORT] [--store STORE] [flags below]",
        description="Serve the Responses API.",
        epilog=_engine_list(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.defer(add_flags)
    for each in _DESCRIBED:
        command = commands.add_parser(
            each.name, help=each.help, description=each.description, usage=each.usage
        )
        if each.flags:
            command.defer(_flags_of(each.flags))
        if each.name == "launch":
            command.take_rest("arguments")
    measure = commands.add_parser(
        "bench",
        help="measure agent loops against any Responses endpoint, mode by mode",
        description="Run agent loops against a Responses endpoint in several modes, check every answer, and"
        " report where the time goes. Without --url and OPENAI_BASE_URL, start a slipring server to measure.",
    )
    measure.defer(_add_bench_flags)
    return parser


def _flags_of(module: str) -> Callable[[Parser], None]:
    """What adds the flags of a command. Its module is imported when they are needed."""

    def add(parser: Parser) -> None:
        import_module(f"slipring.commands.{module}").add_flags(parser)

    return add


def _add_bench_flags(measure: Parser) -> None:
    from slipring.commands.bench import options
    from slipring.commands.bench.load import options as load_options

    options.add_flags(measure)
    load = measure.add_subparsers(dest="bench_command", parser_class=Parser).add_parser(
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
        code = _run(arguments)
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


def _run(arguments: argparse.Namespace) -> int:
    if (special := _SPECIAL.get(arguments.command)) is not None:
        return special(arguments)
    command = next(each for each in _DESCRIBED if each.name == arguments.command)
    given = (arguments, from_namespace(arguments, os.environ)) if command.has_settings else (arguments,)
    module, _, function = command.runs.rpartition(".")
    run: Callable[..., int] = getattr(import_module(f"slipring.commands.{module}"), function)
    with interruptible():
        return run(*given)


def _serve(arguments: argparse.Namespace) -> int:
    config = from_namespace(arguments, os.environ)
    with collection_paused():
        from slipring.commands.serve import serve
    return serve(config)


def _complete(arguments: argparse.Namespace) -> int:
    from slipring.commands.completion import script

    print(script(arguments.shell, build_parser()), end="")
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    part = "load." if arguments.bench_command == "load" else ""
    measure: Callable[..., int] = import_module(f"slipring.commands.bench.{part}command").run
    with interruptible():
        return measure(arguments)


_SPECIAL: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "completion": _complete,
    "bench": _measure,
}
