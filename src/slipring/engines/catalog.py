"""The engines that exist, by kind, and the catalog of models that a server offers.

An engine is named as ``KIND`` or ``KIND:OPTIONS``. Its modules are imported only when it is chosen, so that
its dependencies need not be installed otherwise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct, structs

from slipring.base.errors import ModelNotFound, StartupError, suggestion
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Defaults, Emit, Hosting, Job, Model, Position
from slipring.engines.base import Engine, PositionCodec
from slipring.engines.engine_hosts import Borrowed, Owner


def _simulated(rest: str) -> Engine:
    from slipring.engines.simulated.options import read_options

    options = read_options(rest)
    if options.vocabulary:  # it renders and tokenizes for real
        from slipring.engines.simulated.tokenized import TokenizedEngine

        return TokenizedEngine(options)
    from slipring.engines.simulated.engine import SimulatedEngine

    return SimulatedEngine(options)


def _llama(rest: str) -> Engine:
    from slipring.engines.llama.engine import LlamaEngine

    return LlamaEngine.from_options(rest)


def _llama_owner(rest: str, users: int) -> Owner:
    from slipring.engines.llama.options import read_options
    from slipring.engines.llama.served_model import locate
    from slipring.engines.llama.worker_shares import EmbeddedOwner, ExternalOwner

    options = read_options(rest)
    if options.is_external:
        return ExternalOwner(options, users)
    return EmbeddedOwner(options, *locate(options), users)


def _borrowing_llama(rest: str, borrowed: Borrowed) -> Engine:
    from slipring.engines.llama.engine import LlamaEngine
    from slipring.engines.llama.options import read_options

    return LlamaEngine(read_options(rest), borrowed)


def _chat(rest: str) -> Engine:
    from slipring.engines.chat.engine import ChatEngine

    return ChatEngine.from_options(rest)


def _vllm(rest: str) -> Engine:
    from slipring.engines.tokens.vllm import VllmEngine

    return VllmEngine.from_options(rest)


def _sglang(rest: str) -> Engine:
    from slipring.engines.tokens.sglang import SglangEngine

    return SglangEngine.from_options(rest)


def _responses(rest: str) -> Engine:
    from slipring.engines.responses.engine import ResponsesEngine

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
"""Engines that several worker processes share: one owner divides them among the borrowers."""

EXTRAS = {"sglang": "tokens", "simulated": "tokens", "vllm": "tokens"}
"""The extra that installs an engine's dependencies, where it is not called like the engine."""

_WITHOUT_A_MODEL = (
    "; llama is the default engine. To test clients without a model: --engine simulated, which only generates"
    " filler text"
)


def open_engine(spec: str) -> Engine:
    """Make the engine that ``spec`` names, without starting it. Raises ``StartupError``."""
    kind, _, rest = spec.partition(":")
    make = KINDS.get(kind)
    if make is None:
        hint = suggestion(kind, KINDS)
        raise StartupError(f"--engine {spec}: unknown engine '{kind}'{hint} (known: {', '.join(KINDS)})")
    with _missing_packages(kind):
        return make(rest)


def check_options(spec: str) -> None:
    """Check the options of an embedded engine whose model is not on this machine yet. Raises
    ``StartupError``."""
    kind, _, rest = spec.partition(":")
    with _missing_packages(kind):
        from slipring.engines.llama.options import read_options
        from slipring.engines.tokens.template_choice import check_rendering

        check_rendering(kind, read_options(rest))


def open_owner(spec: str, users: int) -> Owner | None:
    """Make the owner of an engine that ``users`` workers share; None for engines that each worker opens."""
    kind, _, rest = spec.partition(":")
    if kind not in OWNERS:
        return None
    with _missing_packages(kind):
        return OWNERS[kind](rest, users)


def borrow_engine(spec: str, borrowed: Borrowed) -> Engine:
    """Make a worker's engine on top of the share that another process owns."""
    kind, _, rest = spec.partition(":")
    return BORROWERS[kind](rest, borrowed)


@contextmanager
def _missing_packages(kind: str) -> Iterator[None]:
    """Raise a missing dependency as a ``StartupError`` that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = f"pip install '.[{EXTRAS.get(kind, kind)}]' in a checkout of slipring"
        remark = _WITHOUT_A_MODEL if kind == "llama" else ""
        raise StartupError(f"--engine {kind}: {error.name} is not installed ({extra}){remark}") from None


class Entry(Struct, frozen=True):
    """A configured model."""

    name: str
    engine: str
    own_name: str = ""
    """The engine's own name for it; empty: the engine's first model."""
    aliases: tuple[str, ...] = ()
    defaults: Defaults = Defaults()
    """They override those of the engine."""
    hosted_tools: Hosting | None = None
    """Who runs hosted tools; None: as the engine says."""


class Catalog:
    """The models that clients can name, and the engine that serves each. Owns the engines.

    Engines are opened by the constructors below, which do no network I/O. ``start`` starts them and looks up
    their models; until then the catalog has engines and no models.
    """

    def __init__(self, engines: Mapping[str, Engine], entries: Sequence[Entry] = ()) -> None:
        """``engines`` by the names that entries use. Without entries, all models of all engines are served
        under their own names. The first model is the default."""
        self._engines = engines
        self._entries = entries
        self.aliases = {alias: entry.name for entry in entries for alias in entry.aliases}
        self._served: dict[str, tuple[Model, Engine]] = {}

    @classmethod
    def of_engine(cls, engine: Engine, names: Sequence[str] = ()) -> "Catalog":
        """All models of one engine; with ``names``, its default model under these names instead."""
        return cls({engine.name: engine}, [Entry(name, engine.name) for name in names])

    @classmethod
    def of_entries(
        cls, entries: Sequence[Entry], open_by_name: Callable[[str], Engine] = open_engine
    ) -> "Catalog":
        """The models of a configuration; entries that name the same engine share it."""
        names = dict.fromkeys(entry.engine for entry in entries)
        return cls({name: open_by_name(name) for name in names}, entries)

    async def start(self) -> None:
        """Start every engine, then look up the models. Raises ``StartupError``."""
        for engine in self.engines:
            await engine.start()
        self.look_up_models()

    def look_up_models(self) -> None:
        """Match entries with the models of the engines. Raises ``StartupError`` if one does not exist."""
        if self._entries:
            served = [(self._configured(entry), self._engines[entry.engine]) for entry in self._entries]
        else:
            served = [(model, engine) for engine in self.engines for model in engine.models()]
        self._served = {model.name: (model, engine) for model, engine in served}

    def _configured(self, entry: Entry) -> Model:
        model = _own_model(self._engines[entry.engine], entry)
        if entry.hosted_tools == "upstream" and not model.is_upstream:
            raise StartupError(
                f"models.{entry.name}: 'hosted_tools' can be 'upstream' with the engine 'responses' only"
            )
        return structs.replace(
            model,
            name=entry.name,
            own_name=model.own_name or model.name,
            defaults=entry.defaults.over(model.defaults),
            hosted_tools=entry.hosted_tools or model.hosted_tools,
        )

    def __iter__(self) -> Iterator[Model]:
        return (model for model, _ in self._served.values())

    @property
    def engines(self) -> list[Engine]:
        """Every engine once."""
        return list(self._engines.values())

    def find(self, name: str | None) -> Model:
        """The model of this name or alias, the default one for None. Raises ``ModelNotFound``."""
        wanted = next(iter(self._served)) if name is None else self.aliases.get(name, name)
        if wanted not in self._served:
            raise ModelNotFound(wanted, [*self._served, *self.aliases])
        return self._served[wanted][0]

    def engine_of(self, model: Model) -> Engine:
        return self._served[model.name][1]

    async def generate(self, job: Job, emit: Emit) -> None:
        """Run a job on the engine of its model."""
        await self.engine_of(job.model).generate(job, emit)


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


class _Codecs:
    """The codecs of several engines. Each refuses the positions and the bytes of others."""

    def __init__(self, codecs: Sequence[PositionCodec]) -> None:
        self._codecs = codecs

    def pack(self, position: object, parent: object) -> bytes | None:
        packed = (codec.pack(position, parent) for codec in self._codecs)
        return next((data for data in packed if data is not None), None)

    def unpack(self, data: bytes, parent: object, head: Head) -> Position | None:
        unpacked = (codec.unpack(data, parent, head) for codec in self._codecs)
        return next((position for position in unpacked if position is not None), None)


def position_codec(engines: Sequence[Engine]) -> PositionCodec | None:
    """Encodes the positions that engines leave with responses, for stores and peers; None if no engine leaves
    positions that can be encoded."""
    codecs = [engine.positions for engine in engines if engine.positions is not None]
    if any(engine.leaves_renderings for engine in engines):
        from slipring.prompts.rendering_codec import RenderingCodec

        codecs.append(RenderingCodec())
    if len(codecs) > 1:
        return _Codecs(codecs)
    return codecs[0] if codecs else None
