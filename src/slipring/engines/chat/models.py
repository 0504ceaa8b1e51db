"""Which models a server has, asked once before anybody is served: this waits for the answer."""

import urllib.error
import urllib.request

import msgspec
from msgspec import Struct

from slipring.engines.chat.options import Options
from slipring.engines.upstream import read_key
from slipring.errors import StartupError

_TIMEOUT_S = 30.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Listed(Struct):
    id: str


class _List(Struct):
    data: list[_Listed]


_list = msgspec.json.Decoder(_List)


def model_names(options: Options) -> list[str]:
    """The models to serve by the server's own names, the default one first."""
    named = [name.strip() for name in options.model.split(";") if name.strip()]
    return named or _listed(options)


def _listed(options: Options) -> list[str]:
    url, key = options.url.rstrip("/"), read_key("chat", options)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url}/models", headers=headers)
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            names = [model.id for model in _list.decode(answer.read()).data]
    except urllib.error.HTTPError as error:
        raise StartupError(
            f"--engine chat: {url}/models answers with {error.code} {error.reason}; name a model with model="
        ) from None
    except OSError as error:
        said = getattr(error, "reason", error)
        raise StartupError(f"--engine chat: cannot reach {url}: {said}") from None
    except ValueError:
        raise StartupError(
            f"--engine chat: {url}/models does not answer with a list of models; name one with model="
        ) from None
    if not names:
        raise StartupError(f"--engine chat: {url} has no model")
    return names
