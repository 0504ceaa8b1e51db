"""Options of ``slipring chat``, read from flags and environment variables.

The API key is read from an environment variable only: other users of the machine can see a process's flags.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

_URL = "http://127.0.0.1:8000/v1"
_URL_VARIABLE = "OPENAI_BASE_URL"
_KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The server to connect to and the fields that every request carries. The repr omits the API key."""

    url: str = _URL
    key: str = field(default="", repr=False)
    key_variable: str = _KEY_VARIABLE
    """Name of the environment variable that ``key`` was read from, for error messages."""
    model: str | None = None
    instructions: str | None = None
    store: bool = False
    max_output_tokens: int | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``from_namespace`` reads, and the positional MESSAGE."""
    parser.add_argument("--url", help=f"base URL of the API (default: ${_URL_VARIABLE}, else {_URL})")
    parser.add_argument("--model", metavar="NAME", help="model to use (default: the server's default model)")
    parser.add_argument("--instructions", metavar="TEXT", help="system instructions, sent with every turn")
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        default=_KEY_VARIABLE,
        help=f"environment variable that holds the API key (default: {_KEY_VARIABLE})",
    )
    parser.add_argument(
        "--store",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="ask the server to store the responses (default: --no-store)",
    )
    parser.add_argument(
        "--max-output-tokens", metavar="N", type=int, help="maximum length of an answer, in tokens"
    )
    parser.add_argument(
        "message", metavar="MESSAGE", nargs="*", help="send this message, print the answer and exit"
    )


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> ChatOptions:
    """Build the options from parsed flags (see ``add_flags``) and environment variables."""
    return ChatOptions(
        url=namespace.url or environ.get(_URL_VARIABLE) or _URL,
        key=environ.get(namespace.api_key_env, "").strip(),
        key_variable=namespace.api_key_env,
        model=namespace.model,
        instructions=namespace.instructions,
        store=namespace.store,
        max_output_tokens=namespace.max_output_tokens,
    )
