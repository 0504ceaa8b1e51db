"""The marks of a format: what must be visible in a model's output."""

import pytest

from slipring.prompts.parsing.output_format import OutputFormat
from tests.prompts.parsing import family_formats


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
