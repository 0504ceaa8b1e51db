"""What keeps an answer to its form, as one JSON schema or one grammar: for servers that take no more."""

import json
import re
from typing import Any

from slipring.core.generation import Job
from slipring.engines.lark.gbnf import ANY_STRING, gbnf_rules
from slipring.prompts.parser import CallFormat, flat_name
from slipring.prompts.schemas import parameters_of
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool

ANY_OBJECT = b'{"type":"object"}'
Constraint = dict[str, Any] | str
"""A schema, or a grammar."""


def constraint_of(job: Job, calls: CallFormat) -> Constraint | None:
    """What the answer to a job is kept to, or None where it is free.

    A grammar only where a Lark grammar asks for it and every tool that may be called takes a text: a server
    takes one or the other, and schemas of functions are no matter of grammars.
    """
    tools = job.offer.tools
    if job.offer.required and all(tool.kind == "custom" for tool in tools):
        grammars = [tool.grammar for tool in tools]
        if any(grammar is not None and grammar.syntax == "lark" for grammar in grammars):
            return _grammar(tools, calls) or schema_of(job, calls)
    return schema_of(job, calls)


def _grammar(tools: tuple[CallableTool, ...], calls: CallFormat) -> str | None:
    """One call, its input as its grammar has it; None: that cannot be written."""
    names, rules = [], []
    for number, tool in enumerate(tools):
        input = f"input-{number}"
        found = gbnf_rules(tool.grammar or ANY_STRING, input)
        if found is None:
            return None
        lead = f'{{"name": {json.dumps(flat_name(tool))}, "{calls.arguments_key}": {{"input": "'
        names.append(f"call-{number}")
        rules += [f'call-{number} ::= {json.dumps(lead)} {input} "\\"}}}}"', *found]
    return "\n".join([f"root ::= {' | '.join(names)}", *rules, ""])


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

    Others it cannot: a model writes its input as a string within JSON, and a grammar of texts is none of such
    strings. What comes of them is held against the grammar.
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
