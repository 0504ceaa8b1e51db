"""Flags of commands, each declared once as a field of the options that it sets, and parsers of their values.

Also what the clients among the commands read from the environment (the server's URL and the API key), and the
errors by which commands end with one line and an exit code.
"""

import argparse
import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any


def flag(default: Any, help: str, *, name: str = "", **argument: Any) -> Any:
    """A field of options that the flag with its name sets. ``name``: of the flag, if it has another one.
    ``argument``: what else argparse needs to know."""
    return dataclasses.field(default=default, metadata={"name": name, "argument": {"help": help, **argument}})


def add_flags(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """Add the flags of options to a parser, without defaults: a command may need to know which were given."""
    for each in dataclasses.fields(options):
        if each.metadata:
            argument = dict(each.metadata["argument"])
            if argument.get("action") == "store_true":
                argument["default"] = argparse.SUPPRESS
            parser.add_argument(_name(each), dest=each.name, **argument)


def given(namespace: argparse.Namespace, options: type[Any]) -> dict[str, Any]:
    """The values of the flags that were given, by field."""
    names = (each.name for each in dataclasses.fields(options) if each.metadata)
    return {name: value for name in names if (value := getattr(namespace, name, None)) is not None}


def given_names(namespace: argparse.Namespace, options: type[Any]) -> list[str]:
    """The flags that were given, as users write them."""
    found = given(namespace, options)
    return [_name(each) for each in dataclasses.fields(options) if each.name in found]


def _name(declared: "dataclasses.Field[Any]") -> str:
    return declared.metadata["name"] or f"--{declared.name.replace('_', '-')}"


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


class UsageError(Exception):
    """Flags, variables or files are invalid, or contradict each other. Messages do not repeat secrets."""


class CommandFailed(Exception):
    """A server cannot be reached, started or measured, or a client is not installed."""


DEFAULT_URL = "http://127.0.0.1:8000/v1"
"""Where ``slipring serve`` listens."""
URL_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def named_url(environ: Mapping[str, str]) -> str | None:
    """The URL in the environment; None if there is none."""
    return environ.get(URL_VARIABLE, "").strip() or None


def api_key(variable: str, environ: Mapping[str, str]) -> str:
    """The key in a variable, without the line end that a file may have added; empty if there is none. Raises
    ``UsageError``, whose message does not repeat it."""
    key = environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{variable}: a key consists of printable ASCII characters")
    return key


def variable_name(given: str) -> str:
    """The name of a variable, for argparse. A key that is given instead is not repeated in the message."""
    if not _NAME.fullmatch(given):
        raise argparse.ArgumentTypeError("must be the name of a variable that holds the key, not the key")
    return given
