"""What a chat is told on the command line and by the environment.

The key comes from the environment alone: flags can be seen in the list of processes.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

_URL = "http://127.0.0.1:8000/v1"
_URL_VARIABLE = "OPENAI_BASE_URL"
_KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Options:
    """One chat: where it goes, and what every turn of it asks for. Its repr shows no key."""

    url: str = _URL
    key: str = field(default="", repr=False)
    model: str | None = None
    instructions: str | None = None
    store: bool = False
    max_output_tokens: int | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``from_namespace`` reads, and the words of a message."""
    parser.add_argument("--url", help=f"where the API is (default: ${_URL_VARIABLE}, else {_URL})")
    parser.add_argument("--model", metavar="NAME", help="model to ask (default: the server's choice)")
    parser.add_argument("--instructions", metavar="TEXT", help="what the model is told first")
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        default=_KEY_VARIABLE,
        help=f"variable that holds the API key (default: {_KEY_VARIABLE})",
    )
    parser.add_argument(
        "--store",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let the server store the responses (default: false)",
    )
    parser.add_argument("--max-output-tokens", metavar="N", type=int, help="longest answer")
    parser.add_argument("message", metavar="MESSAGE", nargs="*", help="ask this, show the answer and end")


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Options:
    """The options that parsed flags (see ``add_flags``) and ``environ`` describe."""
    return Options(
        url=namespace.url or environ.get(_URL_VARIABLE) or _URL,
        key=environ.get(namespace.api_key_env, "").strip(),
        model=namespace.model,
        instructions=namespace.instructions,
        store=namespace.store,
        max_output_tokens=namespace.max_output_tokens,
    )
