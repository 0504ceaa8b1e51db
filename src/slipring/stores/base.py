"""The store interface: data that outlives a connection, and the guarantees about it.

A store has six parts: responses with their chains, conversations, background runs, used approvals, API keys,
and what the nodes that share the store publish to each other. Every lookup of a tenant's data is by tenant
*and* id: another tenant's id gives the same result as an id that never existed. When a method that writes
returns, the data is as durable as the store can make it. Any method raises ``Unavailable`` when the store
cannot be reached.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from slipring.core.chain.head import Head
from slipring.core.chain.state import ResponseState
from slipring.core.checks.node_verdicts import NodeVerdicts
from slipring.protocol.items import Item
from slipring.protocol.responses import Response, Status


class LeaseLost(Exception):
    """The node no longer owns the run: it was cancelled, or its lease expired and another node took it
    over."""


class Tenure(Struct, frozen=True):
    """Proof that a node owns a background run, sent with every write about the run.

    A tenure ends when the run ends, is taken over, or is deleted; writes with it then raise ``LeaseLost``.
    """

    tenant: str
    response_id: str
    owner: str
    epoch: int


class Conversation(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str] = {}


class Thread(Struct, frozen=True):
    """A conversation at the start of a turn: the response to continue from, and the items added after it."""

    conversation: Conversation
    version: int
    """Incremented by every change of the items."""
    tip: str | None
    """The response whose context holds all items except those in ``added``. None: ``added`` has all items."""
    added: tuple[Item, ...]


class Appended(Struct, frozen=True):
    """The items that a finished response adds to its conversation. Every item has an id."""

    conversation_id: str
    version: int
    """The conversation's version when the turn began. If it is unchanged, the response becomes the tip. If
    items were changed meanwhile, the conversation has no tip afterwards."""
    items: tuple[Item, ...]
    spare_ids: dict[int, str] = {}
    """By index: the id that an item gets if the conversation has another one with its own. An item without
    one is not added then."""


class UnknownItem(Exception):
    """The item after which a page begins was never in the list."""


class Page(Struct, frozen=True):
    """The part of a list to return."""

    limit: int = 20
    ascending: bool = False
    after: str | None = None
    """The id of the last item of the previous page."""


class Run(Struct, frozen=True):
    """A background response as it is recorded in the store."""

    tenant: str
    response_id: str
    status: Status
    owner: str
    epoch: int
    lease_until: float
    last_sequence: int
    """The sequence number of the newest event; -1 before the first."""
    response: bytes
    """The response object as JSON, as of the last write."""

    @property
    def is_open(self) -> bool:
        return self.status in ("queued", "in_progress")


class Beginning(Struct, frozen=True):
    """What the response of a run began with."""

    parent_id: str | None
    """The response that it continues."""
    head: Head
    input: tuple[Item, ...]
    is_upstream: bool = False
    """Whether an upstream runs its hosted tools."""


class RunEvent(Struct, frozen=True):
    """One streaming event of a background response."""

    sequence_number: int
    data: bytes
    """The event as JSON."""


class Key(Struct, frozen=True):
    """An API key: its limits and the digest of its secret."""

    id: str
    tenant: str
    digest: bytes
    """SHA-256 of the secret."""
    created_at: int
    name: str = ""
    models: tuple[str, ...] = ()
    """The models that the key may use; empty: all."""
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    mcp_servers: tuple[str, ...] | None = None
    """The registered MCP servers that the key may use, by name; None: all, and what ``mcp_urls`` allows."""
    mcp_tools: tuple[str, ...] = ()
    """Tools as ``SERVER.TOOL``: of a server that is named here, the key may use only these."""
    revoked_at: int | None = None

    @property
    def limits_mcp(self) -> bool:
        """Whether it may not use every MCP server and tool."""
        return self.mcp_servers is not None or bool(self.mcp_tools)


class Usage(Struct, frozen=True):
    """The requests and tokens of one key in one time window."""

    key_id: str
    window: str
    """The name of the window, such as ``minute:29384756``. The caller chooses it; the store only compares
    it."""
    requests: int = 0
    tokens: int = 0


class Node(Struct, frozen=True):
    """A server process that shares the store with others."""

    id: str
    url: str
    seen_at: float


class Responses(ABC):
    """Stored responses and their chains."""

    @abstractmethod
    async def save(
        self,
        tenant: str,
        state: ResponseState,
        *,
        appended: Appended | None = None,
        tenure: Tenure | None = None,
    ) -> None:
        """Store a finished response and its chain, and append to its conversation, in one transaction.

        Ancestors with ``store: false`` are stored too, but cannot be found by their ids. Raises
        ``LeaseLost``, and stores nothing, if ``tenure`` has ended.
        """

    @abstractmethod
    async def load(self, tenant: str, response_id: str) -> ResponseState | None:
        """Return a response with its whole chain, ready to be continued."""

    @abstractmethod
    async def retrieve(self, tenant: str, response_id: str) -> Response | None:
        """Return only the response object, with its instructions, tools and output."""

    @abstractmethod
    async def load_items(self, tenant: str, item_ids: Iterable[str]) -> dict[str, Item]:
        """Return the items of stored responses that have these ids, by id. Unknown ids are left out."""

    @abstractmethod
    async def judge(self, tenant: str, response_id: str, verdicts: NodeVerdicts) -> None:
        """Replace the verdicts of a stored response, if there is one with this id."""

    @abstractmethod
    async def delete(self, tenant: str, response_id: str) -> bool:
        """Make a response unreachable; responses that continue it stay usable. False: there was none."""


class Conversations(ABC):
    """Conversations and their items."""

    @abstractmethod
    async def create(self, tenant: str, conversation: Conversation, items: Sequence[Item]) -> None:
        """Create a conversation with these items, each of which must have an id."""

    @abstractmethod
    async def read(self, tenant: str, conversation_id: str) -> Conversation | None: ...

    @abstractmethod
    async def update(
        self, tenant: str, conversation_id: str, metadata: dict[str, str]
    ) -> Conversation | None:
        """Replace the metadata; return the conversation as it is now. None: there is no such conversation."""

    @abstractmethod
    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation with all its items. False: there was none."""

    @abstractmethod
    async def add(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> bool:
        """Add items to the end. False: there is no such conversation."""

    @abstractmethod
    async def append(self, tenant: str, response_id: str, appended: Appended) -> None:
        """Add the items of a response that is not stored. Does nothing if the conversation was deleted."""

    @abstractmethod
    async def items(self, tenant: str, conversation_id: str, page: Page) -> tuple[list[Item], bool] | None:
        """Return a page of items, and whether more follow. None: there is no such conversation.

        ``after`` may name an item that has been deleted since. Raises ``UnknownItem`` if the conversation
        never had it.
        """

    @abstractmethod
    async def item(self, tenant: str, conversation_id: str, item_id: str) -> Item | None: ...

    @abstractmethod
    async def find_items(
        self, tenant: str, item_ids: Iterable[str], conversation_id: str | None
    ) -> dict[str, Item]:
        """Return items of this conversation, or else of any of the tenant's, by id. Unknown ids are left out,
        and so are those of different items in several conversations."""

    @abstractmethod
    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool: ...

    @abstractmethod
    async def thread(self, tenant: str, conversation_id: str) -> Thread | None:
        """Return what a turn needs to continue the conversation. None: there is no such conversation."""

    @abstractmethod
    async def all_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        """Return all items, oldest first: needed when the tip cannot be loaded any more."""


class Runs(ABC):
    """Background runs, their events, and the leases of their owners.

    A run that has ended is gone when its retention is over. An open run is kept until it ends.
    """

    @abstractmethod
    async def open(
        self,
        tenant: str,
        response: Response,
        events: Sequence[RunEvent],
        *,
        owner: str,
        lease_until: float,
        beginning: Beginning | None = None,
    ) -> Tenure:
        """Record a new run with its first events, owned by the node ``owner``. ``beginning``: to be kept
        until the run ends."""

    @abstractmethod
    async def append(
        self,
        tenure: Tenure,
        events: Sequence[RunEvent],
        response: Response,
        *,
        lease_until: float,
        beginning: Beginning | None = None,
    ) -> None:
        """Write events, the current response object and its status, and extend the lease. ``beginning``: to
        be kept until the run ends, if none is kept yet.

        A terminal status ends the run and its tenure. Events that are already stored are not changed, so a
        write may be repeated. Raises ``LeaseLost`` if the tenure has ended, and if the status is ``failed``
        or ``cancelled`` although the response has been saved: the run then stays open until it is ended with
        the saved response.
        """

    @abstractmethod
    async def renew(self, tenures: Sequence[Tenure], *, lease_until: float) -> list[Tenure]:
        """Extend the leases; return the tenures that have ended."""

    @abstractmethod
    async def read(self, tenant: str, response_id: str) -> Run | None: ...

    @abstractmethod
    async def beginning(self, tenant: str, response_id: str) -> Beginning | None:
        """Return what an open run began with. None: it has ended, or has not written that."""

    @abstractmethod
    async def events(self, tenant: str, response_id: str, *, after: int, limit: int) -> list[RunEvent]:
        """Return up to ``limit`` events with a sequence number above ``after``, in order."""

    @abstractmethod
    async def seize(
        self, run: Run, *, owner: str, lease_until: float, if_not_renewed: bool = False
    ) -> Run | None:
        """Make ``owner`` the owner of an open run; the previous owner's tenure ends.

        None: the run has ended, or its owner has changed since ``run`` was read; with ``if_not_renewed`` also
        if the owner has renewed its lease since then.
        """

    @abstractmethod
    async def end(self, run: Run, response: Response, event: RunEvent) -> bool:
        """End an open run with its final object and event, whichever node owns it; that node's tenure ends.

        False, and nothing is written: the run has changed since it was read, or the final status is
        ``failed`` or ``cancelled`` although the response has been saved meanwhile.
        """

    @abstractmethod
    async def expired(self, now: float, limit: int) -> list[Run]:
        """Return up to ``limit`` open runs whose lease has expired, in the order of their leases."""

    @abstractmethod
    async def touch(self, run: Run) -> bool:
        """Write to an open run without changing it, as soon as the store can write.

        False: the run has ended, or its owner or its lease has changed since ``run`` was read.
        """

    @abstractmethod
    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a run and its events, which ends its tenure. False: there was none."""


class Approvals(ABC):
    """Which approvals of tool calls have been used: each is good for one call."""

    @abstractmethod
    async def claim(self, tenant: str, approval_ids: Sequence[str]) -> bool:
        """Use approvals, all or none. False: one of them was used before, by whichever node.

        Claims are kept as long as stored responses are.
        """


class Keys(ABC):
    """API keys and their usage."""

    @abstractmethod
    async def create(self, key: Key) -> None: ...

    @abstractmethod
    async def find(self, key_id: str) -> Key | None:
        """Return a key by its id, even if it is revoked."""

    @abstractmethod
    async def revoke(self, key_id: str, now: int) -> bool:
        """Revoke a key as of ``now``. False: there is no such key, or it is revoked already."""

    @abstractmethod
    async def exist(self) -> bool:
        """Return whether any key exists, revoked ones included: revoking the last key must not disable
        authentication."""

    @abstractmethod
    async def spend(self, spent: Sequence[Usage], *, expires_at: float) -> list[Usage]:
        """Add usage to its windows; return the totals, in the same order. Adding 0 reads a total."""

    # Last in the class, because the name shadows the built-in ``list`` in the annotations below it.
    @abstractmethod
    async def list(self) -> "list[Key]":
        """Return all keys, oldest first."""


class Cluster(ABC):
    """The nodes that use one store, and the secrets that they share."""

    @abstractmethod
    async def announce(self, node: Node) -> None:
        """Record a node's URL and the time at which it was last alive."""

    @abstractmethod
    async def leave(self, node_id: str) -> None:
        """Remove a node."""

    @abstractmethod
    async def find(self, node_id: str) -> Node | None: ...

    @abstractmethod
    async def secret(self, name: str, proposal: bytes) -> bytes:
        """Return the secret of this name. The first proposal becomes the secret; later ones are ignored."""


class Store(ABC):
    """A store with its six parts."""

    name: str
    """The kind of store, such as ``sqlite``. Contains no address and no password."""
    is_shared: bool = False
    """Whether other processes may use the store at the same time."""
    responses: Responses
    conversations: Conversations
    runs: Runs
    approvals: Approvals
    keys: Keys
    cluster: Cluster

    @property
    def failed_writes(self) -> int:
        """Writes that failed because the store could not be used."""
        return 0

    @property
    def trouble(self) -> str | None:
        """Why the store could not be used the last time; None if it could. For operators: contains no address
        and no content."""
        return None

    async def try_out(self) -> None:
        """Use the store without changing anything, so that ``trouble`` is up to date."""
        return

    def watch_commits(self, on_commit: Callable[[float], None]) -> None:
        """Call ``on_commit`` with the seconds that each write took, from the call to the commit."""
        return

    async def start(self) -> None:
        """Connect. Raises ``StartupError`` with a one-line message for the operator if that fails."""
        return

    async def close(self) -> None:
        return

    @abstractmethod
    async def prune(self, now: float, limit: int = 1000) -> int:
        """Remove expired and deleted rows that no other row needs, at most ``limit`` of each kind, or a few
        times as many small ones; return how many were removed. 0: nothing was found to remove for now."""
