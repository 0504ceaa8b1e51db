"""What keeps an answer to its form, as one JSON schema or one grammar: for servers that take no more.

Both are written from what clients define, so they are written in a sandbox: ``form_of`` says what is to be
kept to, as data, and the tasks of the sandbox make of it what a server takes.
"""

import json
import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from slipring.core.generation import Job
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.lark.gbnf_writer import ANY_STRING, gbnf_rules
from slipring.prompts.parsing.parser import CallFormat, flat_name
from slipring.prompts.tool_definitions import parameters_of
from slipring.protocol import wire
from slipring.protocol.definitions import Grammar
from slipring.protocol.tools import CallableTool, FunctionTool, Kind
from slipring.sandbox.sandbox import TooExpensive

ANY_OBJECT = b'{"type":"object"}'


class Constraint(Struct, frozen=True):
    """What a server is told to keep an answer to."""

    kind: Literal["schema", "grammar"]
    text: str
    """A JSON schema, or a grammar in GBNF."""


class CalledTool(Struct, frozen=True):
    """A tool, as far as it matters to calls of it."""

    name: str
    """As the model calls it."""
    kind: Kind
    parameters: bytes
    strict: bool
    grammar: Grammar | None

    @classmethod
    def of(cls, tool: CallableTool) -> "CalledTool":
        strict = isinstance(tool.definition, FunctionTool) and tool.definition.strict is True
        return cls(flat_name(tool), tool.kind, bytes(parameters_of(tool)), strict, tool.grammar)


class Form(Struct, frozen=True):
    """What an answer is to be kept to."""

    calls: CallFormat
    tools: list[CalledTool]
    required: bool
    """Whether it is a call of one of the tools, whatever else is asked for."""
    document: bytes | None
    """The schema of the document that it is otherwise; None: a text."""
    strict: bool
    """Whether the schema has to be kept to in all."""


_form = msgspec.msgpack.Decoder(Form)


def form_of(job: Job, calls: CallFormat) -> Form:
    """The form of the answer to a job."""
    format = job.settings.format
    return Form(
        calls=calls,
        tools=[CalledTool.of(tool) for tool in job.offer.tools],
        required=job.offer.required,
        document=(format.schema or ANY_OBJECT) if format.kind != "text" else None,
        strict=format.is_strict,
    )


async def constraint_of(
    job: Job, calls: CallFormat, compiler: Compiler, *, grammars: bool = True
) -> Constraint | None:
    """What the answer to a job is kept to, or None where it is free. ``grammars``: whether the server takes
    grammars, too."""
    if job.offer.required:
        form = msgspec.msgpack.encode(form_of(job, calls))
        try:
            return Constraint(*await compiler.run(job.tenant, "write_constraint", form, grammars))
        except TooExpensive as error:
            raise TooExpensive(error.reason, "tools") from None
    format = job.settings.format
    return Constraint("schema", (format.schema or ANY_OBJECT).decode()) if format.kind != "text" else None


def write_constraint(form: bytes, grammars: bool) -> tuple[str, str]:
    """The fields of a ``Constraint`` for an answer that is a call. A task of the sandbox.

    A grammar only where a Lark grammar asks for it and every tool that may be called takes a text: a server
    takes one or the other, and schemas of functions are no matter of grammars.
    """
    asked = _form.decode(form)
    is_lark = any(tool.grammar is not None and tool.grammar.syntax == "lark" for tool in asked.tools)
    if grammars and is_lark and all(tool.kind == "custom" for tool in asked.tools):
        written = _grammar(asked)
        if written is not None:
            return "grammar", written
    return "schema", json.dumps(_schema(asked), ensure_ascii=False)


def _grammar(form: Form) -> str | None:
    """One call, its input as its grammar has it; None: that cannot be written."""
    names, rules = [], []
    for number, tool in enumerate(form.tools):
        input = f"input-{number}"
        found = gbnf_rules(tool.grammar or ANY_STRING, input)
        if found is None:
            return None
        lead = f'{{"name": {json.dumps(tool.name)}, "{form.calls.arguments_key}": {{"input": "'
        names.append(f"call-{number}")
        rules += [f'call-{number} ::= {json.dumps(lead)} {input} "\\"}}}}"', *found]
    return "\n".join([f"root ::= {' | '.join(names)}", *rules, ""])


def _schema(form: Form) -> dict[str, Any]:
    """One call."""
    key = form.calls.arguments_key
    forms = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                key: _moved(tool, f"anyOf/{number}/properties/{key}/"),
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for number, tool in enumerate(form.tools)
    ]
    return {"anyOf": forms}


def _moved(tool: CalledTool, place: str) -> Any:
    """A tool's schema with references that are right where it will stand."""
    return json.loads(re.sub(rb'("\$ref"\s*:\s*"#/)', rb"\g<1>" + place.encode(), arguments_schema(tool)))


def arguments_schema(tool: CalledTool) -> bytes:
    """The schema that a call's arguments are kept to. Of grammars, it can hold regular expressions.

    Others it cannot: a model writes its input as a string within JSON, and a grammar of texts is none of such
    strings. What comes of them is held against the grammar.
    """
    grammar = tool.grammar
    if grammar is None or grammar.syntax != "regex":
        return tool.parameters
    string = {"type": "string", "pattern": f"^(?:{grammar.definition})$"}
    return wire.encode(
        {
            "type": "object",
            "properties": {"input": string},
            "required": ["input"],
            "additionalProperties": False,
        }
    )
