"""``tool_choice``: what it offers of a request's tools, what is echoed, and which choices are refused."""

import json

import pytest
from msgspec import UNSET, Raw

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.tools.tool_choice import AUTO, Offer, ToolChoice
from slipring.protocol.tools.tool_types import MOST_TOOLS
from slipring.protocol.tools.toolset import Toolset, merged
from tests.protocol.tools.test_toolset import FIND, OS, SEARCH, SHELL, F, G, read


def choose(choice: object, *tools: object) -> Offer:
    return ToolChoice.read(Raw(json.dumps(choice).encode())).offer(read(*tools).callables)


def names(offer: Offer) -> list[tuple[str | None, str]]:
    return [(tool.namespace, tool.name) for tool in offer.tools]


@pytest.mark.parametrize("value", [UNSET, Raw(b"null")])
def test_auto_is_the_default(value):
    assert ToolChoice.read(value) is AUTO
    assert bytes(AUTO.echo) == b'"auto"'


def test_auto_offers_everything_and_requires_nothing():
    offer = choose("auto", F, SHELL, SEARCH)
    assert (names(offer), offer.required) == ([(None, "f"), (None, "sh")], False)


def test_none_offers_nothing():
    assert choose("none", F, SHELL) == Offer(forbidden=True)


def test_required_offers_everything_and_requires_a_call():
    offer = choose("required", F, SHELL)
    assert (names(offer), offer.required) == ([(None, "f"), (None, "sh")], True)


@pytest.mark.parametrize("tools", [[], [SEARCH]])
def test_required_needs_a_callable_tool(tools):
    with pytest.raises(InvalidRequest) as caught:
        choose("required", *tools)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(("kind", "name"), [("function", "g"), ("custom", "sh")])
def test_a_named_tool_is_the_only_one_offered_and_required(kind, name):
    offer = choose({"type": kind, "name": name}, F, G, SHELL)
    assert (names(offer), offer.required) == ([(None, name)], True)


def test_a_named_tool_may_be_in_a_namespace():
    assert names(choose({"type": "function", "name": "f", "namespace": "os"}, F, OS)) == [("os", "f")]
    assert names(choose({"type": "custom", "name": "run"}, F, OS)) == [("os", "run")]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "nope"},
        {"type": "custom", "name": "f"},
        {"type": "function", "name": "f", "namespace": "nope"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nope"}]},
        {"type": "allowed_tools", "tools": [{"type": "namespace", "name": "nope"}]},
    ],
)
def test_an_unknown_tool_cannot_be_chosen(choice):
    with pytest.raises(InvalidRequest, match="not found in 'tools' parameter") as caught:
        choose(choice, F, OS)
    assert caught.value.param == "tool_choice"


def test_allowed_tools_are_a_hard_constraint():
    offer = choose(
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, F, G, SHELL
    )
    assert (names(offer), offer.required) == ([(None, "g")], False)


def test_allowed_tools_may_require_a_call():
    allowed = [{"type": "custom", "name": "sh"}, {"type": "function", "name": "f"}]
    offer = choose({"type": "allowed_tools", "mode": "required", "tools": allowed}, F, G, SHELL)
    assert (names(offer), offer.required) == ([(None, "sh"), (None, "f")], True)


def test_allowed_tools_may_name_a_namespace_or_a_hosted_tool():
    allowed = [{"type": "namespace", "name": "os"}, {"type": "web_search"}]
    assert names(choose({"type": "allowed_tools", "tools": allowed}, F, OS, SEARCH)) == [
        ("os", "f"),
        ("os", "run"),
    ]


def test_an_empty_list_of_allowed_tools_offers_nothing():
    assert choose({"type": "allowed_tools", "mode": "auto", "tools": []}, F) == Offer(narrowed=True)


def test_requiring_a_call_of_hosted_tools_only_is_refused():
    with pytest.raises(InvalidRequest, match="no callable tool"):
        choose({"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}, F, SEARCH)


def test_a_type_that_nothing_here_runs_cannot_be_chosen():
    with pytest.raises(UnsupportedParameter) as caught:
        choose({"type": "from_the_future"}, F)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("kind", ["web_search", "shell", "apply_patch"])
def test_a_type_is_chosen_if_it_is_among_the_tools(kind):
    with pytest.raises(InvalidRequest, match=f"Tool choice '{kind}' not found"):
        choose({"type": kind}, F, SEARCH)
    if kind != "web_search":
        offer = choose({"type": kind}, F, {"type": kind})
        assert ([tool.kind for tool in offer.tools], offer.required) == ([kind], True)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("perhaps", "tool_choice"),
        (5, "tool_choice"),
        ([], "tool_choice"),
        ({}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "never", "tools": []}, "tool_choice.mode"),
        ({"type": "allowed_tools", "tools": [{}]}, "tool_choice.tools[0].type"),
    ],
)
def test_an_error_names_an_invalid_choice(choice, param):
    with pytest.raises(InvalidRequest) as caught:
        choose(choice, F)
    assert caught.value.param == param


def test_a_search_can_be_allowed():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "tool_search"}]}
    assert [tool.kind for tool in choose(choice, F, FIND).tools] == ["tool_search"]


@pytest.mark.parametrize(
    ("choice", "echoed"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "name": "f"}),
        ({"type": "custom", "name": "f"}, {"type": "custom", "name": "f"}),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        ),
    ],
)
def test_a_choice_is_echoed(choice, echoed):
    read_choice = ToolChoice.read(Raw(json.dumps(choice).encode()))
    assert json.loads(bytes(read_choice.echo)) == echoed


def test_many_tools_and_many_names_are_matched_in_linear_time() -> None:
    """A quadratic search would take minutes here and block the event loop."""
    names = [f"f{number}" for number in range(MOST_TOOLS)]
    tools = Toolset.read(Raw(wire.encode([{"type": "function", "name": name} for name in names])))
    named = [{"type": "function", "name": name} for name in names]
    choice = ToolChoice.read(Raw(wire.encode({"type": "allowed_tools", "mode": "auto", "tools": named})))
    assert len(choice.offer(tools.callables).tools) == len(names)
    pieces = [(tool,) for tool in tools.callables]
    assert merged((), *pieces) == tools.callables


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "auto", None),
        ({"type": "function", "name": "f"}, "auto", None),
        ({"type": "allowed_tools", "mode": "required", "tools": [F]}, "auto", ["f"]),
    ],
)
def test_a_call_is_required_only_until_it_was_made(choice, mode, names):
    later = ToolChoice.read(Raw(json.dumps(choice).encode())).once_called
    assert later.mode == mode
    assert (None if later.only is None else [tool.name for tool in later.only]) == names
