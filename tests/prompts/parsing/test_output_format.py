"""What a format says of answers: the marks that must be visible, and the ids that models give to calls."""

import pytest

from slipring.prompts.parsing.answer_writer import Call
from slipring.prompts.parsing.output_format import (
    NamedJsonCalls,
    OutputFormat,
    has_call_ids,
    written_call_ids,
)
from tests.prompts.parsing import family_formats
from tests.prompts.parsing.written_answers import write_answer


@pytest.mark.parametrize(
    ("format", "marks"),
    [
        (OutputFormat(), set()),
        (family_formats.BARE_JSON, set()),
        (family_formats.LLAMA3_JSON, {"<|python_tag|>"}),
        (family_formats.HERMES, {"<tool_call>", "</tool_call>", "<think>", "</think>"}),
        (family_formats.MISTRAL_CALL_ID, {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}),
        (
            family_formats.HARMONY,
            {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"},
        ),
    ],
)
def test_marks(format: OutputFormat, marks: set[str]) -> None:
    assert format.marks() == marks


@pytest.mark.parametrize(
    ("format", "tokens"),
    [
        (family_formats.KIMI_K3, {"<|open|>", "<|sep|>", "<|close|>"}),
        (family_formats.GEMMA4, {"<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"}),
        (family_formats.DEEPSEEK_V4, {"｜DSML｜", "<think>", "</think>"}),
        (family_formats.DEEPSEEK_V3, {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"}),
        (family_formats.GLM, {"<tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}),
        (family_formats.MINIMAX_M3, {"]<]minimax[>[", "<mm:think>", "</mm:think>"}),
        (family_formats.QWEN3_5, {"<tool_call>", "</tool_call>", "<think>", "</think>"}),
        (family_formats.MISTRAL, {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"}),
    ],
)
def test_marks_include_parts_that_may_be_tokens(format: OutputFormat, tokens: set[str]) -> None:
    assert tokens <= format.marks()


SOLAR = OutputFormat(
    calls=NamedJsonCalls(
        section_open="<calls>", id_open="<id>", open="<name>", arguments_open="<args>", close="<end>"
    )
)
WITH_IDS = {
    "nemo": family_formats.MISTRAL_NEMO,
    "small": family_formats.MISTRAL_CALL_ID,
    "cohere": family_formats.COHERE,
    "solar": SOLAR,
}
CALLS = [Call("f", {"id": "x", "text": '[CALL_ID]no[ARGS]"'}, id="abc123def"), Call("g", {}, id="9")]


@pytest.mark.parametrize("name", WITH_IDS)
def test_ids_are_found_in_answers(name: str) -> None:
    format = WITH_IDS[name]
    assert has_call_ids(format)
    assert written_call_ids(format, write_answer(format, calls=CALLS[1:])) == ["9"]
    assert written_call_ids(
        format, write_answer(format, calls=[*CALLS[1:], Call("f", {"a": 1}, id="b")])
    ) == [
        "9",
        "b",
    ]
    assert written_call_ids(format, "Hello.") == []


def test_json_that_is_not_a_list_of_calls_has_no_ids() -> None:
    for text in (
        "[TOOL_CALLS]",
        "[TOOL_CALLS]{}",
        "[TOOL_CALLS][1]",
        "[TOOL_CALLS][",
        "[TOOL_CALLS]" + 9999 * "[",
    ):
        assert written_call_ids(family_formats.MISTRAL_NEMO, text) == []


@pytest.mark.parametrize(
    "format",
    [
        family_formats.KIMI_K2,
        family_formats.MISTRAL,
        family_formats.HERMES,
        family_formats.HARMONY,
        family_formats.QWEN3_5,
    ],
)
def test_other_formats_have_no_ids(format: OutputFormat) -> None:
    assert not has_call_ids(format)
    assert written_call_ids(format, "[CALL_ID]a[ARGS]") == []
