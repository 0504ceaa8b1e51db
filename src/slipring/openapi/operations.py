"""The operations of the API: what each takes, what it answers, and how it may fail.

One row for each route of ``server/endpoints/app.py``; a test holds the two against each other.
"""

from typing import Any

from msgspec import Struct

from slipring.openapi.schemas import Schema
from slipring.protocol.endpoints.compact import CompactRequest, Window
from slipring.protocol.endpoints.conversations import (
    AddItems,
    ConversationObject,
    CreateConversation,
    UpdateConversation,
)
from slipring.protocol.endpoints.small_objects import (
    DeletedConversation,
    DeletedResponse,
    Health,
    InputTokens,
    ItemPage,
    ModelList,
    ModelObject,
    TurnList,
)
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response

_INCLUDE: Schema = {"type": "array", "items": {"type": "string"}}
_PAGE: dict[str, Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}
_ITEM = "ShownItem"


class Operation(Struct, frozen=True):
    """A method on a path."""

    method: str
    path: str
    id: str
    summary: str
    answer: type[Struct] | str | None
    """A type, or the name of a schema; None where nothing but a WebSocket is to be had."""
    body: type[Struct] | None = None
    needs_body: bool = True
    query: dict[str, Any] = {}
    errors: tuple[int, ...] = ()
    """Beside those that every operation has."""
    streams: bool = False
    """Whether the answer may also be a stream of events."""
    is_open: bool = False
    """Whether no key is needed."""


_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"

OPERATIONS = (
    Operation(
        "GET",
        "/v1/responses",
        "connectResponses",
        "Open a WebSocket: each text frame is a create with `type: response.create`, each answer an event.",
        None,
        errors=(400, 426),
    ),
    Operation(
        "POST",
        "/v1/responses",
        "createResponse",
        "Make a response.",
        Response,
        body=CreateRequest,
        errors=(400, 404, 413, 429),
        streams=True,
    ),
    Operation(
        "POST",
        "/v1/responses/compact",
        "compactResponse",
        "Put a short context in the place of a long one.",
        Window,
        body=CompactRequest,
        errors=(400, 404, 413, 429),
    ),
    Operation(
        "POST",
        "/v1/responses/input_tokens",
        "countInputTokens",
        "How long a context would be.",
        InputTokens,
        body=CreateRequest,
        errors=(400, 404, 413, 429),
    ),
    Operation(
        "GET",
        _RESPONSE,
        "getResponse",
        "A stored response; one of the background in any state, and its events again.",
        Response,
        query={
            "include": _INCLUDE,
            "stream": {"type": "boolean"},
            "starting_after": {"type": "integer", "minimum": 0},
        },
        errors=(400, 404),
        streams=True,
    ),
    Operation(
        "DELETE", _RESPONSE, "deleteResponse", "Delete a stored response.", DeletedResponse, errors=(404,)
    ),
    Operation(
        "POST",
        f"{_RESPONSE}/cancel",
        "cancelResponse",
        "Stop a background response.",
        Response,
        errors=(400, 404),
    ),
    Operation(
        "GET",
        f"{_RESPONSE}/input_items",
        "listInputItems",
        "What a response was made from.",
        ItemPage,
        query=_PAGE,
        errors=(400, 404),
    ),
    Operation(
        "POST",
        "/v1/conversations",
        "createConversation",
        "Begin a conversation.",
        ConversationObject,
        body=CreateConversation,
        needs_body=False,
        errors=(400, 413),
    ),
    Operation("GET", _CONVERSATION, "getConversation", "A conversation.", ConversationObject, errors=(404,)),
    Operation(
        "POST",
        _CONVERSATION,
        "updateConversation",
        "Give a conversation other metadata.",
        ConversationObject,
        body=UpdateConversation,
        errors=(400, 404, 413),
    ),
    Operation(
        "DELETE",
        _CONVERSATION,
        "deleteConversation",
        "Delete a conversation and its items.",
        DeletedConversation,
        errors=(404,),
    ),
    Operation(
        "GET",
        f"{_CONVERSATION}/items",
        "listConversationItems",
        "The items of a conversation.",
        ItemPage,
        query={**_PAGE, "include": _INCLUDE},
        errors=(400, 404),
    ),
    Operation(
        "POST",
        f"{_CONVERSATION}/items",
        "addConversationItems",
        "Add items to a conversation.",
        ItemPage,
        body=AddItems,
        query={"include": _INCLUDE},
        errors=(400, 404, 413),
    ),
    Operation(
        "GET",
        f"{_CONVERSATION}/items/{{item_id}}",
        "getConversationItem",
        "One item of a conversation.",
        _ITEM,
        query={"include": _INCLUDE},
        errors=(400, 404),
    ),
    Operation(
        "DELETE",
        f"{_CONVERSATION}/items/{{item_id}}",
        "deleteConversationItem",
        "Take an item out of a conversation.",
        ConversationObject,
        errors=(404,),
    ),
    Operation(
        "GET",
        "/v1/slipring/turns",
        "listTurns",
        "Where the time of the recent turns on open sockets went.",
        TurnList,
    ),
    Operation("GET", "/v1/models", "listModels", "The models that may be used.", ModelList),
    Operation("GET", "/v1/models/{model}", "getModel", "One model.", ModelObject, errors=(404,)),
    Operation("GET", "/health", "getHealth", "How the server is.", Health, is_open=True),
)
