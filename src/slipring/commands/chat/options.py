"""Options of ``slipring chat``, read from flags and environment variables.

The API key is read from an environment variable only: other users of the machine can see a process's flags.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipring.commands.client_environment import (
    DEFAULT_URL,
    KEY_VARIABLE,
    URL_VARIABLE,
    api_key,
    named_url,
    variable_name,
)
from slipring.commands.flag_values import text, whole


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The server to connect to and the fields that every request carries. The repr omits the API key."""

    url: str = DEFAULT_URL
    key: str = field(default="", repr=False)
    key_variable: str = KEY_VARIABLE
    """Name of the environment variable that ``key`` was read from, for error messages."""
    model: str | None = None
    instructions: str | None = None
    store: bool = False
    max_output_tokens: int | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``from_namespace`` reads, and the positional MESSAGE."""
    parser.add_argument(
        "--url", type=text, help=f"base URL of the API (default: ${URL_VARIABLE}, else {DEFAULT_URL})"
    )
    parser.add_argument(
        "--model", metavar="NAME", type=text, help="model to use (default: the server's default model)"
    )
    parser.add_argument("--instructions", metavar="TEXT", help="system instructions, sent with every turn")
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        type=variable_name,
        default=KEY_VARIABLE,
        help=f"environment variable that holds the API key (default: {KEY_VARIABLE})",
    )
    parser.add_argument(
        "--store",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="ask the server to store the responses (default: --no-store)",
    )
    parser.add_argument(
        "--max-output-tokens", metavar="N", type=whole(1), help="maximum length of an answer, in tokens"
    )
    parser.add_argument(
        "message",
        metavar="MESSAGE",
        type=text,
        nargs="*",
        help="send this message, print the answer and exit",
    )


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> ChatOptions:
    """Build the options from parsed flags (see ``add_flags``) and environment variables. Raises
    ``UnusableKey``."""
    return ChatOptions(
        url=namespace.url or named_url(environ) or DEFAULT_URL,
        key=api_key(namespace.api_key_env, environ),
        key_variable=namespace.api_key_env,
        model=namespace.model,
        instructions=namespace.instructions,
        store=namespace.store,
        max_output_tokens=namespace.max_output_tokens,
    )
