"""The endpoint that a bench measures, from command-line flags and environment variables.

API keys are read from the environment only: other users can see flags in the process list.
"""

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, get_args
from urllib.parse import urlsplit

from slipring.commands import flags
from slipring.commands.bench.client.transports import Api
from slipring.commands.bench.subject.simulated_engine import BadEngine, simulated_speed
from slipring.commands.client_environment import KEY_VARIABLE, URL_VARIABLE, api_key, named_url, variable_name
from slipring.commands.failures import UsageError
from slipring.commands.flags import flag, number, text, whole

_KEY_VARIABLES = (KEY_VARIABLE, "SLIPRING_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The endpoint to measure. Its repr does not show the key."""

    url: str | None = flag(
        None,
        f"base URL of the API, as in http://host/v1 (default: ${URL_VARIABLE}, else start a server)",
        type=text,
    )
    url_variable: str | None = None
    """The variable that names ``url``, if no flag does."""
    key: str = field(default="", repr=False)
    model: str | None = flag(None, "model to use (default: the first in /models)", metavar="NAME", type=text)
    api_key_env: str | None = flag(
        None,
        f"environment variable with the API key (default: {' or '.join(_KEY_VARIABLES)})",
        metavar="VARIABLE",
        type=variable_name,
    )
    engine: str | None = flag(
        None, "engine of the started server (default: simulated)", metavar="SPEC", type=text
    )
    tokens_per_s: float = flag(
        1000.0,
        "simulated decoding speed; 0: unlimited (default: {default:g})",
        metavar="RATE",
        type=number(0),
    )
    api: Api = flag(
        "responses",
        "API of the requests; messages and chat send the whole conversation in every turn, as clients of"
        " these APIs do, and know the modes http-full and http-full-newconn only (default: responses)",
        choices=get_args(Api),
    )
    serve_flags: tuple[str, ...] = flag((), "further flags of the started server", metavar="FLAGS")
    max_output_tokens: int | None = flag(
        None,
        "limit of each answer, for models that do not stop by themselves (default: none)",
        metavar="N",
        type=whole(1),
    )
    server_pid: int | None = flag(
        None,
        "process id of the server at --url, if it runs on this machine, to measure its CPU",
        metavar="PID",
        type=whole(1),
    )
    timeout_s: float = flag(
        300.0, "time limit of a turn (default: {default:g})", type=number(0.001), metavar="S"
    )


class _RejectedKeyFlag(argparse.Action):
    """Rejects flags for API keys without repeating the key in the error message."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(
            "a key in a flag is visible to other users: name a variable that has it with --api-key-env"
        )


def add_target_flags(parser: argparse.ArgumentParser, *, tokens_per_s: float, timeout_s: float) -> None:
    """Add the flags that describe the endpoint, with the defaults of a command."""
    flags.add_flags(parser, Target, tokens_per_s=tokens_per_s, timeout_s=timeout_s)
    parser.add_argument(
        *("--api-key", "--key", "--token"), action=_RejectedKeyFlag, nargs="?", help=argparse.SUPPRESS
    )


def target_from_namespace(
    namespace: argparse.Namespace, environ: Mapping[str, str], *, tokens_per_s: float, timeout_s: float
) -> Target:
    """Build the target from parsed flags (see ``add_target_flags``) and ``environ``. Raises
    ``UsageError``."""
    given = flags.given(namespace, Target)
    of_started = {"--engine": namespace.engine, "--serve-flags": namespace.serve_flags}
    url: str | None = namespace.url
    url_variable = None
    if url is not None:
        _check_url("--url", url)
        for name, value in of_started.items():
            if value:
                raise UsageError(
                    f"{name} applies to the server that the bench starts: it cannot be used with --url"
                )
    elif not any(of_started.values()) and (url := named_url(environ)) is not None:
        _check_url(URL_VARIABLE, url)
        url_variable = URL_VARIABLE
    elif namespace.server_pid is not None:
        raise UsageError("--server-pid needs --url")
    if namespace.engine is not None:
        try:
            simulated_speed(namespace.engine)
        except BadEngine as error:
            raise UsageError(f"--engine: {error}") from None
    given |= {
        "url": url,
        "url_variable": url_variable,
        "key": _key(namespace.api_key_env, environ),
        "serve_flags": _split(namespace.serve_flags or ""),
    }
    return Target(**{"tokens_per_s": tokens_per_s, "timeout_s": timeout_s, **given})


def _split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--serve-flags: {str(error).lower()}") from None


def _key(variable: str | None, environ: Mapping[str, str]) -> str:
    for name in (variable,) if variable else _KEY_VARIABLES:
        if key := api_key(name, environ):
            return key
    if variable:
        raise UsageError(f"--api-key-env: {variable} is not set")
    return ""


def _check_url(source: str, url: str) -> None:
    """Raise ``UsageError`` for an invalid URL. The message repeats no part that may be a secret. ``source``:
    the flag or variable that it is from."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if "@" in url:
        raise UsageError(f"{source}: user names and passwords are not supported: see --api-key-env")
    if not is_url:
        raise UsageError(f"{source} {url}: not a URL like http://host/v1")
    if parts.query or parts.fragment:
        raise UsageError(f"{source}: query and fragment are not supported: give a URL like http://host/v1")
