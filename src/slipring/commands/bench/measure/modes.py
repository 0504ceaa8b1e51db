"""The modes of a bench: which context builds the requests of a loop, and over which transport they go."""

from collections.abc import Callable

from msgspec import Struct, structs

from slipring.commands.bench import results
from slipring.commands.bench.client import translated_apis
from slipring.commands.bench.client.transports import (
    Access,
    Api,
    HttpTransport,
    LanesTransport,
    SocketTransport,
    TranslatedTransport,
    Transport,
)
from slipring.commands.bench.client.turn_requests import Chain, Context, FullHistory, Rollout
from slipring.commands.bench.workloads.plan import Item


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
_OTHER_APIS: dict[Api, tuple[type[translated_apis.AnswerReader], Callable[[], Context], _Returned]] = {
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
