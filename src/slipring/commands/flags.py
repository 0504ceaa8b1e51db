"""Flags of commands, each declared once as a field of the options that it sets, and parsers of values."""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any


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
