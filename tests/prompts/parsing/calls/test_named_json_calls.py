"""Calls that are a name and JSON: ids, prefixes, missing closing marks."""

import pytest

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text
from slipring.prompts.parsing.output_format import NamedJsonCalls, OutputFormat
from slipring.prompts.parsing.output_parser import output_parser
from tests.prompts.parsing.answers import OFFER, broken_call, call, check, custom_call
from tests.prompts.parsing.family_formats import (
    DEEPSEEK_V3,
    DEEPSEEK_V3_1,
    FUNCTIONARY,
    KIMI_K2,
    MISTRAL,
    MISTRAL_CALL_ID,
)

CALL_F, CALL_G = call("f", '{"a": 1}'), call("g", "{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[TOOL_CALLS]f[ARGS]{"a": 1}', CALL_F),
        ('Hm. [TOOL_CALLS] f [ARGS] {"a": 1}\nSo.', [Text("Hm."), *CALL_F, Text("So.")]),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', [*CALL_F, *CALL_G]),
        (
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
            [*CALL_F, *CALL_G],
        ),
        ('[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}', CALL_F),
        ('[TOOL_CALLS]patch[ARGS]{"input": "x"}', custom_call("patch", "x")),
        ("[TOOL_CALLS]f[ARGS]", [Text("[TOOL_CALLS]f[ARGS]")]),
        ("[TOOL_CALLS]f[ARGS]{", [Text("[TOOL_CALLS]f[ARGS]{")]),
        ("[TOOL_CALLS]f[ARGS]x", [Text("[TOOL_CALLS]f[ARGS]x")]),
        ("[TOOL_CALLS]f[ARGS][{}]", [Text("[TOOL_CALLS]f[ARGS][{}]")]),
        ("[TOOL_CALLS]f{}", [Text("[TOOL_CALLS]f{}")]),
        ("[TOOL_CALLS]h[ARGS]{}", [Text("[TOOL_CALLS]h[ARGS]{}")]),
        ("[TOOL_CALLS][]", [Text("[TOOL_CALLS][]")]),
        ("[TOOL_CALLS]" + 500 * "f" + "[ARGS]{}", [Text("[TOOL_CALLS]" + 500 * "f" + "[ARGS]{}")]),
        ("[TOOL_CALLS][TOOL_CALLS]g[ARGS]{}", [Text("[TOOL_CALLS]"), *CALL_G]),
    ],
)
def test_mistral(text: str, expected: list[Delta]) -> None:
    check(text, expected, MISTRAL)


def test_an_id_may_follow_the_name() -> None:
    check('[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}', CALL_F, MISTRAL_CALL_ID)
    check('[TOOL_CALLS]f[ARGS]{"a": 1}', CALL_F, MISTRAL_CALL_ID)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>', CALL_F),
        ('<|tool_call_begin|>f<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>', CALL_F),
        (
            '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}'
            "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{} ",
            [*CALL_F, *CALL_G],
        ),
        (
            "<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.f:0 "
            '<|tool_call_argument_begin|> {"a": 1} <|tool_calls_section_end|>\nSo.',
            [*CALL_F, Text("So.")],
        ),
        ("<|tool_calls_section_begin|><|tool_calls_section_end|>", []),
        ("<|tool_calls_section_begin|>", []),
        (
            "Hm.<|tool_calls_section_begin|> so <|tool_call_begin|>f:0<|tool_call_argument_begin|>"
            '{"a": 1}<|tool_call_end|> and <|tool_calls_section_end|><|tool_calls_section_end|>Yes.',
            [Text("Hm. so"), *CALL_F, Text("and Yes.")],
        ),
        (
            "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{} x",
            [*call("f", "{}"), Text(" x")],
        ),
        (
            '<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"\n<|tool_call_end|>'
            "<|tool_call_begin|>g:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
            [*broken_call("f", '{"'), *CALL_G],
        ),
    ],
)
def test_kimi_k2(text: str, expected: list[Delta]) -> None:
    check(text, expected, KIMI_K2)


def test_deepseek() -> None:
    text = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n'
    for end in ("```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>", "```", "", "```\n<｜tool▁calls▁end｜>"):
        check(f"<｜tool▁calls▁begin｜>{text}{end}", CALL_F, DEEPSEEK_V3)
    check(f"{text}x", [*CALL_F, Text("\nx")], DEEPSEEK_V3)
    check(f"{text}```x", [*CALL_F, Text("x")], DEEPSEEK_V3)
    for end in ("`", "```", "```<｜tool▁ca", "<"):
        check(f"{text}{end}", CALL_F, DEEPSEEK_V3, cut_off=True)
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}", CALL_G, DEEPSEEK_V3_1)


def test_the_name_may_be_part_of_a_tag() -> None:
    check('<function=f>{"a": 1}</function>', CALL_F, FUNCTIONARY)


def test_arguments_are_streamed() -> None:
    parser = output_parser(KIMI_K2, OFFER)
    assert parser.feed("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0") == []
    assert parser.is_holding
    assert parser.feed("<|tool_call_argument_begin|>{") == []
    assert parser.feed('"a') == [CallStarted("function", "f"), CallArguments('{"a')]
    assert not parser.is_holding
    assert parser.feed("b") == [CallArguments("b")]
    assert parser.feed('": 1') == [CallArguments('": 1')]
    assert parser.feed("}<|tool_call") == [CallArguments("}"), CallEnded()]
    assert parser.feed("_end|><|tool_calls_section_end|>") == parser.finish() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[TOOL_CALLS]patch[ARGS]{ "input": "a\\n',
            [*custom_call("patch", "a\n")[:-1], CallEnded(False)],
        ),
        ('[TOOL_CALLS]patch[ARGS]{"input": "a"}[TOOL_CALLS]g[ARGS]{}', [*custom_call("patch", "a"), *CALL_G]),
        (
            '[TOOL_CALLS]patch[ARGS]{"input": "a", "b": 1}',
            [*custom_call("patch", "a")[:-1], CallEnded(False), Text(', "b": 1}')],
        ),
        ('[TOOL_CALLS]patch[ARGS]{"code": "a"}', [Text('[TOOL_CALLS]patch[ARGS]{"code": "a"}')]),
        ("[TOOL_CALLS]f[ARGS]", [Text("[TOOL_CALLS]f[ARGS]")]),
        ("[TOOL_CALLS]f[ARGS]{}x", [*call("f", "{}"), Text("x")]),
    ],
)
def test_calls_that_a_grammar_enforces_end_where_the_json_ends(text: str, expected: list[Delta]) -> None:
    check(text, expected, MISTRAL, trusted=True)


@pytest.mark.parametrize("section", ["", "<calls>"])
def test_ids_before_names_are_read(section: str) -> None:
    format = OutputFormat(
        calls=NamedJsonCalls(
            section_open=section, id_open="<id>", open="<name>", arguments_open="<args>", close="<end>"
        )
    )
    one = '<id>1<name>f<args>{"a": 1}<end>'
    check(f"{section}{one}", call("f", '{"a": 1}'), format)
    two = f"Hm.\n{section}{one}<id>2<name>g<args>{{}}<end>"
    check(two, [Text("Hm."), *CALL_F, *CALL_G], format)
    check(f"{section}<name>g<args>{{}}<end>", CALL_G, format)
    for broken in (f"{section}<id>1", f"{section}<id>1<args>{{}}", f"{section}<id>1 f {{}}<end>"):
        check(broken, [Text(broken.removeprefix(section))], format)


def test_calls_in_braces_may_have_no_closing_mark() -> None:
    """Apertus."""
    format = OutputFormat(
        calls=NamedJsonCalls(
            section_open="<|tools_prefix|>[",
            section_close="]<|tools_suffix|>",
            open='{"',
            close="}",
            between=", ",
            arguments_open='": ',
        ),
    )
    text = '<|tools_prefix|>[{"f": {"a": 1}'
    for end in ("}]<|tools_suffix|>", "}]", "}", ""):
        check(f"{text}{end}", CALL_F, format)
    check(f'{text}}}, {{"g": {{}}}}]So.', [*CALL_F, *CALL_G, Text("So.")], format)
    check(f"{text}}}]<|tools_suffix|><|tools_suffix|>So.", [*CALL_F, Text("So.")], format)


def test_a_mark_within_a_call_that_a_limit_cuts_off_is_dropped() -> None:
    check("[TOOL_CALLS]abc[TOOL_CALLS]g[AR", [Text("abcg[AR")], MISTRAL, cut_off=True)
    check("[TOOL_CALLS]f[CALL_ID]ab", [Text("fab")], MISTRAL_CALL_ID, cut_off=True)
