"""Descriptions of answers that transformers reads, converted to output formats."""

from typing import Any

import pytest

from slipring.prompts.parsing.output_format import (
    BracedCalls,
    JsonCalls,
    NamedJsonCalls,
    OutputFormat,
    TaggedCalls,
)
from slipring.prompts.templates.detection.format_detection import read_response_template
from tests.prompts.parsing.family_formats import HARMONY

NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TAGGED: dict[str, Any] = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
    "close": "</tool_call>",
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>"},
    "transform": NAMED,
}


def read(**fields: Any) -> OutputFormat | None:
    return read_response_template({"start_anchor": "<|assistant|>", "fields": fields})


def test_thoughts_text_and_json_calls() -> None:
    format = read(
        thinking={"open": "<think>", "close": "</think>"},
        tool_calls={
            "open": ["<tool_call>", "<call>"],
            "close_pattern": r"\n?</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        content={"close": ["<|im_end|>", "<|end|>"]},
    )
    assert format == OutputFormat(
        calls=JsonCalls(open="<tool_call>", close="</tool_call>"),
        think_open="<think>",
        think_close="</think>",
        stops=("<|im_end|>", "<|end|>"),
    )


def test_an_array_with_keys_of_its_own_and_marks_around_text() -> None:
    format = read(
        reasoning={"open": "<|THINK|>", "close": "<|/THINK|>"},
        tool_calls={
            "open": "<|ACTION|>",
            "close": "<|/ACTION|>",
            "content": "json",
            "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{parameters}"}},
        },
        content={"open": "<|TEXT|>", "close": "<|/TEXT|>"},
    )
    assert format == OutputFormat(
        calls=JsonCalls(
            section_open="<|ACTION|>",
            section_close="<|/ACTION|>",
            is_array=True,
            name_key="tool",
            arguments_key="parameters",
        ),
        think_open="<|THINK|>",
        think_close="<|/THINK|>",
        ignored=("<|TEXT|>", "<|/TEXT|>"),
    )


def test_keys_of_a_json_call() -> None:
    function = {"name": "{content.function}", "arguments": "{content.args}"}
    format = read(tool_calls={"open": "<c>", "content": "json", "transform": {"function": function}})
    assert format == OutputFormat(calls=JsonCalls(open="<c>", name_key="function", arguments_key="args"))


def test_names_before_json() -> None:
    calls = {"open_pattern": r"\[CALL\](?P<name>[\w.]+)\[ARGS\]", "content": "json", "transform": NAMED}
    assert read(tool_calls=calls) == OutputFormat(
        calls=NamedJsonCalls(open="[CALL]", arguments_open="[ARGS]")
    )


def test_tagged_arguments() -> None:
    assert read(tool_calls=TAGGED) == OutputFormat(
        calls=TaggedCalls(
            open="<tool_call>",
            close="</tool_call>",
            name_open="<function=",
            name_close=">",
            arguments_close="</function>",
            key_open="<parameter=",
            key_close=">",
            value_close="</parameter>",
        )
    )


def test_tagged_arguments_of_a_call_that_begins_with_its_name() -> None:
    tags = {"tag_pattern": r"<k>(?P<key>\w+)</k>\n<v>(?P<value>.*?)</v>"}
    calls = TAGGED | {"open_pattern": r"<call>(?P<name>\w+)", "close": "</call>", "content_args": tags}
    assert read(tool_calls=calls) == OutputFormat(
        calls=TaggedCalls(
            open="<call>", close="</call>", key_open="<k>", key_close="</k>\n<v>", value_close="</v>"
        )
    )


def test_tagged_arguments_without_a_mark_around_the_call() -> None:
    calls = TAGGED | {"open_pattern": r"<function=(?P<name>\w+)>", "close": "</function>"}
    format = read(tool_calls=calls)
    assert format is not None
    assert isinstance(format.calls, TaggedCalls)
    assert (format.calls.name_open, format.calls.arguments_close) == ("<function=", "")
    assert format.calls.close == "</function>"


def test_braced_arguments() -> None:
    calls = {
        "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
        "close": "<tool_call|>",
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        "transform": NAMED,
    }
    assert read(tool_calls=calls) == OutputFormat(
        calls=BracedCalls(open="<|tool_call>", close="<tool_call|>")
    )
    assert read(tool_calls=calls | {"content_args": {"unquoted_keys": True}}) is None


def test_messages_with_headers_that_may_be_missing() -> None:
    """Inkling."""

    def opened(kind: str) -> str:
        return rf"(?:<\|message\|>)?[^<]*<\|{kind}\|>"

    function = {"name": "{content.name}", "arguments": "{content.args}"}
    format = read(
        thinking={"open_pattern": opened("thinking"), "close": "<|end|>"},
        content={"open_pattern": opened("text"), "close": "<|end|>"},
        tool_calls={
            "open_pattern": opened("invoke"),
            "close": "<|end|>",
            "content": "json",
            "transform": {"function": function},
        },
    )
    assert format == OutputFormat(
        calls=JsonCalls(open="<|invoke|>", close="<|end|>", arguments_key="args"),
        think_open="<|thinking|>",
        think_close="<|end|>",
        ignored=("<|text|>", "<|end|>", "<|message|>"),
    )


def test_optional_parts_that_are_no_marks_are_left_out() -> None:
    assert read(content={"open_pattern": r"(?:a+)?<t>", "close_pattern": "</t>"}) == OutputFormat(
        ignored=("<t>", "</t>")
    )


def test_harmony() -> None:
    pattern = r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>"
    assert read(tool_calls={"open_pattern": pattern, "close": "<|call|>", "content": "json"}) == HARMONY


def test_a_thought_that_begins_by_a_pattern_is_open_from_the_start() -> None:
    thoughts = {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"}
    assert read(thinking=thoughts) == OutputFormat(think_close="</think>")


def test_a_template_without_fields_that_are_known() -> None:
    assert read(citations={"open": "<co>"}) == OutputFormat()


@pytest.mark.parametrize(
    "calls",
    [
        {"content": "kv-lines", "open": "<c>"},
        {"content": "json"},
        {"content": "json", "open": 5},
        {"content": "json", "open": "<c>", "transform": {"function": {"name": "f-{name}"}}},
        {"content": "json", "open": "<c>", "transform": {"function": {"arguments": 5}}},
        {"content": "json", "open_pattern": r"<c>.*?(?P<name>\w+)>"},
        {"content": "json", "open_pattern": r"<c>(?P<tool>\w+)>"},
        {"content": "json", "open_pattern": r"<c>(?P<name>\w+)"},
        {"content": "json", "open_pattern": "x" * 2000},
        TAGGED | {"open_pattern": r"<c>"},
        TAGGED | {"open_pattern": r"<c>|<d>(?P<name>\w+)"},
        TAGGED | {"content_args": {"tag_pattern": r"<(?P<key>\w+)>"}},
        TAGGED | {"content_args": ["tag_pattern"]},
    ],
)
def test_calls_that_no_format_can_say(calls) -> None:
    assert read(tool_calls=calls) is None


@pytest.mark.parametrize("template", [{}, {"fields": []}, {"fields": {"content": "text"}}])
def test_what_is_no_response_template(template) -> None:
    assert read_response_template(template) is None


def test_a_list_of_transforms_names_no_keys() -> None:
    calls = {"content": "json", "open": "<c>", "transform": ["{content}"]}
    assert read(tool_calls=calls) == OutputFormat(calls=JsonCalls(open="<c>"))
