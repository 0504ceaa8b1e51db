"""Tools are decoded once, echoed exactly, and bounded in number."""

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.protocol.tools.grammars_and_schemas import Definitions, Grammar
from slipring.protocol.tools.tool_types import MOST_TOOLS
from slipring.protocol.tools.toolset import NO_TOOLS, FunctionTool, Toolset, merged

F = {"type": "function", "name": "f", "parameters": {"type": "object"}}
G = {"type": "function", "name": "g", "parameters": None, "strict": True, "description": "does g"}
SHELL = {"type": "custom", "name": "sh", "format": {"type": "text"}}
OS = {"type": "namespace", "name": "os", "description": "d", "tools": [F, {**SHELL, "name": "run"}]}
REGEX = {"type": "grammar", "syntax": "regex"}
LARK = {"type": "grammar", "syntax": "lark"}
FIND = {"type": "tool_search", "execution": "client"}
LARGE = {"description": "x" * 256 * 1024}
SEARCH = {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}


def definitions(*ignored: str) -> Definitions:
    """Empty definitions with the default limits."""
    return Definitions(
        max_grammars=64,
        max_grammar_bytes=65_536,
        max_schema_bytes=256 * 1024,
        ignored_tools=frozenset(ignored),
    )


def read(*tools: object) -> Toolset:
    return Toolset.read(Raw(json.dumps(tools).encode()), definitions=definitions("web_search"))


def echo(toolset: Toolset) -> list[Any]:
    return json.loads(bytes(toolset.echo))


def refusal(*tools: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(*tools)
    return caught.value


@pytest.mark.parametrize("value", [UNSET, Raw(b"null"), Raw(b"[]"), Raw(b"[ ]")])
def test_no_tools_are_always_the_same_object(value):
    assert Toolset.read(value) is NO_TOOLS


def test_callable_tools_keep_their_order():
    tools = read(F, SEARCH, SHELL, OS)
    assert [(tool.kind, tool.namespace, tool.name) for tool in tools.callables] == [
        ("function", None, "f"),
        ("custom", None, "sh"),
        ("function", "os", "f"),
        ("custom", "os", "run"),
    ]


def test_a_schema_is_kept_as_sent():
    raw = b'[{"type":"function","name":"f","parameters":{ "type" : "object", "n": 1.0 }}]'
    (tool,) = Toolset.read(Raw(raw)).callables
    assert tool.parameters == b'{ "type" : "object", "n": 1.0 }'


@pytest.mark.parametrize("tool", [G, SHELL, {"type": "function", "name": "h"}])
def test_a_tool_may_have_no_schema(tool):
    assert read(tool).callables[0].parameters is None


def test_a_toolset_keeps_its_raw_bytes():
    raw = json.dumps([F, G]).encode()
    assert Toolset.read(Raw(raw)).raw == raw


def test_a_larger_definition_makes_a_larger_toolset():
    assert read({**F, "description": "x" * 1000}).size_bytes - read(F).size_bytes > 2000


# Echo.


def test_a_function_is_echoed_with_the_keys_that_clients_require():
    assert echo(read({"type": "function", "name": "f"})) == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    ]


@pytest.mark.parametrize(
    "tool",
    [
        {**G, "parameters": {"a": [1, {}]}, "defer_loading": True, "async": True},
        {**G, "output_schema": {"type": "string"}, "allowed_callers": ["direct"]},
        SHELL,
        {"type": "custom", "name": "c", "description": "d", "format": {**REGEX, "definition": "a+"}},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"a": 1}},
        SEARCH,
        {"type": "shell", "environment": {"type": "local"}, "x": 1},
    ],
    ids=lambda tool: tool["type"],
)
def test_a_tool_is_echoed_as_it_was_sent(tool):
    assert echo(read(tool)) == [tool]


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_optional_fields_may_be_null(kind):
    """Clients that dump their models write every field."""
    optional = dict.fromkeys(["description", "defer_loading", "async", "allowed_callers"])
    assert read({"type": kind, "name": "x", **optional}).callables[0].name == "x"


def test_a_type_that_nothing_answers_is_refused_unless_it_is_ignored():
    sent = Raw(json.dumps([F, {"type": "image_generation"}]).encode())
    tools = Toolset.read(sent, definitions=definitions("image_generation"))
    assert [tool.name for tool in tools.callables] == ["f"]
    assert echo(tools)[1] == {"type": "image_generation"}
    with pytest.raises(UnsupportedParameter) as caught:
        Toolset.read(sent, definitions=definitions())
    assert caught.value.param == "tools[1].type"


@pytest.mark.parametrize("kind", ["web_search", "image_generation", "from_the_future"])
def test_tools_that_were_accepted_before_are_echoed(kind):
    tools = Toolset.read(Raw(json.dumps([{"type": kind}]).encode()))
    assert tools.callables == ()
    assert echo(tools) == [{"type": kind}]


@pytest.mark.parametrize(
    ("tools", "are_clients"),
    [
        ([F, {"type": "local_shell"}], True),
        ([F, {"type": "shell", "environment": {"type": "local"}}], False),
        ([F, {"type": "mcp", "server_label": "s"}], False),
        ([F, {"type": "web_search"}], False),
    ],
    ids=["client", "shell", "mcp", "builtin"],
)
def test_types_alone_tell_whether_clients_run_all_tools(tools, are_clients):
    """A shell may be that of a container: only its environment tells."""
    assert Toolset.read(Raw(json.dumps(tools).encode())).are_clients is are_clients


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
def test_tools_that_the_client_runs_are_functions_to_a_model(kind):
    tools = read({"type": kind})
    (tool,) = tools.callables
    assert (tool.kind, tool.name, tool.namespace) == (kind, kind, None)
    assert json.loads(tool.parameters or b"")["additionalProperties"] is False
    assert echo(tools) == [{"type": kind}]


# Tool search.


def test_a_deferred_tool_is_echoed_and_not_offered():
    later = {**G, "defer_loading": True}
    tools = read(F, later, FIND, {**OS, "tools": [{**F, "defer_loading": True}, SHELL]})
    assert [(tool.kind, tool.name) for tool in tools.callables] == [
        ("function", "f"),
        ("tool_search", "tool_search"),
        ("custom", "sh"),
    ]
    assert later in echo(tools)


def test_deferred_tools_that_arrive_with_an_item_are_offered():
    raw = Raw(json.dumps([{**G, "defer_loading": True}]).encode())
    assert [tool.name for tool in Toolset.read(raw, loaded=True).callables] == ["g"]


def test_accepted_tools_are_not_validated_again():
    raw = Raw(json.dumps([{**SHELL, "format": {**REGEX, "definition": "("}}]).encode())
    assert Toolset.brought(raw).callables[0].name == "sh"


# Invalid tools.


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (5, "tools[1]"),
        ({}, "tools[1].type"),
        ({"type": None}, "tools[1].type"),
        ({"type": "function"}, "tools[1].name"),
        ({"type": "function", "name": ""}, "tools[1].name"),
        ({"type": "function", "name": "x" * 257}, "tools[1].name"),
        ({"type": "function", "name": "h", "parameters": []}, "tools[1].parameters"),
        ({"type": "function", "name": "h", "parameters": "{}"}, "tools[1].parameters"),
        ({"type": "function", "name": "h", "strict": "yes"}, "tools[1].strict"),
        ({"type": "function", "name": "h", "output_schema": 1}, "tools[1].output_schema"),
        ({"type": "custom", "name": "h", "format": "text"}, "tools[1].format"),
        ({"type": "custom", "name": "h", "format": {}}, "tools[1].format.type"),
        ({"type": "custom", "name": "h", "format": {"type": "json"}}, "tools[1].format.type"),
        ({"type": "custom", "name": "h", "format": REGEX}, "tools[1].format.definition"),
        ({"type": "custom", "name": "h", "format": {"type": "grammar"}}, "tools[1].format.syntax"),
        ({"type": "custom", "name": "h", "format": {**REGEX, "syntax": "ebnf"}}, "tools[1].format.syntax"),
        (
            {"type": "custom", "name": "h", "format": {**REGEX, "definition": ""}},
            "tools[1].format.definition",
        ),
        ({"type": "function", "name": "h", "parameters": LARGE}, "tools[1].parameters"),
        ({"type": "function", "name": "h", "output_schema": LARGE}, "tools[1].output_schema"),
        ({**FIND, "parameters": LARGE}, "tools[1].parameters"),
        ({"type": "tool_search"}, "tools[1].execution"),
        ({"type": "tool_search", "execution": "server"}, "tools[1].execution"),
        ({**FIND, "parameters": []}, "tools[1].parameters"),
        ({"type": "namespace", "name": "n"}, "tools[1].tools"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}, "tools[1].tools[0].type"),
        (
            {"type": "namespace", "name": "n", "tools": [{**F, "parameters": 1}]},
            "tools[1].tools[0].parameters",
        ),
    ],
)
def test_an_error_names_the_index_of_an_invalid_tool(tool, param):
    assert refusal(F, tool).param == param


def test_a_function_in_the_form_of_chat_completions_is_refused_with_the_right_form() -> None:
    error = refusal({"type": "function", "function": {"name": "h", "parameters": {}}})
    assert (error.code, error.param) == ("missing_required_parameter", "tools[0].name")
    assert "are fields of the tool itself here, not of an inner 'function' as in Chat" in error.message
    for tool in ({"type": "function"}, {"type": "custom", "function": {"name": "h"}}):
        assert refusal(tool).message == "Missing required parameter: 'tools[0].name'."


@pytest.mark.parametrize("value", [b"{}", b'"x"', b"1"])
def test_tools_must_be_a_list(value):
    with pytest.raises(InvalidRequest) as caught:
        Toolset.read(Raw(value))
    assert caught.value.param == "tools"


def test_two_tools_of_one_name_are_refused():
    error = refusal(F, {"type": "custom", "name": "f"})
    assert error.message == "Invalid 'tools': two tools are named 'f'."


def test_one_name_may_occur_in_several_namespaces():
    assert len(read(F, OS, {**OS, "name": "fs"}).callables) == 5


def test_a_definition_is_kept_with_its_tool():
    (tool,) = read(G).callables
    assert isinstance(tool.definition, FunctionTool)
    assert (tool.definition.strict, tool.definition.description) == (True, "does g")


def test_grammars_that_are_too_large_in_total_are_refused():
    definition = "a" * 60_000
    tools = [{**SHELL, "name": f"t{n}", "format": {**REGEX, "definition": definition}} for n in range(3)]
    error = refusal({"type": "namespace", "name": "n", "tools": tools})
    assert error.param == "tools[0].tools[2].format.definition"
    assert "too large" in error.message


def test_grammars_are_collected_and_not_compiled():
    """The compiler checks them later."""
    taken = definitions()
    tools = [{**SHELL, "format": {**LARK, "definition": "x"}}, OS]
    Toolset.read(Raw(json.dumps(tools).encode()), definitions=taken)
    assert [each.param for each in taken.grammars] == ["tools[0].format.definition"]


def test_definitions_of_accepted_tools_are_not_collected_again():
    (tool,) = Toolset.read(Raw(json.dumps([{**F, "parameters": LARGE}]).encode())).callables
    assert tool.name == "f"


def test_a_custom_tool_has_its_grammar():
    with_grammar, plain = read(
        {**SHELL, "name": "a", "format": {**REGEX, "definition": "x"}}, SHELL
    ).callables
    assert with_grammar.grammar == Grammar("regex", "x")
    assert plain.grammar is None


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "web_search"}] * (MOST_TOOLS + 1), "tools"),
        ([{"type": "namespace", "name": "n", "tools": [F] * (MOST_TOOLS + 1)}], "tools"),
        (
            [{"type": "namespace", "name": "n", "tools": [{**F, **LARGE}] + [F] * MOST_TOOLS}],
            "tools[0].tools",
        ),
    ],
    ids=["list", "namespace", "long namespace"],
)
def test_tools_are_bounded_in_number(tools, param):
    with pytest.raises(InvalidRequest, match=f"more than {MOST_TOOLS} tools") as caught:
        Toolset.read(Raw(json.dumps(tools).encode()))
    assert caught.value.param == param


def test_a_long_tool_is_read():
    assert read({**F, **LARGE}).callables[0].name == "f"


def test_merged_tools_keep_the_newer_of_two_with_one_name():
    old, other, new = read(F, G).callables, read(SHELL).callables, read({**F, "description": "new"}).callables
    assert merged(old) is old
    assert merged(old, ()) is old
    assert merged(old, other, new) == (old[1], *other, *new)
