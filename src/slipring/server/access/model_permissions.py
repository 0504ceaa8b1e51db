"""The models that a caller may use. For a caller, other models do not exist."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from slipring.base.errors import ModelNotFound
from slipring.core.generation import Model
from slipring.engines.catalog import Catalog


class Selection(Protocol):
    """A catalog, or the permitted part of one."""

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of its models, with the names that they stand for."""

    def __iter__(self) -> Iterator[Model]: ...

    def find(self, name: str | None) -> Model:
        """The model with this name, or the default one for None. Raises ``ModelNotFound``."""


class Permitted:
    """The part of a catalog that a list of names permits. The first model is the default.

    Listing a model or one of its aliases permits the model under all its names.
    """

    def __init__(self, catalog: Catalog, names: Sequence[str]) -> None:
        self._names = names
        listed = {catalog.aliases.get(name, name) for name in names}
        self._models = {model.name: model for model in catalog if model.name in listed}
        self.aliases = {alias: name for alias, name in catalog.aliases.items() if name in self._models}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def find(self, name: str | None) -> Model:
        if name is None:
            # If no permitted model is served here, the error names the first permitted one.
            name = next(iter(self._models), self._names[0])
        wanted = self.aliases.get(name, name)
        if wanted not in self._models:
            raise ModelNotFound(name, [*self._models, *self.aliases])
        return self._models[wanted]
