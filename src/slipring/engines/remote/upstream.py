"""A server that somebody else runs, over HTTP: how it is reached, with which key, and what its refusals mean.

Knows nothing of what is sent: engines give bodies as ready bytes and read payloads.
"""

import asyncio
import contextlib
import hmac
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from slipring.core.generation import Job
from slipring.engines.options import option
from slipring.engines.remote.admission import Policy, Retryable, Stumbled
from slipring.engines.remote.body_splicing import JsonBody
from slipring.errors import ApiError, InvalidRequest, RateLimited, ServerError, StartupError

_SECRET = os.environ.get("SLIPRING_AFFINITY_SECRET", "").encode() or secrets.token_bytes(32)
_LONGEST_LINE = 64 * 2**20
_LAST_BYTES_S = 1.0
_LOOK_S = 1.0
_DONE = b"[DONE]"
_DATA = re.compile(rb"^data:(.*)", re.MULTILINE)
Patience = Callable[[], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions(Policy):
    """What is the same for every server elsewhere."""

    url: str = ""
    key_env: str = option("", "the variable that holds the server's API key")
    key_file: str = option("", "a file that holds the server's API key")
    affinity: str = option(
        "x-session-id", "headers, separated by `;`, that carry a key which is the same along a chain"
    )


def read_key(kind: str, options: UpstreamOptions) -> str:
    """The key for a server, from where it may be: never from the command line, which everybody can read."""
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
    """The same for all turns of a chain, or of all chains that name one `prompt_cache_key`; tells nothing."""
    root = job.parent.root_id if job.parent is not None else job.response_id
    said = f"{job.tenant}\0{job.cache_key if job.cache_key is not None else root}"
    return _keyed(said)


def tenant_salt(tenant: str) -> str:
    """Keeps a tenant's prefixes apart in caches that take a salt."""
    return _keyed(f"salt\0{tenant}")


def _keyed(said: str) -> str:
    return hmac.digest(_SECRET, said.encode(), "sha256").hex()[:32]


class Upstream:
    """One such server."""

    def __init__(self, kind: str, options: UpstreamOptions, headers: Mapping[str, str] | None = None) -> None:
        """``headers`` go with every request, after the key's own."""
        self.url = options.url.rstrip("/")
        self._options = options
        key = read_key(kind, options)
        self.headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        self._affinity = [name.strip() for name in options.affinity.split(";") if name.strip()]
        self._http: aiohttp.ClientSession | None = None
        self._draining: set[asyncio.Task[None]] = set()

    @property
    def http(self) -> aiohttp.ClientSession:
        assert self._http is not None, "not started"
        return self._http

    async def start(self) -> None:
        # How long an answer may take to begin is the gate's business, and silence is looked for below.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._options.connect_timeout_s)
        self._http = aiohttp.ClientSession(
            headers=self.headers,
            # Cookies would be shared by all tenants, and pin all chains to one replica.
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=timeout,
            connector=aiohttp.TCPConnector(limit=0),
            # What one read brings is told at once: this bounds it, and so what a slow client has unsent.
            read_bufsize=2**16,
            max_line_size=2**20,
        )

    async def close(self) -> None:
        for task in (draining := list(self._draining)):
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def affinity_headers(self, job: Job) -> dict[str, str]:
        return dict.fromkeys(self._affinity, affinity_key(job))

    async def get(self, path: str) -> Any:
        """Ask for a JSON document."""
        return await self._ask("GET", path)

    async def post(self, path: str, pieces: Sequence[bytes]) -> Any:
        """Ask for the JSON document that answers another."""
        return await self._ask("POST", path, data=JsonBody(pieces))

    async def _ask(self, method: str, path: str, **sent: Any) -> Any:
        async with self._speaking(), self.http.request(method, self.url + path, **sent) as answer:
            body = await answer.read()
            if answer.status != 200:
                raise refusal(answer.status, body, answer.headers)
            try:
                return msgspec.json.decode(body)
            except (msgspec.DecodeError, UnicodeError) as error:
                raise ServerError("The engine's answer cannot be read.") from error

    async def events(
        self,
        path: str,
        pieces: Sequence[bytes],
        headers: Mapping[str, str],
        *,
        idle_s: Patience | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """POST a body in pieces and yield the payloads of the SSE stream that answers: at once all that one
        read has brought, and never nothing. To stop reading is to cancel.

        ``idle_s`` says how long silence is borne, where that changes on the way; ``is_over`` whether the
        answer has come to its end, where payloads tell that.
        """
        async with self._speaking(), AsyncExitStack() as held:
            post = self.http.post(self.url + path, data=JsonBody(pieces), headers=headers)
            answer = await held.enter_async_context(post)
            if answer.status != 200:
                raise refusal(answer.status, await answer.read(), answer.headers)
            content, payloads = answer.content, _Payloads()
            silence = _Silence(content, idle_s or self._patience)
            try:
                chunk = await content.readany()
                while chunk:
                    if found := payloads.take(chunk):
                        yield found
                    if payloads.ended or (is_over is not None and is_over()):
                        if not content.at_eof():
                            held.pop_all()
                            self._drain(answer)
                        return
                    silence.begins()
                    chunk = await content.readany()
                    silence.ends()
            finally:
                silence.forget()
            if found := payloads.take(b"\n"):  # the last line need not end
                yield found

    def _drain(self, answer: aiohttp.ClientResponse) -> None:
        """Read the last bytes of an answer that is over, so that its connection can be used again. Nobody
        waits for them."""

        def forget(task: asyncio.Task[None]) -> None:
            self._draining.discard(task)
            answer.release()

        task = asyncio.create_task(_read_last(answer.content))
        self._draining.add(task)
        task.add_done_callback(forget)

    def _patience(self) -> float:
        return self._options.idle_timeout_s

    @asynccontextmanager
    async def _speaking(self) -> AsyncIterator[None]:
        """What goes wrong on the way, in our terms."""
        try:
            yield
        except TimeoutError as error:
            if isinstance(error, aiohttp.ClientError):
                raise Retryable("The engine cannot be reached.") from error
            raise ServerError("The engine has said nothing for too long.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Retryable("The engine cannot be reached.") from error


class _Payloads:
    """The data of server-sent events, however they are cut; ``[DONE]`` ends them."""

    __slots__ = ("_rest", "ended")

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def take(self, chunk: bytes) -> list[bytes]:
        """What is complete with this."""
        if len(self._rest) > _LONGEST_LINE:
            raise ServerError("The engine's answer cannot be read.")
        lines, end, rest = chunk.rpartition(b"\n")
        if not end:
            self._rest += chunk
            return []
        # Nothing at all is somebody's way to keep a connection alive.
        found = [payload for each in _DATA.findall(self._rest + lines) if (payload := each.strip())]
        self._rest = rest
        if _DONE in found:
            self.ended = True
            del found[found.index(_DONE) :]
        return found


async def _read_last(content: aiohttp.StreamReader) -> None:
    # However the connection ends now, the answer is complete.
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_LAST_BYTES_S):
            while await content.readany():
                pass


class _Silence:
    """Ends the wait for more of a stream when it has lasted too long. One timer, looked at now and then: a
    timeout around every read costs more than the read."""

    __slots__ = ("_clock", "_content", "_idle_s", "_since", "_timer")

    def __init__(self, content: aiohttp.StreamReader, idle_s: Patience) -> None:
        self._content = content
        self._idle_s = idle_s
        self._clock = asyncio.get_running_loop().time
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        self._since = self._clock()
        if self._timer is None:
            self._look()

    def ends(self) -> None:
        self._since = None

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Look again when the silence could have lasted long enough."""
        idle_s, since = self._idle_s(), self._since
        left_s = _LOOK_S if idle_s is None else idle_s
        if idle_s is not None and since is not None:
            left_s = since + idle_s - self._clock()
            if left_s <= 0:
                self._content.set_exception(TimeoutError("silence"))
                return
        self._timer = asyncio.get_running_loop().call_later(max(left_s, 0.001), self._look)


class _Refused(msgspec.Struct):
    """The usual forms of an error body: OpenAI's, a plain text, FastAPI's details."""

    error: Any = None
    message: Any = None
    detail: Any = None


_refused = msgspec.json.Decoder(_Refused)


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """A server's refusal as the client is told it, with its status."""
    said = _words(body)[:500]
    error: ApiError
    if status in (401, 403):
        # Not the client's key is wrong, but ours.
        return ServerError("The engine refuses this server's key.")
    if status == 429:
        return RateLimited(said or "The engine is busy.", retry_after_s=_seconds(headers.get("Retry-After")))
    if status in (408, 409, 500, 502, 503, 504):
        error = (
            Stumbled("The engine has failed.") if status == 500 else Retryable("The engine is not available.")
        )
        error.retry_after_s = _seconds(headers.get("Retry-After"))
        return error
    if 400 <= status < 500:
        error = InvalidRequest(f"The engine refused the request: {said or status}", code="engine_refused")
        error.status = status
        return error
    return ServerError()


def _words(body: bytes) -> str:
    """What an error body says, in any of the usual forms."""
    try:
        refused = _refused.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        return ""
    said = refused.error or refused.message or refused.detail
    if isinstance(said, dict):
        said = said.get("message") or said
    return said if isinstance(said, str) else msgspec.json.encode(said).decode() if said else ""


def _seconds(text: str | None) -> float | None:
    try:
        return max(float(text), 0.0) if text else None
    except ValueError:
        return None
