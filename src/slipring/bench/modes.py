"""The modes: what each turn of a loop holds, and over which connection it goes.

A context says what a request has to carry so that the server knows the conversation. Whatever else differs
between modes is in the transports.
"""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from slipring.bench import results
from slipring.bench.exchange import Fields
from slipring.bench.transports import Access, Http, Lanes, Socket, Transport
from slipring.bench.workloads.plan import Item


class Context(Protocol):
    """How a conversation is kept between turns."""

    @property
    def previous_response_id(self) -> str | None:
        """What the next turn continues, by its id."""
        ...

    def fields(self, new: list[Item]) -> Fields:
        """What tells the server of these new items, and of all before them."""
        ...

    def learn(self, response: dict[str, Any]) -> None:
        """Remember an answer."""
        ...


class FullHistory:
    """The client keeps everything and sends it again each time; the server keeps nothing."""

    previous_response_id = None

    def __init__(self) -> None:
        self._items: list[Item] = []

    def fields(self, new: list[Item]) -> Fields:
        self._items += new
        return {"store": False, "input": self._items}

    def learn(self, response: dict[str, Any]) -> None:
        self._items += as_input(response["output"])


class Chain:
    """The server keeps everything; the client sends what is new and names what it continues."""

    def __init__(self, *, is_stored: bool) -> None:
        self.previous_response_id: str | None = None
        self._is_stored = is_stored

    def fields(self, new: list[Item]) -> Fields:
        fields: Fields = {"store": self._is_stored, "input": new}
        if self.previous_response_id is not None:
            fields["previous_response_id"] = self.previous_response_id
        return fields

    def learn(self, response: dict[str, Any]) -> None:
        self.previous_response_id = response["id"]


class Mode(Struct, frozen=True, kw_only=True):
    """A way to hold a loop."""

    name: str
    title: str
    about: str
    open: Callable[[Access], Transport]
    context: Callable[[], Context]
    has_lanes: bool = False

    @property
    def described(self) -> results.Mode:
        return results.Mode(name=self.name, title=self.title, about=self.about)


MODES = {
    mode.name: mode
    for mode in (
        Mode(
            name="http-full",
            title="HTTP, full history",
            about="each turn is a POST with the whole conversation, over one kept-alive connection",
            open=Http,
            context=FullHistory,
        ),
        Mode(
            name="http-full-newconn",
            title="HTTP, full history, new connections",
            about="each turn is a POST with the whole conversation, over a connection of its own",
            open=lambda access: Http(access, new_connections=True),
            context=FullHistory,
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
            context=lambda: Chain(is_stored=False),
        ),
        Mode(
            name="websocket-lanes",
            title="WebSocket, lanes",
            about="several loops at once on one socket, each on its stream_id; otherwise as websocket",
            open=Lanes,
            context=lambda: Chain(is_stored=False),
            has_lanes=True,
        ),
    )
}


def as_input(output: list[Item]) -> list[Item]:
    """An answer's items as they are sent again: ids would be looked up, and reasoning does not stay."""
    return [
        {key: value for key, value in item.items() if key not in ("id", "status")}
        for item in output
        if item["type"] != "reasoning"
    ]
