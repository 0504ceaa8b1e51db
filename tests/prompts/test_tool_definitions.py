"""How prompts name and describe tools."""

import json

from slipring.prompts.tool_definitions import describe, flat_name
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
