"""Which models a caller may use: the catalog as its key lets it see it.

A model that is not permitted is, for this caller, not there at all.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from slipring.core.generation import Model
from slipring.engines.catalog import Catalog
from slipring.errors import ModelNotFound


class Selection(Protocol):
    """Models to choose from: a catalog, or the permitted part of one."""

    def __iter__(self) -> Iterator[Model]: ...

    def find(self, name: str | None) -> Model:
        """The model of this name, the default one for None, or ``ModelNotFound``."""


class Permitted:
    """A view of a catalog that shows these models and no others. The first is the default.

    An alias stands for its model: where either is listed, both may be used.
    """

    def __init__(self, catalog: Catalog, names: Sequence[str]) -> None:
        self._names = names
        listed = {catalog.aliases.get(name, name) for name in names}
        self._models = {model.name: model for model in catalog if model.name in listed}
        self._aliases = {alias: name for alias, name in catalog.aliases.items() if name in self._models}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def find(self, name: str | None) -> Model:
        if name is None:
            # Where nothing that is permitted is served here, the refusal says what was looked for.
            name = next(iter(self._models), self._names[0])
        wanted = self._aliases.get(name, name)
        if wanted not in self._models:
            raise ModelNotFound(name, [*self._models, *self._aliases])
        return self._models[wanted]
