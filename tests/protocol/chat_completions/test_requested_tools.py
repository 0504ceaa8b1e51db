"""Tools and the choice among them."""

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw, UnsetType

from slipring.protocol.tools.tool_choice import ToolChoice
from slipring.protocol.tools.toolset import Toolset
from tests.protocol.chat_completions.sent import USER, Json, create, refusal

PARAMETERS: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
LOOK: Json = {
    "type": "function",
    "function": {"name": "look", "description": "Looks", "parameters": PARAMETERS},
}
GRAMMAR: Json = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}
RUN: Json = {"type": "custom", "custom": {"name": "run", "format": GRAMMAR}}


def decoded(raw: Raw | UnsetType) -> Any:
    assert not isinstance(raw, UnsetType)
    return json.loads(bytes(raw))


def test_functions_and_custom_tools_become_flat() -> None:
    tools = create(USER, tools=[LOOK, RUN]).tools
    Toolset.read(tools)
    assert decoded(tools) == [
        {"type": "function", "name": "look", "description": "Looks", "parameters": PARAMETERS},
        {
            "type": "custom",
            "name": "run",
            "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"},
        },
    ]


def test_the_bytes_of_a_tool_depend_on_its_definition_alone() -> None:
    other = {
        "function": {"strict": False, "parameters": PARAMETERS, "description": "Looks", "name": "look"},
        "cache_control": {"type": "ephemeral"},
        "type": "function",
    }
    assert create(USER, tools=[other]).tools == create(USER, tools=[LOOK]).tools
    text = {"type": "custom", "custom": {"name": "run", "format": {"type": "text"}, "description": None}}
    plain = {"type": "custom", "custom": {"name": "run"}}
    assert create(USER, tools=[text]).tools == create(USER, tools=[plain]).tools


def test_a_strict_function_stays_strict() -> None:
    strict = {"type": "function", "function": {"name": "look", "strict": True, "parameters": None}}
    assert decoded(create(USER, tools=[strict]).tools) == [
        {"type": "function", "name": "look", "strict": True}
    ]


@pytest.mark.parametrize("none", [None, []])
def test_no_tools_are_no_tools(none: Any) -> None:
    assert create(USER, tools=none).tools is UNSET


def test_the_older_functions_are_tools_of_which_one_is_called() -> None:
    request = create(USER, functions=[LOOK["function"]], function_call={"name": "look"})
    assert request.tools == create(USER, tools=[LOOK]).tools
    assert decoded(request.tool_choice) == {"type": "function", "name": "look"}
    assert request.parallel_tool_calls is False
    assert decoded(create(USER, functions=[LOOK["function"]], function_call="none").tool_choice) == "none"
    assert create(USER, functions=[LOOK["function"]]).tool_choice is UNSET


CHOICES: dict[str, tuple[Any, Any]] = {
    "none": ("none", "none"),
    "auto": ("auto", "auto"),
    "required": ("required", "required"),
    "a function": ({"type": "function", "function": {"name": "look"}}, {"type": "function", "name": "look"}),
    "a custom tool": ({"type": "custom", "custom": {"name": "run"}}, {"type": "custom", "name": "run"}),
    "some tools": (
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "look"}}],
            },
        },
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_every_choice_is_read(case: str) -> None:
    sent, expected = CHOICES[case]
    choice = create(USER, tools=[LOOK, RUN], tool_choice=sent).tool_choice
    assert decoded(choice) == expected
    ToolChoice.read(choice)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a hosted tool": ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    "a search": ({"tools": [LOOK, {"type": "web_search"}]}, "tools[1].type"),
    "no type": ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    "no function": ({"tools": [{"type": "function"}]}, "tools[0].function"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "no custom": ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
    "no grammar": (
        {"tools": [{"type": "custom", "custom": {"name": "r", "format": {"type": "grammar"}}}]},
        "tools[0].custom.format.grammar",
    ),
    "tools that are no list": ({"tools": {}}, "tools"),
    "an older function without a name": ({"functions": [{}]}, "functions[0].name"),
    "a choice of another type": ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
    "a choice without a name": ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    "an unknown word": ({"tool_choice": "maybe"}, "tool_choice"),
    "allowed tools that are missing": (
        {"tool_choice": {"type": "allowed_tools"}},
        "tool_choice.allowed_tools",
    ),
    "an allowed tool of another type": (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "x"}]},
            }
        },
        "tool_choice.allowed_tools.tools[0].type",
    ),
    "an older choice": ({"function_call": 1}, "function_call"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_field(case: str) -> None:
    fields, param = BAD[case]
    error = refusal(USER, **fields)
    assert (error.status, error.param) == (400, param)
    assert f"'{param}'" in error.message
