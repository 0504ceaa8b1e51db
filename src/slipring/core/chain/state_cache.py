"""The memory of a connection for finished responses: what it keeps, compresses, evicts and forgets.

Three scopes count the same bytes: the connection, its tenant and the process. A state counts once per
connection while any cached response reaches it, so an ancestor of a newer cached response costs nothing more.
A scope over its limit evicts the oldest responses that are not the latest of their lane, then the oldest
latest ones. If the process is over its limit, the tenant that uses the most bytes evicts: no tenant loses
states because another tenant uses much. States that running turns continue count too.

The chain of a response that is not stored exists nowhere else. If it is larger than its connection may keep,
the items of its oldest responses are compressed, up to a limit on their size before that.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from slipring.base.errors import ApiError, InvalidPrompt
from slipring.core.byte_ledger import ChainLedger
from slipring.core.chain.state import ResponseState

_LEAST_AT_ONCE = 1024**2
_MOST_AT_ONCE = 4 * 1024**2
"""Bytes of items that are compressed at once: not often, and for a fifth of a second at most."""
_OUTGROWN = 32
"""Responses of which a connection remembers that their chain was too large for it."""


class ChainCompression:
    """The compressed states of one connection, and those to compress next. ``ends``: the latest responses of
    its lanes."""

    __slots__ = ("_is_running", "compressed_bytes", "item_bytes", "limit_bytes", "states")

    def __init__(self, limit_bytes: int) -> None:
        """``limit_bytes``: the most item bytes that are kept compressed, before compression."""
        self.limit_bytes = limit_bytes
        self.states: set[ResponseState] = set()
        """Retained states that are compressed, except those that another connection has compressed since."""
        self.item_bytes = 0
        """The bytes of their items before that."""
        self.compressed_bytes = 0
        """Memory of the compressed items."""
        self._is_running = False

    def take(self, excess_bytes: int, ends: Iterable[ResponseState]) -> list[ResponseState]:
        """The states to compress next, so that the connection fits its limit: oldest first, enough for a
        while, and not too many at once. Until ``end`` is called there are no others."""
        if self._is_running:
            return []
        wanted = min(max(2 * excess_bytes, _LEAST_AT_ONCE), _MOST_AT_ONCE)
        room = self.limit_bytes - self.item_bytes
        taken: list[ResponseState] = []
        taken_bytes = 0
        for state in _compressible(ends):
            taken_bytes += state.item_bytes
            if taken_bytes > room:
                break
            taken.append(state)
            if taken_bytes >= wanted:
                break
        self._is_running = bool(taken)
        return taken

    def end(self) -> None:
        """The states that were taken are compressed, or as many of them as could be."""
        self._is_running = False

    def may_shrink(self, ends: Iterable[ResponseState]) -> bool:
        """Whether the connection will use less memory once states are compressed."""
        room = self.limit_bytes - self.item_bytes
        if self._is_running or room <= 0:
            return self._is_running
        oldest = next(_compressible(ends), None)
        return oldest is not None and oldest.item_bytes <= room

    def add(self, state: ResponseState) -> None:
        """Count a compressed state."""
        self.states.add(state)
        self.item_bytes += state.item_bytes
        self.compressed_bytes += state.compressed_bytes

    def drop(self, states: Iterable[ResponseState]) -> None:
        """Count these states no longer."""
        for state in self.states.intersection(states) if self.states else ():
            self.states.remove(state)
            self.item_bytes -= state.item_bytes
            self.compressed_bytes -= state.compressed_bytes


def _compressible(ends: Iterable[ResponseState]) -> Iterator[ResponseState]:
    """The states that may be compressed, the oldest of each chain first."""
    seen: set[ResponseState] = set()
    for end in list(ends):
        chain: list[ResponseState] = []
        node = end.parent if end.response.store is False else None
        while node is not None and not node.compressed_bytes and node not in seen:
            seen.add(node)
            chain.append(node)
            node = node.parent
        yield from reversed(chain)


Pins = dict[ResponseState, tuple[int, int]]
"""States that turns continue: how many turns, and the bytes that are counted for them."""


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
        "compressions",
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
        self.compressions = 0
        """Of the process: states whose items were compressed."""
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


class _ConnectionScope(Scope):
    """The scope of one connection. What is compressed has a limit of its own."""

    __slots__ = ("compression",)

    def __init__(self, limit_bytes: int, compression: ChainCompression) -> None:
        super().__init__(limit_bytes)
        self.compression = compression

    @property
    def limited_bytes(self) -> int:
        """The bytes that count towards the limit."""
        return self.used_bytes - self.compression.compressed_bytes

    @property
    def excess_bytes(self) -> int:
        return self.limited_bytes - self.limit_bytes

    @property
    def exceeded(self) -> bool:
        return self.used_bytes - self.compression.compressed_bytes > self.limit_bytes


class ConnectionCache:
    """The cached states of one connection, within its own limit and the shared ones.

    Long chains that are not stored are compressed (``ChainCompression``): ``take_compressible`` returns what
    is next, and the cache exceeds its limit until ``keep_compressed``. A chain that is larger is evicted.
    """

    __slots__ = (
        "_compression",
        "_entries",
        "_lanes",
        "_outgrown",
        "_own",
        "_retention",
        "_scopes",
        "on_freed",
    )

    def __init__(
        self, limit_bytes: int, shared: tuple[Scope, ...] = (), *, compressible_bytes: int = 0
    ) -> None:
        """``compressible_bytes``: the most item bytes that are kept compressed, before compression."""
        self.on_freed: Callable[[int], None] | None = None
        """Called with the number of bytes freed by an eviction."""
        self._compression = ChainCompression(compressible_bytes)
        self._own = _ConnectionScope(limit_bytes, self._compression)
        self._scopes: tuple[Scope, ...] = (self._own, *shared)
        self._retention: ChainLedger[ResponseState] = ChainLedger()
        self._entries: dict[str, _Entry] = {}
        self._lanes: dict[str | None, _Entry] = {}
        self._outgrown: deque[str] | None = None
        """Responses that were not stored and were evicted for the size of their chain; None until there is
        one."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, response_id: object) -> bool:
        return response_id in self._entries

    @property
    def used_bytes(self) -> int:
        """All its memory, with what is compressed."""
        return self._own.used_bytes

    @property
    def limited_bytes(self) -> int:
        """What counts towards ``limit_bytes``: all but what is compressed, which has a limit of its own."""
        return self._own.limited_bytes

    @property
    def limit_bytes(self) -> int:
        return self._own.limit_bytes

    @property
    def compressed_states(self) -> int:
        """States that are kept in compressed form."""
        return len(self._compression.states)

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

    def why_forgotten(self, response_id: str) -> str | None:
        """Why this connection has a response no longer, as a sentence for the client; None if not for the
        size of its chain."""
        if self._outgrown is None or response_id not in self._outgrown:
            return None
        most = f"{self.limit_bytes} bytes"
        if compressed_bytes := self._compression.limit_bytes:
            most += f", and {compressed_bytes} bytes that are compressed"
        return f"Its chain was not stored, and is larger than this connection keeps ({most})."

    def remember(self, state: ResponseState, lane: str | None) -> None:
        """Cache a finished response as the latest of its lane, then evict what exceeds a limit."""
        self.evict(state.id)
        self._supersede(lane)
        entry = _Entry(self, state, lane)
        self._entries[state.id] = self._lanes[lane] = entry
        for scope in self._scopes:
            scope.latest[entry] = None
        self._hold(state)

    def pin(self, state: ResponseState) -> None:
        """Count a state and its ancestors, cached or not, until ``unpin``: a turn runs that continues it."""
        self._hold(state)

    def unpin(self, state: ResponseState) -> None:
        """The turn has ended."""
        self._release(state)

    def forget_continued(self, response_id: str | None, lane: str | None, error: ApiError) -> None:
        """A turn of this lane that was to continue a response has failed: forget the response. Not if that
        belongs to another lane; and not if a safety check has blocked the turn, because its client goes on
        with another message."""
        if isinstance(error, InvalidPrompt) or response_id is None or response_id not in self._entries:
            return
        if self.lane_of(response_id) == lane:
            self.evict(response_id)

    def evict(self, response_id: str) -> None:
        """Remove a response, if cached. Ancestors that other cached responses share stay."""
        entry = self._entries.pop(response_id, None)
        if entry is None:
            return
        if self._lanes.get(entry.lane) is entry:
            del self._lanes[entry.lane]
        for scope in self._scopes:
            del scope.tier(entry)[entry]
        self._release(entry.state)

    def clear(self) -> None:
        """Remove all responses."""
        for response_id in list(self._entries):
            self.evict(response_id)

    def take_compressible(self) -> list[ResponseState]:
        """The states to compress next; none if the connection fits its limit."""
        return self._compression.take(self._own.excess_bytes, self._ends()) if self._own.exceeded else []

    def keep_compressed(self, compressed: Sequence[tuple[ResponseState, bytes]]) -> None:
        """The states that ``take_compressible`` returned are compressed, or as many of them as could be."""
        self._compression.end()
        grown = 0
        for state, data in compressed:
            if state not in self._retention or state.compressed_bytes:
                continue
            state.keep_compressed(data)
            grown += self._retention.resize(state)
            self._compression.add(state)
            self._scopes[-1].compressions += 1
        self._add(grown)

    def _ends(self) -> Iterator[ResponseState]:
        """The latest responses of the lanes."""
        return (entry.state for entry in self._lanes.values())

    def _hold(self, state: ResponseState) -> None:
        nodes: list[ResponseState] = []
        gained = self._retention.hold(state, nodes)
        if not nodes:
            return  # all of it counts already
        for node in nodes:
            if node.compressed_bytes:
                self._compression.add(node)
        self._add(gained)

    def _add(self, size_bytes: int) -> None:
        """Count bytes, then evict what exceeds a limit."""
        for scope in self._scopes:
            scope.used_bytes += size_bytes
        own, shared = self._own, self._scopes[1:]
        while own.exceeded and (entry := own.oldest()) is not None:
            if entry.latest:
                if self._compression.may_shrink(self._ends()):
                    break
                if entry.state.response.store is False:
                    self._note_outgrown(entry.state.id)
            own.evictions += 1
            if shared:
                shared[-1].connection_evictions += 1
            self.evict(entry.state.id)
        for scope in shared:
            _make_room(scope)

    def _note_outgrown(self, response_id: str) -> None:
        if self._outgrown is None:
            self._outgrown = deque(maxlen=_OUTGROWN)
        self._outgrown.append(response_id)

    def _release(self, state: ResponseState) -> None:
        nodes: list[ResponseState] = []
        freed = self._retention.release(state, nodes)
        if not nodes:
            return  # something else retains all of it
        self._compression.drop(nodes)
        for scope in self._scopes:
            scope.used_bytes -= freed
        if self.on_freed is not None:
            self.on_freed(freed)

    def _supersede(self, lane: str | None) -> None:
        entry = self._lanes.get(lane)
        if entry is None:
            return
        for scope in self._scopes:
            del scope.latest[entry]
            scope.superseded[entry] = None
        entry.latest = False


class NoCache(ConnectionCache):
    """Stores nothing. For exchanges of a single response, such as an HTTP request.

    What their turns continue is counted in one step, by the size of its context, and once for all exchanges
    of the tenant.
    """

    __slots__ = ("_pins",)

    def __init__(self, shared: tuple[Scope, ...] = (), pins: Pins | None = None) -> None:
        """``pins``: of all exchanges of the tenant."""
        super().__init__(0, shared)
        self._pins: Pins = {} if pins is None else pins

    def remember(self, state: ResponseState, lane: str | None) -> None:
        return

    def pin(self, state: ResponseState) -> None:
        count, size_bytes = self._pins.get(state, (0, 0))
        if not count:
            position = state.position
            size_bytes = state.context_bytes + (position.size_bytes if position is not None else 0)
            self._add(size_bytes)
        self._pins[state] = count + 1, size_bytes

    def unpin(self, state: ResponseState) -> None:
        count, size_bytes = self._pins.pop(state)
        if count > 1:
            self._pins[state] = count - 1, size_bytes
        else:
            for scope in self._scopes:
                scope.used_bytes -= size_bytes


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

    __slots__ = ("_pins", "_tenant_bytes", "_tenants", "process")

    def __init__(self, tenant_bytes: int, process_bytes: int) -> None:
        self._pins: dict[str, Pins] = {}
        self._tenant_bytes = tenant_bytes
        self._tenants: dict[str, Scope] = {}
        self.process: Scope = _ProcessScope(process_bytes, self._tenants)

    @property
    def tenants(self) -> Mapping[str, Scope]:
        return self._tenants

    def of(self, tenant: str) -> tuple[Scope, Scope]:
        scope = self._tenants.get(tenant)
        if scope is None:
            scope = self._tenants[tenant] = Scope(self._tenant_bytes)
        return scope, self.process

    def exchange(self, tenant: str) -> NoCache:
        """A cache for an exchange of a single response."""
        return NoCache(self.of(tenant), self._pins.setdefault(tenant, {}))
