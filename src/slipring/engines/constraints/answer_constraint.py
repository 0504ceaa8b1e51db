"""Writes the constraint of an answer for servers that accept one JSON schema or one GBNF grammar.

The input comes from clients, so the constraint is written in a sandbox: ``form_of`` collects the requirements
as data, and a sandbox task writes the schema or grammar from them.
"""

import json
import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from slipring.core.generation import Job
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.lark.gbnf_writer import ANY_STRING, gbnf_rules
from slipring.errors import UnsupportedParameter
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat
from slipring.prompts.tool_definitions import flat_name, parameters_of
from slipring.protocol import wire
from slipring.protocol.definitions import Grammar
from slipring.protocol.tools import CallableTool, FunctionTool, Kind
from slipring.sandbox.sandbox import TooExpensive

ANY_OBJECT = b'{"type":"object"}'


class Constraint(Struct, frozen=True):
    """What a server enforces while it generates an answer."""

    kind: Literal["schema", "grammar"]
    text: str
    """A JSON schema, or a grammar in GBNF."""


class CalledTool(Struct, frozen=True):
    """The parts of a tool that constrain calls of it."""

    name: str
    """The name that the model writes."""
    kind: Kind
    parameters: bytes
    strict: bool
    grammar: Grammar | None

    @classmethod
    def of(cls, tool: CallableTool) -> "CalledTool":
        strict = isinstance(tool.definition, FunctionTool) and tool.definition.strict is True
        return cls(flat_name(tool), tool.kind, bytes(parameters_of(tool)), strict, tool.grammar)


class Form(Struct, frozen=True):
    """The requirements on an answer."""

    calls: JsonCalls | None
    """How calls are written; None if no grammar for them can be written."""
    think_open: str
    think_close: str
    tools: list[CalledTool]
    """The tools whose calls a grammar describes."""
    required: bool
    """Whether the answer must be a call. Takes precedence over ``document``."""
    document: bytes | None
    """The JSON schema of an answer that is not a call; None: free text."""
    strict: bool
    """Whether the whole schema must be enforced, or only what the engine supports."""


_form = msgspec.msgpack.Decoder(Form)


def form_of(job: Job, output: OutputFormat) -> Form:
    """The requirements on the answer to a job. Raises ``UnsupportedParameter`` if a call is required and the
    model does not write calls as JSON."""
    format = job.settings.format
    calls = output.calls if isinstance(output.calls, JsonCalls) and not output.calls.section_open else None
    if job.offer.required and calls is None:
        raise UnsupportedParameter(
            "Invalid 'tool_choice': this server cannot force calls in the format of this model.",
            param="tool_choice",
        )
    return Form(
        calls=calls,
        think_open=output.think_open.strip(),
        think_close=output.think_close.strip(),
        tools=[CalledTool.of(tool) for tool in job.offer.tools] if calls is not None else [],
        required=job.offer.required,
        document=(format.schema or ANY_OBJECT) if format.kind != "text" else None,
        strict=format.is_strict,
    )


async def constraint_of(
    job: Job, output: OutputFormat, compiler: Compiler, *, grammars: bool = True
) -> Constraint | None:
    """The constraint of the answer to a job, or None for free text.

    ``grammars``: whether the server accepts grammars besides schemas. Raises ``TooExpensive`` if the tools
    exceed a limit of the sandbox.
    """
    if job.offer.required:
        form = msgspec.msgpack.encode(form_of(job, output))
        try:
            return Constraint(*await compiler.run(job.tenant, "write_constraint", form, grammars))
        except TooExpensive as error:
            raise TooExpensive(error.reason, "tools") from None
    format = job.settings.format
    return Constraint("schema", (format.schema or ANY_OBJECT).decode()) if format.kind != "text" else None


def write_constraint(form: bytes, grammars: bool) -> tuple[str, str]:
    """The fields of a ``Constraint`` for an answer that is a call. Runs in the sandbox.

    Writes a grammar only if a tool has a Lark grammar and all tools are custom tools: a server accepts a
    grammar or a schema, not both, and only a schema can describe the arguments of functions.
    """
    decoded = _form.decode(form)
    is_lark = any(tool.grammar is not None and tool.grammar.syntax == "lark" for tool in decoded.tools)
    if grammars and is_lark and all(tool.kind == "custom" for tool in decoded.tools):
        grammar = _call_grammar(decoded)
        if grammar is not None:
            return "grammar", grammar
    return "schema", json.dumps(_call_schema(decoded), ensure_ascii=False)


def _call_grammar(form: Form) -> str | None:
    """A GBNF grammar of one call, each tool's input by its own grammar; None if a grammar cannot be
    converted."""
    calls = form.calls or JsonCalls()
    names, rules = [], []
    for number, tool in enumerate(form.tools):
        input = f"input-{number}"
        input_rules = gbnf_rules(tool.grammar or ANY_STRING, input)
        if input_rules is None:
            return None
        lead = f'{{"{calls.name_key}": {json.dumps(tool.name)}, "{calls.arguments_key}": {{"input": "'
        names.append(f"call-{number}")
        rules += [f'call-{number} ::= {json.dumps(lead)} {input} "\\"}}}}"', *input_rules]
    return "\n".join([f"root ::= {' | '.join(names)}", *rules, ""])


def _call_schema(form: Form) -> dict[str, Any]:
    """A JSON schema of one call."""
    layout = form.calls or JsonCalls()
    key = layout.arguments_key
    calls = [
        {
            "type": "object",
            "properties": {
                layout.name_key: {"const": tool.name},
                key: _embedded_schema(tool, f"anyOf/{number}/properties/{key}/"),
            },
            "required": [layout.name_key, key],
            "additionalProperties": False,
        }
        for number, tool in enumerate(form.tools)
    ]
    return {"anyOf": calls}


def _embedded_schema(tool: CalledTool, path: str) -> Any:
    """A tool's schema for use at ``path`` of another one: its ``$ref`` pointers are rewritten."""
    return json.loads(re.sub(rb'("\$ref"\s*:\s*"#/)', rb"\g<1>" + path.encode(), arguments_schema(tool)))


def arguments_schema(tool: CalledTool) -> bytes:
    """The JSON schema of a call's arguments, with the tool's regular expression as a ``pattern``.

    A schema cannot contain a Lark grammar. ``call_limits`` checks inputs against it afterwards.
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
