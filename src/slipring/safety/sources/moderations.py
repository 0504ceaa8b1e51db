"""A source in front of any server with the moderations endpoint of the OpenAI API."""

import os
from collections.abc import Sequence
from typing import Annotated

import aiohttp
import msgspec
from msgspec import Meta, Struct

from slipring.base.connection_failures import reason
from slipring.base.errors import StartupError
from slipring.core.checks.verdicts import Subject
from slipring.safety.source_calls import Findings, SourceFailed

_MAX_ANSWER_BYTES = 4 * 2**20
_CONNECT_TIMEOUT_S = 5.0


class ModerationsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(pattern="^https?://")]
    """The base URL of the API, as in ``https://api.openai.com/v1``."""
    model: str = "omni-moderation-latest"
    key_env: str = ""
    """The environment variable that contains the API key; empty: no key is sent."""


class _Result(Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}
    category_scores: dict[str, float | None] = {}


class _Answer(Struct):
    results: list[_Result]


_answer = msgspec.json.Decoder(_Answer)


class Moderations:
    """Sends the texts of a call in one request and maps the results to them by their position."""

    longest_match = 0

    def __init__(self, settings: ModerationsSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    @property
    def version(self) -> str:
        return self._settings.model

    async def start(self) -> None:
        headers = {}
        if name := self._settings.key_env:
            key = os.environ.get(name, "").strip()
            if not key:
                raise StartupError(f"the environment variable {name} has no API key")
            if not (key.isascii() and key.isprintable()):
                raise StartupError(
                    f"the environment variable {name} holds more than a key: no header can carry it"
                )
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Findings]:
        texts = [subject.text for subject in subjects]
        results = _read(await self._post({"model": self._settings.model, "input": texts}))
        if len(results) != len(subjects):
            raise SourceFailed(f"the server answered with {len(results)} results for {len(subjects)} texts")
        return results

    async def _post(self, body: object) -> bytes:
        assert self._session is not None, "not started"
        url = f"{self._settings.url.rstrip('/')}/moderations"
        try:
            async with self._session.post(
                url,
                data=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    raise SourceFailed(f"the server answered with status {answer.status}")
                return await _bounded(answer.content)
        except aiohttp.ClientError as error:
            raise SourceFailed(f"the server cannot be reached: {reason(error)}") from None
        except TimeoutError:
            raise SourceFailed("the server did not accept a connection in time") from None


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """Read an answer up to a bound."""
    received = bytearray()
    async for block in content.iter_chunked(2**16):
        received += block
        if len(received) > _MAX_ANSWER_BYTES:
            raise SourceFailed(f"the answer has more than {_MAX_ANSWER_BYTES} bytes")
    return bytes(received)


def _read(body: bytes) -> list[Findings]:
    try:
        answer = _answer.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        raise SourceFailed("the answer is not that of a moderations endpoint") from None
    return [_findings(result) for result in answer.results]


def _findings(result: _Result) -> Findings:
    """A category without a score has 1 or 0, and a result that is flagged without a category flags
    ``flagged``: whatever a server leaves out, a flagged text stays flagged."""
    flagged = tuple(category for category, is_flagged in result.categories.items() if is_flagged)
    if result.flagged and not flagged:
        flagged = ("flagged",)
    scores = dict.fromkeys(result.categories, 0.0) | dict.fromkeys(flagged, 1.0)
    given = {category: score for category, score in result.category_scores.items() if score is not None}
    if any(not 0 <= score <= 1 for score in given.values()):
        return Findings(failed="a score is not between 0 and 1")
    return Findings(scores | given, flagged)
