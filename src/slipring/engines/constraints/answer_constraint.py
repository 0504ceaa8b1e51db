"""Writes the constraint of an answer for servers: a structural tag, one JSON schema or one GBNF grammar.

A structural tag describes calls in the format of the model, after a thought, and strict calls in text. A
server that does not take structural tags gets a schema or a grammar of one call without marks, which only
works for models that write calls as JSON.
"""

import json
import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct, structs

from slipring.base.errors import TooExpensive, UnsupportedParameter
from slipring.engines.constraints.answer_requirements import (
    ANY_OBJECT,
    CalledTool,
    Form,
    arguments_schema,
    decode_form,
    form_of,
    param_of,
)
from slipring.engines.constraints.lark.writers import ANY_STRING, gbnf_rules
from slipring.engines.constraints.shapes.answer_shapes import answer_shape
from slipring.engines.constraints.xgrammar_tag import structural_tag
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat

if TYPE_CHECKING:  # the sandbox's process needs none of them
    from slipring.core.generation import Job
    from slipring.engines.constraints.grammar_compiler import Compiler
    from slipring.prompts.rendering import Renderer


class Constraint(Struct, frozen=True):
    """What a server enforces while it generates an answer."""

    kind: Literal["schema", "grammar", "tag"]
    text: str
    """A JSON schema, a grammar in GBNF, or a structural tag."""
    makes_calls_certain: bool = False
    """Whether what begins like a call is a call that is well-formed, and nothing else is one."""


async def tag_of(
    job: "Job",
    renderer: "Renderer",
    compiler: "Compiler",
    *,
    opens_thought: bool = False,
    after_thought: bool = False,
) -> Constraint | None:
    """The structural tag of the answer to a job, or None for free text; a schema where that says the same.

    ``after_thought``: the server begins to enforce it after the thought that the prompt has opened. Raises
    ``InvalidRequest`` if it cannot be enforced, ``TooExpensive`` if writing it takes too long.
    """
    form = form_of(job, renderer, opens_thought=opens_thought)
    if after_thought:
        form = structs.replace(form, opens_thought=False, thinks=False, after_thought=True)
    if form.document is not None and not form.required:
        if not form.thinks and not form.output.text_open and not form.output.is_harmony:
            return Constraint("schema", form.document.decode())
    elif form.is_free_text and not form.required and not form.limits_calls:
        return None
    try:
        tag = await compiler.run(job.tenant, "write_structural_tag", msgspec.msgpack.encode(form))
    except TooExpensive as error:
        raise TooExpensive(error.reason, param_of(form)) from None
    return Constraint("tag", tag, makes_calls_certain=form.required or form.is_free_text)


def write_structural_tag(form: bytes) -> str:
    """The text of a structural tag. Runs in the sandbox."""
    decoded = decode_form(form)
    return structural_tag(answer_shape(decoded, loops=True))


async def constraint_of(
    job: "Job", renderer: "Renderer", compiler: "Compiler", *, grammars: bool = True
) -> Constraint | None:
    """The constraint of the answer to a job for a server without structural tags, or None for free text and
    for text that has to match a pattern, which such a server does not enforce.

    ``grammars``: whether the server accepts grammars besides schemas. Raises ``UnsupportedParameter`` if a
    call is required and the model does not write calls as JSON, ``TooExpensive`` if the tools exceed a limit
    of the sandbox.
    """
    if job.offer.required:
        form = form_of(job, renderer)
        _json_calls(form.output)
        try:
            return Constraint(
                *await compiler.run(job.tenant, "write_constraint", msgspec.msgpack.encode(form), grammars)
            )
        except TooExpensive as error:
            raise TooExpensive(error.reason, "tools") from None
    format = job.settings.format
    if format.kind == "text":
        return None
    return Constraint("schema", (format.schema or ANY_OBJECT).decode())


def _json_calls(output: OutputFormat) -> JsonCalls:
    calls = output.calls
    if not isinstance(calls, JsonCalls) or calls.is_array or calls.section_open:
        raise UnsupportedParameter.at(
            "tool_choice",
            "without structural tags, the engine cannot force calls in the format of this model",
        )
    return calls


def write_constraint(form: bytes, grammars: bool) -> tuple[str, str]:
    """The fields of a ``Constraint`` for an answer that is a call. Runs in the sandbox.

    Writes a grammar only if a tool has a Lark grammar and all tools are custom tools: a server accepts a
    grammar or a schema, not both, and only a schema can describe the arguments of functions.
    """
    decoded = decode_form(form)
    is_lark = any(tool.grammar is not None and tool.grammar.syntax == "lark" for tool in decoded.tools)
    if grammars and is_lark and all(tool.kind == "custom" for tool in decoded.tools):
        grammar = _call_grammar(decoded)
        if grammar is not None:
            return "grammar", grammar
    return "schema", json.dumps(_call_schema(decoded), ensure_ascii=False)


def _call_grammar(form: Form) -> str | None:
    """A GBNF grammar of one call, each tool's input by its own grammar; None if a grammar cannot be
    converted."""
    calls = _json_calls(form.output)
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
    layout = _json_calls(form.output)
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
