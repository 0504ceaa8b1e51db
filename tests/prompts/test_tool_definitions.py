"""How prompts name, describe and declare tools."""

import json

import pytest

from slipring.prompts.templates.jinja_engines import ChatTemplate
from slipring.prompts.tool_definitions import declare_tools, describe, flat_name
from tests.prompts.parsing.answers import function
from tests.prompts.templates.test_builtin_formats import (
    FILES,
    PATCH,
    PATCH_LINE,
    READ_LINE,
    WEATHER,
    WEATHER_LINE,
    toolset,
)


def test_a_flat_name_begins_with_the_namespace() -> None:
    assert flat_name(function("read")) == "read"
    assert flat_name(function("read", "files")) == "files__read"


def test_every_kind_of_tool_is_described_by_one_line_of_json() -> None:
    weather, read, patch = toolset(WEATHER, FILES, PATCH).callables
    assert [describe(weather), describe(read), describe(patch)] == [WEATHER_LINE, READ_LINE, PATCH_LINE]
    (bare,) = toolset({"type": "custom", "name": "bare"}).callables
    assert json.loads(describe(bare))["function"]["description"] == ""


def test_a_tool_search_without_a_description_has_a_default_one() -> None:
    (search,) = toolset({"type": "tool_search", "execution": "client"}).callables
    function = json.loads(describe(search))["function"]
    assert (function["name"], bool(function["description"])) == ("tool_search", True)
    assert list(function["parameters"]["properties"]) == ["query"]
    (described,) = toolset({"type": "tool_search", "execution": "client", "description": "Finds."}).callables
    assert json.loads(describe(described))["function"]["description"] == "Finds."


def tool(parameters: object, description: str = "") -> dict[str, object]:
    return {
        "type": "function",
        "function": {"name": "f", "description": description, "parameters": parameters},
    }


def declared(parameters: object, description: str = "") -> str:
    """What is declared, without the lines around it."""
    text = declare_tools([tool(parameters, description)])
    assert text is not None
    return text.removeprefix("# Tools\n\n## functions\nnamespace functions {\n").removesuffix("\n}\n")


def property_of(schema: object) -> str:
    """The type of one optional property."""
    text = declared({"type": "object", "properties": {"a": schema}})
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


def test_functions_stand_in_a_namespace() -> None:
    tools = [tool({"type": "object", "properties": {}}), tool({}, "Two\n\nlines.")]
    assert declare_tools(tools) == (
        "# Tools\n\n## functions\nnamespace functions {\n"
        "type f = (_: {}) => any;\n"
        "// Two\n\n// lines.\ntype f = (_: {}) => any;\n"
        "}\n"
    )


def test_required_properties_come_first_and_all_are_sorted() -> None:
    properties = {name: {"type": "integer"} for name in "dbca"}
    assert declared({"type": "object", "properties": properties, "required": ["c", "d"]}) == (
        "type f = (_: {\n  c: number,\n  d: number,\n  a?: number,\n  b?: number\n}) => any;"
    )


@pytest.mark.parametrize(
    ("schema", "type"),
    [
        ({"type": "string"}, "string"),
        ({}, "any"),
        (True, "any"),
        (False, "null"),
        ({"enum": ["x", 1, None]}, '"x" | 1 | null'),
        ({"type": ["string", "integer", "null", "array"]}, "string | number | null | Array<any>"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"type": "array"}, "Array<any>"),
        ({"type": "array", "items": {"type": "number"}}, "Array<number>"),
        ({"type": "object", "additionalProperties": False}, "{\n    [k: string]: never\n  }"),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            "{\n    [k: string]: string\n  }",
        ),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}}, "{\n    b?: boolean\n  }"),
    ],
)
def test_types(schema: object, type: str) -> None:
    assert property_of(schema) == f"  a?: {type}"


def test_what_is_known_beside_the_type_is_a_comment() -> None:
    schema = {"type": "string", "description": "Text.", "minLength": 1, "maxLength": 9, "default": "é"}
    assert (
        property_of(schema) == '  // Text.\n  // maxLength: 9, minLength: 1\n  // Default: "é"\n  a?: string'
    )
    items = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2}
    assert property_of(items) == "  // maxItems: 2\n  a?: Array<\n    // minimum: 0\n    number\n  >"


def test_definitions_are_interfaces() -> None:
    node = {"type": "object", "description": "A node.", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    schema = {"type": "object", "$defs": {"Node": node}, "properties": {"n": {"$ref": "#/$defs/Node"}}}
    assert declared(schema) == (
        "// A node.\ninterface Node {\n  next?: Node\n}\ntype f = (_: {\n  n?: Node\n}) => any;"
    )


def test_a_schema_that_refers_to_itself_is_an_interface() -> None:
    schema = {"type": "object", "properties": {"in": {"$ref": "#"}}}
    assert (
        declared(schema) == "interface parameters {\n  in?: parameters\n}\ntype f = (_: parameters) => any;"
    )


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"description": "no type"},
        {"$ref": "#/definitions/X"},
        {"$ref": "#/$defs/unknown"},
        {"anyOf": [[]]},
        nested(100),
        None,
        {"enum": 1},
        {"type": "array", "items": 1},
        {"type": "object", "required": 1, "properties": {"b": {}}},
        {"type": "object", "properties": [1]},
        {"type": "string", "description": 1},
        {"type": "object", "$defs": {"X": {"type": "object", "$defs": {"Y": {}}}}},
    ],
)
def test_what_has_no_form_is_left_to_json(schema: object) -> None:
    tools = [tool({"type": "object", "properties": {"a": schema}})]
    assert declare_tools(tools) is None
    template = ChatTemplate("{{ tools_ts_str or tools[0].function.name }}")
    assert template.render([], tools) == "f"


def test_a_template_that_reads_types_gets_them() -> None:
    template = ChatTemplate("{{ tools_ts_str or 'no tools' }}")
    tools = [tool({})]
    assert template.render([], tools) == declare_tools(tools)
    assert template.render([]) == "no tools"
