"""Calls that are trees of tags: MiniMax M3."""

import pytest

from slipring.core.generation import Delta, Text
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing.answers import call, check, custom, custom_call, function
from tests.prompts.parsing.family_formats import MINIMAX_M3
from tests.prompts.parsing.written_calls import without_section

P = "]<]minimax[>["
SCHEMA = {
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "number"},
        "list": {"type": "array", "items": {"type": "number"}},
        "map": {"type": "object", "additionalProperties": {"type": "number"}},
        "filter": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "limit": {"oneOf": [{"type": "integer"}, {"properties": {"max": {"type": "integer"}}}]},
    }
}
OFFER = Offer(tools=(function("f", schema=SCHEMA), function("g"), custom("patch")))


def invoke(inner: str, name: str = "f") -> str:
    inner = inner.replace("<", f"{P}<")
    return f'{P}<tool_call>\n{P}<invoke name="{name}">{inner}{P}</invoke>\n{P}</tool_call>'


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ("", "{}"),
        ("<s>1</s><n>1</n>", '{"s": "1", "n": 1}'),
        ("\n<s> x\n</s>\n", '{"s": " x\\n"}'),
        ("<list><item>1</item>\n<item>2</item></list>", '{"list": [1, 2]}'),
        ("<list></list><map></map><s></s>", '{"list": [], "map": {}, "s": ""}'),
        ('<list>[1, 2]</list><map>{"a": 1}</map>', '{"list": [1, 2], "map": {"a": 1}}'),
        ("<map><item>1</item></map>", '{"map": {"item": 1}}'),
        ("<map>\n<a>1</a>\n<b>x</b></map>", '{"map": {"a": 1, "b": "x"}}'),
        ("<filter><item>a</item></filter>", '{"filter": ["a"]}'),
        ("<filter>a</filter>", '{"filter": "a"}'),
        ("<limit>5</limit>", '{"limit": 5}'),
        ("<limit><max>5</max></limit>", '{"limit": {"max": 5}}'),
        ("<s><b>x</b></s>", f'{{"s": "{P}<b>x{P}</b>"}}'),
        ("<map>x<b>1</b></map>", f'{{"map": "x{P}<b>1{P}</b>"}}'),
        ("<other><item>1</item></other>", '{"other": [1]}'),
        ("<other><a>1</a><b>x</b></other>", '{"other": {"a": 1, "b": "x"}}'),
        ("<other></other>", '{"other": ""}'),
    ],
)
def test_elements_are_values_by_the_schema(inner: str, arguments: str) -> None:
    check(invoke(inner), call("f", arguments), MINIMAX_M3, OFFER)


def test_values_may_contain_tags_without_the_prefix() -> None:
    text = invoke("<s>VALUE</s>").replace("VALUE", "<b></s></invoke>")
    check(text, call("f", '{"s": "<b></s></invoke>"}'), MINIMAX_M3, OFFER)


def test_several_calls_and_missing_marks() -> None:
    one, two = f'{P}<invoke name="f">{P}<n>1{P}</n>{P}</invoke>', f'{P}<invoke name="g">{P}</invoke>'
    calls = [*call("f", '{"n": 1}'), *call("g", "{}")]
    check(f"{P}<tool_call>\n{one}\n{two}\n{P}</tool_call>", calls, MINIMAX_M3, OFFER)
    check(f"Hm.\n{one}{two}", [Text("Hm."), *calls], MINIMAX_M3, OFFER)


def test_custom_tools_take_text() -> None:
    check(invoke("<input>[1]</input>", "patch"), custom_call("patch", "[1]"), MINIMAX_M3, OFFER)
    check(
        invoke("<input><b>x</b></input>", "patch"), custom_call("patch", f"{P}<b>x{P}</b>"), MINIMAX_M3, OFFER
    )


@pytest.mark.parametrize(
    "text",
    [
        f"{P}<tool_call>",
        f"{P}<tool_call>x",
        invoke("<s>x</s>", "unknown"),
        invoke("x"),
        invoke("<s>x"),
        invoke("<s>x</n>"),
        invoke("</s>"),
        invoke("<s x>x</s x>"),
        invoke("<>x</>"),
        invoke("<s>x</s>")[:-40],
        invoke("<a>" * 200 + "</a>" * 200),
        invoke("<" + 500 * "a" + ">"),
        invoke("", "patch"),
        f'{P}<invoke name="' + 500 * "f" + '">',
    ],
)
def test_broken_trees_are_text(text: str) -> None:
    rest = without_section(MINIMAX_M3, text)
    expected: list[Delta] = [Text(rest)] if rest else []
    check(text, expected, MINIMAX_M3, OFFER)
