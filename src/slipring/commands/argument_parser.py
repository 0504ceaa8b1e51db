"""How mistakes in the arguments of a command are reported, and when its flags are added."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from slipring.base.errors import suggestion

USAGE_ERROR = 2


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
