"""The modes: what each turn of a loop sends, and over which transport.

A ``Context`` builds requests so that the server knows the conversation so far. All other differences between
modes are in the transports.
"""

import copy
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, structs

from slipring.commands.bench import results
from slipring.commands.bench.client import translated_apis
from slipring.commands.bench.client.exchange import PAUSE, Fields, TurnExchange
from slipring.commands.bench.client.transports import (
    Access,
    AnswerReader,
    Api,
    HttpTransport,
    LanesTransport,
    SocketTransport,
    TranslatedTransport,
    Transport,
)
from slipring.commands.bench.workloads.plan import Item

KEEP_REASONING: Fields = {"include": ["reasoning.encrypted_content"]}
"""Requests reasoning in a form that the client can send back, for servers that store nothing."""


class Context(Protocol):
    """Builds the requests of one conversation."""

    @property
    def previous_response_id(self) -> str | None:
        """The response that the next turn continues; None if it names none."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the next turn continues the last response instead of creating a new one."""
        ...

    def request(self, head: Fields, new: list[Item]) -> Fields:
        """The fields of a request that adds these items. ``head``: model, instructions, tools and the
        like."""
        ...

    def learn(self, exchange: TurnExchange) -> None:
        """Add an answer to the conversation."""
        ...

    def fork(self) -> "Context":
        """A second conversation with the same beginning."""
        ...


class FullHistory:
    """The client keeps the conversation and sends all of it in every turn."""

    previous_response_id = None
    is_open = False

    def __init__(self) -> None:
        self._items: list[Item] = []

    def request(self, head: Fields, new: list[Item]) -> Fields:
        self._items += new
        return {**head, "store": False, "input": self._items}

    def learn(self, exchange: TurnExchange) -> None:
        self._items += as_input(exchange.answer)

    def fork(self) -> "FullHistory":
        forked = FullHistory()
        forked._items = self._items.copy()
        return forked


class Chain:
    """The server keeps the conversation; the client sends new items and a ``previous_response_id``."""

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

    def learn(self, exchange: TurnExchange) -> None:
        assert exchange.response is not None  # no turn follows an exchange without one
        self.previous_response_id = exchange.response["id"]

    def fork(self) -> "Chain":
        return copy.copy(self)


class Rollout(Chain):
    """The response stays open; the client appends the outputs of its calls to it."""

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

    def learn(self, exchange: TurnExchange) -> None:
        if exchange.events[-1]["type"] == PAUSE:
            self._open_id = exchange.events[-1]["response_id"]
            return
        self._open_id = None
        super().learn(exchange)


class Mode(Struct, frozen=True, kw_only=True):
    """How a loop talks to its server."""

    name: str
    title: str
    about: str
    open: Callable[[Access], Transport]
    context: Callable[[], Context]
    has_lanes: bool = False
    is_rollout: bool = False
    returned: Callable[[list[Item]], list[Item]] = list
    """An answer as the server gets it back: some APIs keep the meaning of a call and not its spelling."""
    sends_history: bool = False
    """Whether every request contains the whole conversation, so that a server gains nothing by losing it."""

    @property
    def description(self) -> results.ModeDescription:
        return results.ModeDescription(
            name=self.name, title=self.title, about=self.about, sends_history=self.sends_history
        )


MODES = {
    mode.name: mode
    for mode in (
        Mode(
            name="http-full",
            title="HTTP with full history",
            about="each turn is a POST with the whole conversation, over one kept-alive connection",
            open=HttpTransport,
            context=FullHistory,
            sends_history=True,
        ),
        Mode(
            name="http-full-newconn",
            title="HTTP with full history, new connections",
            about="each turn is a POST with the whole conversation, over a new connection",
            open=lambda access: HttpTransport(access, new_connections=True),
            context=FullHistory,
            sends_history=True,
        ),
        Mode(
            name="http-chained",
            title="HTTP, chained",
            about="each turn is a POST with the new items and a previous_response_id; responses are stored",
            open=HttpTransport,
            context=lambda: Chain(is_stored=True),
        ),
        Mode(
            name="websocket",
            title="WebSocket",
            about="each turn is a frame on one socket with the new items and a previous_response_id; nothing"
            " is stored",
            open=SocketTransport,
            context=Chain,
        ),
        Mode(
            name="websocket-lanes",
            title="WebSocket, lanes",
            about="like websocket, with several loops at once on one socket, each on its stream_id",
            open=LanesTransport,
            context=Chain,
            has_lanes=True,
        ),
        Mode(
            name="rollout",
            title="Rollout",
            about="the whole loop is one response on one socket; the client appends the outputs of its calls",
            open=lambda access: SocketTransport(access, "slipring_rollout=v1"),
            context=Rollout,
            is_rollout=True,
        ),
    )
}


_Returned = Callable[[list[Item]], list[Item]]
_OTHER_APIS: dict[Api, tuple[Callable[[], AnswerReader], Callable[[], Context], _Returned]] = {
    "messages": (translated_apis.MessagesReader, translated_apis.MessagesHistory, translated_apis.returned),
    "chat": (translated_apis.ChatReader, translated_apis.ChatHistory, list),
}


def modes_of(api: Api) -> dict[str, Mode]:
    """The modes of an API, by name: others than Responses know only requests with the whole conversation."""
    if api == "responses":
        return MODES
    reader, context, returned = _OTHER_APIS[api]
    return {
        name: structs.replace(
            MODES[name],
            open=lambda access, is_new=is_new: TranslatedTransport(access, reader, new_connections=is_new),
            context=context,
            returned=returned,
        )
        for name, is_new in (("http-full", False), ("http-full-newconn", True))
    }


def as_input(output: list[Item]) -> list[Item]:
    """An answer's items as input of the next turn. Reasoning is kept unchanged if the server can decrypt it,
    else dropped. Other items lose their ids, which the server would look up."""
    items = []
    for item in output:
        if item["type"] != "reasoning":
            items.append({key: value for key, value in item.items() if key not in ("id", "status")})
        elif item.get("encrypted_content"):
            items.append(item)
    return items
