"""Which models an upstream serves: asked once, before anybody is served."""

from collections.abc import Mapping, Sequence

from slipring.core.generation import Capabilities, Model
from slipring.engines.remote.startup_queries import listed_models
from slipring.engines.responses.options import Options

_ALL = Capabilities(logprobs=True, images=True, files=True)
"""What a model cannot do is for its server to refuse: nothing tells us."""


def served(options: Options, headers: Mapping[str, str]) -> Sequence[Model]:
    """The model that is named, else all that the server lists. Waits for the answer."""
    if options.model:
        return [Model(name=options.model, owner="upstream", capabilities=_ALL)]
    query = f"?{options.query}" if options.query else ""
    names = listed_models("responses", options.url, f"/models{query}", headers)
    return [Model(name=name, owner="upstream", capabilities=_ALL) for name in names]
