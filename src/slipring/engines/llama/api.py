"""llama-server's native API, as far as it is used: completions by token ids, and slots as files."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp
import msgspec
from msgspec import Struct

from slipring.errors import InvalidRequest, RateLimited, ServerError, Unavailable
from slipring.protocol import wire
from slipring.protocol.responses import Logprob, TopLogprob

_CONNECT_TIMEOUT_S = 5.0
_LONGEST_LINE = 2**24
_SILENCE_TIMEOUT_S = 300.0


class Host(Protocol):
    """Where a llama-server is: a child of ours, another process's, or somebody else's."""

    key: str

    @property
    def url(self) -> str:
        """Its address, or ``Unavailable`` while it is not there."""

    @property
    def trouble(self) -> str | None:
        """Why it is not there, in words for whoever looks after it; None while it is."""

    def suspect(self) -> None:
        """It has not answered for too long."""

    async def start(self, on_loss: Callable[[], None]) -> None:
        """Have it there. ``on_loss`` is told when all that it held is lost."""

    async def close(self) -> None: ...


class Timings(Struct):
    """What the engine says it did."""

    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0
    prompt_ms: float = 0.0


class _TopProbability(Struct):
    token: str
    logprob: float
    bytes: list[int] = []


class Probability(Struct):
    """How likely a token was, and what else could have been."""

    token: str
    logprob: float
    bytes: list[int] = []
    top_logprobs: list[_TopProbability] = []

    def as_logprob(self) -> Logprob:
        others = [TopLogprob(top.token, top.logprob, top.bytes) for top in self.top_logprobs]
        return Logprob(self.token, self.logprob, self.bytes, others)


class Progress(Struct):
    """How far a prefill is. The chunk that tells it holds no real tokens."""

    processed: int = 0
    cache: int = 0
    """How much of it was there already."""


class _Fault(Struct):
    message: str = ""
    code: int = 500
    type: str = ""


class Chunk(Struct):
    """A piece of a streamed completion."""

    content: str = ""
    tokens: list[int] = []
    tokens_predicted: int = 0
    prompt_progress: Progress | None = None
    error: _Fault | None = None
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[Probability] = []
    timings: Timings = msgspec.field(default_factory=Timings)


class _Failure(Struct):
    error: _Fault


class _SavedSlot(Struct):
    n_written: int


_chunk = msgspec.json.Decoder(Chunk)
_failure = msgspec.json.Decoder(_Failure)
_saved = msgspec.json.Decoder(_SavedSlot)


class Unsupported(ServerError):
    """The server was started without what this takes."""


class Api:
    """A llama-server. A connection per request: to end it is how a completion is cancelled."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._host.key}"} if self._host.key else {},
            # The server closes kept connections when it pleases, and a completion cannot be sent twice.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            # The last line of a stream repeats the whole prompt as text.
            read_bufsize=_LONGEST_LINE,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_TIMEOUT_S
            ),
        )

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def complete(self, body: bytes) -> AsyncGenerator[Chunk, None]:
        """Stream a completion. To stop reading is to cancel it."""
        async with self._post("/completion", body) as answer:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    chunk = _chunk.decode(line[6:])
                    if chunk.error is not None:
                        raise _explain(chunk.error.code, chunk.error)
                    yield chunk

    async def save_slot(self, slot: int, name: str) -> int:
        """Write a slot's KV to a file of the server; returns its size in bytes."""
        async with self._post(f"/slots/{slot}?action=save", wire.encode({"filename": name})) as answer:
            return _saved.decode(await answer.read()).n_written

    async def restore_slot(self, slot: int, name: str) -> None:
        """Read a slot's KV from a file of the server. If that fails the slot is empty."""
        async with self._post(f"/slots/{slot}?action=restore", wire.encode({"filename": name})):
            return

    @asynccontextmanager
    async def _post(self, path: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._http is not None
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.post(self._host.url + path, data=body, headers=headers) as answer:
                if answer.status != 200:
                    raise _explain(answer.status, _read_fault(await answer.read()))
                yield answer
        except aiohttp.ServerTimeoutError as error:
            self._host.suspect()
            raise ServerError("The engine has said nothing for too long.") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable("The engine is gone; it will be back.") from error
        except msgspec.DecodeError as error:
            raise ServerError("The engine's answer cannot be read.") from error


def _read_fault(body: bytes) -> _Fault | None:
    try:
        return _failure.decode(body).error
    except msgspec.DecodeError:
        return None


def _explain(status: int, fault: _Fault | None) -> Exception:
    """An engine's refusal in our terms. Its words are its own and say nothing about this machine."""
    if fault is None:
        return ServerError()
    if fault.type == "exceed_context_size_error":
        return InvalidRequest(
            "The context is longer than the model can read.", code="context_length_exceeded"
        )
    if status == 400:
        return InvalidRequest(f"The engine refused the request: {fault.message[:300]}")
    if status in (429, 503):
        return RateLimited("The engine is busy.")
    if status == 501:
        return Unsupported()
    return ServerError()
