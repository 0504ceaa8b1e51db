"""Values of command-line flags: parsers for argparse, which reports what they raise in one line."""

import argparse
from collections.abc import Callable


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
