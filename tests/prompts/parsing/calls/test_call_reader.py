"""The names by which a model may address the offered tools."""

from slipring.core.generation import Delta, Text
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool
from tests.prompts.parsing.answers import call, function, parsed
from tests.prompts.parsing.test_output_parser import LLAMA


def named(name: str, *tools: CallableTool) -> list[Delta]:
    text = f'{{"name": "{name}", "arguments": {{}}}}'
    deltas = parsed([text], LLAMA, Offer(tools=tools))
    return [] if deltas == [Text(text)] else deltas


def test_an_ambiguous_name_addresses_no_tool() -> None:
    one, two = function("read", "one"), function("read", "two")
    assert named("read", one, two) == []
    assert named("one__read", one, two) == call("read", "{}", "one")
    assert named("two__read", one, two) == call("read", "{}", "two")
    assert named("a__b__c", function("c", "a__b"), function("b__c", "a")) == []
    assert named("c", function("c", "a__b"), function("b__c", "a")) == call("c", "{}", "a__b")


def test_a_tool_without_a_namespace_takes_precedence() -> None:
    assert named("read", function("read"), function("read", "one")) == call("read", "{}")
    assert named("one__read", function("read"), function("read", "one")) == call("read", "{}", "one")


def test_a_tool_offered_twice_is_one_tool() -> None:
    assert named("read", function("read", "one"), function("read", "one")) == call("read", "{}", "one")
