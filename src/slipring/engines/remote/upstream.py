"""A server that is reached over HTTP: its options, its affinity headers, and which replica answers.

Engines give bodies as ready bytes and parse the payloads that come back. Routers that keep chains on one of
several replicas name it in the headers of an answer, or relay what the replica itself says. The name of a
replica that was restarted should be another one: its cache is empty.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slipring.base.errors import ApiError, StartupError
from slipring.core.generation import Job
from slipring.engines.addresses_and_options import option
from slipring.engines.base import Engine
from slipring.engines.remote.http_client import Answered, HttpClient
from slipring.engines.remote.http_connection import HttpFailure
from slipring.engines.remote.replica_affinity import USUAL_AFFINITY_HEADERS, affinity_headers
from slipring.engines.remote.retries_and_breaker import Admission, AdmissionPolicy
from slipring.engines.remote.server_key import key_headers
from slipring.engines.remote.streamed_answer import Consumer, Patience
from slipring.engines.remote.upstream_errors import api_failure, startup_errors, without_secret
from slipring.observation import live_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions(AdmissionPolicy):
    """The options that all engines in front of HTTP servers share."""

    url: str = ""
    query: str = ""
    """Of the address: it goes with every request."""
    key_env: str = option("", "the variable that holds the server's API key")
    key_file: str = option("", "a file that holds the server's API key")
    key_header: str = option(
        "", "the header that carries the key, as `api-key` for Azure; empty: `Authorization: Bearer`"
    )
    affinity: str = option(
        ";".join(USUAL_AFFINITY_HEADERS),
        "headers, separated by `;`, that carry the same key on all turns of a chain",
    )


class Upstream:
    """One server: its address, its key, its affinity headers, and what its failures mean to API clients."""

    def __init__(self, kind: str, options: UpstreamOptions) -> None:
        """Opens no connection."""
        self.url = options.url.rstrip("/")
        self._kind = kind
        self._options = options
        self._query = f"?{options.query}" if options.query else ""
        self.headers = key_headers(kind, options.key_env, options.key_file, options.key_header)
        self._secret = next((value.removeprefix("Bearer ") for value in self.headers.values()), "")
        self._affinity = [name.strip().lower() for name in options.affinity.split(";") if name.strip()]
        self.client = HttpClient(self.url, self.headers, connect_timeout_s=options.connect_timeout_s)

    async def start(self) -> None:
        await self.client.start()

    async def close(self) -> None:
        await self.client.close()

    def route_headers(self, key: str) -> dict[str, str]:
        """The headers by which routers keep what has this affinity key on one replica."""
        return dict.fromkeys(self._affinity, key)

    def affinity_headers(self, job: Job) -> dict[str, str]:
        """The headers by which routers keep a chain on one replica."""
        return affinity_headers(job, self._affinity)

    def path(self, path: str) -> str:
        """A path of the server, with the query of its address."""
        return path + self._query

    async def list_models(self, path: str) -> list[str]:
        """The names of the models that the server lists as OpenAI's API does; at least one. For starts:
        raises ``StartupError``."""
        with startup_errors(self._kind, self.url, "a server that lists its models; name one with model="):
            names = [str(model["id"]) for model in (await self.client.query(self.path(path)))["data"]]
        if not names:
            raise StartupError(f"--engine {self._kind}: {self.url} lists no models; name one with model=")
        return names

    async def get(self, path: str) -> Any:
        """GET a JSON document."""
        with self.api_errors():
            return await self.client.query(self.path(path))

    async def post(self, path: str, pieces: Sequence[bytes]) -> Any:
        """POST a JSON document and return the one that answers it."""
        with self.api_errors():
            return await self.client.query(self.path(path), pieces)

    async def stream(
        self,
        path: str,
        pieces: Sequence[bytes],
        headers: Mapping[str, str],
        consumer: Consumer[bytes],
        *,
        idle_s: Patience | None = None,
        answered: Answered | None = None,
    ) -> None:
        """POST a body in pieces, and give the payloads of the events that answer it to ``consumer``.

        See ``HttpClient.stream``. How long an answer may take to begin is bounded by ``Admission.run``.
        """
        with self.api_errors():
            await self.client.stream(
                self.path(path), pieces, headers, consumer, idle_s=idle_s or self._idle_s, answered=answered
            )

    @contextmanager
    def api_errors(self) -> Iterator[None]:
        """Raise failures of the client as errors for API clients. None of them has the server's key in it:
        servers repeat keys that they refuse."""
        try:
            yield
        except HttpFailure as failure:
            raise self._redacted(api_failure(failure)) from failure
        except ApiError as error:
            self._redacted(error)
            raise

    def _redacted(self, error: ApiError) -> ApiError:
        error.message = without_secret(error.message, self._secret)
        error.detail = without_secret(error.detail, self._secret)
        return error

    def _idle_s(self) -> float:
        return self._options.idle_timeout_s


class RemoteEngine(Engine):
    """An engine in front of a server that can fail: operators see its trouble, its queue and its breaker."""

    _admission: Admission

    @property
    def trouble(self) -> str | None:
        return self._admission.trouble

    def status(self) -> live_messages.Engine:
        return self._admission.described(super().status())
