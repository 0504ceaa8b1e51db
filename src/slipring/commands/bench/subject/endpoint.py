"""The endpoint that is measured: the one at ``--url``, or a ``slipring serve`` that the bench starts and
stops.

Flags and environment variables say which. API keys are read from the environment only: other users can see
flags in the process list.
"""

import argparse
import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, get_args
from urllib.parse import urlsplit, urlunsplit

from slipring.base.connection_failures import reason
from slipring.commands import argument_parser, child_server
from slipring.commands.argument_parser import CommandFailed, UsageError, flag, number, text, whole
from slipring.commands.bench.client.transports import Api
from slipring.commands.bench.results import Endpoint
from slipring.commands.bench.subject.processes import Meter
from slipring.commands.bench.subject.proxy import delaying_proxy
from slipring.commands.bench.subject.simulated_engine import BadEngine, default_engine, simulated_speed
from slipring.commands.client_environment import (
    KEY_VARIABLE,
    URL_VARIABLE,
    api_key,
    is_web_url,
    named_url,
    variable_name,
)

_KEY_VARIABLES = (KEY_VARIABLE, "SLIPRING_API_KEY")
_STOP_TIMEOUT_S = 15.0
_HTTP_PORT = 80
_NO_KEYS: Mapping[str, str] = {}


# --- Flags for it ----------------------------------------------------------------------------------


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
    argument_parser.add_flags(parser, Target, tokens_per_s=tokens_per_s, timeout_s=timeout_s)
    parser.add_argument(
        *("--api-key", "--key", "--token"), action=_RejectedKeyFlag, nargs="?", help=argparse.SUPPRESS
    )


def target_from_namespace(
    namespace: argparse.Namespace, environ: Mapping[str, str], *, tokens_per_s: float, timeout_s: float
) -> Target:
    """Build the target from parsed flags (see ``add_target_flags``) and ``environ``. Raises
    ``UsageError``."""
    given = argument_parser.given_values(namespace, Target)
    of_started = {"--engine": namespace.engine, "--serve-flags": namespace.serve_flags}
    url: str | None = namespace.url
    url_variable = None
    if url is not None:
        check_url("--url", url)
        for name, value in of_started.items():
            if value:
                raise UsageError(
                    f"{name} applies to the server that the bench starts: it cannot be used with --url"
                )
    elif not any(of_started.values()) and (url := named_url(environ)) is not None:
        check_url(URL_VARIABLE, url)
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


def check_url(source: str, url: str) -> None:
    """Raise ``UsageError`` for an invalid URL. The message repeats no part that may be a secret. ``source``:
    the flag or variable that it is from."""
    if "@" in url:
        raise UsageError(f"{source}: user names and passwords are not supported: see --api-key-env")
    if not is_web_url(url):
        raise UsageError(f"{source} {url}: not a URL like http://host/v1")
    if urlsplit(url).query or urlsplit(url).fragment:
        raise UsageError(f"{source}: query and fragment are not supported: give a URL like http://host/v1")


# --- Opening it ------------------------------------------------------------------------------------


class OpenEndpoint(NamedTuple):
    """An endpoint that is ready to be measured."""

    url: str
    meter: Meter | None
    """Reads the CPU time and memory of its process; None if it is remote or cannot be read."""


@asynccontextmanager
async def start_server(
    engine: str, flags: Sequence[str] = (), keys: Mapping[str, str] = _NO_KEYS
) -> AsyncIterator[OpenEndpoint]:
    """Start a server on a free port, without the caller's ``SLIPRING_*`` settings; stop it at the end of the
    block. ``keys``: API keys that it asks for, by tenant. Raises ``CommandFailed``."""
    variables = {**child_server.environment()}
    if keys:
        variables["SLIPRING_API_KEYS"] = ",".join(f"{tenant}:{key}" for tenant, key in keys.items())
    process = await asyncio.create_subprocess_exec(
        *child_server.command(engine, flags),
        env=variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the bench alone, which then stops the server
    )
    try:
        assert process.stdout is not None
        while not (found := child_server.SERVES.search(line := await process.stdout.readline())):
            if not line:
                raise CommandFailed(
                    f"slipring serve exited with code {await process.wait()} before it was ready"
                )
        drain = asyncio.create_task(process.stdout.read())
        yield OpenEndpoint(found.group(1).decode(), _readable(Meter(process.pid)))
        drain.cancel()
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def open_endpoint(
    target: Target, engine: str | None, keys: Mapping[str, str] | None = None
) -> AsyncIterator[OpenEndpoint]:
    """The endpoint at ``target.url``, or a server started with ``engine``, and with ``keys`` by tenant.

    Raises ``CommandFailed``, also if ``--server-pid`` names no readable process.
    """
    if target.url is not None:
        meter = _readable(Meter(target.server_pid)) if target.server_pid is not None else None
        if target.server_pid is not None and meter is None:
            raise CommandFailed(
                f"--server-pid {target.server_pid}: no such process, or its CPU time cannot be read"
            )
        yield OpenEndpoint(target.url, meter)
        return
    assert engine is not None
    async with start_server(engine, target.serve_flags, keys or {}) as server:
        yield server


@asynccontextmanager
async def with_round_trip(url: str, rtt_ms: float) -> AsyncIterator[str]:
    """A URL of the same endpoint behind a proxy that adds ``rtt_ms``; ``url`` itself if that is 0.

    Raises ``CommandFailed`` if the endpoint cannot be reached: behind the proxy, the reason would be lost.
    """
    if not rtt_ms:
        yield url
        return
    parts = urlsplit(url)
    assert parts.hostname is not None
    host, port = parts.hostname, parts.port or _HTTP_PORT
    try:
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except OSError as error:
        raise CommandFailed(f"cannot reach {url}: {reason(error)}") from None
    async with delaying_proxy(host, port, rtt_ms / 1000) as proxy_port:
        yield urlunsplit(parts._replace(netloc=f"127.0.0.1:{proxy_port}"))


def describe(target: Target) -> Endpoint:
    """The endpoint as records store it. Its model is empty if ``target`` does not name one."""
    if target.url is not None:
        return Endpoint(model=target.model or "", url=target.url, api=target.api)
    engine = target.engine or default_engine(target.tokens_per_s)
    return Endpoint(
        model=target.model or "", engine=engine, tokens_per_s=simulated_speed(engine), api=target.api
    )


def _readable(meter: Meter) -> Meter | None:
    return meter if meter.can_read else None
