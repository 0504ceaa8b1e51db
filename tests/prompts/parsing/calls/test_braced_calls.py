"""Calls in braces with quote tokens: Gemma 4."""

import pytest

from slipring.core.generation import Delta, Text
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing.answers import call, check, custom, custom_call, function
from tests.prompts.parsing.family_formats import GEMMA4

SCHEMA = {
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "number"},
        "o": {"properties": {"n": {"type": "number"}}},
    }
}
OFFER = Offer(tools=(function("f", schema=SCHEMA), function("g"), custom("patch")))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("call:g{}", call("g", "{}")),
        ("g { }", call("g", "{}")),
        ("call:f{s:«x»,n:1}", call("f", '{"s": "x", "n": 1}')),
        ("call:f{ s : «a, b}{[» , n : -1.5 }", call("f", '{"s": "a, b}{[", "n": -1.5}')),
        ("call:f{s:some words,n:many}", call("f", '{"s": "some words", "n": "many"}')),
        ("call:f{s:1,o:{n:True}}", call("f", '{"s": "1", "o": {"n": "True"}}')),
        (
            "call:g{a:[«x»,1,[true,null],{b:«»}],c:{},d:[]}",
            call("g", '{"a": ["x", 1, [true, null], {"b": ""}], "c": {}, "d": []}'),
        ),
        ("call:g{«a b»:1}", call("g", '{"a b": 1}')),
        ("call:patch{input:«[1]\n»}", custom_call("patch", "[1]\n")),
        ("call:patch{input:1}", custom_call("patch", "1")),
    ],
)
def test_calls_are_read(source: str, expected: list[Delta]) -> None:
    source = source.replace("«", '<|"|>').replace("»", '<|"|>')
    check(f"<|tool_call>{source}<tool_call|>", expected, GEMMA4, OFFER)
    check(f"Hm.<|tool_call>{source}<tool_call|>So.", [Text("Hm."), *expected, Text("So.")], GEMMA4, OFFER)
    check(f"<|tool_call>{source}", expected, GEMMA4, OFFER)
    check(f"<|tool_call>{source}<|tool_call>{source}", [*expected, *expected], GEMMA4, OFFER)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "call:",
        "call:f",
        "call:h{}",
        "call:f{",
        "call:f{s:«x",
        "call:f{s:«x»",
        "call:f{s}",
        "call:f{«s»x:1}",
        "call:f{s:1]}",
        "call:f{s:«x»n:1}",
        "call:f{s:[1 {}]}",
        "call:patch{}",
        "call:f{s:" + 100 * "[" + 100 * "]" + "}",
    ],
)
def test_broken_calls_are_text(source: str) -> None:
    text = "<|tool_call>" + source.replace("«", '<|"|>').replace("»", '<|"|>')
    check(text, [Text(text)], GEMMA4, OFFER)
