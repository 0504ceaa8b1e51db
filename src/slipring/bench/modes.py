"""The modes: what each turn of a loop holds, and over which connection it goes.

A context says what a request has to carry so that the server knows the conversation. Whatever else differs
between modes is in the transports.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from slipring.bench import results
from slipring.bench.exchange import PAUSE, Exchange, Fields
from slipring.bench.transports import Access, Http, Lanes, Socket, Transport
from slipring.bench.workloads.plan import Item

KEEP_REASONING: Fields = {"include": ["reasoning.encrypted_content"]}
"""What a create says so that reasoning can be sent back, where the server keeps nothing."""


class Context(Protocol):
    """How a conversation is kept between turns."""

    @property
    def previous_response_id(self) -> str | None:
        """What the next turn continues, by its id."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the next turn is a part of the last response."""
        ...

    def request(self, head: Fields, new: list[Item]) -> Fields:
        """What tells the server of these new items and of all before them; ``head``: what else there is."""
        ...

    def learn(self, exchange: Exchange) -> None:
        """Remember an answer."""
        ...


class FullHistory:
    """The client keeps everything and sends it again each time; the server keeps nothing."""

    previous_response_id = None
    is_open = False

    def __init__(self) -> None:
        self._items: list[Item] = []

    def request(self, head: Fields, new: list[Item]) -> Fields:
        self._items += new
        return {**head, "store": False, "input": self._items}

    def learn(self, exchange: Exchange) -> None:
        self._items += as_input(exchange.answer)


class Chain:
    """The server keeps everything; the client sends what is new and names what it continues."""

    def __init__(self, *, is_stored: bool = False) -> None:
        self.previous_response_id: str | None = None
        self._is_stored = is_stored

    @property
    def is_open(self) -> bool:
        return False

    def request(self, head: Fields, new: list[Item]) -> Fields:
        fields: Fields = {**head, "store": self._is_stored, "input": new}
        if self.previous_response_id is not None:
            fields["previous_response_id"] = self.previous_response_id
        return fields

    def learn(self, exchange: Exchange) -> None:
        assert exchange.response is not None  # or no turn would follow
        self.previous_response_id = exchange.response["id"]


class Rollout(Chain):
    """The response itself goes on: the outputs of its calls are appended to it."""

    def __init__(self) -> None:
        super().__init__()
        self._open_id: str | None = None

    @property
    def is_open(self) -> bool:
        return self._open_id is not None

    def request(self, head: Fields, new: list[Item]) -> Fields:
        if self._open_id is not None:
            return {"type": "response.append", "response_id": self._open_id, "input": new}
        return {**super().request(head, new), "rollout": True}

    def learn(self, exchange: Exchange) -> None:
        if exchange.events[-1]["type"] == PAUSE:
            self._open_id = exchange.events[-1]["response_id"]
            return
        self._open_id = None
        super().learn(exchange)


class Mode(Struct, frozen=True, kw_only=True):
    """A way to hold a loop."""

    name: str
    title: str
    about: str
    open: Callable[[Access], Transport]
    context: Callable[[], Context]
    has_lanes: bool = False
    is_rollout: bool = False
    sends_history: bool = False
    """Whether each turn brings all that was said before: nothing can be saved by forgetting it."""

    @property
    def described(self) -> results.Mode:
        return results.Mode(
            name=self.name, title=self.title, about=self.about, sends_history=self.sends_history
        )


MODES = {
    mode.name: mode
    for mode in (
        Mode(
            name="http-full",
            title="HTTP, full history",
            about="each turn is a POST with the whole conversation, over one kept-alive connection",
            open=Http,
            context=FullHistory,
            sends_history=True,
        ),
        Mode(
            name="http-full-newconn",
            title="HTTP, full history, new connections",
            about="each turn is a POST with the whole conversation, over a connection of its own",
            open=lambda access: Http(access, new_connections=True),
            context=FullHistory,
            sends_history=True,
        ),
        Mode(
            name="http-chained",
            title="HTTP, chained",
            about="each turn is a POST with what is new and a previous_response_id; responses are stored",
            open=Http,
            context=lambda: Chain(is_stored=True),
        ),
        Mode(
            name="websocket",
            title="WebSocket",
            about="each turn is a frame on one socket with what is new and a previous_response_id; nothing is"
            " stored",
            open=Socket,
            context=Chain,
        ),
        Mode(
            name="websocket-lanes",
            title="WebSocket, lanes",
            about="several loops at once on one socket, each on its stream_id; otherwise as websocket",
            open=Lanes,
            context=Chain,
            has_lanes=True,
        ),
        Mode(
            name="rollout",
            title="Rollout",
            about="the whole loop is one response on one socket, to which outputs of its calls are appended",
            open=lambda access: Socket(access, "slipring_rollout=v1"),
            context=Rollout,
            is_rollout=True,
        ),
    )
}


def as_input(output: list[Item]) -> list[Item]:
    """An answer's items as they are sent again. Reasoning goes back as it came where it can be read again;
    of all else the ids would be looked up."""
    items = []
    for item in output:
        if item["type"] != "reasoning":
            items.append({key: value for key, value in item.items() if key not in ("id", "status")})
        elif item.get("encrypted_content"):
            items.append(item)
    return items
