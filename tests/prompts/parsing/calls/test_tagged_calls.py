"""Calls with tagged arguments: tags that models forget, and values that look like tags."""

import json

import pytest

from slipring.core.generation import CallArguments, CallEnded, Delta, Text, Thought
from slipring.prompts.parsing.output_format import OutputFormat, TaggedCalls
from slipring.prompts.parsing.output_parser import output_parser
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing.answers import broken_call, call, check, custom, custom_call, function, merged
from tests.prompts.parsing.family_formats import (
    DEEPSEEK_V4,
    GLM,
    GLM_4_7,
    HUNYUAN3,
    KIMI_K3,
    MINICPM5,
    MINIMAX_M2,
    QWEN3_5,
    QWEN3_CODER,
)

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["a"],
}
OFFER = Offer(tools=(function("f", schema=SCHEMA), function("g"), custom("patch")))
A, S = "<parameter=a>\n1\n</parameter>\n", "<parameter=s>\nx\n</parameter>\n"
CALL_A, CALL_AS, CALL_G = call("f", '{"a": 1}'), call("f", '{"a": 1, "s": "x"}'), call("g", "{}")
CALL_A_G = [*CALL_A, *CALL_G]


def qwen(inner: str) -> str:
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (qwen(A), CALL_A),
        (qwen(A + S), CALL_AS),
        ("<tool_call><function=f><parameter=a>1</parameter></function></tool_call>", CALL_A),
        ("<tool_call> <function= f >\n\n<parameter= a > 1 </parameter> </function> </tool_call>", CALL_A),
        # Marks that are missing
        (f"<function=f>\n{A}</function>\n</tool_call>", CALL_A),
        (f"<function=f>\n{A}</function>", CALL_A),
        (f"Hm.\n<function=f>\n{A}</function>\nSo.", [Text("Hm."), *CALL_A, Text("So.")]),
        (f"<tool_call>\n<function=f>\n{A}</function>", CALL_A),
        (f"<tool_call>\n<function=f>\n{A}</function>\nSo.", [*CALL_A, Text("So.")]),
        (f"<tool_call>\n<function=f>\n{A}</tool_call>", CALL_A),
        (
            f"<tool_call>\n<function=f>\n{A}<tool_call>\n<function=g>\n</function>\n</tool_call>",
            [*CALL_A, *CALL_G],
        ),
        (f"<tool_call>\n<function=f>\n{A}<function=g>\n</function>\n</tool_call>", [*CALL_A, *CALL_G]),
        (f"<tool_call>\n<function=f>\n{A}", CALL_A),
        (qwen(f"<parameter=s>\nx\n{A}"), call("f", '{"s": "x", "a": 1}')),
        (qwen("<parameter=a>\n1\n"), CALL_A),
        ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</tool_call>", CALL_A),
        ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>", CALL_A),
        (
            f"<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n{qwen(A + S)}",
            [*CALL_A, *CALL_AS],
        ),
        # Several calls in one pair of marks
        (
            f"<tool_call>\n<function=f>\n{A}</function>\n<function=g>\n</function>\n</tool_call>",
            [*CALL_A, *CALL_G],
        ),
        (f"{qwen(A)}\n{qwen(A + S)}\n", [*CALL_A, *CALL_AS]),
        # Values
        (
            qwen("<parameter=s>\n\n</parameter>\n<parameter=a>\n1\n</parameter>\n"),
            call("f", '{"s": "", "a": 1}'),
        ),
        (qwen("<parameter=s>\n</parameter>\n"), call("f", '{"s": ""}')),
        (qwen("<parameter=s></parameter>\n"), call("f", '{"s": ""}')),
        (qwen("<parameter=s>\n\n  x\n\n</parameter>\n"), call("f", '{"s": "\\n  x\\n"}')),
        (qwen('<parameter=s>\n{"a": 1}\n</parameter>\n'), call("f", '{"s": "{\\"a\\": 1}"}')),
        (qwen("<parameter=s>\n<a>\n</b>\n</parameter>\n"), call("f", '{"s": "<a>\\n</b>"}')),
        (
            qwen("<parameter=s>\n</function> <parameter=b> </tool_call> x <parameter=a>\n</parameter>\n"),
            call("f", '{"s": "</function> <parameter=b> </tool_call> x <parameter=a>"}'),
        ),
        (qwen("<parameter=s>\nx\n<parameter=b>\n</parameter>\n"), call("f", '{"s": "x\\n<parameter=b>"}')),
        (
            qwen(f"{A}<parameter=s>\nx\n<parameter=a>\n</parameter>\n"),
            call("f", '{"a": 1, "s": "x\\n<parameter=a>"}'),
        ),
        (qwen("<parameter=s>\n<parameter=\n</parameter>\n"), call("f", '{"s": "<parameter="}')),
        (qwen("<parameter=a>\nsome\n</parameter>\n"), call("f", '{"a": "some"}')),
        (qwen(A + A), call("f", '{"a": 1, "a": 1}')),
        # Calls as JSON
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', CALL_A),
        # Custom tools
        ("<function=patch>\n<parameter=input>\n[1]\n</parameter>\n</function>", custom_call("patch", "[1]")),
        ("<function=patch>\n<parameter=code>\n[1]\n</parameter>\n</function>", custom_call("patch", "[1]")),
    ],
)
@pytest.mark.parametrize("format", [QWEN3_CODER, QWEN3_5])
def test_calls_are_read_where_the_intent_is_certain(
    text: str, expected: list[Delta], format: OutputFormat
) -> None:
    check(text, expected, format, OFFER)
    if format.think_close:
        check(f"Hm.\n{text}", in_thought(text, expected), format, OFFER, starts_thinking=True)


def in_thought(text: str, expected: list[Delta]) -> list[Delta]:
    """What a text is in a thought that is not closed, if it begins with "Hm.": calls at its end are calls."""
    if isinstance(expected[-1], Text):
        return [Thought(f"Hm.\n{text}")]
    if isinstance(expected[0], Text):
        return [Thought(f"Hm.\n{expected[0].text}"), *expected[1:]]
    return [Thought("Hm."), *expected]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n<function=",
        "<tool_call>\n<function=f",
        "<tool_call>\n<function=f>",
        "<tool_call>\n<function=f>\n",
        "<tool_call>\n<function=f>\n<parameter=a",
        f"<tool_call>\n<function=unknown>\n{A}</function>\n</tool_call>",
        "<tool_call>\nf\n</tool_call>",
        "<function=f\n<parameter=a>",
        "<tool_call>\n<function=patch>\n</function>\n</tool_call>",
        f"<tool_call>\n<function=patch>\n{A}{S}</function>\n</tool_call>",
        "<tool_call>\n<function=" + 1000 * "f" + ">",
        "<tool_call>\n<function=f>\n<parameter=" + 1000 * "a" + ">",
        "<parameter=a>\n1\n</parameter>\n</function>\n",
    ],
)
def test_broken_calls_are_text_and_calls_after_them_are_calls(text: str) -> None:
    check(text, [Text(text)], QWEN3_5, OFFER)
    check(f"Hm.\n{text}\n", [Text(f"Hm.\n{text}\n")], QWEN3_5, OFFER)


@pytest.mark.parametrize(
    ("text", "read", "rest"),
    [
        (S, '{"s": "x"', ""),
        ("<parameter=a>\n1", '{"a": ', "\n1"),
        ("<parameter=a>\n1\n</param", '{"a": ', "\n1\n</param"),
        ("<parameter=s>\nx\n", '{"s": "x\\n', ""),
        ("<parameter=s>\nx\n</param", '{"s": "x\\n</param', ""),
        (f"{A}<parameter=s>\nx\n</function>\n</tool", '{"a": 1, "s": "x\\n</function>\\n</tool', ""),
        (f"{A}some text", '{"a": 1', "some text"),
        (f"{A}some text</function>\n</tool_call>", '{"a": 1', "some text</function>\n"),
        (f"{A}" + 100 * " " + "x", '{"a": 1', "x"),
        (
            "<parameter=s>\nx\n</function>" + 100 * " " + "</tool_call> x",
            '{"s": "x\\n</function>' + 100 * " " + "</tool_call> x",
            "",
        ),
    ],
)
def test_a_call_that_breaks_off_after_a_key_is_incomplete(text: str, read: str, rest: str) -> None:
    text = f"Hm.\n<tool_call>\n<function=f>\n{text}"
    check(text, [Text("Hm."), *broken_call("f", read, rest)], QWEN3_5, OFFER)


def test_without_closing_tags_a_call_is_complete_only_if_the_model_ended_the_answer() -> None:
    text = f"<tool_call>\n<function=f>\n{A}"
    check(text, CALL_A, QWEN3_5, OFFER)
    check(text, broken_call("f", '{"a": 1'), QWEN3_5, OFFER, cut_off=True)
    for end in ("</function>", "</function>\n</tool"):
        check(f"{text}{end}", CALL_A, QWEN3_5, OFFER, cut_off=True)


def test_strings_are_streamed_and_other_values_are_emitted_when_they_end() -> None:
    parser = output_parser(QWEN3_5, OFFER)
    assert parser.feed("<tool_call>\n<function=f>\n") == []
    assert merged(parser.feed("<parameter=a>\n1")) == [*CALL_A[:1], CallArguments('{"a": ')]
    assert merged(parser.feed("2\n</parameter>")) == [CallArguments("12")]
    assert merged(parser.feed("<parameter=s>\n")) == [CallArguments(', "s": "')]
    assert parser.feed('say "x"') == [CallArguments('say \\"x\\"')]
    assert parser.feed("\n") == []
    assert merged(parser.feed("<b")) == [CallArguments("\\n<b")]
    assert merged(parser.feed("\n</parameter>\n")) == [CallArguments('"')]
    assert merged(parser.feed("</function>")) == [CallArguments("}"), CallEnded()]
    assert parser.feed("\n</tool_call>") == parser.finish() == []


def test_a_call_inside_a_broken_one_is_a_call() -> None:
    check(f"<tool_call>\n<tool_call>\n{qwen(A)}", [Text("<tool_call>\n<tool_call>"), *CALL_A], QWEN3_5, OFFER)
    check(f"<function=x>\n{qwen(A)}", [Text("<function=x>"), *CALL_A], QWEN3_5, OFFER)
    check(f"<function={qwen(A)}", [Text("<function="), *CALL_A], QWEN3_5, OFFER)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", CALL_A),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", CALL_A),
        ("<tool_call>\nf\n<arg_key> a </arg_key>\n\n<arg_value>1</arg_value></tool_call>", CALL_A),
        ("<tool_call>g</tool_call><tool_call>g\n</tool_call>", [*CALL_G, *CALL_G]),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>", CALL_A),
        (
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><tool_call>g</tool_call>",
            [*CALL_A, *CALL_G],
        ),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>", CALL_A),
        (
            "<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value><arg_key>a</arg_key><arg_value>1</tool_call>",
            call("f", '{"s": "x", "a": 1}'),
        ),
        ("<tool_call>f</tool_call>", call("f", "{}")),
        ("<tool_call>f", [Text("<tool_call>f")]),
        ("<tool_call>f and g</tool_call>", [Text("<tool_call>f and g</tool_call>")]),
        (
            "<tool_call>f<arg_key>a<arg_value>1</arg_value>",
            [Text("<tool_call>f<arg_key>a<arg_value>1</arg_value>")],
        ),
        (
            "<tool_call>f<arg_key>a</arg_key>1</tool_call>",
            [Text("<tool_call>f<arg_key>a</arg_key>1</tool_call>")],
        ),
    ],
)
@pytest.mark.parametrize("format", [GLM, GLM_4_7])
def test_glm(text: str, expected: list[Delta], format: OutputFormat) -> None:
    check(text, expected, format, OFFER)


def test_a_value_that_is_not_closed_ends_before_the_next_argument() -> None:
    text = (
        "<tool_call>f<arg_key>s</arg_key><arg_value>x<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    )
    check(text, call("f", '{"s": "x", "a": 1}'), GLM_4_7, OFFER)


def test_a_mark_may_end_the_name() -> None:
    text = (
        "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
    )
    check(f"{text}<tool_call>g<tool_sep></tool_call></tool_calls>", [*CALL_A, *CALL_G], HUNYUAN3, OFFER)
    check("<tool_calls>x</tool_calls>", [Text("x")], HUNYUAN3, OFFER)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>', CALL_A),
        (
            '<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke>'
            '<invoke name="g"></invoke></minimax:tool_call>!',
            [*CALL_A, *CALL_G, Text("!")],
        ),
        ('<minimax:tool_call><invoke name="f"><parameter name="a">1</invoke></minimax:tool_call>', CALL_A),
        ('<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></minimax:tool_call>', CALL_A),
        ('<invoke name="f"><parameter name="s"> \n</parameter></invoke>', call("f", '{"s": " \\n"}')),
        ("<minimax:tool_call></minimax:tool_call>", []),
        ("<minimax:tool_call>x", [Text("x")]),
    ],
)
def test_minimax(text: str, expected: list[Delta]) -> None:
    check(text, expected, MINIMAX_M2, OFFER)


def dsml(parameter: str) -> str:
    argument = f"<｜DSML｜parameter name={parameter}</｜DSML｜parameter>"
    return f'<｜DSML｜invoke name="f">\n{argument}\n</｜DSML｜invoke>'


@pytest.mark.parametrize(
    ("parameter", "arguments"),
    [
        ('"a" string="false">1', '{"a": 1}'),
        ('"a" string="true">1', '{"a": "1"}'),
        ('"s" string="false">1', '{"s": 1}'),
        ('"s" string="false">some', '{"s": "some"}'),
        ('"s" string="false">"some"', '{"s": "some"}'),
        ('"a">1', '{"a": 1}'),
        ('"a" odd="true">1', '{"a": 1}'),
    ],
)
def test_the_tag_may_say_whether_a_value_is_a_string(parameter: str, arguments: str) -> None:
    check(dsml(parameter), call("f", arguments), DEEPSEEK_V4, OFFER)


def test_all_arguments_may_be_one_json_object() -> None:
    for format, text in (
        (DEEPSEEK_V4, '<｜DSML｜invoke name="f">\n{"a": 1}\n</｜DSML｜invoke>'),
        (QWEN3_5, '<tool_call>\n<function=f>\n{"a": 1}\n</function>\n</tool_call>'),
    ):
        check(text, CALL_A, format, OFFER)
    broken = '<tool_call>\n<function=f>\n{"a": 1\n</function>\n</tool_call>'
    check(broken, broken_call("f", '{"a": 1\n', "</function>\n"), QWEN3_5, OFFER)


def test_values_in_cdata_are_read_as_they_are() -> None:
    def minicpm(value: str) -> str:
        return f'<function name="f"><param name="s">{value}</param></function>'

    for text in ("<b>x</param></function>", "  a:\n    b\n", "", "1"):
        expected = call("f", json.dumps({"s": text}))
        check(minicpm(f"<![CDATA[{text}]]>"), expected, MINICPM5, OFFER)
    check(minicpm("<![CDATA"), call("f", '{"s": "<![CDATA"}'), MINICPM5, OFFER)
    number = '<function name="f"><param name="a"><![CDATA[1]]></param></function>'
    check(number, CALL_A, MINICPM5, OFFER)
    broken = minicpm("<![CDATA[x")
    check(broken, broken_call("f", '{"s": "x</param></function>'), MINICPM5, OFFER)


def kimi(inner: str) -> str:
    call = f'<|open|>call tool="f" index="1"<|sep|>{inner}<|close|>call<|sep|>'
    return f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>"


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ('<|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>', '{"a": 1}'),
        ('<|open|>argument key="a" type="string"<|sep|>1<|close|>argument<|sep|>', '{"a": "1"}'),
        ('<|open|>argument key="a"<|sep|>1<|close|>argument<|sep|>', '{"a": 1}'),
        (
            '<|open|>argument key="a&amp;&quot;b" type="null"<|sep|>null<|close|>argument<|sep|>',
            '{"a&\\"b": null}',
        ),
        ('<|open|>json type="object"<|sep|>{"a": 1}<|close|>json<|sep|>', '{"a": 1}'),
        ("", "{}"),
    ],
)
def test_kimi_k3(inner: str, arguments: str) -> None:
    check(kimi(inner), call("f", arguments), KIMI_K3, OFFER)
    response = f"<|open|>response<|sep|>Hm.<|close|>response<|sep|>{kimi(inner)}<|close|>message<|sep|>"
    check(response, [Text("Hm."), *call("f", arguments)], KIMI_K3, OFFER)


def test_an_object_may_hold_the_input_of_a_custom_tool() -> None:
    inner = '<|open|>json type="object"<|sep|>{"input": "a\\nb"}<|close|>json<|sep|>'
    check(kimi(inner).replace('tool="f"', 'tool="patch"'), custom_call("patch", "a\nb"), KIMI_K3, OFFER)


def test_ignored_marks_are_dropped_without_calls_too() -> None:
    text = "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes<|close|>response<|sep|><|close|>message<|sep|>"
    check(text, [Thought("Hm."), Text("Yes")], KIMI_K3, OFFER, starts_thinking=True)
    check(text, [Thought("Hm."), Text("Yes")], KIMI_K3, Offer(), starts_thinking=True)


def test_marks_of_several_parts_may_have_white_space_between_them() -> None:
    format = OutputFormat(
        calls=TaggedCalls(
            open="<call>\n<name>",
            name_close="</name>\n<arguments>",
            key_open="<key>",
            key_close="</key>",
            value_close="</v></a>",
            arguments_close="</arguments>",
            close="</call>",
        )
    )
    for gap in ("", "\n", " \n "):
        text = f"<call>{gap}<name>f</name>{gap}<arguments>{gap}<key>a</key>1</v>{gap}</a></arguments></call>"
        check(text, CALL_A, format, OFFER)
    check("<call>\n<nam>f", [Text("<call>\n<nam>f")], format, OFFER)
