"""What a store is: what outlives a connection, and which promises are made about it.

Five parts: responses with their chains, conversations, background runs, keys, and what the nodes that share a
store know of each other. Every lookup of what belongs to a tenant is by tenant *and* id. Somebody else's and
what never was get the same answer: none. When a method that writes has returned, what it wrote is as safe as
the store can make it. A store that cannot be reached raises ``Unavailable``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from msgspec import Struct

from slipring.core.chain.state import ResponseState
from slipring.protocol.items import Item
from slipring.protocol.responses import Response, Status


class LeaseLost(Exception):
    """A run is no longer its owner's: it was cancelled, or given up for dead."""


class Tenure(Struct, frozen=True):
    """That a node owns a background run. Whatever it writes about the run is refused once this is over."""

    tenant: str
    response_id: str
    owner: str
    epoch: int


class Conversation(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str] = {}


class Thread(Struct, frozen=True):
    """A conversation as a turn finds it: a response to go on from, and the items that came after it."""

    conversation: Conversation
    version: int
    """Changes with every change of the items."""
    tip: str | None
    """The response whose context is all items but those in ``added``."""
    added: tuple[Item, ...]


class Appended(Struct, frozen=True):
    """What a finished response adds to its conversation. Every item has an id."""

    conversation_id: str
    version: int
    """The version that the response was made from. Where it is still that, the response is the new tip;
    where it is not, others have added items meanwhile and there is none."""
    items: tuple[Item, ...]


class Page(Struct, frozen=True):
    """Which part of a list is wanted."""

    limit: int = 20
    ascending: bool = False
    after: str | None = None
    """The id of the last item of the page before."""


class Run(Struct, frozen=True):
    """A background response as the store knows it."""

    tenant: str
    response_id: str
    status: Status
    owner: str
    epoch: int
    lease_until: float
    last_sequence: int
    """The number of the newest event; -1 before the first."""
    response: bytes
    """The response object as JSON, as it was when it was last written."""

    @property
    def is_open(self) -> bool:
        return self.status in ("queued", "in_progress")


class RunEvent(Struct, frozen=True):
    sequence_number: int
    data: bytes
    """The event as JSON."""


class Key(Struct, frozen=True):
    """An API key without its secret."""

    id: str
    tenant: str
    digest: bytes
    """SHA-256 of the secret."""
    created_at: int
    name: str = ""
    models: tuple[str, ...] = ()
    """The models that it may use; empty: all."""
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    revoked_at: int | None = None


class Usage(Struct, frozen=True):
    """What a key has used in a window of time."""

    key_id: str
    window: str
    """Such as ``minute:29384756``; what it means is the business of whoever counts."""
    requests: int = 0
    tokens: int = 0


class Node(Struct, frozen=True):
    """A process that shares this store with others."""

    id: str
    url: str
    seen_at: float


class Responses(ABC):
    @abstractmethod
    async def save(
        self,
        tenant: str,
        state: ResponseState,
        *,
        appended: Appended | None = None,
        tenure: Tenure | None = None,
    ) -> None:
        """Keep a finished response, with the chain that it builds on, in one step with what else it means.

        Ancestors that were not to be stored are kept for its sake, and cannot be found by their ids. With a
        ``tenure`` that is over, nothing is kept and ``LeaseLost`` is raised.
        """

    @abstractmethod
    async def load(self, tenant: str, response_id: str) -> ResponseState | None:
        """A response with its whole chain, ready to be continued."""

    @abstractmethod
    async def retrieve(self, tenant: str, response_id: str) -> Response | None:
        """The response object alone, with its instructions, tools and output."""

    @abstractmethod
    async def load_items(self, tenant: str, item_ids: Iterable[str]) -> dict[str, Item]:
        """The items of stored responses that have these ids; those that are not there are left out."""

    @abstractmethod
    async def delete(self, tenant: str, response_id: str) -> bool:
        """Make a response unreachable. What builds on it goes on. False: there was none."""


class Conversations(ABC):
    @abstractmethod
    async def create(self, tenant: str, conversation: Conversation, items: Sequence[Item]) -> None:
        """Every item has an id."""

    @abstractmethod
    async def read(self, tenant: str, conversation_id: str) -> Conversation | None: ...

    @abstractmethod
    async def update(
        self, tenant: str, conversation_id: str, metadata: dict[str, str]
    ) -> Conversation | None: ...

    @abstractmethod
    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """With all its items."""

    @abstractmethod
    async def add(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> bool:
        """Add items at the end. False: there is no such conversation."""

    @abstractmethod
    async def append(self, tenant: str, response_id: str, appended: Appended) -> None:
        """Add what a response that is not stored leaves in its conversation, unless that is gone."""

    @abstractmethod
    async def items(self, tenant: str, conversation_id: str, page: Page) -> tuple[list[Item], bool] | None:
        """A page of items, and whether there are more. None: there is no such conversation.

        An ``after`` that names no item of the conversation gives an empty page.
        """

    @abstractmethod
    async def item(self, tenant: str, conversation_id: str, item_id: str) -> Item | None: ...

    @abstractmethod
    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool: ...

    @abstractmethod
    async def thread(self, tenant: str, conversation_id: str) -> Thread | None:
        """What a turn needs to go on."""

    @abstractmethod
    async def all_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        """All items, oldest first: for a tip that nobody remembers any more."""


class Runs(ABC):
    @abstractmethod
    async def open(
        self, tenant: str, response: Response, events: Sequence[RunEvent], *, owner: str, lease_until: float
    ) -> Tenure:
        """Begin a run, as the node that owns it."""

    @abstractmethod
    async def append(
        self, tenure: Tenure, events: Sequence[RunEvent], response: Response, *, lease_until: float
    ) -> None:
        """Write events, the object as it is now, and its status. Raises ``LeaseLost``.

        A terminal status ends the run: nobody owns it any more. Events that are there already stay as they
        are, so that a write may be repeated. Once its response is saved, a run can fail no more: that is
        ``LeaseLost`` too, and the run is left for whoever ends it as what it is.
        """

    @abstractmethod
    async def renew(self, tenures: Sequence[Tenure], *, lease_until: float) -> list[Tenure]:
        """Stay their owner; returns those that are lost."""

    @abstractmethod
    async def read(self, tenant: str, response_id: str) -> Run | None: ...

    @abstractmethod
    async def events(self, tenant: str, response_id: str, *, after: int, limit: int) -> list[RunEvent]:
        """Events with a greater number than ``after``, in order."""

    @abstractmethod
    async def seize(self, run: Run, *, owner: str, lease_until: float) -> Run | None:
        """Take an open run away from its owner, whose tenure is over with that.

        None: it has another owner since it was read, or is over.
        """

    @abstractmethod
    async def end(self, run: Run, response: Response, event: RunEvent) -> bool:
        """End an open run whoever owns it, with its last object and event.

        False: it has changed since it was read, or is to fail or be cancelled though its response has been
        saved meanwhile; nothing was done. Otherwise its owner's tenure is over.
        """

    @abstractmethod
    async def abandoned(self, now: float, limit: int) -> list[Run]:
        """Open runs whose lease is over."""

    @abstractmethod
    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a run and its events. An open one's tenure is over."""


class Keys(ABC):
    @abstractmethod
    async def create(self, key: Key) -> None: ...

    @abstractmethod
    async def find(self, key_id: str) -> Key | None:
        """A key by its id, revoked or not."""

    @abstractmethod
    async def revoke(self, key_id: str, now: int) -> bool:
        """False: there is no such key, or it is revoked already."""

    @abstractmethod
    async def exist(self) -> bool:
        """Whether there ever was one: revoking the last key must not open the door to everybody."""

    @abstractmethod
    async def spend(self, spent: Sequence[Usage], *, expires_at: float) -> list[Usage]:
        """Add to what was used; returns the totals, in the same order. Adding 0 looks one up."""

    # Last, because it takes its name from whatever follows.
    @abstractmethod
    async def list(self) -> "list[Key]":
        """All keys, oldest first."""


class Cluster(ABC):
    """What the nodes on one store share."""

    @abstractmethod
    async def announce(self, node: Node) -> None: ...

    @abstractmethod
    async def leave(self, node_id: str) -> None: ...

    @abstractmethod
    async def find(self, node_id: str) -> Node | None: ...

    @abstractmethod
    async def secret(self, name: str, proposal: bytes) -> bytes:
        """A secret that all nodes share: the proposal of whoever came first."""


class Store(ABC):
    """All of it, behind one door."""

    name: str
    """What kind it is, in words that tell no password."""
    is_shared: bool = False
    """Whether other processes may use it at the same time."""
    responses: Responses
    conversations: Conversations
    runs: Runs
    keys: Keys
    cluster: Cluster

    async def start(self) -> None:
        """Get ready. Raises ``StartupError`` with one line for the operator when that cannot be."""
        return

    async def close(self) -> None:
        return

    @abstractmethod
    async def prune(self, now: float, limit: int = 1000) -> int:
        """Remove some of what has expired or was deleted and that nothing needs any more; returns how many
        rows. Zero: for now, nothing is left to remove."""
