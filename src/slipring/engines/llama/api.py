"""llama-server's native API, as far as it is used: completions by token ids."""

from collections.abc import AsyncGenerator

import aiohttp
import msgspec
from msgspec import Struct

from slipring.errors import InvalidRequest, RateLimited, ServerError, Unavailable
from slipring.protocol.responses import Logprob, TopLogprob

_CONNECT_TIMEOUT_S = 5.0
_SILENCE_TIMEOUT_S = 300.0


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


class Chunk(Struct):
    """A piece of a streamed completion."""

    tokens: list[int] = []
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[Probability] = []
    timings: Timings = msgspec.field(default_factory=Timings)


class _Fault(Struct):
    message: str = ""
    code: int = 500
    type: str = ""


class _Failure(Struct):
    error: _Fault


_chunk = msgspec.json.Decoder(Chunk)
_failure = msgspec.json.Decoder(_Failure)


class Api:
    """A llama-server. A connection per request: to end it is how a completion is cancelled."""

    def __init__(self, key: str) -> None:
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"},
            # The server closes kept connections when it pleases, and a completion cannot be sent twice.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_TIMEOUT_S
            ),
        )

    async def close(self) -> None:
        await self._http.close()

    async def complete(self, url: str, body: bytes) -> AsyncGenerator[Chunk, None]:
        """Stream a completion. To stop reading is to cancel it."""
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.post(f"{url}/completion", data=body, headers=headers) as answer:
                if answer.status != 200:
                    raise _explain(answer.status, await answer.read())
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        yield _chunk.decode(line[6:])
                    elif line.startswith(b"error: "):
                        raise _explain(500, b'{"error":' + line[7:] + b"}")
        except aiohttp.ClientError as error:
            raise Unavailable("The engine is gone; it will be back.") from error
        except TimeoutError as error:
            raise ServerError("The engine has said nothing for too long.") from error


def _explain(status: int, body: bytes) -> Exception:
    """An engine's refusal in our terms. Its words are its own and say nothing about this machine."""
    try:
        fault = _failure.decode(body).error
    except msgspec.DecodeError:
        return ServerError()
    if fault.type == "exceed_context_size_error":
        return InvalidRequest("The context is longer than the model can read.")
    if status == 400:
        return InvalidRequest(f"The engine refused the request: {fault.message[:300]}")
    if status in (429, 503):
        return RateLimited("The engine is busy.")
    return ServerError()
