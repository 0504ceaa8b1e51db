"""The constraint of an answer as servers take it: a structural tag, one JSON schema or one GBNF grammar.

A structural tag describes calls in the format of the model, after a thought, and strict calls in text.
xgrammar enforces it in vLLM and SGLang, from 0.2 on: vLLM 0.21 and SGLang 0.5.12 are the first with it. Its
formats match text, whether or not that is control tokens of the model.

A server that does not take structural tags gets a schema or a grammar of one call without marks, which only
works for models that write calls as JSON.
"""

import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct, structs

from slipring.base.errors import InvalidRequest, TooExpensive, UnsupportedParameter
from slipring.engines.constraints.json_string_grammar import ANY_STRING, gbnf_rules
from slipring.engines.constraints.required_answer_shapes import (
    ANY_OBJECT,
    CalledTool,
    Form,
    answer_shape,
    arguments_schema,
    decode_form,
    form_of,
    param_of,
)
from slipring.engines.constraints.shape import (
    Choice,
    FreeText,
    Input,
    Json,
    Mark,
    Optional,
    Pattern,
    Repeated,
    Sequence,
    Shape,
    TextOrCalls,
    TextUntil,
    TextWithCalls,
)
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat
from slipring.protocol.tools.grammars_and_schemas import Grammar

if TYPE_CHECKING:  # the sandbox's process needs none of them
    from slipring.core.generation import Job
    from slipring.engines.constraints.grammar_compiler import Compiler
    from slipring.prompts.rendering import Renderer

_TagFormat = dict[str, Any]
_NOTHING: Final = {"type": "grammar", "grammar": 'root ::= ""'}
_ANY_TEXT: Final = {"type": "any_text"}
_NOT_ENFORCED: Final = frozenset(
    {"allOf", "not", "if", "uniqueItems", "contains", "multipleOf", "patternProperties", "propertyNames"}
    | {"dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"}
)
"""Keywords of JSON schemas that some version of xgrammar ignores."""
_MAX_TAG_BYTES: Final = 512 * 1024


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


def structural_tag(shape: Shape) -> str:
    """The structural tag as JSON text. Raises ``InvalidRequest`` for a strict schema that xgrammar would not
    enforce."""
    text = json.dumps({"type": "structural_tag", "format": _tag_format(shape)}, ensure_ascii=False)
    if len(text.encode()) > _MAX_TAG_BYTES:
        raise InvalidRequest.at("tools", "their calls are too complex to be enforced")
    return text


def _tag_format(shape: Shape) -> _TagFormat:
    match shape:
        case Sequence(parts):
            return {"type": "sequence", "elements": list(map(_tag_format, parts))} if parts else _NOTHING
        case Choice(options):
            return {"type": "or", "elements": list(map(_tag_format, options))}
        case Optional(inner):
            return {"type": "optional", "content": _tag_format(inner)}
        case Repeated(inner, separator, most):
            one = _tag_format(inner)
            more = {"type": "sequence", "elements": [_tag_format(Mark(separator)), one]}
            count = {"min": 0, "max": -1 if most is None else most - 1}
            return {"type": "sequence", "elements": [one, {"type": "repeat", **count, "content": more}]}
        case TextWithCalls(triggers, loops):
            rules = [[mark, _tag_format(following)] for mark, following in triggers]
            return {"type": "dispatch", "rules": rules, "loop": loops}
        case TextOrCalls(calls):
            return {
                "type": "or",
                "elements": [_tag_format(calls), _regex(r"([ \t\r\n]*[^ \t\r\n{\[](.|\n)*)?")],
            }
        case _:
            return _leaf(shape)


def _leaf(shape: Mark | Pattern | TextUntil | FreeText | Json | Input) -> _TagFormat:
    match shape:
        case Mark(text):
            return {"type": "const_string", "value": text} if text else _NOTHING
        case Pattern(regex):
            return _regex(regex)
        case TextUntil(mark, regex):
            return _tag("", _regex(regex) if regex else _ANY_TEXT, mark)
        case FreeText():
            return _regex(r"(.|\n)*")
        case Json():
            return {"type": "json_schema", "json_schema": _tag_schema(shape)}
        case Input(grammar):
            return {"type": "grammar", "grammar": _tag_grammar(grammar)}


def _regex(pattern: str) -> _TagFormat:
    return {"type": "regex", "pattern": pattern}


def _tag(begin: str, content: _TagFormat, end: str) -> _TagFormat:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _tag_schema(shape: Json) -> Any:
    schema = json.loads(shape.schema)
    if shape.strict and (ignored := _ignored_keywords(schema)):
        raise InvalidRequest.at(shape.param, f"the engine does not enforce '{min(ignored)}' of this schema")
    return schema


def _ignored_keywords(schema: Any) -> set[str]:
    """The keywords of a schema that are not enforced."""
    if isinstance(schema, list):
        return set().union(*map(_ignored_keywords, schema))
    if not isinstance(schema, dict):
        return set()
    found = set(_NOT_ENFORCED & schema.keys())
    if len(schema.get("allOf", ())) == 1:
        found.discard("allOf")
    for key, each in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(each, dict):
            found |= _ignored_keywords(list(each.values()))
        elif key not in ("enum", "const", "default", "examples"):
            found |= _ignored_keywords(each)
    return found


def _tag_grammar(grammar: Grammar) -> str:
    """A grammar of the text of a JSON string. If that cannot be written, ``custom_tool_inputs`` checks it."""
    rules = gbnf_rules(grammar, "root") or gbnf_rules(ANY_STRING, "root")
    assert rules is not None
    return "\n".join([*rules, ""])
