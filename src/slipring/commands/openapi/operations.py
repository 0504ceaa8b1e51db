"""The operations of the API: parameters, bodies, answers and error statuses.

There is one operation for each route of the server; a test compares the two.
"""

from typing import Any

from msgspec import Struct

from slipring.commands.openapi.schemas import EVENT, MESSAGES_EVENT, Schema
from slipring.protocol.chat_completions.completion import ChatChunk, ChatCompletion
from slipring.protocol.chat_completions.request import ChatRequest
from slipring.protocol.decisions.answers import Decision
from slipring.protocol.decisions.request import DecisionRequest
from slipring.protocol.endpoints.compact import CompactRequest, Window
from slipring.protocol.endpoints.conversations import (
    AddItems,
    ConversationObject,
    CreateConversation,
    UpdateConversation,
)
from slipring.protocol.endpoints.moderations import ModerationAnswer, ModerationRequest
from slipring.protocol.endpoints.reply_bodies import (
    DeletedConversation,
    DeletedResponse,
    Health,
    InputTokens,
    ItemPage,
    ModelList,
    ModelObject,
    Readiness,
    TurnList,
)
from slipring.protocol.events import ErrorAnswer
from slipring.protocol.messages.answer import MessageAnswer
from slipring.protocol.messages.errors import OVERLOADED, MessagesError
from slipring.protocol.messages.requests import CountRequest, MessagesRequest
from slipring.protocol.messages.translation import Counted
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
    """One HTTP method on one path."""

    method: str
    path: str
    id: str
    summary: str
    answer: type[Struct] | str | None
    """A type, or the name of a schema; None if the operation only opens a WebSocket."""
    body: type[Struct] | None = None
    needs_body: bool = True
    query: dict[str, Any] = {}
    errors: tuple[int, ...] = ()
    """Statuses of errors, in addition to those that all operations share."""
    streams: type[Struct] | str | None = None
    """What the answer can also be a stream of: a type, or the name of a schema."""
    error: type[Struct] = ErrorAnswer
    """The body of errors."""
    is_open: bool = False
    """Whether the operation works without an API key."""


_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"

OPERATIONS = (
    Operation(
        "GET",
        "/v1/responses",
        "connectResponses",
        "Open a WebSocket: clients send `response.create` events as text frames and receive response events.",
        None,
        errors=(400, 426),
    ),
    Operation(
        "POST",
        "/v1/responses",
        "createResponse",
        "Create a response.",
        Response,
        body=CreateRequest,
        errors=(400, 404, 413, 415, 424, 429),
        streams=EVENT,
    ),
    Operation(
        "POST",
        "/v1/responses/compact",
        "compactResponse",
        "Compact a context: return a shorter one that replaces it.",
        Window,
        body=CompactRequest,
        errors=(400, 404, 413, 415, 429),
    ),
    Operation(
        "POST",
        "/v1/responses/input_tokens",
        "countInputTokens",
        "Count the input tokens of a request.",
        InputTokens,
        body=CreateRequest,
        errors=(400, 404, 413, 415, 429),
    ),
    Operation(
        "GET",
        _RESPONSE,
        "getResponse",
        "Get a stored response, or a background response in any state; optionally stream its events.",
        Response,
        query={
            "include": _INCLUDE,
            "stream": {"type": "boolean"},
            "starting_after": {"type": "integer", "minimum": 0},
        },
        errors=(400, 404),
        streams=EVENT,
    ),
    Operation(
        "DELETE", _RESPONSE, "deleteResponse", "Delete a stored response.", DeletedResponse, errors=(404,)
    ),
    Operation(
        "POST",
        f"{_RESPONSE}/cancel",
        "cancelResponse",
        "Cancel a background response.",
        Response,
        errors=(400, 404),
    ),
    Operation(
        "GET",
        f"{_RESPONSE}/input_items",
        "listInputItems",
        "List the input items of a response.",
        ItemPage,
        query=_PAGE,
        errors=(400, 404),
    ),
    Operation(
        "POST",
        "/v1/conversations",
        "createConversation",
        "Create a conversation.",
        ConversationObject,
        body=CreateConversation,
        needs_body=False,
        errors=(400, 413, 415),
    ),
    Operation(
        "GET", _CONVERSATION, "getConversation", "Get a conversation.", ConversationObject, errors=(404,)
    ),
    Operation(
        "POST",
        _CONVERSATION,
        "updateConversation",
        "Replace the metadata of a conversation.",
        ConversationObject,
        body=UpdateConversation,
        errors=(400, 404, 413, 415),
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
        "List the items of a conversation.",
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
        errors=(400, 404, 413, 415),
    ),
    Operation(
        "GET",
        f"{_CONVERSATION}/items/{{item_id}}",
        "getConversationItem",
        "Get one item of a conversation.",
        _ITEM,
        query={"include": _INCLUDE},
        errors=(400, 404),
    ),
    Operation(
        "DELETE",
        f"{_CONVERSATION}/items/{{item_id}}",
        "deleteConversationItem",
        "Remove an item from a conversation.",
        ConversationObject,
        errors=(404,),
    ),
    Operation(
        "POST",
        "/v1/chat/completions",
        "createChatCompletion",
        "Create a chat completion.",
        ChatCompletion,
        body=ChatRequest,
        errors=(400, 404, 413, 415, 429),
        streams=ChatChunk,
    ),
    Operation(
        "POST",
        "/v1/decisions",
        "createDecision",
        "Answer questions about one input with probabilities.",
        Decision,
        body=DecisionRequest,
        errors=(400, 404, 413, 415, 429),
    ),
    Operation(
        "POST",
        "/v1/messages",
        "createMessage",
        "Create a message.",
        MessageAnswer,
        body=MessagesRequest,
        errors=(400, 404, 413, 415, 429, OVERLOADED),
        streams=MESSAGES_EVENT,
        error=MessagesError,
    ),
    Operation(
        "POST",
        "/v1/messages/count_tokens",
        "countMessageTokens",
        "Count the tokens of a prompt.",
        Counted,
        body=CountRequest,
        errors=(400, 404, 413, 415, 429, OVERLOADED),
        error=MessagesError,
    ),
    Operation(
        "POST",
        "/v1/moderations",
        "createModeration",
        "Classify texts with the safety checks of the server.",
        ModerationAnswer,
        body=ModerationRequest,
        errors=(400, 404, 413, 415, 429),
    ),
    Operation(
        "GET",
        "/v1/slipring/turns",
        "listTurns",
        "List timing reports of recent turns on open WebSockets.",
        TurnList,
    ),
    Operation(
        "GET",
        "/v1/models",
        "listModels",
        "List the models that the API key may use; for Codex, which sends its version, also in its own form.",
        ModelList,
        query={"client_version": {"type": "string"}},
    ),
    Operation("GET", "/v1/models/{model}", "getModel", "Get one model.", ModelObject, errors=(404,)),
    Operation("GET", "/health", "getHealth", "Get the health of the server.", Health, is_open=True),
    Operation(
        "GET", "/ready", "getReadiness", "Say whether new requests can be served.", Readiness, is_open=True
    ),
    Operation(
        "GET",
        "/ready/store",
        "getStoreReadiness",
        "Say whether new requests can be served and stored.",
        Readiness,
        is_open=True,
    ),
)
