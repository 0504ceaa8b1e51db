"""The values made for JSON Schemas: valid, natural, the same every time, and found soon."""

import copy
import datetime
import ipaddress
import json
import re
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from slipring.engines.simulated.schemas import patterns
from slipring.engines.simulated.schemas.instances import Unsatisfiable, instance

# Far more than any schema takes (well below one second), as the machine may be busy.
SOON_S = 10.0


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object schema, strict in the sense of function tools unless told what is required."""
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
    "true": True,
    "empty": {},
    "only a description": {"description": "anything"},
    "const": {"const": {"deep": [1, None, {"x": False}]}},
    "const null": {"const": None},
    "enum and type": {"enum": [1, "one", None], "type": "string"},
    "enum of booleans that look like numbers": {"enum": [1, True], "type": "boolean"},
    "type list": {"type": ["null", "integer"]},
    "untyped properties": {"properties": {"a": INTEGER}, "required": ["a"]},
    "untyped items": {"items": INTEGER, "minItems": 2},
    "untyped pattern": {"type": "object", "properties": {"p": {"pattern": "^x+$"}}},
    "default that is wrong": {"type": "integer", "default": "no", "examples": ["neither"]},
    "lengths": {"type": "string", "minLength": 7, "maxLength": 9},
    "empty string": {"type": "string", "maxLength": 0},
    "long string": {"type": "string", "minLength": 5000},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 30},
    "pattern not anchored": {"type": "string", "pattern": "ab", "minLength": 12},
    "two patterns": {"allOf": [{"pattern": "^[a-z]"}, {"pattern": "[0-9]$"}], "type": "string"},
    "branch by length": {"type": "string", "pattern": "^(\\d{5}|\\d{9})$", "minLength": 9},
    "password": {"type": "string", "pattern": "^(?=.*[A-Z])(?=.*\\d)(?=.*[!@#$%]).{8,}$"},
    "named group": {"type": "string", "pattern": "^v(?P<major>\\d+)\\.(?:0|[1-9]\\d*)$"},
    "other script": {"type": "string", "pattern": "^[\\u4e00-\\u9fff]{2}$"},
    "pattern ignoring case": {"enum": ["ABC"], "pattern": "(?i)^abc$"},
    "format and length": {"type": "string", "format": "uri", "minLength": 60},
    "format unknown": {"type": "string", "format": "phone"},
    "minimum": {"type": "integer", "minimum": 18},
    "maximum": {"type": "integer", "maximum": -3},
    "exclusive": {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
    "exclusive fraction": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "fractional bounds of an integer": {"type": "integer", "minimum": 1.5, "maximum": 2.5},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 50},
    "multiple of a tenth": {"type": "number", "multipleOf": 0.1, "minimum": 5.1},
    "multiples of both": {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"},
    "multiple below": {"type": "number", "multipleOf": 2.5, "maximum": -1},
    "enormous": {"type": "number", "minimum": 1e300},
    "more enormous than a float": {"type": "integer", "minimum": 10**400},
    "minItems of objects": arr(obj(x=NUMBER), minItems=3, maxItems=3),
    "unique integers": arr({"type": "integer", "minimum": 5}, minItems=4, uniqueItems=True),
    "unique strings": arr({"type": "string", "maxLength": 2}, minItems=8, uniqueItems=True),
    "unique enum": arr({"enum": ["a", "b", "c"]}, minItems=3, uniqueItems=True),
    "unique dates": arr({"type": "string", "format": "date"}, minItems=9, uniqueItems=True),
    "unique patterns": arr({"type": "string", "pattern": "^\\d{2}$"}, minItems=9, uniqueItems=True),
    "unique pairs": arr(arr(BOOLEAN, minItems=2), minItems=2, uniqueItems=True),
    "unique objects": arr(obj(id=INTEGER), minItems=3, uniqueItems=True),
    "unique true is not one": {
        "prefixItems": [{"const": 1}, {"const": True}],
        "minItems": 2,
        "uniqueItems": True,
        "type": "array",
    },
    "contains": {"type": "array", "contains": {"const": 7}, "minContains": 2},
    "contains beyond a prefix": {
        "type": "array",
        "prefixItems": [STRING],
        "items": INTEGER,
        "contains": {"type": "integer", "minimum": 9},
    },
    "contains two things": {
        "type": "array",
        "allOf": [{"contains": {"const": "x"}}, {"contains": {"const": "y"}}],
    },
    "tuple and no more": {"type": "array", "prefixItems": [STRING, NUMBER], "items": False},
    "no items": {"type": "array", "items": STRING, "maxItems": 0},
    "items that cannot be": {"type": "array", "items": False},
    "minProperties": {
        "type": "object",
        "properties": {"a": STRING, "b": STRING},
        "minProperties": 2,
    },
    "minProperties, made up": {"type": "object", "minProperties": 3},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x-[a-z]+$": INTEGER},
        "additionalProperties": False,
        "minProperties": 2,
    },
    "propertyNames": {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Z]{3}$"},
        "additionalProperties": BOOLEAN,
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
    "maxProperties": {"type": "object", "properties": {"a": STRING}, "maxProperties": 0},
    "dependentRequired": {
        "type": "object",
        "properties": {"card": STRING, "address": STRING},
        "required": ["card"],
        "dependentRequired": {"card": ["address"]},
    },
    "dependentSchemas": {
        "type": "object",
        "required": ["a"],
        "dependentSchemas": {"a": {"required": ["b"], "properties": {"b": INTEGER}}},
    },
    "anyOf with a sibling": {"type": "string", "anyOf": [INTEGER, {"minLength": 6}]},
    "anyOf of required": {
        "type": "object",
        "properties": {"a": STRING, "b": STRING},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "oneOf that overlaps": {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"},
    "oneOf of required": {
        "type": "object",
        "properties": {"a": STRING, "b": STRING},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "allOf of bounds": {"allOf": [NUMBER, {"minimum": 2}, {"maximum": 3}, {"not": {"const": 2}}]},
    "allOf, number and integer": {"allOf": [NUMBER, INTEGER]},
    "allOf on one property": {
        "allOf": [
            {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            {"properties": {"n": {"minimum": 10}}},
        ]
    },
    "if and then": {
        "type": "object",
        "properties": {"country": {"enum": ["US", "NL"]}, "postal_code": STRING},
        "required": ["country", "postal_code"],
        "if": {"properties": {"country": {"const": "US"}}},
        "then": {"properties": {"postal_code": {"pattern": "^\\d{5}$"}}},
        "else": {"properties": {"postal_code": {"pattern": "^\\d{4} [A-Z]{2}$"}}},
    },
    "if, then impossible": {
        "type": "object",
        "properties": {"kind": STRING},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": False,
        "else": {"required": ["b"]},
    },
    "not a type": {"not": {"type": ["object", "string"]}},
    "not some values": {"type": "string", "not": {"enum": ["text", "text2"]}},
    "not required": {"type": "object", "properties": {"a": STRING}, "not": {"required": ["a"]}},
    "not empty": {"type": "object", "not": {"maxProperties": 0}, "properties": {"a": STRING}},
}

SCHEMAS = {**TOOLS, **OUTPUTS, **KEYWORDS}


def keys_of(schema: Any) -> list[str]:
    return list(schema) if isinstance(schema, dict) else []


def assert_valid(schema: Any, value: Any) -> None:
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(value)


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(SCHEMAS) == len(TOOLS) + len(OUTPUTS) + len(KEYWORDS) >= 60


@pytest.mark.parametrize("name", SCHEMAS)
def test_values_are_valid_and_the_same_every_time(name: str) -> None:
    schema = SCHEMAS[name]
    before = copy.deepcopy(schema)
    value = instance(schema)
    assert_valid(schema, value)
    assert json.loads(json.dumps(value)) == value
    assert instance(json.loads(json.dumps(schema))) == value
    assert schema == before


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (None, {}),
        ({}, {}),
        (STRING, "text"),
        (INTEGER, 1),
        (NUMBER, 1),
        (BOOLEAN, True),
        (NULL, None),
        ({"type": "integer", "minimum": 18}, 18),
        (TOOLS["exec_command"], {"cmd": "cmd"}),
        (TOOLS["shell"], {"command": ["command"]}),
        (TOOLS["weather"], {"location": "location", "units": "celsius"}),
        (TOOLS["weather, nothing required"], {"city": "city"}),
        (TOOLS["no parameters"], {}),
        (TOOLS["labels of any name"], {"labels": {}}),
        (OUTPUTS["linked list, recursive by $defs"], {"linked_list": {"value": 1, "next": None}}),
        (OUTPUTS["tree"], {"name": "name", "children": []}),
        (OUTPUTS["tree of two children or more"], {"leaf": "leaf"}),
        (OUTPUTS["optional recursion only"], {"name": "name"}),
        (KEYWORDS["type list"], 1),
        (KEYWORDS["multiple of a tenth"], 5.2),
        (KEYWORDS["not required"], {}),
    ],
)
def test_values_look_natural(schema: Any, value: Any) -> None:
    made = instance(schema)
    assert made == value
    assert type(made) is type(value)


def test_what_is_made_shares_nothing_with_the_schema() -> None:
    schema = {"const": {"list": [1]}}
    made: Any = instance(schema)
    made["list"].append(2)
    assert schema == {"const": {"list": [1]}}


@pytest.mark.parametrize(
    ("format_name", "read"),
    [
        ("date", datetime.date.fromisoformat),
        ("time", datetime.time.fromisoformat),
        ("date-time", datetime.datetime.fromisoformat),
        ("uuid", uuid.UUID),
        ("ipv4", ipaddress.IPv4Address),
        ("ipv6", ipaddress.IPv6Address),
        ("uri", lambda text: urlsplit(text).hostname.index("example.com")),
        ("hostname", lambda text: re.fullmatch(r"([a-z0-9]+\.)+[a-z]+", text).group()),
        ("email", lambda text: re.fullmatch(r"[a-z0-9]+@([a-z0-9]+\.)+[a-z]+", text).group()),
    ],
)
def test_formats(format_name: str, read: Any) -> None:
    one = {"type": "string", "format": format_name}
    made: Any = instance(arr(one, minItems=20, uniqueItems=True))
    for text in made:
        read(text)
        Draft202012Validator(one, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(text)


# --- what cannot be satisfied ---------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        5,
        "string",
        [],
        {"type": "strin"},
        {"type": 5},
        {"type": []},
        {"type": [["string"]]},
        {"enum": "abc"},
        {"properties": []},
        {"properties": {"a": 3}, "required": ["a"]},
        {"required": "a"},
        {"required": [1]},
        {"required": [["a"]]},
        {"anyOf": []},
        {"anyOf": {}},
        {"allOf": [3]},
        {"items": [{"type": "string"}]},
        {"not": "this"},
        {"pattern": 3},
        {"pattern": "("},
        {"pattern": "\\p{Greek}"},
        {"type": "string", "pattern": "(a)\\1"},
        {"minimum": "3"},
        {"minimum": float("nan")},
        {"maximum": float("inf")},
        {"exclusiveMinimum": True},
        {"multipleOf": 0},
        {"minLength": -1},
        {"minLength": 1.5},
        {"$ref": 3},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/enum/x", "enum": [1]},
        {"$ref": "#/enum/7", "enum": [1]},
        {"$ref": "#anchor"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/title", "title": "not a schema"},
    ],
    ids=repr,
)
def test_malformed_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(Unsatisfiable, match=r"\w"):
        instance(schema)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"not": {}},
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
        {"oneOf": [STRING, STRING], "type": "string"},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "array", "items": BOOLEAN, "uniqueItems": True, "minItems": 3},
        {"type": "array", "items": STRING, "contains": INTEGER},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "required": ["a"], "properties": {"a": {"not": {}}}},
        {"type": "object", "required": ["a", "b"], "maxProperties": 1},
        {"type": "object", "propertyNames": False, "minProperties": 1},
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"type": "object", "properties": {k: {"$ref": "#"} for k in "abc"}, "required": [*"abc"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 2},
    ],
    ids=repr,
)
def test_contradictory_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(Unsatisfiable, match="no value was found"):
        instance(schema)


def nested(innermost: Any, levels: int, wrap: Any) -> Any:
    for _ in range(levels):
        innermost = wrap(innermost)
    return innermost


def chain(levels: int, link: Any, last: Any) -> dict[str, Any]:
    """A schema of references, each to the next, that a naive search walks many times over."""
    defs = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": last}}


EXPLOSIVE: dict[str, Any] = {
    "a reference to itself": {"$ref": "#"},
    "references in a circle": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    "nested anyOf": nested(False, 24, lambda it: {"anyOf": [it, {"allOf": [it]}]}),
    "nested anyOf by reference": chain(60, lambda it: {"anyOf": [it, it]}, False),
    "nested oneOf by reference": chain(60, lambda it: {"oneOf": [it, it]}, STRING),
    "nested anyOf of objects": chain(40, lambda it: {"anyOf": [obj(a=it), obj(b=it)]}, False),
    "many choices": {"allOf": [{"anyOf": [{"const": n}, {"const": n + 1}]} for n in range(99)]},
    "wide and deep": chain(30, lambda it: obj(a=it, b=it, c=it), STRING),
    "deep anyOf": nested(False, 5000, lambda it: {"anyOf": [it]}),
    "deep allOf": nested(False, 30000, lambda it: {"allOf": [it]}),
    "deep not": nested({}, 5000, lambda it: {"not": it}),
    "deep arrays": nested({}, 5000, lambda it: arr(it, minItems=1)),
    "many items": {"type": "array", "minItems": 10**9},
    "many unique items": arr(STRING, minItems=10**5, uniqueItems=True),
    "much contained": {"type": "array", "contains": STRING, "minContains": 10**9},
    "many properties": {"type": "object", "minProperties": 10**9},
    "long string": {"type": "string", "minLength": 10**9},
    "long enum": {"enum": list(range(10**5)), "not": {"type": "number"}},
    "many required": {"type": "string", "required": [str(n) for n in range(10**5)], "not": {}},
    "long pattern": {"type": "string", "pattern": "((((a{999}){999}){999}){999})"},
    "empty repeats": {"type": "string", "pattern": "^((){999999999}){999999999}b{0}$", "not": {}},
    "backtracking pattern": {"enum": ["x" * 5000], "pattern": "^(x+x+)+y$"},
    "nested repeats": {"enum": ["x" * 50], "pattern": "^" + "(" * 30 + "x*" + ")*" * 30 + "y$"},
    "long text": {"enum": ["x" * 10**5], "pattern": "^(x{2,3}){9,}y"},
    "long text looked back at": {"enum": ["x" * 10**5], "pattern": "(?<!x)(?<=y)y"},
    "wide class": {"type": "string", "pattern": "[" + "\\x00" * 1000 + "z]{10000}y", "not": {}},
    "pattern too long": {"type": "string", "pattern": "a?" * 10**5},
    "deep pattern": {"type": "string", "pattern": "(" * 5000 + ")" * 5000},
}


@pytest.mark.parametrize("name", EXPLOSIVE)
def test_explosive_schemas_are_refused_soon(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(Unsatisfiable, match=r"\w"):
        instance(EXPLOSIVE[name])
    assert time.monotonic() - started < SOON_S


@pytest.mark.parametrize(
    "schema",
    [
        obj(None, **{f"p{n}": obj(a=STRING, b=arr(INTEGER), c=MAYBE_STRING) for n in range(200)}),
        {"type": "object", "properties": {f"p{n}": STRING for n in range(1000)}},
        {"anyOf": [obj(kind={"const": n}, value=STRING) for n in range(500)]},
        {"enum": list(range(10**5))},
        nested(STRING, 14, lambda it: obj(child=it, other=STRING)),
        chain(40, lambda it: {"allOf": [it]}, STRING),
        arr(INTEGER, minItems=1000),
    ],
    ids=["objects", "properties", "branches", "enum", "deep", "references", "items"],
)
def test_large_schemas_are_within_the_bounds(schema: Any) -> None:
    assert_valid(schema, instance(schema))


# --- any schema -----------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b_c", "city", "ünï", "x-y", ""])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
REF_NAMES = {"leaf": "leaf", "sl/ash": "sl~1ash", "til~de": "til~0de"}


@st.composite
def string_schemas(draw: st.DrawFn) -> dict[str, Any]:
    shortest = draw(st.integers(0, 12))
    return draw(
        st.sampled_from(
            [
                {"minLength": shortest, "maxLength": shortest + draw(st.integers(0, 3))},
                {"pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$", "minLength": shortest},
                {"pattern": "^(?:GET|POST) /\\w*$"},
                {"pattern": "[^\\s]{3}$", "maxLength": 3 + shortest},
                {"format": draw(st.sampled_from(["date", "email", "uuid", "ipv4", "uri"]))},
                {"not": {"enum": ["text", "a", "city"]}},
            ]
        ).map(lambda more: {"type": "string", **more})
    )


@st.composite
def number_schemas(draw: st.DrawFn) -> dict[str, Any]:
    low, width = draw(st.integers(-1000, 1000)), draw(st.integers(2, 50))
    kind = draw(st.sampled_from(["integer", "number"]))
    step = draw(st.sampled_from([1, 2, 0.5, 0.25])) if kind == "number" else 1
    bounds = draw(
        st.sampled_from(
            [
                {"minimum": low, "maximum": low + width},
                {"exclusiveMinimum": low, "exclusiveMaximum": low + width},
                {"minimum": low, "multipleOf": width},
                {"exclusiveMaximum": low, "multipleOf": width * step},
                {"minimum": low / 4, "maximum": low / 4 + width},
            ]
        )
    )
    return {"type": kind, **bounds}


LEAVES = st.one_of(
    string_schemas(),
    number_schemas(),
    st.sampled_from([True, {}, BOOLEAN, NULL, STRING, INTEGER, NUMBER, MAYBE_STRING]),
    JSON_VALUES.map(lambda value: {"const": value}),
    st.lists(JSON_VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.sampled_from(sorted(REF_NAMES.values())).map(lambda name: {"$ref": f"#/$defs/{name}"}),
)


@st.composite
def object_schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    names = sorted(properties)
    required = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "minProperties": draw(st.integers(0, len(properties))),
        "additionalProperties": draw(st.booleans() | inner),
    }
    # Half of the properties in a schema of their own must come to the same.
    half = {name: properties[name] for name in names[::2]}
    split = [{"properties": half}, {"required": required}, schema]
    return draw(st.sampled_from([schema, {"allOf": split}, {"anyOf": [False, schema]}]))


@st.composite
def array_schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    items, fewest = draw(inner), draw(st.integers(0, 3))
    prefix = draw(st.lists(inner, min_size=1, max_size=3))
    return draw(
        st.sampled_from(
            [
                arr(items, minItems=fewest, maxItems=fewest + 1),
                arr(False, prefixItems=prefix, minItems=min(fewest, len(prefix))),
                arr(items, contains=items, minContains=fewest),
                arr(True, contains=items, minItems=fewest),
                arr(INTEGER, minItems=fewest, uniqueItems=True),
                arr(obj(key=STRING, value=items), minItems=fewest, uniqueItems=True),
            ]
        )
    )


@st.composite
def branching_schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    one, other = draw(inner), draw(inner)
    tagged = [obj(kind={"const": "one"}, value=one), obj(kind={"const": "other"}, value=other)]
    is_one = {"properties": {"kind": {"const": "one"}}}
    conditional = {
        **{"if": is_one, "then": {"properties": {"value": one}}},
        **{"else": {"properties": {"value": other}}},
    }
    return draw(
        st.sampled_from(
            [
                {"anyOf": draw(st.permutations([one, NULL]))},
                {"anyOf": [one, other]},
                {"allOf": [one, {"description": "the same"}, one]},
                {"oneOf": tagged},
                {**obj(kind={"enum": ["other", "one"]}, value=True), **conditional},
                {"not": {"not": one}, "allOf": [one]},
            ]
        )
    )


SUBSCHEMAS = st.recursive(
    LEAVES,
    lambda inner: object_schemas(inner) | array_schemas(inner) | branching_schemas(inner),
    max_leaves=8,
)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas for which there is a value, by how they are put together."""
    recursive = {"anyOf": [obj(next={"$ref": "#/$defs/sl~1ash"}), draw(number_schemas())]}
    defs = {"leaf": draw(string_schemas()), "sl/ash": recursive, "til~de": {"$ref": "#/$defs/leaf"}}
    return {"allOf": [draw(SUBSCHEMAS)], "$defs": defs}


DETERMINISTIC = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@settings(DETERMINISTIC, max_examples=250)
@given(schemas())
def test_any_satisfiable_schema_has_a_value(schema: Any) -> None:
    value = instance(schema)
    assert_valid(schema, value)
    assert instance(schema) == value


KEYWORD_NAMES = sorted({key for schema in KEYWORDS.values() for key in keys_of(schema)})


NONSENSE = st.recursive(
    JSON_VALUES,
    lambda inner: st.dictionaries(st.sampled_from(KEYWORD_NAMES), inner, max_size=5),
    max_leaves=8,
)


@settings(DETERMINISTIC, max_examples=200)
@given(NONSENSE)
def test_nonsense_is_refused_or_satisfied_but_never_crashes(schema: Any) -> None:
    try:
        value = instance(schema)
    except Unsatisfiable:
        return
    if isinstance(schema, bool | dict):
        Draft202012Validator(schema).validate(value)


# --- patterns -------------------------------------------------------------------------------


@st.composite
def regexes(draw: st.DrawFn) -> str:
    atom = st.sampled_from(
        [*"abc1-", ".", "\\d", "\\w", "\\s", "\\W", "[a-c]", "[^ab]", "[\\d-]", "\\.", "\\b"]
    )
    quantifier = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])

    def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = st.sampled_from(["(?:{})", "({})", "(?={})", "(?!{})", "(?:{}|b)"])
        grouped = st.builds(lambda form, it: form.format(it), group, inner)
        several = st.lists(inner, min_size=2, max_size=3).map("".join)
        repeated = st.builds(lambda it, count: f"(?:{it}){count}", inner, quantifier)
        return grouped | several | repeated

    body = draw(st.recursive(atom, combined, max_leaves=6))
    return draw(st.sampled_from(["", "^"])) + body + draw(st.sampled_from(["", "$"]))


def free(_: int) -> None:
    """No meter."""


@settings(DETERMINISTIC, max_examples=300)
@given(regexes(), st.text("aabc1-_. ", max_size=6))
def test_patterns_match_as_those_of_python_do(pattern: str, text: str) -> None:
    assert patterns.matches(pattern, text, free) == bool(re.search(pattern, text))


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
        "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])$",
        "^([01]\\d|2[0-3]):[0-5]\\d$",
        "^/(?!.*\\.\\.)[\\w./-]+$",
        "^(?!-)[a-z-]{1,63}(?<!-)$",
        "\\bword\\b",
        '^[^<>:"/\\\\|?*]+$',
        "^arn:aws:iam::\\d{12}:role/[\\w+=,.@-]+$",
        "^[\\x00-\\x08]$",
        "",
    ],
)
def test_patterns_in_use_are_sampled(pattern: str) -> None:
    made: Any = instance({"type": "string", "pattern": pattern, "not": {"const": "text"}})
    assert re.search(pattern, made)


@pytest.mark.parametrize(
    ("pattern", "python"),
    [
        ("^(?<year>\\d{4})$", "^(?P<year>\\d{4})$"),
        ("^[\\w-.]+@([\\w-]+\\.)+[\\w-]{2,4}$", "^[\\w\\-.]+@([\\w-]+\\.)+[\\w-]{2,4}$"),
        ("^\\(?<\\d$", "^\\(?<\\d$"),
    ],
)
def test_patterns_may_be_spelled_as_in_javascript(pattern: str, python: str) -> None:
    made: Any = instance({"type": "string", "pattern": pattern})
    assert re.search(python, made)
