"""Bounds on the values of a metric's labels: the first names count under their own, all later ones as one."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import UNSET, UnsetType

from slipring.observation.metric_counts import Labels
from slipring.observation.metric_table import FLAGGED_USER, OTHER, TENANT, Label, Metric


class BoundedNames:
    """Keeps the first names that it is given, and replaces all others by ``other``."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        known = self._known
        if name in known:
            return name
        if len(known) >= self._most or name == OTHER:
            return OTHER
        known.add(name)
        return name


class OfferedModels:
    """The models that a server offers, by all their names; others are ``other``."""

    __slots__ = ("_by_name",)

    def __init__(self, names: Iterable[str] = (), aliases: Mapping[str, str] = MappingProxyType({})) -> None:
        self._by_name = {name: name for name in names} | dict(aliases)

    def of(self, name: str | UnsetType) -> str:
        return OTHER if name is UNSET else self._by_name.get(name, OTHER)


class BoundedLabels:
    """The labels whose values clients or operators bring, each with its own bound."""

    __slots__ = ("_names",)

    def __init__(self, tenants: int = 0, safety_ids: int = 0) -> None:
        """As the settings ``metrics_tenants`` and ``metrics_safety_ids``."""
        self._names: dict[Label, BoundedNames] = {
            TENANT: BoundedNames(tenants),
            FLAGGED_USER: BoundedNames(safety_ids),
        }

    def of(self, metric: Metric, labels: Labels) -> Labels:
        """The labels of a series, with values past a bound replaced by ``other``."""
        if self._names.keys().isdisjoint(metric.labels):
            return labels
        pairs = zip(map(self._names.get, metric.labels), labels, strict=True)
        return tuple(value if bound is None else bound.of(value) for bound, value in pairs)
