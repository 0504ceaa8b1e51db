"""The real embedded model, loaded once for all tests of a process.

``RealModel`` owns one llama.cpp child. Each test makes its own engine in front of it, as workers do that
share an engine: a new engine trusts nothing that an earlier one left in a slot, so tests do not see each
other. Tests of the child itself (its start, its death, its files) start their own.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from msgspec import structs

from slipring.engines.llama import LlamaEngine
from slipring.engines.llama.models import locate
from slipring.engines.llama.options import Options
from slipring.engines.llama.owners import Embedded
from slipring.engines.sharing import Borrowed
from tests.harness import Running, serve

WHOLE = Options(slots=3, context=2048, threads=1)
"""What the shared child has."""

_KEY = "SLIPRING_TEST_LLAMA_KEY"

ServeModel = Callable[..., AbstractAsyncContextManager[Running]]
"""The fixture ``llama``: a server with the model. Takes ``slots``, ``context`` and settings of ``serve``."""


class RealModel:
    """A llama.cpp child that serves one engine after the other."""

    def __init__(self, owner: Embedded) -> None:
        self._owner = owner

    @property
    def url(self) -> str:
        return self._owner.process.url

    @property
    def key(self) -> str:
        return self._owner.key

    def engine(self, **options: Any) -> LlamaEngine:
        """An engine that uses the child as its own. It can have less of slots and context than the child."""
        asked = Options(**options)
        assert asked.slots <= WHOLE.slots
        assert asked.context <= WHOLE.context
        share = structs.replace(
            self._owner.share(0), slots=tuple(range(asked.slots)), saved_bytes=asked.saved_mib * 2**20
        )
        borrowed = Borrowed(share, self.key, self._owner.suspect)
        borrowed.move(self.url)
        return LlamaEngine(asked, borrowed)


@pytest.fixture(scope="session")
def real_model() -> Iterator[RealModel]:
    """The embedded model, loaded. A loop in another thread owns its child: loops of tests end sooner."""
    owner = Embedded(WHOLE, *locate(WHOLE))
    with start_blocking_portal() as portal:
        portal.call(owner.start, lambda: None)
        try:
            yield RealModel(owner)
        finally:
            portal.call(owner.close)


@pytest.fixture
def llama(real_model: RealModel) -> ServeModel:
    def serve_model(
        slots: int = 2, context: int = 1024, **settings: Any
    ) -> AbstractAsyncContextManager[Running]:
        return serve(real_model.engine(slots=slots, context=context), **settings)

    return serve_model


@pytest.fixture
def elsewhere(real_model: RealModel, monkeypatch: pytest.MonkeyPatch) -> LlamaEngine:
    """An engine in front of a llama-server that it did not start."""
    monkeypatch.setenv(_KEY, real_model.key)
    return LlamaEngine(Options(model=real_model.url, key_env=_KEY))
