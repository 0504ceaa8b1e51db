"""Which models an upstream serves: asked once, before anybody is served."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from slipring.core.generation import Capabilities, Model
from slipring.engines.responses.options import Options
from slipring.errors import StartupError

_TIMEOUT_S = 30.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ALL = Capabilities(logprobs=True, images=True, files=True)
"""What a model cannot do is for its server to refuse: nothing tells us."""


def served(options: Options, headers: Mapping[str, str]) -> Sequence[Model]:
    """The model that is named, else all that the server lists. Waits for the answer."""
    if options.model:
        return [Model(name=options.model, owner="upstream", capabilities=_ALL)]
    names = _listed(options, headers)
    if not names:
        raise StartupError(f"--engine responses: {options.url} lists no models; name one with model=")
    return [Model(name=name, owner="upstream", capabilities=_ALL) for name in names]


def _listed(options: Options, headers: Mapping[str, str]) -> list[str]:
    url = options.url
    query = f"?{options.query}" if options.query else ""
    request = urllib.request.Request(f"{url}/models{query}", headers=dict(headers))
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            return [str(model["id"]) for model in json.loads(answer.read())["data"]]
    except urllib.error.HTTPError as error:
        raise StartupError(f"--engine responses: {url} answers with {error.code} {error.reason}") from None
    except OSError as error:
        said = getattr(error, "reason", error)
        raise StartupError(f"--engine responses: cannot reach {url}: {said}") from None
    except (ValueError, LookupError, TypeError):
        raise StartupError(f"--engine responses: {url} does not list its models") from None
