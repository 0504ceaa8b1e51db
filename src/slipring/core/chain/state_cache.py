"""Per-connection cache of response states, bounded in bytes.

Three scopes count the same bytes: the connection, its tenant and the process. A state counts once per
connection while any cached response reaches it, so an ancestor of a newer cached response costs nothing more.
A scope over its limit evicts the oldest responses that are not the latest of their lane, then the oldest
latest ones. If the process is over its limit, the tenant that uses the most bytes evicts: no tenant loses
states because another tenant uses much.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, Self, TypeVar

from slipring.core.chain.state import ResponseState


class Node(Protocol):
    """A part of a chain that is counted."""

    @property
    def parent(self) -> Self | None: ...

    @property
    def size_bytes(self) -> int:
        """The memory that it does not share with its parent."""


N = TypeVar("N", bound=Node)


class Retention(Generic[N]):
    """Reference counts of chain nodes.

    Counts references from cached nodes and from retained children, so that ``hold`` and ``release`` take
    time proportional to the nodes gained or freed, not to the length of the chain.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[N, int] = {}

    def weigh(self, state: N) -> int:
        """Return the bytes that ``hold`` would retain in addition."""
        gained = 0
        node: N | None = state
        while node is not None and node not in self._counts:
            gained += node.size_bytes
            node = node.parent
        return gained

    def hold(self, state: N) -> int:
        """Retain a state and its ancestors; returns the bytes that were not retained before."""
        gained = 0
        node: N | None = state
        while node is not None:
            count = self._counts.get(node, 0)
            self._counts[node] = count + 1
            if count:
                break
            gained += node.size_bytes
            node = node.parent
        return gained

    def release(self, state: N) -> int:
        """Drop one reference to a state; returns the bytes that are no longer retained."""
        freed = 0
        node: N | None = state
        while node is not None:
            count = self._counts[node] - 1
            if count:
                self._counts[node] = count
                break
            del self._counts[node]
            freed += node.size_bytes
            node = node.parent
        return freed


class _Entry:
    """A cached response, and the lane that produced it."""

    __slots__ = ("cache", "lane", "latest", "state")

    def __init__(self, cache: "ConnectionCache", state: ResponseState, lane: str | None) -> None:
        self.cache = cache
        self.state = state
        self.lane = lane
        self.latest = True


class Scope:
    """A limit on cached bytes, and the order of eviction."""

    __slots__ = (
        "connection_evictions",
        "evictions",
        "hits",
        "latest",
        "limit_bytes",
        "superseded",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.evictions = 0
        """Responses that were evicted because this limit was exceeded."""
        self.connection_evictions = 0
        """Of the process: those that were evicted because of the limit of their connection."""
        self.hits = 0
        """Of the process: turns that found the response to continue in the memory of their connection."""
        self.superseded: OrderedDict[_Entry, None] = OrderedDict()
        self.latest: OrderedDict[_Entry, None] = OrderedDict()

    @property
    def exceeded(self) -> bool:
        return self.used_bytes > self.limit_bytes

    def tier(self, entry: _Entry) -> OrderedDict[_Entry, None]:
        return self.latest if entry.latest else self.superseded

    def oldest(self) -> _Entry | None:
        for tier in (self.superseded, self.latest):
            if tier:
                return next(iter(tier))
        return None


class ConnectionCache:
    """The cached states of one connection, within its own limit and the shared ones."""

    __slots__ = ("_entries", "_lanes", "_retention", "_scopes", "on_freed")

    def __init__(self, limit_bytes: int, shared: tuple[Scope, ...] = ()) -> None:
        self.on_freed: Callable[[int], None] | None = None
        """Called with the number of bytes freed by an eviction."""
        self._scopes: tuple[Scope, ...] = (Scope(limit_bytes), *shared)
        self._retention: Retention[ResponseState] = Retention()
        self._entries: dict[str, _Entry] = {}
        self._lanes: dict[str | None, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, response_id: object) -> bool:
        return response_id in self._entries

    @property
    def used_bytes(self) -> int:
        return self._scopes[0].used_bytes

    @property
    def limit_bytes(self) -> int:
        return self._scopes[0].limit_bytes

    def find(self, response_id: str) -> ResponseState | None:
        entry = self._entries.get(response_id)
        if entry is None:
            return None
        for scope in self._scopes:
            scope.tier(entry).move_to_end(entry)
        return entry.state

    def count_hit(self) -> None:
        """Count a turn that found the response to continue here."""
        self._scopes[-1].hits += 1

    def states(self) -> list[ResponseState]:
        """All cached states, oldest first."""
        return [entry.state for entry in self._entries.values()]

    def lane_of(self, response_id: str) -> str | None:
        """The lane that produced a cached response. Raises ``KeyError`` if it is not cached."""
        return self._entries[response_id].lane

    def is_latest(self, response_id: str) -> bool:
        """Whether a cached response is the latest of its lane. Raises ``KeyError`` if it is not cached."""
        return self._entries[response_id].latest

    def remember(self, state: ResponseState, lane: str | None) -> None:
        """Cache a finished response as the latest of its lane, then evict what exceeds a limit."""
        self.evict(state.id)
        self._supersede(lane)
        entry = _Entry(self, state, lane)
        self._entries[state.id] = self._lanes[lane] = entry
        gained = self._retention.hold(state)
        for scope in self._scopes:
            scope.latest[entry] = None
            scope.used_bytes += gained
        own, *shared = self._scopes
        evicted = own.evictions
        _make_room(own)
        if shared:
            shared[-1].connection_evictions += own.evictions - evicted
        for scope in shared:
            _make_room(scope)

    def evict(self, response_id: str) -> None:
        """Remove a response, if cached. Ancestors that other cached responses share stay."""
        entry = self._entries.pop(response_id, None)
        if entry is None:
            return
        if self._lanes.get(entry.lane) is entry:
            del self._lanes[entry.lane]
        freed = self._retention.release(entry.state)
        for scope in self._scopes:
            del scope.tier(entry)[entry]
            scope.used_bytes -= freed
        if freed and self.on_freed is not None:
            self.on_freed(freed)

    def clear(self) -> None:
        """Remove all responses."""
        for response_id in list(self._entries):
            self.evict(response_id)

    def _supersede(self, lane: str | None) -> None:
        entry = self._lanes.get(lane)
        if entry is None:
            return
        for scope in self._scopes:
            del scope.latest[entry]
            scope.superseded[entry] = None
        entry.latest = False


class NoCache(ConnectionCache):
    """Stores nothing. For exchanges of a single response, such as an HTTP request."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0)

    def remember(self, state: ResponseState, lane: str | None) -> None:
        return


def _make_room(scope: Scope) -> None:
    while scope.exceeded and (entry := scope.oldest()) is not None:
        scope.evictions += 1
        entry.cache.evict(entry.state.id)


class _ProcessScope(Scope):
    """The scope of all tenants. Evicts from the tenant that uses the most bytes."""

    __slots__ = ("_tenants",)

    def __init__(self, limit_bytes: int, tenants: dict[str, Scope]) -> None:
        super().__init__(limit_bytes)
        self._tenants = tenants

    def oldest(self) -> _Entry | None:
        largest = max(self._tenants.values(), key=lambda tenant: tenant.used_bytes, default=None)
        return largest.oldest() if largest is not None else None


class SharedScopes:
    """The scopes shared by connections: one per tenant, one for the process."""

    __slots__ = ("_tenant_bytes", "_tenants", "process")

    def __init__(self, tenant_bytes: int, process_bytes: int) -> None:
        self._tenant_bytes = tenant_bytes
        self._tenants: dict[str, Scope] = {}
        self.process: Scope = _ProcessScope(process_bytes, self._tenants)

    @property
    def tenants(self) -> Mapping[str, Scope]:
        """The scopes of tenants that have connected."""
        return self._tenants

    def of(self, tenant: str) -> tuple[Scope, Scope]:
        scope = self._tenants.get(tenant)
        if scope is None:
            scope = self._tenants[tenant] = Scope(self._tenant_bytes)
        return scope, self.process
