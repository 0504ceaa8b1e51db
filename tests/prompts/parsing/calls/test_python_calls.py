"""Calls that are a Python list: literals, and text that only looks like a list."""

import pytest

from slipring.core.generation import Delta, Text
from slipring.prompts.parsing.calls.python_literals import python_literal
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing.answers import call, check, custom_call, function
from tests.prompts.parsing.family_formats import LFM2, PYTHON_LIST

CALL_G = call("g", "{}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("g()", CALL_G),
        ("g( ) , g()", [*CALL_G, *CALL_G]),
        (
            'f(a=1, b="x", c=None, d=True, e=False,)',
            call("f", '{"a": 1, "b": "x", "c": null, "d": true, "e": false}'),
        ),
        ("f(a=true, b=null, c=false)", call("f", '{"a": true, "b": null, "c": false}')),
        ("f( a = -1.5e3 )", call("f", '{"a": -1.5e3}')),
        (
            "f(a=[1, [2,],], b=(1, 2), c=(), d={})",
            call("f", '{"a": [1, [2]], "b": [1, 2], "c": [], "d": {}}'),
        ),
        ("f(a={'k': [{\"l\": 'm'}], 'n': 1,})", call("f", '{"a": {"k": [{"l": "m"}], "n": 1}}')),
        ("f(a='it\\'s\\n\\x41\\u00e9\\U0001f4a9 \\q \"')", call("f", '{"a": "it\'s\\nAé💩 \\\\q \\""}')),
        ("f(a='\\ud83d\\ude00', b='', c=\"\")", call("f", '{"a": "😀", "b": "", "c": ""}')),
        ("f(a='line\nbreak )]')", call("f", '{"a": "line\\nbreak )]"}')),
        ('f(a=\'\'\'it\'s "a" \'\'\', b="""x\\"""")', call("f", '{"a": "it\'s \\"a\\" ", "b": "x\\""}')),
        ("f(a='\\U99999999')", call("f", '{"a": "\\\\U99999999"}')),
        ("patch(input='[1]')", custom_call("patch", "[1]")),
        ("files__read()", call("read", "{}", "files")),
    ],
)
def test_lists_of_calls_are_read(source: str, expected: list[Delta]) -> None:
    check(f"[{source}]", expected, PYTHON_LIST)
    check(
        f"Hm. <|tool_call_start|>[{source}]<|tool_call_end|> So.", [Text("Hm."), *expected, Text("So.")], LFM2
    )
    check(f"<|tool_call_start|>\n[ {source} ]\n", expected, LFM2)


def test_json_between_the_marks_is_read() -> None:
    """LFM2.5 writes it if it was asked for JSON."""
    one = '{"name": "f", "arguments": {"a": 1}}'
    called = call("f", '{"a": 1}')
    for text in (one, f"[{one}]", f" [ {one} ] "):
        check(f"Hm.<|tool_call_start|>{text}<|tool_call_end|>So.", [Text("Hm."), *called, Text("So.")], LFM2)
    check(f"<|tool_call_start|>[{one}, {one}]", [*called, *called], LFM2)
    unknown = f"<|tool_call_start|>[{one.replace('f', 'x')}]<|tool_call_end|>"
    check(unknown, [Text(unknown)], LFM2)
    check(f"[{one}]", [Text(f"[{one}]")], PYTHON_LIST)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        "[1] says so",
        "[link text](url)",
        "[f",
        "[f(",
        "[f(a='",
        "[f(a='\\",
        "[f(a='x)]",
        "[f(1)]",
        "[f(a)]",
        "[f(a=)]",
        "[f(a=b)]",
        "[f(a=b())]",
        "[f(a=1 b=2)]",
        "[f(a={1: 2})]",
        "[f(a={'b'})]",
        "[f(a=01)]",
        "[h(a=1)]",
        "[patch()]",
        "[f(a=" + 100 * "[" + 100 * "]" + ")]",
        "[f].",
    ],
)
def test_other_lists_are_text(text: str) -> None:
    check(text, [Text(text)], PYTHON_LIST)
    check(f"<|tool_call_start|>{text}", [Text(f"<|tool_call_start|>{text}")], LFM2)


@pytest.mark.parametrize("rest", ["}", " g()]", ", h()]", ", f(b=x)]", ", g(", ",, g()]"])
def test_a_call_is_complete_with_its_parenthesis_and_what_follows_may_be_text(rest: str) -> None:
    check(f"[g(){rest}", [*CALL_G, Text(rest)], PYTHON_LIST)
    check(f"<|tool_call_start|>[g(){rest}", [*CALL_G, Text(rest)], LFM2)


@pytest.mark.parametrize("rest", [",]", " , ] "])
def test_a_comma_may_follow_the_last_call(rest: str) -> None:
    check(f"[g(){rest}", CALL_G, PYTHON_LIST)


def test_lists_follow_lists_but_not_text() -> None:
    check("[g()]\n[g()]", [*CALL_G, *CALL_G], PYTHON_LIST)
    check("Hm. [g()]", [Text("Hm. [g()]")], PYTHON_LIST)
    check("[g()]", [Text("[g()]")], LFM2)


def test_names_may_have_dots() -> None:
    check("[a.b-c(x=1)]", call("a.b-c", '{"x": 1}'), PYTHON_LIST, Offer(tools=(function("a.b-c"),)))


def test_literals_are_bounded() -> None:
    assert python_literal("[" * 60 + "]" * 60) is not None
    assert python_literal("[" * 70 + "]" * 70) is None
    assert python_literal("[1] x") is None
