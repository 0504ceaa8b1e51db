"""Checks answers against the OpenAPI document."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from slipring.commands.openapi import Operation, document

DOCUMENT = document()


@cache
def validator(reference: str) -> Draft202012Validator:
    """Return a validator for one schema of the document."""
    return Draft202012Validator({"$ref": reference, "components": DOCUMENT["components"]})


def complaints(schema: dict[str, Any], value: object) -> list[str]:
    found = validator(schema["$ref"]).iter_errors(value)
    return [f"{error.json_path}: {error.message[:300]}" for error in found]


def check_answer(operation: Operation, status: int, content_type: str, body: bytes) -> None:
    """Require that the document describes this answer of an operation."""
    responses = DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]
    if str(status) not in responses:
        raise AssertionError(
            f"{operation.method} {operation.path}: {status} is not described: {body[:300]!r}"
        )
    content = responses[str(status)]["content"]
    if content_type not in content:
        raise AssertionError(f"{operation.method} {operation.path}: no {content_type} at {status}")
    if content_type == "application/json":
        found = complaints(content[content_type]["schema"], json.loads(body))
        if found:
            raise AssertionError(f"{operation.method} {operation.path}: {found}\nin {body[:2000]!r}")
