"""Assembles the OpenAPI 3.1 document from the operations and the schemas."""

import re
from http import HTTPStatus
from typing import Any

from slipring import __version__
from slipring.commands.openapi.operations import OPERATIONS, Operation
from slipring.commands.openapi.schemas import Schema, components, ref
from slipring.protocol.messages.errors import OVERLOADED

_JSON = "application/json"
_COMMON_ERRORS = (401, 403, 500, 503)
_PARAMETER = re.compile(r"\{(\w+)\}")
_DESCRIPTION = (
    "The OpenAI Responses API, and Chat Completions and Messages over the same models. `/v1` may be left out"
    " of any path. The server accepts and ignores fields that are not described here. `null` is the same as"
    " leaving an optional field out. With the header `anthropic-version`, models and errors have the shape of"
    " the Messages API."
)


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
