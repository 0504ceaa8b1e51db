"""Finds the server for a client, or starts one for as long as the client runs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from slipring.commands.errors import CommandFailed

_TIMEOUT_S = 10
_STOP_TIMEOUT_S = 15
_URL = re.compile(r"serves (http://\S+)")
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
    command = [
        sys.executable,
        "-m",
        "slipring.commands.bench.subject.exit_with_parent",
        "serve",
        "--port",
        "0",
    ]
    command += ["--engine", engine, "--store", "memory", "--log-level", "warning"]
    command += ["--model", model] if model else []
    process = subprocess.Popen(
        command,
        env={name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")},
        stdin=subprocess.PIPE,  # the server stops when it closes, even if this process is killed
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the client
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := _URL.search(line):
                yield found[1]
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
