"""A client for llama-server's native API: completions by token ids, slots as files, and what it serves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Struct

from slipring.base.errors import ApiError, InvalidRequest, RateLimited, ServerError, Unavailable
from slipring.core.generation import Settings
from slipring.engines.engine_hosts import Host
from slipring.engines.remote.http_client import HttpClient
from slipring.engines.remote.http_connection import (
    BadStatus,
    ConnectTimedOut,
    HttpFailure,
    TimedOut,
    Unreachable,
    Unreadable,
)
from slipring.engines.remote.streamed_answer import Consumer
from slipring.engines.remote.upstream_errors import startup_errors
from slipring.engines.tokens.sampling import Sampling
from slipring.protocol import wire
from slipring.protocol.responses import Logprob, TopLogprob


def completion_body(prompt: bytes, settings: Settings, sampling: Sampling, **fields: Any) -> bytes:
    """Encode the body of a ``/completion`` request that continues ``prompt``: ids, or a text and pictures,
    as JSON."""
    body: dict[str, Any] = {
        "stream": True,
        "return_tokens": True,
        # llama-server then reports after each batch of a prefill, and notices clients that disconnected.
        "return_progress": True,
        **_sampling(settings, sampling),
        **fields,
    }
    return b'{"prompt":' + prompt + b"," + wire.encode(body)[1:]


def _sampling(settings: Settings, sampling: Sampling) -> dict[str, Any]:
    asked = sampling.fields(settings, penalty_name="repeat_penalty", unlimited_top_k=0)
    if sampling.penalty_window is not None:
        asked["repeat_last_n"] = sampling.penalty_window
    if settings.logit_bias:  # as pairs: the keys of an object would be texts whose tokens are meant
        asked["logit_bias"] = [[id, bias] for id, bias in settings.logit_bias.items()]
    if settings.seed is not None:
        asked["seed"] = settings.seed
    if settings.logprobs:
        asked["n_probs"] = max(settings.top_logprobs, 1)
    return asked


_SILENCE_TIMEOUT_S = 300.0


class Timings(Struct):
    """Token counts and times of a completion."""

    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0


class _TopProbability(Struct):
    token: str
    logprob: float
    bytes: list[int] = []


class Probability(Struct):
    """The logprob of a token, and the most likely alternatives."""

    token: str
    logprob: float
    bytes: list[int] = []
    top_logprobs: list[_TopProbability] = []

    def as_logprob(self) -> Logprob:
        others = [TopLogprob(top.token, top.logprob, top.bytes) for top in self.top_logprobs]
        return Logprob(self.token, self.logprob, self.bytes, others)


class Progress(Struct):
    """Progress of a prefill. The chunk that carries it has no real tokens."""

    processed: int = 0
    cache: int = 0
    """Tokens that were in the slot already."""


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
_UNREADABLE = (msgspec.DecodeError, UnicodeError)
"""What a decoder raises: the second for text that is no UTF-8."""


class Unsupported(ServerError):
    """The server was started without the feature that this needs."""


def _unbounded() -> None:
    """The idle limit of completions: none, because the read timeout bounds every silence, also the first."""
    return


class Api:
    """A client of one llama-server.

    Each completion opens a connection; closing that cancels it. A kept connection would not do: the server
    may close it at any time, and a completion cannot be sent twice. Queries share kept connections.
    """

    def __init__(self, host: Host) -> None:
        """Opens no connection."""
        self._host = host
        headers = {"Authorization": f"Bearer {host.key}"} if host.key else {}
        self._completions = HttpClient(
            lambda: host.url, headers, read_timeout_s=_SILENCE_TIMEOUT_S, keep_alive=False
        )
        self.queries = HttpClient(lambda: host.url, headers)

    async def start(self) -> None:
        await self._completions.start()
        await self.queries.start()

    async def close(self) -> None:
        await self._completions.close()
        await self.queries.close()

    async def complete(self, body: bytes, consumer: Consumer[bytes]) -> None:
        """Stream a completion, whose payloads are read by ``read_chunk``. Cancelling this cancels it."""
        with self._api_errors():
            await self._completions.stream("/completion", [body], None, consumer, idle_s=_unbounded)

    async def refusal(self, prompt: bytes) -> str:
        """Why the server refuses to complete a prompt; empty if it does not. Raises ``ApiError``."""
        body = b'{"n_predict":0,"prompt":' + prompt + b"}"
        with self._api_errors():
            try:
                await self._completions.query("/completion", [body], _SILENCE_TIMEOUT_S)
            except BadStatus as error:
                fault = _read_fault(error.body)
                if error.status != 400 or fault is None:
                    raise
                return fault.message
        return ""

    async def save_slot(self, slot: int, name: str) -> int:
        """Write a slot's KV to a file of the server; returns its size in bytes."""
        answer = await self._post_slot(f"/slots/{slot}?action=save", name)
        with self._api_errors():
            return msgspec.convert(answer, _SavedSlot).n_written

    async def restore_slot(self, slot: int, name: str) -> None:
        """Read a slot's KV from a file of the server. If that fails the slot is empty."""
        await self._post_slot(f"/slots/{slot}?action=restore", name)

    async def _post_slot(self, path: str, name: str) -> Any:
        with self._api_errors():
            return await self._completions.query(path, [wire.encode({"filename": name})], _SILENCE_TIMEOUT_S)

    @contextmanager
    def _api_errors(self) -> Iterator[None]:
        """Raise failures of the client as errors for API clients; report a server that hangs."""
        try:
            yield
        except (ConnectTimedOut, TimedOut) as error:
            self._host.suspect()
            raise ServerError("The engine has sent nothing for too long.") from error
        except Unreachable as error:
            raise Unavailable("The connection to the engine was lost. Try again in a moment.") from error
        except BadStatus as error:
            raise _explain(error.status, _read_fault(error.body)) from error
        except (Unreadable, *_UNREADABLE) as error:
            raise ServerError("The engine's answer cannot be read.") from error


def read_chunk(payload: bytes) -> Chunk:
    """Parse a payload of a completion. Raises the error that it reports."""
    try:
        chunk = _chunk.decode(payload)
    except _UNREADABLE as error:
        raise ServerError("The engine's answer cannot be read.") from error
    if chunk.error is not None:
        raise _explain(chunk.error.code, chunk.error)
    return chunk


def _read_fault(body: bytes) -> _Fault | None:
    try:
        return _failure.decode(body).error
    except _UNREADABLE:
        return None


def _explain(status: int, fault: _Fault | None) -> ApiError:
    """The error to send to API clients for an error of the server. Its messages contain no details of the
    machine that it runs on, so clients may see them."""
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


async def describe(client: HttpClient) -> dict[str, Any]:
    """A llama-server's ``/props``, with its first model as ``model``. Raises ``StartupError``."""
    with startup_errors("llama", client.url, "a llama-server"):
        properties: dict[str, Any] = await client.query("/props")
        models = (await client.query("/v1/models"))["data"]
        return {**properties, "model": models[0]}


async def understands_llguidance(client: HttpClient) -> bool:
    """Whether a llama-server was built with llguidance, whose grammars can be combined."""
    asked = {"prompt": [0], "n_predict": 1, "cache_prompt": False, "grammar": '%llguidance {}\nstart: "a"\n'}
    try:
        await client.query("/completion", [msgspec.json.encode(asked)])
    except HttpFailure:
        return False
    return True
