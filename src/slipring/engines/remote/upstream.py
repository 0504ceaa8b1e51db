"""A server that is reached over HTTP: its options, its key, affinity headers, and what its failures mean.

Engines give bodies as ready bytes and parse the payloads that come back.
"""

import hmac
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slipring.core.generation import Job
from slipring.engines.options import option
from slipring.engines.remote.admission_and_retries import Policy, RequestFailed, Retryable
from slipring.engines.remote.http_client import (
    BadStatus,
    EventStream,
    HttpClient,
    Patience,
    TimedOut,
    Unreachable,
    Unreadable,
)
from slipring.errors import ApiError, InvalidRequest, RateLimited, ServerError, StartupError

_SECRET = os.environ.get("SLIPRING_AFFINITY_SECRET", "").encode() or secrets.token_bytes(32)
_KEYED = hmac.new(_SECRET, digestmod="sha256")
"""To be copied: making one takes several times as long."""
DYNAMO_SESSION = "x-dynamo-session-id"
"""The header by which Dynamo knows branches of a chain. The others keep a chain together with its forks."""
DYNAMO_FINAL = "x-dynamo-session-final"
"""On a request of its own: its branch has ended."""
_DYNAMO_PARENT = "x-dynamo-parent-session-id"
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions(Policy):
    """The options that all engines in front of HTTP servers share."""

    url: str = ""
    key_env: str = option("", "the variable that holds the server's API key")
    key_file: str = option("", "a file that holds the server's API key")
    affinity: str = option(
        ";".join(("x-session-id", "x-smg-routing-key", DYNAMO_SESSION)),
        "headers, separated by `;`, that carry the same key on all turns of a chain",
    )


def read_key(kind: str, options: UpstreamOptions) -> str:
    """A server's API key, from a variable or a file; empty if neither is named. Never from the command line,
    which every user of the machine can read."""
    if options.key_env:
        key = os.environ.get(options.key_env, "")
        if not key:
            raise StartupError(f"--engine {kind}: the variable {options.key_env} (key_env) is empty")
        return key
    if options.key_file:
        try:
            return Path(options.key_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise StartupError(
                f"--engine {kind}: cannot read {options.key_file} (key_file): {error.strerror}"
            ) from None
    return ""


def affinity_key(job: Job) -> str:
    """A keyed hash, the same for all turns of a chain or of all chains with one `prompt_cache_key`."""
    root = job.parent.root_id if job.parent is not None else job.response_id
    return _keyed_hash(f"{job.tenant}\0{job.cache_key if job.cache_key is not None else root}")


def branch_keys(job: Job) -> list[str]:
    """Keyed hashes of the job's branch and, if that is a fork, of the branch that it forks from. The branch
    that a chain begins with has the key of the chain."""

    return [
        affinity_key(job) if branch.parent is None else _keyed_hash(f"{job.tenant}\0{branch.id}")
        for branch in (job.branch, job.branch.parent)
        if branch is not None
    ]


def tenant_salt(tenant: str) -> str:
    """A keyed hash that separates tenants in prefix caches that take a salt."""
    return _keyed_hash(f"salt\0{tenant}")


@lru_cache(maxsize=4096)
def _keyed_hash(text: str) -> str:
    # Cached: all turns of a chain ask for the same.
    keyed = _KEYED.copy()
    keyed.update(text.encode())
    return keyed.hexdigest()[:32]


class Upstream:
    """One server: its address, its key, its affinity headers, and what its failures mean to API clients."""

    def __init__(self, kind: str, options: UpstreamOptions, headers: Mapping[str, str] | None = None) -> None:
        """Opens no connection. ``headers`` go with every request and override the key's header."""
        self.url = options.url.rstrip("/")
        self._kind = kind
        self._options = options
        key = read_key(kind, options)
        self.headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        self._affinity = [name.strip().lower() for name in options.affinity.split(";") if name.strip()]
        self.client = HttpClient(self.url, self.headers, connect_timeout_s=options.connect_timeout_s)

    async def start(self) -> None:
        await self.client.start()

    async def close(self) -> None:
        await self.client.close()

    def affinity_headers(self, job: Job) -> dict[str, str]:
        """The headers by which routers keep a chain on one replica."""
        headers = dict.fromkeys(self._affinity, affinity_key(job))
        if DYNAMO_SESSION in headers:
            headers.update(zip((DYNAMO_SESSION, _DYNAMO_PARENT), branch_keys(job), strict=False))
        return headers

    async def list_models(self, path: str) -> list[str]:
        """The names of the models that the server lists as OpenAI's API does; at least one. For starts:
        raises ``StartupError``."""
        with startup_errors(self._kind, self.url, "a server that lists its models; name one with model="):
            names = [str(model["id"]) for model in (await self.client.query(path))["data"]]
        if not names:
            raise StartupError(f"--engine {self._kind}: {self.url} lists no models; name one with model=")
        return names

    async def get(self, path: str) -> Any:
        """GET a JSON document."""
        with _api_errors():
            return await self.client.query(path)

    async def post(self, path: str, pieces: Sequence[bytes]) -> Any:
        """POST a JSON document and return the one that answers it."""
        with _api_errors():
            return await self.client.query(path, pieces)

    @asynccontextmanager
    async def events(
        self,
        path: str,
        pieces: Sequence[bytes],
        headers: Mapping[str, str],
        *,
        idle_s: Patience | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> AsyncIterator[EventStream]:
        """POST a body in pieces; the payloads of the events that answer it, in batches.

        See ``HttpClient.events``. How long an answer may take to begin is the gate's concern.
        """
        with _api_errors():
            stream = self.client.events(path, pieces, headers, idle_s=idle_s or self._idle_s, is_over=is_over)
            async with stream as payloads:
                yield payloads

    def _idle_s(self) -> float:
        return self._options.idle_timeout_s


@contextmanager
def _api_errors() -> Iterator[None]:
    """Raise failures of the client as errors for API clients."""
    try:
        yield
    except Unreachable as error:
        raise Retryable("The engine cannot be reached.") from error
    except TimedOut as error:
        raise ServerError("The engine has sent nothing for too long.") from error
    except Unreadable as error:
        raise ServerError("The engine's answer cannot be read.") from error
    except BadStatus as error:
        raise refusal(error.status, error.body, error.headers) from error


@contextmanager
def startup_errors(kind: str, url: str, expected: str) -> Iterator[None]:
    """Raise what goes wrong while a server is queried at start as ``StartupError``, in one line.
    ``expected`` says what the server should be."""
    try:
        yield
    except BadStatus as error:
        is_key = error.status in (401, 403)
        remedy = "name a valid API key with key_env=" if is_key else f"expected {expected}"
        raise StartupError(f"--engine {kind}: {url} answers with {error}: {remedy}") from None
    except (Unreachable, TimedOut) as error:
        raise StartupError(f"--engine {kind}: cannot reach {url}: {error}") from None
    except (Unreadable, ValueError, LookupError, TypeError, AttributeError):
        raise StartupError(f"--engine {kind}: {url} does not answer like {expected}") from None


def read_each(read: Callable[[T], R], batch: Iterable[T]) -> tuple[list[R], ApiError | None]:
    """Read the payloads of a batch up to the first that reports a failure.

    Returns what was read before it, and the failure, which the caller raises after passing that on.
    """
    results: list[R] = []
    try:
        results.extend(map(read, batch))
    except ApiError as fault:
        return results, fault
    return results, None


class _ErrorBody(msgspec.Struct):
    """The usual forms of an error body: OpenAI's, a plain text, FastAPI's details."""

    error: Any = None
    message: Any = None
    detail: Any = None


_error_body = msgspec.json.Decoder(_ErrorBody)


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error for API clients that a server's refusal means, with its status and message."""
    message = _message(body)[:500]
    error: ApiError
    if status in (401, 403):
        # The key that is wrong is ours, not the client's.
        return ServerError("The engine refuses this server's key.")
    retry_after_s = _seconds(headers.get("Retry-After"))
    if status == 429:
        return RateLimited(message or "The engine is busy.", retry_after_s=retry_after_s)
    if status == 500:
        error = RequestFailed("The engine has failed.")
        error.retry_after_s = retry_after_s
        return error
    if status in (408, 409, 502, 503, 504):
        error = Retryable("The engine is not available.")
        error.retry_after_s = retry_after_s
        return error
    if 400 <= status < 500:
        error = InvalidRequest(f"The engine refused the request: {message or status}", code="engine_refused")
        error.status = status
        return error
    return ServerError()


def _message(body: bytes) -> str:
    """The message of an error body in any of the usual forms; empty if there is none."""
    try:
        parsed = _error_body.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        return ""
    message = parsed.error or parsed.message or parsed.detail
    if isinstance(message, dict):
        message = message.get("message") or message
    if isinstance(message, str):
        return message
    return msgspec.json.encode(message).decode() if message else ""


def _seconds(text: str | None) -> float | None:
    try:
        return max(float(text), 0.0) if text else None
    except ValueError:
        return None
