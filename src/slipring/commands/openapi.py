"""The operations of the API (parameters, bodies, answers and error statuses), and the OpenAPI 3.1 document
that they make with the schemas.
"""

import argparse
import re
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from slipring import __version__
from slipring.base.standard_streams import print_encoded
from slipring.commands.openapi_schemas import EVENT, MESSAGES_EVENT, Schema, components, ref
from slipring.protocol.chat_completions.completion import ChatChunk, ChatCompletion
from slipring.protocol.chat_completions.requests import ChatRequest
from slipring.protocol.decisions import Decision, DecisionRequest
from slipring.protocol.endpoints import conversations, reply_bodies
from slipring.protocol.endpoints.compact import CompactRequest, Window
from slipring.protocol.endpoints.conversations import ConversationObject
from slipring.protocol.endpoints.moderations import ModerationAnswer, ModerationRequest
from slipring.protocol.endpoints.reply_bodies import ItemPage
from slipring.protocol.events import ErrorAnswer
from slipring.protocol.messages.answer import MessageAnswer
from slipring.protocol.messages.errors import OVERLOADED, MessagesError
from slipring.protocol.messages.requests import Counted, CountRequest, MessagesRequest
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response

_INCLUDE: Schema = {"type": "array", "items": {"type": "string"}}
_PAGE: dict[str, Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}


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
_CONVERSATION_ITEM = f"{_CONVERSATION}/items/{{item_id}}"

_POSTED = (400, 404, 413, 415, 429)
"""What any operation may answer that reads a body and runs a model or a check."""
_get = partial(Operation, "GET")
_post = partial(Operation, "POST", errors=_POSTED)
_message = partial(_post, errors=(*_POSTED, OVERLOADED), error=MessagesError)
_delete = partial(Operation, "DELETE", errors=(404,))

OPERATIONS = (
    _get(
        "/v1/responses",
        "connectResponses",
        "Open a WebSocket: clients send `response.create` events as text frames and receive response events.",
        None,
        errors=(400, 426),
    ),
    _post(
        "/v1/responses",
        "createResponse",
        "Create a response.",
        Response,
        CreateRequest,
        streams=EVENT,
        errors=(*_POSTED, 424),
    ),
    _post(
        "/v1/responses/compact",
        "compactResponse",
        "Compact a context: return a shorter one that replaces it.",
        Window,
        CompactRequest,
    ),
    _post(
        "/v1/responses/input_tokens",
        "countInputTokens",
        "Count the input tokens of a request.",
        reply_bodies.InputTokens,
        CreateRequest,
    ),
    _get(
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
    _delete(_RESPONSE, "deleteResponse", "Delete a stored response.", reply_bodies.DeletedResponse),
    _post(
        f"{_RESPONSE}/cancel", "cancelResponse", "Cancel a background response.", Response, errors=(400, 404)
    ),
    _get(
        f"{_RESPONSE}/input_items",
        "listInputItems",
        "List the input items of a response.",
        ItemPage,
        query=_PAGE,
        errors=(400, 404),
    ),
    _post(
        "/v1/conversations",
        "createConversation",
        "Create a conversation.",
        ConversationObject,
        conversations.CreateConversation,
        needs_body=False,
        errors=(400, 413, 415),
    ),
    _get(_CONVERSATION, "getConversation", "Get a conversation.", ConversationObject, errors=(404,)),
    _post(
        _CONVERSATION,
        "updateConversation",
        "Replace the metadata of a conversation.",
        ConversationObject,
        conversations.UpdateConversation,
        errors=(400, 404, 413, 415),
    ),
    _delete(
        _CONVERSATION,
        "deleteConversation",
        "Delete a conversation and its items.",
        reply_bodies.DeletedConversation,
    ),
    _get(
        f"{_CONVERSATION}/items",
        "listConversationItems",
        "List the items of a conversation.",
        ItemPage,
        query={**_PAGE, "include": _INCLUDE},
        errors=(400, 404),
    ),
    _post(
        f"{_CONVERSATION}/items",
        "addConversationItems",
        "Add items to a conversation.",
        ItemPage,
        conversations.AddItems,
        query={"include": _INCLUDE},
        errors=(400, 404, 413, 415),
    ),
    _get(
        _CONVERSATION_ITEM,
        "getConversationItem",
        "Get one item of a conversation.",
        "ShownItem",
        query={"include": _INCLUDE},
        errors=(400, 404),
    ),
    _delete(
        _CONVERSATION_ITEM,
        "deleteConversationItem",
        "Remove an item from a conversation.",
        ConversationObject,
    ),
    _post(
        "/v1/chat/completions",
        "createChatCompletion",
        "Create a chat completion.",
        ChatCompletion,
        ChatRequest,
        streams=ChatChunk,
    ),
    _post(
        "/v1/decisions",
        "createDecision",
        "Answer questions about one input with probabilities.",
        Decision,
        DecisionRequest,
    ),
    _message(
        "/v1/messages",
        "createMessage",
        "Create a message.",
        MessageAnswer,
        MessagesRequest,
        streams=MESSAGES_EVENT,
    ),
    _message(
        "/v1/messages/count_tokens",
        "countMessageTokens",
        "Count the tokens of a prompt.",
        Counted,
        CountRequest,
    ),
    _post(
        "/v1/moderations",
        "createModeration",
        "Classify texts with the safety checks of the server.",
        ModerationAnswer,
        ModerationRequest,
    ),
    _get(
        "/v1/slipring/turns",
        "listTurns",
        "List timing reports of recent turns on open WebSockets.",
        reply_bodies.TurnList,
    ),
    _get(
        "/v1/models",
        "listModels",
        "List the models that the API key may use; for Codex, which sends its version, also in its own form.",
        reply_bodies.ModelList,
        query={"client_version": {"type": "string"}},
    ),
    _get("/v1/models/{model}", "getModel", "Get one model.", reply_bodies.ModelObject, errors=(404,)),
    _get("/health", "getHealth", "Get the health of the server.", reply_bodies.Health, is_open=True),
    _get(
        "/ready",
        "getReadiness",
        "Say whether new requests can be served.",
        reply_bodies.Readiness,
        is_open=True,
    ),
    _get(
        "/ready/store",
        "getStoreReadiness",
        "Say whether new requests can be served and stored.",
        reply_bodies.Readiness,
        is_open=True,
    ),
)


_JSON = "application/json"
_COMMON_ERRORS = (401, 403, 500, 503)
_PARAMETER = re.compile(r"\{(\w+)\}")
_DESCRIPTION = (
    "The OpenAI Responses API, and Chat Completions and Messages over the same models. `/v1` may be left out"
    " of any path. The server accepts and ignores fields that are not described here. `null` is the same as"
    " leaving an optional field out. With the header `anthropic-version`, models and errors have the shape of"
    " the Messages API."
)


def print_document(arguments: argparse.Namespace) -> int:
    """Print the document. Returns the exit code."""
    print_encoded(msgspec.json.format(msgspec.json.encode(document())))
    return 0


def document() -> dict[str, Any]:
    """Return the document as JSON-compatible objects."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        methods = paths.setdefault(operation.path, {})
        methods[operation.method.lower()] = _operation_object(operation)
        if operation.method == "GET":
            methods["head"] = _head(methods["get"])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slipring",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Required if the server has API keys.",
                }
            },
        },
    }


def _operation_object(operation: Operation) -> dict[str, Any]:
    result: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [
            *(
                _parameter("path", name, {"type": "string", "minLength": 1})
                for name in _path_parameters(operation)
            ),
            *(_parameter("query", name, schema) for name, schema in operation.query.items()),
        ],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        result["requestBody"] = {
            "required": operation.needs_body,
            "content": {_JSON: {"schema": ref(operation.body)}},
        }
    if operation.is_open:
        result["security"] = []
    return result


def _head(get: dict[str, Any]) -> dict[str, Any]:
    """Return the HEAD operation for a GET: the same without response bodies."""
    responses = {
        status: {"description": response["description"]} for status, response in get["responses"].items()
    }
    return {**get, "operationId": f"{get['operationId']}Head", "responses": responses}


def _path_parameters(operation: Operation) -> list[str]:
    return _PARAMETER.findall(operation.path)


def _parameter(place: str, name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _responses(operation: Operation) -> dict[str, Any]:
    if operation.is_open:
        # The health check is the only one. Its body has the same form with both statuses.
        return {str(status): _answer(operation, status) for status in (200, 503)}
    success = 101 if operation.answer is None else 200
    errors = sorted({*_COMMON_ERRORS, *operation.errors})
    if OVERLOADED in errors:
        errors.remove(HTTPStatus.SERVICE_UNAVAILABLE)  # the same, in the Messages API
    return {str(success): _answer(operation, success)} | {
        str(status): {"description": _phrase(status), "content": {_JSON: {"schema": ref(operation.error)}}}
        for status in errors
    }


def _answer(operation: Operation, status: int) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": _phrase(status)}
    content: dict[str, Any] = {_JSON: {"schema": ref(operation.answer)}}
    if operation.streams is not None:
        # OpenAPI 3.1 cannot describe the events of a stream.
        content["text/event-stream"] = {
            "schema": {"type": "string"},
            "x-slipring-event": ref(operation.streams),
        }
    return {"description": _phrase(status), "content": content}


def _phrase(status: int) -> str:
    return "Overloaded" if status == OVERLOADED else HTTPStatus(status).phrase
