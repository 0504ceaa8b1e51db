"""What keeps an answer to its form, as one JSON schema: for engines that take no richer constraint."""

import json
import re
from typing import Any

from slipring.core.generation import Job
from slipring.prompts.parser import CallFormat, flat_name
from slipring.prompts.schemas import parameters_of
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
    return json.loads(re.sub(rb'("\$ref"\s*:\s*"#/)', rb"\g<1>" + place.encode(), bytes(parameters_of(tool))))
