"""Which engines there are, and which model is served by which.

An engine is named on the command line as ``KIND`` or ``KIND:REST``. Modules load only when they are chosen,
so that an engine's dependencies are needed only by those who use it.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from slipring.core.generation import Model
from slipring.engines.base import Engine
from slipring.errors import ModelNotFound, StartupError


def _simulated(rest: str) -> Engine:
    from slipring.engines.simulated import SimulatedEngine

    return SimulatedEngine.from_options(rest)


def _llama(rest: str) -> Engine:
    from slipring.engines.llama import LlamaEngine

    return LlamaEngine.from_options(rest)


def _chat(rest: str) -> Engine:
    from slipring.engines.chat import ChatEngine

    return ChatEngine.from_options(rest)


KINDS: dict[str, Callable[[str], Engine]] = {"llama": _llama, "simulated": _simulated, "chat": _chat}


def open_engine(spec: str) -> Engine:
    """Make the engine that ``spec`` names. It is not started yet."""
    kind, _, rest = spec.partition(":")
    make = KINDS.get(kind)
    if make is None:
        known = ", ".join(KINDS)
        raise StartupError(f"--engine {spec}: unknown engine '{kind}' (known: {known})")
    return make(rest)


class Catalog:
    """The models that clients can name, and the engine behind each."""

    def __init__(self, engine: Engine, names: Sequence[str] = ()) -> None:
        """Serve an engine's models; with ``names``, its default model under these names instead."""
        self.engine = engine
        served = list(engine.models())
        if names:
            served = [structs.replace(served[0], name=name) for name in names]
        self._models = {model.name: model for model in served}
        self._default = served[0]

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def find(self, name: str | None) -> Model:
        if name is None:
            return self._default
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(name, self._models)
        return model

    def engine_of(self, model: Model) -> Engine:
        return self.engine
