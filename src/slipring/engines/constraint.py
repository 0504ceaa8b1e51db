"""What keeps an answer to its form, as one JSON schema: for engines that take no richer constraint."""

import json
import re
from typing import Any

from slipring.core.generation import Job
from slipring.prompts.parser import CallFormat, flat_name
from slipring.prompts.schemas import parameters_of
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool

ANY_OBJECT = b'{"type":"object"}'


def schema_of(job: Job, calls: CallFormat) -> dict[str, Any] | None:
    """The schema of the answer to a job, or None where it is free: one call, only where it is required."""
    if job.offer.required:
        forms = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": flat_name(tool)},
                    calls.arguments_key: _moved(tool, f"anyOf/{number}/properties/{calls.arguments_key}/"),
                },
                "required": ["name", calls.arguments_key],
                "additionalProperties": False,
            }
            for number, tool in enumerate(job.offer.tools)
        ]
        return {"anyOf": forms}
    format = job.settings.format
    return json.loads(format.schema or ANY_OBJECT) if format.kind != "text" else None


def _moved(tool: CallableTool, place: str) -> Any:
    """A tool's schema with references that are right where it will stand."""
    return json.loads(re.sub(rb'("\$ref"\s*:\s*"#/)', rb"\g<1>" + place.encode(), arguments_schema(tool)))


def arguments_schema(tool: CallableTool) -> bytes:
    """The schema that a call's arguments are kept to. Of grammars, it can hold regular expressions.

    Others cannot be enforced here: a model writes its input as a string within JSON, and a grammar of texts
    is none of such strings. What comes of them is looked at when it is whole.
    """
    grammar = tool.grammar
    if grammar is None or grammar.syntax != "regex":
        return bytes(parameters_of(tool))
    string = {"type": "string", "pattern": f"^(?:{grammar.definition})$"}
    return wire.encode(
        {
            "type": "object",
            "properties": {"input": string},
            "required": ["input"],
            "additionalProperties": False,
        }
    )
