"""``slipring launch``: its flags, the server that it finds or starts for a client, and the life of the
client's process.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from slipring.commands import child_server
from slipring.commands.client_environment import (
    DEFAULT_URL,
    KEY_VARIABLE,
    URL_VARIABLE,
    api_key,
    named_url,
    variable_name,
)
from slipring.commands.failures import CommandFailed
from slipring.commands.flags import text
from slipring.commands.launch.clients import CLIENTS, Target

_TIMEOUT_S = 10
_STOP_TIMEOUT_S = 15
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class KeyRefused(CommandFailed):
    """There is a server, which does not accept the API key."""


def describe(url: str, key: str) -> dict[str, Any]:
    """The models of a server, with what Codex wants to know about them. Raises ``CommandFailed``."""
    if not _is_url(url):
        raise CommandFailed(f"cannot use {url}: not a valid http:// or https:// URL")
    opener = build_opener(ProxyHandler({})) if urlsplit(url).hostname in _LOOPBACK else build_opener()
    try:
        request = Request(f"{url}/models?client_version=1", headers={"Authorization": f"Bearer {key}"})
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            content = answer.read()
    except HTTPError as refusal:
        answered = f"{url} answered with status {refusal.code}"
        if refusal.code in (401, 403):
            raise KeyRefused(f"{answered}: set OPENAI_API_KEY, or see --api-key-env") from None
        raise CommandFailed(answered) from None
    except (OSError, HTTPException) as failure:
        from slipring.base.connection_failures import reason  # imports an HTTP client

        raise CommandFailed(f"cannot reach {url}: {reason(failure)}") from None
    try:
        described = json.loads(content)
    except ValueError:
        raise CommandFailed(f"{url} does not answer like a Responses server: check the path") from None
    if not isinstance(described, dict) or not described.get("data"):
        raise CommandFailed(f"{url} offers no model")
    return described


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@contextmanager
def started(engine: str, model: str | None) -> Iterator[str]:
    """Start a server on a free port; yield its URL, and stop it at the end. Raises ``CommandFailed``."""
    process = subprocess.Popen(
        child_server.command(engine, ["--model", model] if model else []),
        env=child_server.environment(),
        stdin=subprocess.PIPE,  # the server stops when it closes, even if this process is killed
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the client
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := child_server.SERVES.search(line):
                yield found[1].decode()
                break
        else:
            raise CommandFailed(f"slipring serve exited with code {process.wait()} before it was ready")
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


_INTERRUPTED = 130
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("client", metavar="CLIENT", choices=CLIENTS, help=", ".join(CLIENTS))
    parser.add_argument(
        "--url",
        type=text,
        help=f"base URL of the server (default: ${URL_VARIABLE}; else {DEFAULT_URL} if a server answers"
        " there; else a new server)",
    )
    parser.add_argument(
        "--model", metavar="NAME", type=text, help="model to use (default: the server's first)"
    )
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        type=variable_name,
        default=KEY_VARIABLE,
        help=f"environment variable that holds the API key (default: {KEY_VARIABLE})",
    )
    parser.add_argument(
        "--engine",
        metavar="KIND[:OPTIONS]",
        type=text,
        default="llama",
        help="engine of a new server (default: llama, with the packaged small model)",
    )


def launch(arguments: argparse.Namespace) -> int:
    """Run a client until it ends; return its exit code. Raises ``CommandFailed``, ``UsageError``."""
    client = CLIENTS[arguments.client]
    program = shutil.which(client.program)
    if program is None:
        raise CommandFailed(f"{client.program} is not installed: {client.install}")
    key = api_key(arguments.api_key_env, os.environ) or "any"
    try:
        with _server(arguments, key) as (url, described):
            model = arguments.model or described["data"][0]["id"]
            target = Target(url, model, key, described)
            if (shortage := client.shortage(target)) is not None:
                print(f"slipring: {shortage}", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix="slipring-launch-") as directory:
                settings = client.point(target, Path(directory))
                command = [program, *settings.arguments, *arguments.arguments]
                return _run(command, {**os.environ, **settings.variables})
    except KeyboardInterrupt:
        return _INTERRUPTED  # before the client was started


@contextmanager
def _server(arguments: argparse.Namespace, key: str) -> Iterator[tuple[str, Any]]:
    """The URL of the server, and what it says about its models."""
    named = arguments.url or named_url(os.environ)
    url = (named or DEFAULT_URL).rstrip("/")
    try:
        described = describe(url, key)
    except CommandFailed as error:
        if named or isinstance(error, KeyRefused):
            raise
    else:
        yield url, described
        return
    print(f"slipring: starting a server with --engine {arguments.engine} …", file=sys.stderr)
    with started(arguments.engine, arguments.model) as url:
        yield url, describe(url, key)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command on this terminal; return its exit code, or 128 plus the signal that ended it.

    Ctrl-C reaches the command from the terminal, and does nothing here. Other signals are passed on.
    """
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is not None and process.poll() is None and number in _PASSED_ON:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, *_PASSED_ON)}
    try:
        process = subprocess.Popen(command, env=environ)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
