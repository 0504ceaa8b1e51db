"""What a connection remembers: the states of its earlier responses, bounded in bytes.

Three scopes watch the same bytes: the connection, its tenant and the process. A state is charged once per
connection for as long as anything remembered there reaches it, so an ancestor that a newer response already
holds costs nothing more. When a scope is over its bound it forgets, oldest first, responses that their lane
has moved past, and only then the latest of a lane. When the process is over its bound, the tenant that uses
the most forgets: no tenant loses anything because another one says much.
"""

from collections import OrderedDict
from collections.abc import Callable

from slipring.core.chain.state import ResponseState


class Retention:
    """Which nodes of the chains are held, and how many bytes they are.

    Counts references from remembered responses and from held children, so that holding and letting go cost
    the nodes that change hands, not the chain.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[ResponseState, int] = {}

    def hold(self, state: ResponseState) -> int:
        """Hold a state and all it builds on; returns the bytes that were not held before."""
        gained = 0
        node: ResponseState | None = state
        while node is not None:
            count = self._counts.get(node, 0)
            self._counts[node] = count + 1
            if count:
                break
            gained += node.size_bytes
            node = node.parent
        return gained

    def release(self, state: ResponseState) -> int:
        """Let go of a state; returns the bytes that nothing holds any more."""
        freed = 0
        node: ResponseState | None = state
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
    """A remembered response, and the lane that made it."""

    __slots__ = ("cache", "lane", "latest", "state")

    def __init__(self, cache: "ConnectionCache", state: ResponseState, lane: str | None) -> None:
        self.cache = cache
        self.state = state
        self.lane = lane
        self.latest = True


class Scope:
    """A bound on remembered bytes, and the order in which to forget when it is passed."""

    __slots__ = ("evictions", "latest", "limit_bytes", "superseded", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.evictions = 0
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
    """The memory of one connection, within its own bound and those it shares."""

    __slots__ = ("_entries", "_lanes", "_retention", "_scopes", "on_freed")

    def __init__(self, limit_bytes: int, shared: tuple[Scope, ...] = ()) -> None:
        self.on_freed: Callable[[int], None] | None = None
        """Told how many bytes are held no more, each time something is forgotten."""
        self._scopes: tuple[Scope, ...] = (Scope(limit_bytes), *shared)
        self._retention = Retention()
        self._entries: dict[str, _Entry] = {}
        self._lanes: dict[str | None, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, response_id: object) -> bool:
        return response_id in self._entries

    @property
    def used_bytes(self) -> int:
        return self._scopes[0].used_bytes

    def find(self, response_id: str) -> ResponseState | None:
        entry = self._entries.get(response_id)
        if entry is None:
            return None
        for scope in self._scopes:
            scope.tier(entry).move_to_end(entry)
        return entry.state

    def states(self) -> list[ResponseState]:
        """All that is remembered, in the order in which it came."""
        return [entry.state for entry in self._entries.values()]

    def lane_of(self, response_id: str) -> str | None:
        """The lane that made a remembered response. Ask only for one that is remembered."""
        return self._entries[response_id].lane

    def remember(self, state: ResponseState, lane: str | None) -> None:
        """Remember a finished response as the latest of its lane."""
        self.evict(state.id)
        self._supersede(lane)
        entry = _Entry(self, state, lane)
        self._entries[state.id] = self._lanes[lane] = entry
        gained = self._retention.hold(state)
        for scope in self._scopes:
            scope.latest[entry] = None
            scope.used_bytes += gained
        for scope in self._scopes:
            _make_room(scope)

    def evict(self, response_id: str) -> None:
        """Forget a response. What it shares with remembered ones stays."""
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
        """Forget everything: the connection is gone."""
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


class NoMemory(ConnectionCache):
    """For connections that end with their one response: remembers nothing, and costs nothing."""

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
    """The scope of all tenants together. The one that uses the most gives way."""

    __slots__ = ("_tenants",)

    def __init__(self, limit_bytes: int, tenants: dict[str, Scope]) -> None:
        super().__init__(limit_bytes)
        self._tenants = tenants

    def oldest(self) -> _Entry | None:
        largest = max(self._tenants.values(), key=lambda tenant: tenant.used_bytes, default=None)
        return largest.oldest() if largest is not None else None


class SharedScopes:
    """The scopes that connections share: one per tenant, one for the process."""

    __slots__ = ("_tenant_bytes", "_tenants", "process")

    def __init__(self, tenant_bytes: int, process_bytes: int) -> None:
        self._tenant_bytes = tenant_bytes
        self._tenants: dict[str, Scope] = {}
        self.process: Scope = _ProcessScope(process_bytes, self._tenants)

    def of(self, tenant: str) -> tuple[Scope, Scope]:
        scope = self._tenants.get(tenant)
        if scope is None:
            scope = self._tenants[tenant] = Scope(self._tenant_bytes)
        return scope, self.process
