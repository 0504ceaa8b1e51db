"""Writes the shape of an answer as a structural tag, which xgrammar enforces in vLLM and SGLang.

xgrammar 0.2 or newer is needed: vLLM 0.21 and SGLang 0.5.12 are the first with it. Its formats match text,
whether or not that is control tokens of the model.
"""

import json
from typing import Any, Final

from slipring.base.errors import InvalidRequest
from slipring.engines.constraints.lark.writers import ANY_STRING, gbnf_rules
from slipring.engines.constraints.shapes.shape import (
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
from slipring.protocol.tools.grammars_and_schemas import Grammar

_Format = dict[str, Any]
_NOTHING: Final = {"type": "grammar", "grammar": 'root ::= ""'}
_ANY_TEXT: Final = {"type": "any_text"}
_NOT_ENFORCED: Final = frozenset(
    {"allOf", "not", "if", "uniqueItems", "contains", "multipleOf", "patternProperties", "propertyNames"}
    | {"dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"}
)
"""Keywords of JSON schemas that some version of xgrammar ignores."""
_MAX_BYTES: Final = 512 * 1024


def structural_tag(shape: Shape) -> str:
    """The structural tag as JSON text. Raises ``InvalidRequest`` for a strict schema that xgrammar would not
    enforce."""
    text = json.dumps({"type": "structural_tag", "format": _format(shape)}, ensure_ascii=False)
    if len(text.encode()) > _MAX_BYTES:
        raise InvalidRequest.at("tools", "their calls are too complex to be enforced")
    return text


def _format(shape: Shape) -> _Format:
    match shape:
        case Sequence(parts):
            return {"type": "sequence", "elements": list(map(_format, parts))} if parts else _NOTHING
        case Choice(options):
            return {"type": "or", "elements": list(map(_format, options))}
        case Optional(inner):
            return {"type": "optional", "content": _format(inner)}
        case Repeated(inner, separator, most):
            one = _format(inner)
            more = {"type": "sequence", "elements": [_format(Mark(separator)), one]}
            count = {"min": 0, "max": -1 if most is None else most - 1}
            return {"type": "sequence", "elements": [one, {"type": "repeat", **count, "content": more}]}
        case TextWithCalls(triggers, loops):
            rules = [[mark, _format(following)] for mark, following in triggers]
            return {"type": "dispatch", "rules": rules, "loop": loops}
        case TextOrCalls(calls):
            return {"type": "or", "elements": [_format(calls), _regex(r"([ \t\r\n]*[^ \t\r\n{\[](.|\n)*)?")]}
        case _:
            return _leaf(shape)


def _leaf(shape: Mark | Pattern | TextUntil | FreeText | Json | Input) -> _Format:
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
            return {"type": "json_schema", "json_schema": _schema(shape)}
        case Input(grammar):
            return {"type": "grammar", "grammar": _grammar(grammar)}


def _regex(pattern: str) -> _Format:
    return {"type": "regex", "pattern": pattern}


def _tag(begin: str, content: _Format, end: str) -> _Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _schema(shape: Json) -> Any:
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


def _grammar(grammar: Grammar) -> str:
    """A grammar of the text of a JSON string. If that cannot be written, ``custom_inputs`` checks it."""
    rules = gbnf_rules(grammar, "root") or gbnf_rules(ANY_STRING, "root")
    assert rules is not None
    return "\n".join([*rules, ""])
