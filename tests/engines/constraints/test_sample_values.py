"""Values for JSON schemas: valid, natural, deterministic, found within bounds, with a place for a text."""

import datetime
import ipaddress
import json
import re
import uuid
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from slipring.base.errors import InvalidRequest
from slipring.engines.constraints.sample_values import SampleDocument, sample_document
from slipring.sandbox.pipe_messages import SandboxLimits
from slipring.sandbox.sandbox import Sandbox
from tests.engines.fitting import STATES

Json = dict[str, Any]


def encoded(schema: Json) -> bytes:
    return json.dumps(schema).encode()


def drafted(schema: Json, *, strict: bool = True) -> SampleDocument:
    return SampleDocument(*sample_document(encoded(schema), strict, STATES))


def value_for(schema: Json, *, strict: bool = True) -> Any:
    return json.loads(drafted(schema, strict=strict).plain)


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object schema that allows no other properties. All are required, unless ``required`` names some."""
    names = list(properties) if required is None else required
    base = {"type": "object", "properties": properties, "required": names}
    return {**base, "additionalProperties": False}


def arr(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}
MAYBE_STRING = {"type": ["string", "null"]}

TOOLS: dict[str, Any] = {
    "exec_command": {
        "type": "object",
        "properties": {
            "cmd": {"type": "string", "description": "Shell command to execute."},
            "workdir": {"type": "string"},
            "shell": {"type": "string", "default": "/bin/bash"},
            "tty": {"type": "boolean"},
            "yield_time_ms": {"type": "number"},
            "max_output_tokens": {"type": "number"},
            "sandbox_permissions": {"type": "string", "enum": ["use_default", "escalated"]},
            "prefix_rule": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["cmd"],
        "additionalProperties": False,
    },
    "shell": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "timeout_ms": {"type": "number"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    "update_plan": obj(
        ["plan"],
        explanation=STRING,
        plan=arr(
            obj(
                step=STRING,
                status={"type": "string", "enum": ["pending", "in_progress", "completed"]},
            )
        ),
    ),
    "weather": obj(
        location={"type": "string", "description": "City and country"},
        units={"type": "string", "enum": ["celsius", "fahrenheit"]},
    ),
    "weather, nothing required": {
        "type": "object",
        "properties": {"city": STRING, "days": {"type": "integer", "minimum": 1}},
    },
    "weather, strict and nullable": obj(
        city=STRING, units={"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]}
    ),
    "no parameters": {"type": "object", "properties": {}},
    "no parameters, strict": obj(),
    "search with filters": obj(
        query=STRING,
        options=obj(
            num_results={"type": ["integer", "null"]},
            domain_filter={"type": ["array", "null"], "items": STRING},
            sort_by={"type": ["string", "null"], "enum": ["relevance", "date", None]},
        ),
    ),
    "send_email": obj(
        to=arr({"type": "string", "format": "email"}, minItems=1),
        subject={"type": "string", "maxLength": 5},
        body={"type": "string", "minLength": 40},
    ),
    "calendar event": obj(
        title=STRING,
        starts_at={"type": "string", "format": "date-time"},
        day={"type": "string", "format": "date"},
        at={"type": "string", "format": "time"},
        attendees=arr(obj(name=STRING, email={"type": "string", "format": "email"}), minItems=2),
    ),
    "purchase order": obj(
        id={"type": "string", "pattern": "^PO-[0-9]{6}$"},
        lines=arr(
            obj(
                sku={"type": "string", "pattern": "^[A-Z]{3}-\\d{4}$"},
                quantity={"type": "integer", "minimum": 1, "maximum": 100},
                price={"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
            ),
            minItems=3,
        ),
    ),
    "apply_patch": obj(
        operations=arr(
            {
                "anyOf": [
                    obj(type={"const": "create_file"}, path=STRING, diff=STRING),
                    obj(type={"const": "update_file"}, path=STRING, diff=STRING),
                    obj(type={"const": "delete_file"}, path=STRING),
                ]
            }
        )
    ),
    "mcp, with a dialect": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "path": STRING,
            "head": {"type": "number", "description": "first lines"},
            "edits": arr(obj(oldText=STRING, newText=STRING)),
            "dryRun": {"type": "boolean", "default": False},
        },
        "required": ["path", "edits"],
    },
    "labels of any name": {
        "type": "object",
        "properties": {"labels": {"type": "object", "additionalProperties": STRING}},
        "required": ["labels"],
    },
    "properties named like keywords": {
        "type": "object",
        "properties": {"type": STRING, "required": BOOLEAN, "enum": INTEGER, "$ref": STRING},
        "required": ["type", "required", "enum", "$ref"],
    },
}

OUTPUTS: dict[str, Any] = {
    "math reasoning": obj(
        steps=arr(obj(explanation=STRING, output=STRING)),
        final_answer=STRING,
    ),
    "moderation": obj(
        is_violating=BOOLEAN,
        category={"type": ["string", "null"], "enum": ["violence", "other", None]},
        explanation_if_violating=MAYBE_STRING,
    ),
    "ui, recursive by root": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["div", "button", "form"]},
            "label": STRING,
            "children": {"type": "array", "items": {"$ref": "#"}},
            "attributes": arr(obj(name=STRING, value=STRING)),
        },
        "required": ["type", "label", "children", "attributes"],
        "additionalProperties": False,
    },
    "linked list, recursive by $defs": {
        "type": "object",
        "properties": {"linked_list": {"$ref": "#/$defs/linked_list_node"}},
        "$defs": {
            "linked_list_node": obj(
                value=NUMBER, next={"anyOf": [{"$ref": "#/$defs/linked_list_node"}, NULL]}
            )
        },
        "required": ["linked_list"],
        "additionalProperties": False,
    },
    "linked list, by a union of types": {
        "type": ["object", "null"],
        "properties": {"value": INTEGER, "next": {"$ref": "#"}},
        "required": ["value", "next"],
    },
    "pydantic": {
        "$defs": {
            "Address": {
                "properties": {
                    "street": {"title": "Street", "type": "string"},
                    "zip": {"title": "Zip", "type": "string", "pattern": "^\\d{5}(-\\d{4})?$"},
                },
                "required": ["street", "zip"],
                "title": "Address",
                "type": "object",
            },
            "Color": {"enum": ["red", "green"], "title": "Color", "type": "string"},
        },
        "properties": {
            "name": {"maxLength": 20, "minLength": 1, "title": "Name", "type": "string"},
            "age": {
                "anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}],
                "default": None,
                "title": "Age",
            },
            "home": {"$ref": "#/$defs/Address"},
            "work": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None},
            "color": {"$ref": "#/$defs/Color", "default": "red"},
            "scores": {"additionalProperties": {"type": "number"}, "type": "object"},
            "point": {
                "maxItems": 2,
                "minItems": 2,
                "prefixItems": [{"type": "number"}, {"type": "number"}],
                "type": "array",
            },
        },
        "required": ["name", "age", "home", "work", "color", "scores", "point"],
        "title": "Person",
        "type": "object",
    },
    "pydantic, discriminated union": {
        "$defs": {
            "Cat": obj(kind={"const": "cat", "type": "string"}, meows=INTEGER),
            "Dog": obj(kind={"const": "dog", "type": "string"}, barks=NUMBER),
        },
        "properties": {
            "pet": {
                "discriminator": {
                    "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
                    "propertyName": "kind",
                },
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            }
        },
        "required": ["pet"],
        "type": "object",
    },
    "tree": {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": obj(name=STRING, children=arr({"$ref": "#/$defs/Node"})),
        },
    },
    "tree of two children or more": {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "anyOf": [
                    obj(children=arr({"$ref": "#/$defs/Node"}, minItems=2)),
                    obj(leaf=STRING),
                ]
            }
        },
    },
    "expression, mutually recursive": {
        "$ref": "#/$defs/expr",
        "$defs": {
            "expr": {"anyOf": [{"$ref": "#/$defs/binary"}, {"$ref": "#/$defs/literal"}]},
            "binary": obj(
                op={"enum": ["+", "-"]},
                left={"$ref": "#/$defs/expr"},
                right={"$ref": "#/$defs/expr"},
            ),
            "literal": obj(value=NUMBER),
        },
    },
    "first branch never ends": {
        "anyOf": [{"$ref": "#/$defs/endless"}, obj(fine=BOOLEAN)],
        "$defs": {
            "endless": obj(again={"$ref": "#/$defs/other"}),
            "other": obj(again={"$ref": "#/$defs/endless"}),
        },
    },
    "optional recursion only": {
        "type": "object",
        "properties": {"parent": {"$ref": "#"}, "name": STRING},
        "additionalProperties": False,
    },
    "zod union of literals": {
        "type": "object",
        "properties": {"mode": {"anyOf": [{"type": "string", "const": m} for m in "abc"]}},
        "required": ["mode"],
        "additionalProperties": False,
        "$schema": "http://json-schema.org/draft-07/schema#",
    },
    "definitions, with escapes": {
        "definitions": {"a/b": {"const": "slash"}, "c~d": {"const": "tilde"}, "e f": INTEGER},
        "type": "array",
        "prefixItems": [
            {"$ref": "#/definitions/a~1b"},
            {"$ref": "#/definitions/c~0d"},
            {"$ref": "#/definitions/e%20f"},
            {"$ref": "#/prefixItems/2"},
        ],
        "minItems": 4,
    },
    "inheritance": {
        "$defs": {
            "Base": {"type": "object", "properties": {"id": INTEGER}, "required": ["id"]},
            "Named": {
                "allOf": [{"$ref": "#/$defs/Base"}],
                "properties": {"name": STRING},
                "required": ["name"],
            },
        },
        "allOf": [{"$ref": "#/$defs/Named"}, {"$ref": "#/$defs/Base"}, {"required": ["extra"]}],
    },
}

KEYWORDS: dict[str, Any] = {
    "empty": {},
    "only a description": {"description": "anything"},
    "const": {"const": {"deep": [1, None, {"x": False}], "quote": 'a"b\\'}},
    "const null": {"const": None},
    "enum and type": {"enum": [1, "one", None], "type": "string"},
    "enum of booleans that look like numbers": {"enum": [1, True], "type": "boolean"},
    "type list": {"type": ["null", "integer"]},
    "untyped properties": {"properties": {"a": INTEGER}, "required": ["a"]},
    "untyped items": {"items": INTEGER, "minItems": 2},
    "untyped pattern": obj(p={"pattern": "^x+$"}),
    "default that is wrong": {"type": "integer", "default": "no", "examples": ["neither"]},
    "lengths": {"type": "string", "minLength": 7, "maxLength": 9},
    "one length": {"type": "string", "minLength": 77, "maxLength": 77},
    "empty string": {"type": "string", "maxLength": 0},
    "long string": {"type": "string", "minLength": 5000},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 30},
    "pattern not anchored": {"type": "string", "pattern": "ab", "minLength": 12},
    "two patterns": {"allOf": [{"pattern": "^[a-z]"}, {"pattern": "[0-9]$"}], "type": "string"},
    "branch by length": {"type": "string", "pattern": "^(\\d{5}|\\d{9})$", "minLength": 9},
    "named group": {"type": "string", "pattern": "^v(?P<major>\\d+)\\.(?:0|[1-9]\\d*)$"},
    "other script": {"type": "string", "pattern": "^[\\u4e00-\\u9fff]{2}$"},
    "pattern ignoring case": {"enum": ["ABC"], "pattern": "(?i)^abc$"},
    "pattern that accepts quotes and backslashes only": {"type": "string", "pattern": '^["\\\\]{4}$'},
    "format and length": {"type": "string", "format": "uri", "minLength": 60},
    "minimum": {"type": "integer", "minimum": 18},
    "maximum": {"type": "integer", "maximum": -3},
    "exclusive": {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
    "exclusive fraction": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "fractional bounds of an integer": {"type": "integer", "minimum": 1.5, "maximum": 2.5},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 50},
    "multiple of a hundredth": obj(price={"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0}),
    "multiples of both": {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"},
    "multiple below": {"type": "number", "multipleOf": 2.5, "maximum": -1},
    "enormous": {"type": "integer", "minimum": 10**17},
    "minItems of objects": arr(obj(x=NUMBER), minItems=3, maxItems=3),
    "tuple and no more": {"type": "array", "prefixItems": [STRING, NUMBER], "items": False},
    "no items": {"type": "array", "items": STRING, "maxItems": 0},
    "items that cannot be": {"type": "array", "items": False},
    "minProperties": {"type": "object", "minProperties": 3},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x-[a-z]+$": INTEGER},
        "additionalProperties": False,
        "minProperties": 2,
    },
    "pattern on a declared property": {
        "type": "object",
        "properties": {"x_a": {"minimum": 3}},
        "patternProperties": {"^x_": INTEGER},
        "required": ["x_a"],
    },
    "required, undeclared": {"type": "object", "required": ["anything", "at all"]},
    "first property cannot be": {"type": "object", "properties": {"a": False, "b": STRING}},
    "anyOf with a sibling": {"type": "string", "anyOf": [INTEGER, {"minLength": 6}]},
    "anyOf of required": {
        "type": "object",
        "properties": {"a": STRING, "b": STRING},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "oneOf with disjoint branches": {"oneOf": [obj(a=STRING), obj(b=STRING)]},
    "allOf, number and integer": {"allOf": [NUMBER, INTEGER]},
    "allOf on one property": {
        "allOf": [
            {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            {"properties": {"n": {"minimum": 10}}},
        ]
    },
    "a discriminator whose first value leads nowhere": {
        "anyOf": [
            obj(kind={"const": "a"}, next={"$ref": "#/$defs/endless"}),
            obj(kind={"const": "b"}, value=STRING),
        ],
        "$defs": {"endless": obj(again={"$ref": "#/$defs/endless"})},
    },
    "ten operators and a literal": {
        "$ref": "#/$defs/expr",
        "$defs": {
            "expr": {
                "anyOf": [
                    *(
                        obj(op={"const": name}, left={"$ref": "#/$defs/expr"}, right={"$ref": "#/$defs/expr"})
                        for name in "abcdefghij"
                    ),
                    obj(op={"const": "literal"}, value=NUMBER),
                ]
            }
        },
    },
}

SCHEMAS = {**TOOLS, **OUTPUTS, **KEYWORDS}


def assert_valid(schema: Json, *values: Any) -> None:
    Draft202012Validator.check_schema(schema)
    for value in values:
        Draft202012Validator(schema).validate(value)


def test_no_name_of_the_tables_is_used_twice() -> None:
    assert len(SCHEMAS) == len(TOOLS) + len(OUTPUTS) + len(KEYWORDS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_values_and_filled_documents_are_valid(name: str) -> None:
    schema = SCHEMAS[name]
    made = drafted(schema)
    filled = made.with_text("digest=0123456789abcdef This is a simulated answer")
    assert_valid(schema, json.loads(made.plain), json.loads(filled))
    assert drafted(schema, strict=False) == made


async def test_another_process_makes_the_same_values() -> None:
    """The hash seed of a process, and what it did before, change nothing."""
    sandbox = Sandbox(SandboxLimits())
    try:
        for name, schema in reversed(SCHEMAS.items()):
            fields = await sandbox.run("t", "sample_document", encoded(schema), True, STATES)
            assert SampleDocument(*fields) == drafted(schema), name
    finally:
        await sandbox.close()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {}),
        (STRING, "text"),
        (obj(n=INTEGER, x=NUMBER, b=BOOLEAN, z=NULL), {"n": 1, "x": 2, "b": True, "z": None}),
        (TOOLS["exec_command"], {"cmd": "cmd"}),
        (TOOLS["shell"], {"command": ["command"]}),
        (TOOLS["weather"], {"location": "location", "units": "celsius"}),
        (TOOLS["weather, nothing required"], {}),
        (TOOLS["no parameters"], {}),
        (TOOLS["labels of any name"], {"labels": {}}),
        (OUTPUTS["linked list, recursive by $defs"], {"linked_list": {"value": 1, "next": None}}),
        (OUTPUTS["tree"], {"name": "name", "children": []}),
        (OUTPUTS["tree of two children or more"], {"leaf": "leaf"}),
        (OUTPUTS["optional recursion only"], {}),
        (KEYWORDS["type list"], 1),
        ({"type": ["null", "string"]}, "text"),
    ],
)
def test_values_are_short_and_natural(schema: Json, value: Any) -> None:
    made = value_for(schema)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("date", datetime.date.fromisoformat),
        ("time", datetime.time.fromisoformat),
        ("date-time", datetime.datetime.fromisoformat),
        ("duration", re.compile("P[0-9]+D").fullmatch),
        ("uuid", uuid.UUID),
        ("ipv4", ipaddress.IPv4Address),
        ("ipv6", ipaddress.IPv6Address),
        ("uri", lambda text: urlsplit(text).hostname.index("example.com")),
        ("hostname", re.compile(r"[a-z]+(\.[a-z]+)*").fullmatch),
        ("email", re.compile(r"[a-z]+@([a-z]+\.)+[a-z]+").fullmatch),
    ],
)
def test_strings_fit_their_format(name: str, read: Any) -> None:
    schema = {"type": "string", "format": name}
    made = value_for(schema)
    assert read(made) is not None
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(made)


def test_a_date_of_a_pattern_is_a_date() -> None:
    """A digit is chosen so that it makes a valid month, day and hour."""
    pattern = r"^\d{4}/(0[1-9]|1[0-2])/(0[1-9]|[12]\d|3[01]) ([01]\d|2[0-3]):[0-5]\d$"
    made = value_for({"type": "string", "pattern": pattern})
    datetime.datetime.strptime(made, "%Y/%m/%d %H:%M")


@pytest.mark.parametrize(
    "pattern",
    [
        "^[A-Z]{2}\\d{2}[A-Z0-9]{11,30}$",
        "^(?:[0-9]{1,3}\\.){3}[0-9]{1,3}$",
        "^#(?:[0-9a-fA-F]{3}){1,2}$",
        "^\\+?[1-9]\\d{1,14}$",
        "^https?://[^\\s/$.?#].[^\\s]*$",
        "^[a-z0-9]+(?:-[a-z0-9]+)*$",
        "^(0|[1-9]\\d*)\\.(0|[1-9]\\d*)\\.(0|[1-9]\\d*)(?:-[0-9A-Za-z-]+)?$",
        "^([01]\\d|2[0-3]):[0-5]\\d$",
        '^[^<>:"/\\\\|?*]+$',
        "^arn:aws:iam::\\d{12}:role/[\\w+=,.@-]+$",
        "^[\\x00-\\x08]$",
        "",
    ],
)
def test_patterns_in_use_are_matched(pattern: str) -> None:
    made = value_for({"type": "string", "pattern": pattern})
    assert re.search(pattern, made)


# --- a place for a text ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "required", "carrier"),
    [
        ({"a": STRING}, [], "a"),
        ({"a": STRING, "b": STRING}, ["b"], "a"),
        ({"n": INTEGER, "a": {"type": ["null", "string"]}}, [], "a"),
        ({"n": INTEGER, "a": STRING, "m": INTEGER}, ["n", "m"], "a"),
        ({"e": {"type": "string", "enum": ["x"]}, "a": STRING}, ["e"], "a"),
        ({"a": {"$ref": "#/$defs/text"}}, [], "a"),
        ({"s": {"type": "string", "maxLength": 9}, "p": {"type": "string", "pattern": "^x*$"}}, [], ""),
        ({"o": obj(a=STRING)}, ["o"], ""),
        ({"n": INTEGER}, [], ""),
    ],
)
def test_the_first_string_that_accepts_any_text_carries_it(
    properties: Json, required: list[str], carrier: str
) -> None:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": {"text": STRING},
    }
    made = drafted(schema)
    assert bool(made.before) is bool(carrier)
    filled = json.loads(made.with_text('digest=1 "quoted"'))
    assert_valid(schema, filled)
    assert (filled.get(carrier) == 'digest=1 "quoted"') is bool(carrier)
    assert set(filled) == {*required, carrier} - {""}


def test_an_empty_text_leaves_the_document_as_it_is() -> None:
    made = drafted(obj(a=STRING, n=INTEGER))
    assert json.loads(made.with_text("")) == json.loads(made.plain) == {"a": "a", "n": 1}


# --- schemas that are refused ----------------------------------------------------------------

UNSUPPORTED: dict[str, Json] = {
    "not": {"type": "string", "not": {"enum": ["other"]}},
    "uniqueItems": arr(INTEGER, minItems=1, uniqueItems=True),
    "contains": {"type": "array", "contains": STRING},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"card": ["address"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "if": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "oneOf": {"oneOf": [{"minimum": 1}, {"maximum": -1}], "type": "integer"},
    "format: phone": {"type": "string", "format": "phone"},
    "min/maxProperties": {"type": "object", "properties": {"a": STRING}, "maxProperties": 1},
}


@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_unsupported_keywords_are_refused_if_strict_and_ignored_otherwise(keyword: str) -> None:
    schema = UNSUPPORTED[keyword]
    with pytest.raises(InvalidRequest, match=f"cannot use this schema: .*{keyword}") as refused:
        drafted(schema)
    assert "Enable" not in refused.value.message
    assert_valid(schema, value_for(schema, strict=False))


def test_an_ignored_keyword_may_be_violated() -> None:
    schema = arr(INTEGER, minItems=3, uniqueItems=True)
    assert value_for(schema, strict=False) == [1, 1, 2]


def test_a_schema_cannot_choose_the_options_of_the_compiler() -> None:
    options = {"lenient": True, "item_separator": " , ", "whitespace_flexible": True}
    schema = {**obj(a=INTEGER, b=INTEGER), "x-guidance": options}
    assert drafted(schema).plain == '{"a":1,"b":2}'
    with pytest.raises(InvalidRequest, match="not"):
        drafted({**schema, "not": {}})


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"type": 5},
        {"enum": "abc"},
        {"properties": []},
        {"properties": {"a": 3}, "required": ["a"]},
        {"required": "a"},
        {"anyOf": {}},
        {"allOf": [3]},
        {"pattern": "("},
        {"type": "string", "pattern": "(a)\\1"},
        {"type": "string", "pattern": "^(?=.*\\d).{8,}$"},
        {"minimum": "3"},
        {"type": "integer", "minimum": 10**400},
        {"type": "number", "multipleOf": 0},
        {"minLength": -1},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema.json"},
    ],
    ids=repr,
)
def test_malformed_schemas_are_refused(schema: Json, strict: bool) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot use this schema: .*\w\W?\.$"):
        drafted(schema, strict=strict)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": []},
        {"type": "string", "enum": [1, 2]},
        {"type": "string", "const": "abc", "maxLength": 2},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"allOf": [STRING, INTEGER]},
        {"anyOf": [False, {"allOf": [BOOLEAN, NULL]}]},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"type": "object", "properties": {k: {"$ref": "#"} for k in "abc"}, "required": [*"abc"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 2},
        {"$ref": "#"},
    ],
    ids=repr,
)
def test_schemas_without_a_value_are_refused(schema: Json) -> None:
    with pytest.raises(InvalidRequest, match=r"the simulated engine (cannot|finds no)"):
        drafted(schema)


# --- bounds ----------------------------------------------------------------------------------


def nested(innermost: str, levels: int, before: str, after: str) -> bytes:
    return (before * levels + innermost + after * levels).encode()


def linked(levels: int, link: Any, last: Any) -> bytes:
    """A chain of references, each definition made by ``link`` from the next."""
    defs = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(levels)}
    return encoded({"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": last}})


HOSTILE: dict[str, bytes] = {
    "references in a circle": encoded(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}
    ),
    "nested anyOf by reference": linked(60, lambda it: {"anyOf": [it, it]}, False),
    "nested anyOf of objects": linked(40, lambda it: {"anyOf": [obj(a=it), obj(b=it)]}, False),
    "many choices": encoded({"allOf": [{"anyOf": [{"const": n}, {"const": n + 1}]} for n in range(99)]}),
    "wide and deep": linked(30, lambda it: obj(a=it, b=it, c=it), STRING),
    "deep allOf": nested("false", 30_000, '{"allOf":[', "]}"),
    "deep arrays": nested("{}", 5000, '{"type":"array","minItems":1,"items":', "}"),
    "many items": encoded({"type": "array", "minItems": 10**9}),
    "many properties": encoded({"type": "object", "minProperties": 10**9}),
    "long string": encoded({"type": "string", "minLength": 10**9}),
    "long enum": encoded({"enum": list(range(10**5))}),
    "long pattern": encoded({"type": "string", "pattern": "((((a{999}){999}){999}){999})"}),
    "nested repeats": encoded({"enum": ["x" * 50], "pattern": "^" + "(" * 30 + "x*" + ")*" * 30 + "y$"}),
    "pattern too long": encoded({"type": "string", "pattern": "a?" * 10**5}),
    "deep pattern": encoded({"type": "string", "pattern": "(" * 5000 + ")" * 5000}),
}


async def test_hostile_schemas_are_refused_and_the_sandbox_serves_on() -> None:
    sandbox = Sandbox(SandboxLimits(timeout_s=0.5))
    try:
        for schema in HOSTILE.values():
            with pytest.raises(InvalidRequest, match=r"\w"):
                await sandbox.run("t", "sample_document", schema, True, STATES)
            fields = await sandbox.run("t", "sample_document", encoded(obj(name=STRING)), True, STATES)
            assert json.loads(fields[0]) == {"name": "name"}
    finally:
        await sandbox.close()


@pytest.mark.parametrize(
    "schema",
    [
        obj(None, **{f"p{n}": obj(a=STRING, b=arr(INTEGER), c=MAYBE_STRING) for n in range(200)}),
        obj(None, **{f"p{n}": STRING for n in range(1000)}),
        {"type": "object", "properties": {f"p{n}": STRING for n in range(300)}},
        {"anyOf": [obj(kind={"const": n}, value=STRING) for n in range(500)]},
        {"enum": list(range(10**4))},
        json.loads(linked(14, lambda it: obj(child=it, other=STRING), STRING)),
        json.loads(linked(40, lambda it: {"allOf": [it]}, STRING)),
        arr(INTEGER, minItems=1000),
    ],
    ids=["objects", "required", "optional", "branches", "enum", "deep", "references", "items"],
)
def test_large_schemas_are_within_the_bounds(schema: Json) -> None:
    Draft202012Validator(schema).validate(value_for(schema))


# --- any schema ------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b_c", "city", "ünï", "x-y", "", 'quo"te', "back\\slash"])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9, width=16) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
REF_NAMES = {"leaf": "leaf", "sl/ash": "sl~1ash", "til~de": "til~0de"}


@st.composite
def string_schemas(draw: st.DrawFn) -> Json:
    shortest = draw(st.integers(0, 12))
    return draw(
        st.sampled_from(
            [
                {"minLength": shortest, "maxLength": shortest + draw(st.integers(0, 3))},
                {"pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$", "minLength": shortest},
                {"pattern": "^(?:GET|POST) /\\w*$"},
                {"pattern": "[^\\s]{3}$", "maxLength": 3 + shortest},
                {"format": draw(st.sampled_from(["date", "email", "uuid", "ipv4", "uri"]))},
            ]
        ).map(lambda more: {"type": "string", **more})
    )


@st.composite
def number_schemas(draw: st.DrawFn) -> Json:
    low, width = draw(st.integers(-1000, 1000)), draw(st.integers(2, 50))
    bounds = draw(
        st.sampled_from(
            [
                {"minimum": low, "maximum": low + width},
                {"exclusiveMinimum": low, "exclusiveMaximum": low + width},
                {"minimum": low, "multipleOf": width},
                {"exclusiveMaximum": low, "multipleOf": width},
                {"minimum": low / 4, "maximum": low / 4 + width},
            ]
        )
    )
    return {"type": draw(st.sampled_from(["integer", "number"])), **bounds}


LEAVES = st.one_of(
    string_schemas(),
    number_schemas(),
    st.sampled_from([{}, BOOLEAN, NULL, STRING, INTEGER, NUMBER, MAYBE_STRING]),
    JSON_VALUES.map(lambda value: {"const": value}),
    st.lists(JSON_VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.sampled_from(sorted(REF_NAMES.values())).map(lambda name: {"$ref": f"#/$defs/{name}"}),
)


@st.composite
def object_schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Json:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    names = sorted(properties)
    required = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": draw(st.booleans() | inner),
    }
    return draw(st.sampled_from([schema, {"allOf": [{"required": required}, schema]}, {"anyOf": [schema]}]))


@st.composite
def array_schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Json:
    items, fewest = draw(inner), draw(st.integers(0, 3))
    prefix = draw(st.lists(inner, min_size=1, max_size=3))
    return draw(
        st.sampled_from(
            [
                arr(items, minItems=fewest, maxItems=fewest + 1),
                arr(False, prefixItems=prefix, minItems=min(fewest, len(prefix))),
                arr(obj(key=STRING, value=items), minItems=fewest),
            ]
        )
    )


@st.composite
def branching_schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Json:
    one, other = draw(inner), draw(inner)
    tagged = [obj(kind={"const": "one"}, value=one), obj(kind={"const": "other"}, value=other)]
    return draw(
        st.sampled_from(
            [
                {"anyOf": draw(st.permutations([one, NULL]))},
                {"anyOf": [one, other]},
                {"anyOf": tagged},
            ]
        )
    )


SUBSCHEMAS = st.recursive(
    LEAVES,
    lambda inner: object_schemas(inner) | array_schemas(inner) | branching_schemas(inner),
    max_leaves=8,
)


@st.composite
def schemas(draw: st.DrawFn) -> Json:
    """Schemas of supported keywords for which there is a value, by how they are put together."""
    recursive = {"anyOf": [obj(next={"$ref": "#/$defs/sl~1ash"}), draw(number_schemas())]}
    defs = {"leaf": draw(string_schemas()), "sl/ash": recursive, "til~de": {"$ref": "#/$defs/leaf"}}
    return {"allOf": [draw(SUBSCHEMAS)], "$defs": defs}


DETERMINISTIC = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@settings(DETERMINISTIC, max_examples=120)
@given(schemas())
def test_any_satisfiable_schema_has_a_value(schema: Json) -> None:
    made = drafted(schema)
    assert_valid(schema, json.loads(made.plain), json.loads(made.with_text("digest=1")))
    assert drafted(schema) == made


KEYWORD_NAMES = sorted({key for schema in (*KEYWORDS.values(), *UNSUPPORTED.values()) for key in schema})
NONSENSE = st.recursive(
    JSON_VALUES,
    lambda inner: st.dictionaries(st.sampled_from(KEYWORD_NAMES), inner, max_size=5),
    max_leaves=8,
)


@settings(DETERMINISTIC, max_examples=100)
@given(st.dictionaries(st.sampled_from(KEYWORD_NAMES), NONSENSE, max_size=5), st.booleans())
def test_nonsense_is_refused_or_has_a_value(schema: Json, strict: bool) -> None:
    try:
        made = drafted(schema, strict=strict)
    except InvalidRequest:
        return
    json.loads(made.plain)
