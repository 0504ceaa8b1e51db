"""Which models a server has, asked once before anybody is served."""

from slipring.engines.chat.options import Options
from slipring.engines.remote.startup_queries import listed_models
from slipring.engines.remote.upstream import read_key


def model_names(options: Options) -> list[str]:
    """The models to serve by the server's own names, the default one first."""
    named = [name.strip() for name in options.model.split(";") if name.strip()]
    if named:
        return named
    key = read_key("chat", options)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return listed_models("chat", options.url.rstrip("/"), "/models", headers)
