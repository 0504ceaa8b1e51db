"""Values without quotes get their types from the tool's schema."""

from typing import Any

import msgspec
import pytest

from slipring.prompts.parsing.calls.call_arguments import ArgumentSchema

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, ARRAY, OBJECT, NULL = {"type": "boolean"}, {"type": "array"}, {"type": "object"}, {"type": "null"}


def argument(schema: object, text: str) -> str:
    return ArgumentSchema(msgspec.json.encode({"properties": {"a": schema}})).argument("a", text)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STRING, "1", "1"),
        (STRING, '{"a": 1}', '{"a": 1}'),
        (STRING, "null", "null"),
        (STRING, " x\n", " x\n"),
        (INTEGER, "1", 1),
        (INTEGER, " 1\n", 1),
        (INTEGER, "1.5", 1.5),
        (INTEGER, "one", "one"),
        (INTEGER, "true", "true"),
        (INTEGER, "", ""),
        (NUMBER, "-1e3", -1000.0),
        (NUMBER, "1e999", "1e999"),
        (NUMBER, "01", "01"),
        (BOOLEAN, "true", True),
        (BOOLEAN, "False", False),
        (BOOLEAN, "yes", "yes"),
        (NULL, "None", None),
        (NULL, "null", None),
        (ARRAY, "[1, 2]", [1, 2]),
        (ARRAY, "['a', True]", ["a", True]),
        (ARRAY, "[a]", "[a]"),
        (ARRAY, '{"a": 1}', '{"a": 1}'),
        (ARRAY, "{'a': 1}", "{'a': 1}"),
        (ARRAY, "[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000),
        (OBJECT, '{"a": "\\ud800"}', {"a": "\ufffd"}),
        (OBJECT, "{'a': None}", {"a": None}),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["null", "string"]}, "x", "x"),
        ({"type": ["string", "null"]}, "1", "1"),
        ({"type": ["integer", "null"]}, "1", 1),
        ({"type": ["integer", 1]}, "x", "x"),
        ({"anyOf": [STRING, INTEGER]}, "1", 1),
        ({"anyOf": [STRING, INTEGER]}, "x", "x"),
        ({"oneOf": [STRING, ARRAY]}, '["x"]', ["x"]),
        ({"oneOf": [STRING, ARRAY]}, "1", "1"),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "1", 1),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["a", 1]}, "1", 1),
        ({"enum": "odd"}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"properties": {}}, '{"a": 1}', {"a": 1}),
        ({"properties": {}}, "1", "1"),
        ({"items": {}}, "[1]", [1]),
        ({}, "1", 1),
        ({}, "word", "word"),
        ({}, '"word"', '"word"'),
        ({}, "true", True),
        ({}, "None", None),
        ({}, "[1]", [1]),
        (True, "1", 1),
        ({"$ref": "https://example.com"}, "1", 1),
        ({"$ref": "#/nowhere/at/all"}, "1", 1),
        ({"$ref": "#/properties/a"}, "1", 1),
        ({"$ref": 1}, "1", 1),
    ],
)
def test_values(schema: object, text: str, value: object) -> None:
    assert msgspec.json.decode(argument(schema, text)) == value


def test_references_are_resolved() -> None:
    schema = ArgumentSchema(
        msgspec.json.encode(
            {
                "$ref": "#/$defs/all",
                "$defs": {
                    "all": {"properties": {"a": {"$ref": "#/$defs/x~1y~0"}, "b": {"$ref": "#/$defs/all"}}},
                    "x/y~": {"type": "string"},
                },
            }
        )
    )
    assert schema.argument("a", "1") == '"1"'
    assert schema.knows("a")
    assert schema.knows("b")
    assert not schema.knows("c")


def test_unknown_arguments_have_the_types_of_additional_ones() -> None:
    schema = ArgumentSchema(
        b'{"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}'
    )
    assert schema.argument("b", "1") == '"1"'
    assert not schema.knows("b")


def test_many_alternatives_are_bounded() -> None:
    inner: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        inner = {"anyOf": [inner, inner]}
    assert argument({"anyOf": 1000 * [{"type": "string"}, 1]}, "1") == '"1"'


def test_odd_schemas_are_no_schemas() -> None:
    schema = ArgumentSchema(b'{"properties": 1, "required": 1}')
    assert schema.argument("a", "1") == "1"
    assert schema.required == frozenset()
