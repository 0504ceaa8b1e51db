"""Options of ``slipring chat``, read from flags and environment variables.

The API key is read from an environment variable only: other users of the machine can see a process's flags.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipring.commands import argument_parser
from slipring.commands.argument_parser import flag, text, whole
from slipring.commands.client_environment import (
    DEFAULT_URL,
    KEY_VARIABLE,
    URL_VARIABLE,
    api_key,
    named_url,
    variable_name,
)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The server to connect to and the fields that every request carries. The repr omits the API key."""

    url: str = flag(
        DEFAULT_URL, f"base URL of the API (default: ${URL_VARIABLE}, else {DEFAULT_URL})", type=text
    )
    key: str = field(default="", repr=False)
    model: str | None = flag(
        None, "model to use (default: the server's default model)", metavar="NAME", type=text
    )
    instructions: str | None = flag(None, "system instructions, sent with every turn", metavar="TEXT")
    key_variable: str = flag(
        KEY_VARIABLE,
        f"environment variable that holds the API key (default: {KEY_VARIABLE})",
        name="--api-key-env",
        metavar="VARIABLE",
        type=variable_name,
    )
    store: bool = flag(
        False,
        "ask the server to store the responses (default: --no-store)",
        action=argparse.BooleanOptionalAction,
    )
    max_output_tokens: int | None = flag(
        None, "maximum length of an answer, in tokens", metavar="N", type=whole(1)
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``from_namespace`` reads, and the positional MESSAGE."""
    argument_parser.add_flags(parser, ChatOptions)
    about = "send this message, print the answer and exit"
    parser.add_argument("message", metavar="MESSAGE", type=text, nargs="*", help=about)


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> ChatOptions:
    """Build the options from parsed flags (see ``add_flags``) and environment variables. Raises
    ``UsageError``."""
    given = {"url": named_url(environ) or DEFAULT_URL, **argument_parser.given_values(namespace, ChatOptions)}
    return ChatOptions(key=api_key(given.get("key_variable", KEY_VARIABLE), environ), **given)
