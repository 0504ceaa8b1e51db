"""Models for the tests of the llama engine, each loaded once for all tests of a process.

Two models with the same template: the real one that slipring packages, for tests of what a model says, and a
tiny one whose tokens cost next to nothing, for tests of slots, contexts, processes and answers that must be
equal. A token of the real one costs 30 milliseconds, in the prompt as in the answer.

``SharedModel`` owns one llama.cpp child. Each test makes its own engine in front of it, as workers do that
share an engine: a new engine trusts nothing that an earlier one left in a slot, so tests do not see each
other. Tests of the child itself (its start, its death, its files) start their own.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from msgspec import structs

from slipring.engines.engine_hosts import Borrowed
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.llama.served_model import locate
from slipring.engines.llama.worker_shares import EmbeddedOwner
from tests.harness import Running, serve
from tests.prompts.gguf_writer import write_projector, write_tiny_model
from tests.prompts.vocabulary import short_metadata

_KEY = "SLIPRING_TEST_LLAMA_KEY"

ServeModel = Callable[..., AbstractAsyncContextManager[Running]]
"""A server with a model. Takes ``slots``, ``context`` and settings of ``serve``."""


class SharedModel:
    """A llama.cpp child that serves one engine after the other."""

    slots = 3
    context = 2048

    def __init__(self, owner: EmbeddedOwner, path: str, spec: str) -> None:
        self._owner = owner
        self.path = path
        self.spec = spec

    @property
    def url(self) -> str:
        return self._owner.process.url

    @property
    def key(self) -> str:
        return self._owner.key

    def engine(self, **options: Any) -> LlamaEngine:
        """An engine that uses the child as its own. It can have less of slots and context than the child."""
        asked = LlamaOptions(model=self.path, spec=self.spec, **options)
        assert asked.slots <= self.slots
        assert asked.context <= self.context
        share = structs.replace(
            self._owner.share(0), slots=tuple(range(asked.slots)), saved_bytes=asked.saved_mib * 2**20
        )
        borrowed = Borrowed(share, self.key, self._owner.suspect)
        borrowed.move(self.url)
        return LlamaEngine(asked, borrowed)

    def serve(
        self, slots: int = 2, context: int = 1024, **settings: Any
    ) -> AbstractAsyncContextManager[Running]:
        return serve(self.engine(slots=slots, context=context), **settings)


@contextmanager
def loaded(path: str, spec: str = "") -> Iterator[SharedModel]:
    """Run a child. A loop in another thread owns it: the loops of tests end sooner."""
    # One thread: several wait for each other at every layer, and the other cores have tests to run.
    options = LlamaOptions(
        model=path, slots=SharedModel.slots, context=SharedModel.context, threads=1, spec=spec
    )
    path, context = locate(options)
    owner = EmbeddedOwner(options, path, context)
    with start_blocking_portal() as portal:
        portal.call(partial(owner.start, lambda: None))
        try:
            yield SharedModel(owner, path, spec)
        finally:
            portal.call(owner.close)


@pytest.fixture(scope="session")
def real_model() -> Iterator[SharedModel]:
    """SmolLM2, as slipring packages it."""
    with loaded("") as model:
        yield model


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a model that costs next to nothing and never ends an answer by itself."""
    path = tmp_path_factory.mktemp("tiny") / "Tiny-Q8_0.gguf"
    write_tiny_model(path, short_metadata())
    return str(path)


@pytest.fixture(scope="session")
def tiny_model(tiny_path: str) -> Iterator[SharedModel]:
    with loaded(tiny_path) as model:
        yield model


@pytest.fixture(scope="session")
def seeing_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a tiny model that ends its answers, with a projector beside it."""
    path = tmp_path_factory.mktemp("seeing") / "Tiny-Q8_0.gguf"
    write_tiny_model(path, short_metadata(), ends=True)
    write_projector(path.with_name("mmproj-Tiny-F32.gguf"))
    return str(path)


@pytest.fixture(scope="session")
def seeing_model(seeing_path: str) -> Iterator[SharedModel]:
    """The tiny model, which sees: a picture takes 16 tokens, whatever its size."""
    with loaded(seeing_path) as model:
        yield model


@pytest.fixture
def smollm2(real_model: SharedModel) -> ServeModel:
    return real_model.serve


@pytest.fixture
def tiny(tiny_model: SharedModel) -> ServeModel:
    return tiny_model.serve


@pytest.fixture
def seeing(seeing_model: SharedModel) -> ServeModel:
    return seeing_model.serve


@pytest.fixture
def elsewhere(tiny_model: SharedModel, monkeypatch: pytest.MonkeyPatch) -> LlamaEngine:
    """An engine in front of a llama-server that it did not start. Its model is the tiny one."""
    monkeypatch.setenv(_KEY, tiny_model.key)
    return LlamaEngine(LlamaOptions(model=tiny_model.url, key_env=_KEY))
