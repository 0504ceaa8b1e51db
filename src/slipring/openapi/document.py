"""The OpenAPI 3.1 document: operations and schemas, put together."""

import re
from http import HTTPStatus
from typing import Any

from slipring import __version__
from slipring.openapi.operations import OPERATIONS, Operation
from slipring.openapi.schemas import EVENT, Schema, components, ref
from slipring.protocol.events import ErrorAnswer

_JSON = "application/json"
_EVERYWHERE = (401, 403, 500, 503)
_PARAMETER = re.compile(r"\{(\w+)\}")
_DESCRIPTION = (
    "The OpenAI Responses API. `/v1` may be left out of any path. Fields that are not described here are let"
    " through and have no effect; `null` counts as absent where a field is optional."
)


def document() -> dict[str, Any]:
    """What the server accepts and returns."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        methods = paths.setdefault(operation.path, {})
        methods[operation.method.lower()] = _described(operation)
        if operation.method == "GET":
            methods["head"] = _headless(methods["get"])
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
                "bearer": {"type": "http", "scheme": "bearer", "description": "Where keys are configured."}
            },
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [
            *(_parameter("path", name, {"type": "string", "minLength": 1}) for name in _names(operation)),
            *(_parameter("query", name, schema) for name, schema in operation.query.items()),
        ],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.needs_body,
            "content": {_JSON: {"schema": ref(operation.body)}},
        }
    if operation.is_open:
        described["security"] = []
    return described


def _headless(get: dict[str, Any]) -> dict[str, Any]:
    """The same as a GET, but for the bodies."""
    bare = {status: {"description": response["description"]} for status, response in get["responses"].items()}
    return {**get, "operationId": f"{get['operationId']}Head", "responses": bare}


def _names(operation: Operation) -> list[str]:
    return _PARAMETER.findall(operation.path)


def _parameter(place: str, name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _responses(operation: Operation) -> dict[str, Any]:
    if operation.is_open:
        # Health alone: what it has to say is the same when all is not well.
        return {str(status): _answer(operation, status) for status in (200, 503)}
    answered = 101 if operation.answer is None else 200
    refused = sorted({*_EVERYWHERE, *operation.errors})
    return {str(answered): _answer(operation, answered)} | {
        str(status): {"description": _phrase(status), "content": {_JSON: {"schema": ref(ErrorAnswer)}}}
        for status in refused
    }


def _answer(operation: Operation, status: int) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": _phrase(status)}
    content: dict[str, Any] = {_JSON: {"schema": ref(operation.answer)}}
    if operation.streams:
        # OpenAPI 3.1 has no words for what is in a stream.
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-slipring-event": ref(EVENT)}
    return {"description": _phrase(status), "content": content}


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase
