"""The flags of commands: how they are declared, how their values are read, and how mistakes are reported; and
the errors by which commands end with one line and an exit code.

A flag is declared once, as a field of the options that it sets.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from slipring.base.errors import suggestion

USAGE_ERROR = 2
"""The exit code of a mistake in the arguments."""


class UsageError(Exception):
    """Flags, variables or files are invalid, or contradict each other. Messages do not repeat secrets."""


class CommandFailed(Exception):
    """A server cannot be reached, started or measured, or a client is not installed."""


# --- Flags as fields of options -----------------------------------------------------------------------


def flag(default: Any, help: str, *, name: str = "", **argument: Any) -> Any:
    """A field of options that the flag with its name sets. ``name``: of the flag, if it has another one.
    ``argument``: what else argparse needs to know."""
    return dataclasses.field(default=default, metadata={"name": name, "argument": {"help": help, **argument}})


def add_flags(parser: argparse.ArgumentParser, options: type[Any], **defaults: float) -> None:
    """Add the flags of options to a parser, without defaults: a command may need to know which were given.
    ``defaults``: those of this command, which the help names."""
    for each in dataclasses.fields(options):
        if each.metadata:
            argument = dict(each.metadata["argument"])
            if each.name in defaults:
                argument["help"] = argument["help"].format(default=defaults[each.name])
            if argument.get("action") == "store_true":
                argument["default"] = argparse.SUPPRESS
            parser.add_argument(_name(each), dest=each.name, **argument)


def given_values(namespace: argparse.Namespace, options: type[Any]) -> dict[str, Any]:
    """The values of the flags that were given, by field."""
    names = (each.name for each in dataclasses.fields(options) if each.metadata)
    return {name: value for name in names if (value := getattr(namespace, name, None)) is not None}


def given_names(namespace: argparse.Namespace, options: type[Any]) -> list[str]:
    """The flags that were given, as users write them."""
    found = given_values(namespace, options)
    return [_name(each) for each in dataclasses.fields(options) if each.name in found]


def _name(declared: "dataclasses.Field[Any]") -> str:
    return declared.metadata["name"] or f"--{declared.name.replace('_', '-')}"


# --- Values -------------------------------------------------------------------------------------------


def text(given: str) -> str:
    """A text that is not empty, as one is if the variable that it comes from is not set."""
    if not given.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return given


def whole(least: int) -> Callable[[str], int]:
    """A parser of whole numbers."""

    def parse(given: str) -> int:
        if not (given.isascii() and given.isdecimal() and int(given) >= least):
            raise argparse.ArgumentTypeError(f"must be a whole number, at least {least}")
        return int(given)

    return parse


def number(least: float) -> Callable[[str], float]:
    """A parser of finite numbers."""

    def parse(given: str) -> float:
        value = _float(given)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be a number, at least {least:g}")
        return value

    return parse


def share(given: str) -> float:
    """A share from 0 to 1."""
    value = _float(given)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be between 0 and 1; 0.01 is 1 %")
    return value


def _float(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return float("nan")


# --- The parser -------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line that suggests the right spelling and names the help to read.

    A message never contains the value of an unknown flag, because it may be a secret.
    """

    _commands: "argparse.Action | None" = None
    _deferred: "Callable[[Parser], None] | None" = None
    _rest = ""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def add_subparsers(self, **kwargs: Any) -> Any:
        self._commands = super().add_subparsers(**{"metavar": "COMMAND", **kwargs})
        return self._commands

    def defer(self, add: "Callable[[Parser], None]") -> None:
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

    def _command_names(self) -> "dict[str, Parser]":
        return dict(self._commands.choices or {}) if self._commands is not None else {}
