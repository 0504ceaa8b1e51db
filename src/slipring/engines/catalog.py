"""Which engines there are, and which model is served by which.

An engine is named as ``KIND`` or ``KIND:REST``. Modules load only when they are chosen, so that an engine's
dependencies are needed only by those who use it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct, structs

from slipring.core.generation import Defaults, Model
from slipring.engines.base import Engine
from slipring.engines.sharing import Borrowed, Owner
from slipring.errors import ModelNotFound, StartupError
from slipring.spelling import suggestion


def _simulated(rest: str) -> Engine:
    from slipring.engines.simulated import open_simulated

    return open_simulated(rest)


def _llama(rest: str) -> Engine:
    from slipring.engines.llama import LlamaEngine

    return LlamaEngine.from_options(rest)


def _llama_owner(rest: str, users: int) -> Owner:
    from slipring.engines.llama.models import locate
    from slipring.engines.llama.options import read_options
    from slipring.engines.llama.owners import Elsewhere, Embedded

    options = read_options(rest)
    return Elsewhere(options, users) if options.is_elsewhere else Embedded(options, *locate(options), users)


def _borrowing_llama(rest: str, borrowed: Borrowed) -> Engine:
    from slipring.engines.llama import LlamaEngine
    from slipring.engines.llama.options import read_options

    return LlamaEngine(read_options(rest), borrowed)


def _chat(rest: str) -> Engine:
    from slipring.engines.chat import ChatEngine

    return ChatEngine.from_options(rest)


def _vllm(rest: str) -> Engine:
    from slipring.engines.vllm import VllmEngine

    return VllmEngine.from_options(rest)


def _sglang(rest: str) -> Engine:
    from slipring.engines.sglang import SglangEngine

    return SglangEngine.from_options(rest)


def _responses(rest: str) -> Engine:
    from slipring.engines.responses import ResponsesEngine

    return ResponsesEngine.from_options(rest)


KINDS: dict[str, Callable[[str], Engine]] = {
    "llama": _llama,
    "chat": _chat,
    "simulated": _simulated,
    "responses": _responses,
    "sglang": _sglang,
    "vllm": _vllm,
}

OWNERS: dict[str, Callable[[str, int], Owner]] = {"llama": _llama_owner}
BORROWERS: dict[str, Callable[[str, Borrowed], Engine]] = {"llama": _borrowing_llama}
"""Engines that processes cannot use side by side without an order among them."""

EXTRAS = {"sglang": "tokens", "simulated": "tokens", "vllm": "tokens"}
"""What an engine's dependencies are installed by, where it is not its own name."""

_WITHOUT_A_MODEL = (
    "; llama is the default engine. To test clients without a model: --engine simulated, which only generates"
    " filler text"
)


def open_engine(spec: str) -> Engine:
    """Make the engine that ``spec`` names. It is not started yet."""
    kind, _, rest = spec.partition(":")
    make = KINDS.get(kind)
    if make is None:
        hint = suggestion(kind, KINDS)
        raise StartupError(f"--engine {spec}: unknown engine '{kind}'{hint} (known: {', '.join(KINDS)})")
    with _needing(kind):
        return make(rest)


def open_owner(spec: str, users: int) -> Owner | None:
    """Make what one process keeps for all ``users`` of an engine, where the engine has such a part."""
    kind, _, rest = spec.partition(":")
    if kind not in OWNERS:
        return None
    with _needing(kind):
        return OWNERS[kind](rest, users)


def borrow_engine(spec: str, borrowed: Borrowed) -> Engine:
    """Make the engine that ``spec`` names, with the part of it that another process keeps for all."""
    kind, _, rest = spec.partition(":")
    return BORROWERS[kind](rest, borrowed)


@contextmanager
def _needing(kind: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        extra = f"pip install 'slipring[{EXTRAS.get(kind, kind)}]'"
        remark = _WITHOUT_A_MODEL if kind == "llama" else ""
        raise StartupError(f"--engine {kind}: {error.name} is not installed ({extra}){remark}") from None


class Entry(Struct, frozen=True):
    """A model as it is configured."""

    name: str
    engine: str
    own_name: str = ""
    """The engine's own name for it; empty: the engine's first model."""
    aliases: tuple[str, ...] = ()
    defaults: Defaults = Defaults()


class Catalog:
    """The models that clients can name, and the engine behind each."""

    def __init__(self, served: Iterable[tuple[Model, Engine]], aliases: dict[str, str] | None = None) -> None:
        """Models with their engines, the default one first; ``aliases`` are further names for them."""
        self._served = {model.name: (model, engine) for model, engine in served}
        self.aliases = aliases or {}
        self._default = next(iter(self._served))

    @classmethod
    def of_engine(cls, engine: Engine, names: Sequence[str] = ()) -> "Catalog":
        """All models of one engine; with ``names``, its default model under these names instead."""
        served = list(engine.models())
        if names:
            served = [_renamed(served[0], name) for name in names]
        return cls((model, engine) for model in served)

    @classmethod
    def of_entries(
        cls, entries: Sequence[Entry], open_by_name: Callable[[str], Engine] = open_engine
    ) -> "Catalog":
        """The models of a configuration; entries that name the same engine share it."""
        engines: dict[str, Engine] = {}
        served = []
        for entry in entries:
            if entry.engine not in engines:
                engines[entry.engine] = open_by_name(entry.engine)
            engine = engines[entry.engine]
            model = _renamed(_own_model(engine, entry), entry.name)
            served.append((structs.replace(model, defaults=entry.defaults), engine))
        return cls(served, {alias: entry.name for entry in entries for alias in entry.aliases})

    def __iter__(self) -> Iterator[Model]:
        return (model for model, _ in self._served.values())

    @property
    def engines(self) -> list[Engine]:
        """Every engine once."""
        return list(dict.fromkeys(engine for _, engine in self._served.values()))

    def find(self, name: str | None) -> Model:
        wanted = self._default if name is None else self.aliases.get(name, name)
        if wanted not in self._served:
            raise ModelNotFound(wanted, [*self._served, *self.aliases])
        return self._served[wanted][0]

    def engine_of(self, model: Model) -> Engine:
        return self._served[model.name][1]


def _own_model(engine: Engine, entry: Entry) -> Model:
    """The engine's model that an entry names, or its first."""
    models = {model.name: model for model in engine.models()}
    if not entry.own_name:
        return next(iter(models.values()))
    if entry.own_name not in models:
        known = ", ".join(models)
        raise StartupError(
            f"models.{entry.name}: {engine.name} has no model '{entry.own_name}' (it has: {known})"
        )
    return models[entry.own_name]


def _renamed(model: Model, name: str) -> Model:
    return structs.replace(model, name=name, own_name=model.own_name or model.name)
