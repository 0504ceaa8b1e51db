"""Questions to servers that are asked at start, before anybody is served: they wait for their answers."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from slipring.errors import StartupError

_TIMEOUT_S = 30.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(
    url: str, key: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
) -> Any:
    """Wait for an answer in JSON. ``OSError`` or ``ValueError``: there is none that can be used."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers=sent)
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except http.client.HTTPException as error:
        raise ValueError("what answers is no HTTP server") from error


@contextmanager
def at_start(kind: str, url: str, like: str) -> Iterator[None]:
    """What goes wrong while a server is asked at start, in one line. ``like``: what it should be."""
    try:
        yield
    except urllib.error.HTTPError as error:
        raise StartupError(f"--engine {kind}: {url} answers with {error.code} {error.reason}") from None
    except OSError as error:
        said = getattr(error, "reason", error)
        raise StartupError(f"--engine {kind}: cannot reach {url}: {said}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise StartupError(f"--engine {kind}: {url} does not answer like {like}") from None


def listed_models(kind: str, url: str, path: str, headers: Mapping[str, str]) -> list[str]:
    """The names of the models that a server lists as OpenAI's API does; at least one."""
    with at_start(kind, url, "a server that lists its models; name one with model="):
        names = [str(model["id"]) for model in ask(url, "", path, headers=headers)["data"]]
    if not names:
        raise StartupError(f"--engine {kind}: {url} lists no models; name one with model=")
    return names
