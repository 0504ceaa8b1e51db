"""Formats that are found in the families' templates, in small ones with one trait, and in official ones."""

import os
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipring.core.generation import CallArguments, Delta, Text, Thought
from slipring.prompts.parsing.output_format import JsonCalls, NamedJsonCalls, OutputFormat, TaggedCalls
from slipring.prompts.templates.detection.format_detection import DetectedFormat, detect_format
from slipring.prompts.templates.detection.probes import IDS, NAME, STRINGS, common_prefix
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool, FunctionTool
from tests.prompts.parsing import family_formats as known
from tests.prompts.parsing.answers import parsed
from tests.prompts.templates.family_templates import NAMES, render_with_jinja2, source_of

OFFICIAL = os.environ.get("SLIPRING_TEST_TEMPLATES", "")
"""A directory with chat templates of models."""

ONE_CALL = ("gpt_oss", "llama_3_1")
"""Families whose templates write one call per answer."""
WITHOUT_THOUGHTS = (
    *("deepseek_v3_1", "granite_4", "hermes", "llama_3_1", "llama_4", "mistral_nemo", "mistral_small"),
    "qwen3_coder",
)
"""Families whose templates write no thoughts of earlier answers."""
KNOWN = {
    "cohere": known.COHERE,
    "deepseek_v3_1": known.DEEPSEEK_V3_1,
    "deepseek_v3_2": known.DEEPSEEK_V3_2,
    "deepseek_v4": known.DEEPSEEK_V4,
    "gemma_4": known.GEMMA4,
    "glm_4_5": known.GLM,
    "glm_4_7": known.GLM_4_7,
    "gpt_oss": known.HARMONY,
    "granite_4": OutputFormat(calls=known.HERMES.calls),
    "hermes": OutputFormat(calls=known.HERMES.calls),
    "kimi_k2": known.KIMI_K2,
    "kimi_k3": known.KIMI_K3,
    "lfm2_5": known.LFM2,
    "llama_3_1": known.LLAMA3_JSON,
    "llama_4": known.PYTHON_LIST,
    "minimax_m2": known.MINIMAX_M2,
    "minimax_m3": known.MINIMAX_M3,
    "ministral_3": known.MISTRAL,
    "mistral_nemo": known.MISTRAL_NEMO,
    "mistral_small": known.MISTRAL_CALL_ID,
    "nemotron_3": known.QWEN3_5,
    "qwen3": known.HERMES,
    "qwen3_5": known.QWEN3_5,
    "qwen3_coder": known.QWEN3_CODER,
    "seed_oss": known.SEED_OSS,
    "step_3_5": known.QWEN3_5,
}
STOPS = {
    "cohere": ("<|END_OF_TURN_TOKEN|>",),
    "deepseek_v3_1": ("<｜end▁of▁sentence｜>",),
    "deepseek_v3_2": ("<｜end▁of▁sentence｜>",),
    "deepseek_v4": ("<｜end▁of▁sentence｜>",),
    "gemma_4": ("<turn|>", "<|tool_response>"),
    "glm_4_5": ("<|user|>", "<|observation|>"),
    "glm_4_7": ("<|user|>", "<|observation|>"),
    "gpt_oss": ("<|return|>", "<|call|>"),
    "granite_4": ("<|end_of_text|>",),
    "kimi_k3": ("<|end_of_msg|>",),
    "llama_3_1": ("<|eot_id|>",),
    "llama_4": ("<|eot|>",),
    "minimax_m2": ("[e~[",),
    "minimax_m3": ("[e~[",),
    "ministral_3": ("</s>",),
    "mistral_nemo": ("</s>",),
    "mistral_small": ("</s>",),
    "seed_oss": ("<seed:eos>",),
}
"""The others end answers with ``<|im_end|>``."""


@cache
def of_family(family: str) -> DetectedFormat:
    return detect(source_of(family))


def detect(source: str, response_template: dict[str, Any] | None = None) -> DetectedFormat:
    return detect_format(render_with_jinja2(source), source, response_template)


def in_effect(format: OutputFormat) -> OutputFormat:
    """A format without what makes no difference to a parser: white space around marks, ends of answers."""
    calls = format.calls
    if calls is not None:
        texts = {name: getattr(calls, name) for name in calls.__struct_fields__}
        stripped = {name: text.strip() for name, text in texts.items() if isinstance(text, str)}
        calls = msgspec.structs.replace(calls, **stripped | {"between": ""})
    thoughts = {"think_open": format.think_open.strip(), "think_close": format.think_close.strip()}
    return msgspec.structs.replace(format, calls=calls, ignored=(), stops=(), **thoughts)


def test_all_families_are_known() -> None:
    assert sorted(KNOWN) == NAMES


@pytest.mark.parametrize("family", NAMES)
def test_a_familys_format_is_the_known_one(family) -> None:
    detected = of_family(family)
    assert in_effect(detected.format) == in_effect(KNOWN[family])
    assert set(detected.format.ignored) <= set(KNOWN[family].ignored)
    assert detected.writes_calls
    assert not detected.takes_null_content
    assert not detected.takes_text_arguments


@pytest.mark.parametrize("family", NAMES)
def test_stops_end_answers_and_no_part_of_them(family) -> None:
    assert of_family(family).format.stops == STOPS.get(family, ("<|im_end|>",))


@pytest.mark.parametrize("family", NAMES)
def test_only_deepseek_v3_1_describes_no_tools(family) -> None:
    assert of_family(family).writes_tools == (family != "deepseek_v3_1")


@pytest.mark.parametrize("family", NAMES)
def test_only_ministral_takes_thoughts_as_chunks(family) -> None:
    assert of_family(family).takes_thought_chunks == (family == "ministral_3")


def test_white_space_is_as_the_template_writes_it() -> None:
    qwen, nemotron, glm = (of_family(name).format for name in ("qwen3", "nemotron_3", "glm_4_5"))
    assert qwen == msgspec.structs.replace(known.HERMES, stops=("<|im_end|>",))
    assert (nemotron.think_open, nemotron.think_close) == ("<think>\n", "\n</think>\n")
    assert isinstance(nemotron.calls, TaggedCalls)
    assert (nemotron.calls.close, nemotron.calls.between) == ("</tool_call>\n", "")
    assert (glm.think_open, glm.think_close) == ("\n<think>", "</think>\n")
    assert isinstance(glm.calls, TaggedCalls)
    assert glm.calls == known.GLM.calls
    assert of_family("minimax_m2").format.calls == known.MINIMAX_M2.calls
    assert of_family("deepseek_v4").format.calls == known.DEEPSEEK_V4.calls


@pytest.mark.parametrize(
    ("family", "found"),
    [
        ("hermes", "JSON calls, found by rendering the template"),
        ("kimi_k2", "names with JSON arguments, found by rendering the template"),
        ("qwen3_coder", "tagged arguments, found by rendering the template"),
        ("llama_4", "Python calls, found by rendering the template"),
        ("gpt_oss", "Harmony messages of gpt-oss, known by marks in the template"),
        ("gemma_4", "braced arguments of Gemma 4, known by marks in the template"),
        ("minimax_m3", "nested tags of MiniMax M3, known by marks in the template"),
    ],
)
def test_how_it_was_found_is_told(family, found) -> None:
    assert of_family(family).found == found


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "code": {"type": "string"},
        "days": {"type": "integer"},
        "deep": {"type": "object"},
        "tags": {"type": "array"},
    },
}
ARGUMENTS_OF_CALLS = (
    {"city": "Lima", "code": '{"a": 1}', "days": 3, "deep": {"x": [1, 2]}, "tags": ["a", "b"]},
    {"city": "Oslo"},
)
WEATHER = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
]
OFFER = Offer(
    tools=(
        CallableTool(
            "function",
            "weather",
            None,
            FunctionTool("weather", parameters=msgspec.Raw(msgspec.json.encode(SCHEMA))),
        ),
    )
)


def written_answer(source: str, detected: DetectedFormat, answer: dict[str, Any]) -> tuple[str, bool]:
    """What the template writes for an answer after its prompt, and whether the prompt opens thoughts."""
    render, variables = render_with_jinja2(source), detected.thinking.variables("high")
    question = {"role": "user", "content": "What now?"}
    prompt = render([question], WEATHER, add_generation_prompt=True, variables=variables)
    written = render([question, answer], WEATHER, add_generation_prompt=False, variables=variables)
    opened = detected.format.think_open.strip()
    starts_thinking = bool(opened) and written.startswith(prompt) and prompt.rstrip().endswith(opened)
    text = written.removeprefix(common_prefix(prompt, written))
    if not detected.format.is_harmony:
        ends = [text.index(stop) for stop in detected.format.stops if stop in text]
        text = text[: min(ends, default=len(text))]
    return text, starts_thinking


def an_answer(detected: DetectedFormat, *, text: str, thoughts: str, calls: int) -> dict[str, Any]:
    content: Any = text
    if thoughts and detected.takes_thought_chunks:
        content = [{"type": "thinking", "thinking": thoughts}, {"type": "text", "text": text}]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thoughts:
        message |= {"reasoning_content": thoughts, "reasoning": thoughts, "thinking": thoughts}
    if calls:
        if detected.takes_null_content and not text:
            message["content"] = None
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
            for id, arguments in list(zip(IDS, given_arguments(detected), strict=True))[:calls]
        ]
    return message


def given_arguments(detected: DetectedFormat) -> list[Any]:
    texts = detected.takes_text_arguments
    return [msgspec.json.encode(each).decode() if texts else each for each in ARGUMENTS_OF_CALLS]


def read_answer(source: str, detected: DetectedFormat, text: str, thoughts: str, calls: int) -> list[Delta]:
    """What is parsed from an answer that the template has written; its calls are checked."""
    answer = an_answer(detected, text=text, thoughts=thoughts, calls=calls)
    written, starts_thinking = written_answer(source, detected, answer)
    deltas = parsed([written], detected.format, OFFER, starts_thinking=starts_thinking)
    found = [msgspec.json.decode(delta.text) for delta in deltas if isinstance(delta, CallArguments)]
    assert found == list(ARGUMENTS_OF_CALLS[:calls])
    return deltas


def shapes(family: str) -> list[tuple[str, str, int]]:
    """Texts, thoughts and numbers of calls of the answers that a template can write."""
    most = 1 if family in ONE_CALL else 2
    every = product(("", "Well, well."), ("", "Let me see."), range(most + 1))
    both = family != "gpt_oss"
    return [shape for shape in every if (shape[0] or shape[2]) and (both or not all(shape))]


@pytest.mark.parametrize("family", NAMES)
def test_what_a_template_writes_is_parsed_by_its_format(family) -> None:
    for text, thoughts, calls in shapes(family):
        check_answer(family, text, thoughts, calls)


def check_answer(family: str, text: str, thoughts: str, calls: int) -> None:
    detected = of_family(family)
    deltas = read_answer(source_of(family), detected, text, thoughts, calls)
    told = "".join(delta.text for delta in deltas if isinstance(delta, Text)).strip()
    thought = "".join(delta.text for delta in deltas if isinstance(delta, Thought)).strip()
    if calls == 0:  # several templates leave out text beside calls, or thoughts beside text
        assert told == text
        assert thought in (thoughts, "")
    elif family == "gpt_oss":  # writes the text of an answer of calls as a thought
        assert (told, thought) == ("", text or thoughts)
    else:
        assert told in (text, "")
        assert thought == ("" if family in WITHOUT_THOUGHTS else thoughts)


CHAT = """\
{%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- for message in messages -%}
    {{- '<|' + message.role + '|>' -}}
    {%- if message.tool_calls -%}CALLS{%- else -%}{{- message.content -}}{%- endif -%}
    {{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def with_calls(*, each: str, first: str = "", last: str = "") -> str:
    """A template that writes ``each`` for a call, with ``call`` as its function."""
    loop = (
        "{%- for item in message.tool_calls -%}{%- set call = item.function -%}{%- set id = item.id -%}"
        + each
        + "{%- endfor -%}"
    )
    return CHAT.replace("CALLS", f"{{{{- {first!r} -}}}}{loop}{{{{- {last!r} -}}}}")


ARGUMENTS = "{{- call.arguments | tojson -}}"


def test_json_lines_in_a_section() -> None:
    each = '{{- \'{"name": "\' + call.name + \'", "arguments": \' -}}' + ARGUMENTS + "{{- '}\\n' -}}"
    calls = detect(with_calls(first="<calls>\n", each=each, last="</calls>")).format.calls
    assert calls == JsonCalls(
        section_open="<calls>\n", section_close="\n</calls>", between="\n", is_bare=True
    )


def test_json_with_another_object_around_it() -> None:
    each = "{{- '<call>' + ({'type': 'function', 'function': call} | tojson) + '</call>' -}}"
    calls = detect(with_calls(each=each)).format.calls
    assert isinstance(calls, JsonCalls)
    assert (calls.open, calls.close) == ('<call>{"type": "function", "function": ', "}</call>")


def test_braces_that_are_no_json_are_text() -> None:
    each = "{{- '<call>{f ' + call.name + '{' -}}" + ARGUMENTS + "{{- '}</call>' -}}"
    assert detect(with_calls(each=each)).format.calls is None


def test_json_without_arguments_is_no_call() -> None:
    assert (
        detect(with_calls(each="{{- '<call>' + ({'name': call.name} | tojson) + '</call>' -}}")).format.calls
        is None
    )


def test_names_as_keys_of_json() -> None:
    each = "{%- if not loop.first -%}, {%- endif -%}{{- ({call.name: call.arguments} | tojson) -}}"
    calls = detect(with_calls(first="<calls>[", each=each, last="]</calls>")).format.calls
    assert calls == NamedJsonCalls(
        section_open="<calls>[",
        section_close="]</calls>",
        open='{"',
        close="}",
        between=",",
        arguments_open='": ',
    )


def test_ids_before_names() -> None:
    each = "{{- '<call>' + id + '<name>' + call.name + '<arguments>' -}}" + ARGUMENTS + "{{- '</call>' -}}"
    assert detect(with_calls(first="<calls>", each=each, last="</calls>")).format.calls == NamedJsonCalls(
        section_open="<calls>",
        section_close="</calls>",
        id_open="<call>",
        open="<name>",
        arguments_open="<arguments>",
        close="</call>",
    )


def test_ids_before_names_without_a_mark() -> None:
    each = "{{- id + '<name>' + call.name + '<arguments>' -}}" + ARGUMENTS
    calls = detect(with_calls(each=each)).format.calls
    assert calls == NamedJsonCalls(open="<name>", arguments_open="<arguments>")


def test_ids_in_place_of_names() -> None:
    """Kimi K2.5."""
    each = "{{- '<call>' + id + '<arguments>' -}}" + ARGUMENTS + "{{- '</call>' -}}"
    found = detect(with_calls(each=each))
    assert found.writes_calls
    assert found.format.calls == NamedJsonCalls(
        open="<call>",
        name_prefix="functions.",
        id_separator=":",
        id_is_index=True,
        arguments_open="<arguments>",
        close="</call>",
    )


def test_names_without_a_mark_are_not_told_from_text() -> None:
    assert detect(with_calls(each="{{- call.name + '\\n' -}}" + ARGUMENTS)).format.calls is None


def test_a_template_that_writes_one_call_only() -> None:
    source = with_calls(
        each="{%- if loop.first -%}{{- '<f>' + call.name + '<a>' -}}" + ARGUMENTS + "</a>{%- endif -%}"
    )
    assert detect(source).format.calls == NamedJsonCalls(open="<f>", arguments_open="<a>", close="</a>")


def test_a_template_that_writes_names_only_has_no_format() -> None:
    assert detect(with_calls(each="{{- '<f>' + call.name + '</f>' -}}")).format.calls is None


def test_arguments_in_the_order_of_the_template() -> None:
    keys = "{%- for key in call.arguments | sort(reverse=true) -%}{{- '<k>' + key -}}{%- endfor -%}"
    each = "{{- '<f>' + call.name -}}" + keys
    assert detect(with_calls(each=each)).format.calls is None


TAGGED = """\
{{- '<f=' + call.name + '>' -}}
{%- for key, value in call.arguments | items -%}
    {{- BEFORE + key + BETWEEN -}}{{- VALUE -}}{{- AFTER -}}
{%- endfor -%}
{{- '</f>' -}}"""


def tagged(*, before: str, between: str, after: str, value: str = "value") -> str:
    parts = {"BEFORE": before, "BETWEEN": between, "VALUE": value, "AFTER": after}
    each = TAGGED
    for name, part in parts.items():
        each = each.replace(name, part)
    return with_calls(each=each)


def test_types_as_attributes() -> None:
    types = "('string' if value is string else 'object' if value is mapping else 'number')"
    source = tagged(before="'<k name=\"'", between=f"'\" type=\"' + {types} + '\">'", after="'</k>'")
    assert detect(source).format.calls == TaggedCalls(
        name_open="<f=",
        name_close=">",
        arguments_close="</f>",
        key_open='<k name="',
        string_attribute='" type="{type}"',
        key_close=">",
        value_close="</k>",
    )


def test_strings_as_json_have_no_format() -> None:
    source = tagged(before="'<k name=\"'", between="'\">'", after="'</k>'", value="value | tojson")
    assert detect(source).format.calls is None


def test_keys_without_marks_have_no_format() -> None:
    assert detect(tagged(before="''", between="'='", after="''")).format.calls is None


def test_numbers_that_are_not_written_tell_no_attributes() -> None:
    source = tagged(before="'<k>'", between="'='", after="'</k>'", value="value if value is string else 'n'")
    calls = detect(source).format.calls
    assert isinstance(calls, TaggedCalls)
    assert (calls.key_close, calls.string_attribute) == ("=", "")


def test_a_name_before_a_mark_of_its_own_is_left_out() -> None:
    """Muse names the recipient of a message, and again the function in it."""
    each = "{{- 'to=' + call.name + '<m><f=' + call.name + '>' -}}" + ARGUMENTS + "{{- '</f>' -}}"
    source = with_calls(each=each).replace(
        "{{- message.content -}}", "{{- 'to=user<m>' + message.content -}}"
    )
    calls = detect(source).format.calls
    assert calls is not None
    assert NAME not in msgspec.json.encode(calls).decode()


def test_an_answer_of_calls_with_an_end_of_its_own() -> None:
    each = "{{- '<f=' + call.name + '>' -}}" + ARGUMENTS + "{{- '</f>' -}}"
    source = with_calls(each=each).replace(
        "{{- '<|end|>' -}}", "{{- '<|calls|>' if message.tool_calls else '<|end|>' -}}"
    )
    format = detect(source).format
    assert format.stops == ("<|end|>", "<|calls|>")
    assert format.calls == NamedJsonCalls(open="<f=", arguments_open=">", close="</f>")


def test_an_answer_of_calls_in_a_section_with_an_end_of_its_own() -> None:
    each = "{{- '<f=' + call.name + '>' -}}" + ARGUMENTS + "{{- '</f>' -}}"
    source = with_calls(first="<calls>", each=each, last="</calls>").replace(
        "{{- '<|end|>' -}}", "{{- '<|done|>' if message.tool_calls else '<|end|>' -}}"
    )
    format = detect(source).format
    assert format.stops == ("<|end|>", "<|done|>")
    assert format.calls is not None
    assert (format.calls.section_open, format.calls.section_close) == ("<calls>", "</calls>")


def test_an_end_that_only_answers_of_calls_have() -> None:
    """Hy3 ends an answer of text only once another message follows."""
    end = "{%- if message.tool_calls or not loop.last -%}{{- '<|end|>' -}}{%- endif -%}"
    each = "{{- '<f=' + call.name + '>' -}}" + ARGUMENTS + "{{- '</f>' -}}"
    source = with_calls(first="<calls>", each=each, last="</calls>").replace("{{- '<|end|>' -}}", end)
    format = detect(source).format
    assert format.stops == ("<|end|>",)
    assert format.calls is not None
    assert format.calls.section_close == "</calls>"


def test_answers_that_end_differently_once_outputs_follow_tell_no_stop() -> None:
    end = "{%- if message.role == 'user' -%}<|end|>{%- elif not loop.last -%}{{- 'x<|next|>' -}}{%- endif -%}"
    each = (
        "{{- '<f=' + call.name + '>' -}}"
        + ARGUMENTS
        + "{%- if messages[-1].role == 'tool' -%};{%- else -%}!{%- endif -%}"
    )
    assert "<|next|>" in detect(with_calls(each=each).replace("{{- '<|end|>' -}}", end)).format.stops


def test_marks_that_stand_within_answers_are_no_stops() -> None:
    """GigaChat separates text and calls by the mark that ends answers."""
    each = "{{- '<|end|><f=' + call.name + '>' -}}" + ARGUMENTS
    source = with_calls(each=each).replace(
        "{%- if message.tool_calls -%}", "{%- if message.tool_calls -%}{{- message.content -}}"
    )
    assert detect(source).format.stops == ()


def test_a_template_that_takes_arguments_as_text() -> None:
    detected = detect(with_calls(each="{{- '<f=' + call.name + '>' + call.arguments + '</f>' -}}"))
    assert detected.takes_text_arguments
    assert detected.format.calls == NamedJsonCalls(open="<f=", arguments_open=">", close="</f>")


WRITES_PAIRS = "{%- for key, value in given.items() -%}{{- key + '=' + (value | tojson) -}}{%- endfor -%}"


@pytest.mark.parametrize(
    ("written", "is_taken"),
    [
        (ARGUMENTS, True),
        ("{{- call.arguments if call.arguments is string else call.arguments | tojson -}}", True),
        ("{{- call.arguments -}}", True),
        ("{{- call.arguments + '' -}}", True),
        ("{%- set given = call.arguments -%}" + WRITES_PAIRS, False),
        (
            "{%- set given = call.arguments -%}{%- if given is mapping -%}" + WRITES_PAIRS + "{%- endif -%}",
            False,
        ),
        ("{%- for key in call.arguments -%}{{- key + '=' ~ call.arguments[key] -}}{%- endfor -%}", False),
        ("{%- set given = call.arguments | from_json -%}" + WRITES_PAIRS, False),
        ("{{- call.arguments | from_json | tojson -}}", False),
        ("{{- call.arguments if call.arguments[0] == '{' else raise_exception('no object') -}}", False),
    ],
)
def test_broken_arguments_are_taken_if_the_template_writes_them_whole(written: str, is_taken: bool) -> None:
    detected = detect(with_calls(each="{{- '<f=' + call.name + '>' -}}" + written + "{{- '</f>' -}}"))
    assert detected.writes_calls
    assert detected.takes_broken_arguments == is_taken


def test_two_more_conversations_show_what_becomes_of_broken_arguments() -> None:
    source = source_of("qwen3")
    render, made = render_with_jinja2(source), list[str]()

    def counted(messages: Any, *rest: Any, **options: Any) -> str:
        made.append(str(messages))
        return render(messages, *rest, **options)

    assert detect_format(counted, source).takes_broken_arguments
    assert sum("'arguments': '" in messages for messages in made) == 2


def test_a_template_that_takes_calls_without_content_only() -> None:
    each = "{{- '<f=' + call.name + '>' -}}" + ARGUMENTS + "{{- '</f>' -}}"
    source = with_calls(each=each).replace(
        "{%- if message.tool_calls -%}", "{%- if message.content is none -%}"
    )
    detected = detect(source)
    assert detected.takes_null_content
    assert detected.format.calls == NamedJsonCalls(open="<f=", arguments_open=">", close="</f>")


def test_a_template_that_refuses_answers_of_text_has_no_format_of_calls() -> None:
    each = "{{- '<f=' + call.name + '>' -}}" + ARGUMENTS
    refusal = "{{- raise_exception('no') if message.role == 'assistant' else message.content -}}"
    source = with_calls(each=each).replace("{{- message.content -}}", refusal)
    detected = detect(source)
    assert detected.writes_calls
    assert detected.format.calls is None


@pytest.mark.parametrize(
    ("marks", "calls"),
    [
        ("<|tool_calls_section_begin|> <|tool_call_argument_begin|>", known.KIMI_K2.calls),
        ("<｜tool▁calls▁begin｜> ```json", known.DEEPSEEK_V3.calls),
        ("answer with <|tool_call|> and a JSON list", JsonCalls(section_open="<|tool_call|>", is_array=True)),
        ("<|tool_list_start|>", known.LFM2.calls),
        ('<tool_call>{"name": "f", "arguments": {}}', known.HERMES.calls),
        ("nothing that is known", None),
    ],
)
def test_templates_that_write_no_calls_are_recognised_by_their_text(marks, calls) -> None:
    detected = detect(
        f"{{# {marks} #}}" + CHAT.replace("{%- if message.tool_calls -%}CALLS{%- else -%}", "{%- if true -%}")
    )
    assert detected.format.calls == calls
    assert not detected.writes_calls
    assert detected.writes_tools
    assert (calls is None) == detected.found.startswith("no calls")


def test_llama_4_with_json_calls() -> None:
    source = CHAT.replace("CALLS", "<|python_start|><|python_end|>{%- set keys = '\"parameters\"' -%}")
    format = detect(source).format
    assert format.calls == known.LLAMA3_JSON.calls
    assert format.ignored == ("<|python_start|>", "<|python_end|>")


def test_a_template_that_cannot_be_rendered() -> None:
    detected = detect("{{- raise_exception('no') -}}")
    assert detected.format == OutputFormat()
    assert not detected.writes_tools


THOUGHTS = CHAT.replace("{%- if message.tool_calls -%}", "{{- THOUGHTS -}}{%- if message.tool_calls -%}")


def test_thoughts_that_only_a_line_of_the_prompt_begins() -> None:
    """Apriel: the prompt ends with a sentence, a mark in brackets ends the thoughts."""
    source = THOUGHTS.replace(
        "THOUGHTS", "message.thinking + '\\n[BEGIN FINAL RESPONSE]\\n' if message.thinking else ''"
    ).replace("{{- '<|assistant|>' -}}", "{{- '<|assistant|>My thoughts:\\n' -}}")
    format = detect(source).format
    assert (format.think_open, format.think_close) == ("My thoughts:\n", "\n[BEGIN FINAL RESPONSE]\n")


def test_thoughts_without_marks() -> None:
    format = detect(
        THOUGHTS.replace("THOUGHTS", "'I think: ' + message.thinking + '. ' if message.thinking else ''")
    ).format
    assert (format.think_open, format.think_close) == ("I think: ", "")


def test_thoughts_before_which_the_prompt_ends_otherwise() -> None:
    source = THOUGHTS.replace(
        "THOUGHTS", "'so: ' + message.thinking + '</t>' if message.thinking else ''"
    ).replace("{{- '<|assistant|>' -}}", "{{- '<|assistant|>well: ' -}}")
    format = detect(source).format
    assert (format.think_open, format.think_close) == ("", "</t>")


def test_marks_of_thoughts_in_the_source_only() -> None:
    source = "{# [THINK] [/THINK] #}" + CHAT
    assert detect(source).format.think_open == "[THINK]"
    opened = ("{# </think> #}" + CHAT).replace("{{- '<|assistant|>' -}}", "{{- '<|assistant|><think>\\n' -}}")
    assert (detect(opened).format.think_open, detect(opened).format.think_close) == ("<think>\n", "</think>")


def test_chunks_that_are_written_as_they_are_hold_no_thoughts() -> None:
    source = CHAT.replace("{{- message.content -}}", "{{- message.content | string -}}")
    assert detect(source).format.think_open == ""


def test_marks_around_text_are_ignored() -> None:
    each = "{{- '<f=' + call.name + '>' -}}" + ARGUMENTS + "{{- '</f>' -}}"
    source = with_calls(each=each).replace(
        "{{- message.content -}}", "{{- '<text>' + message.content + '</text>' -}}"
    )
    format = detect(source).format
    assert format.ignored == ("<text>", "</text>")
    assert format.stops == ("<|end|>",)


JSON_CALLS = {
    "open": "<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}


def test_a_response_template_that_agrees_leaves_the_white_space_of_the_template() -> None:
    thinking = {"open": "<think>", "close": "</think>"}
    detected = detect(source_of("qwen3"), {"fields": {"thinking": thinking, "tool_calls": JSON_CALLS}})
    assert detected.format == of_family("qwen3").format
    assert (
        detected.found == "JSON calls, as the model's response_template says, and the template writes them so"
    )


def test_a_response_template_takes_precedence() -> None:
    fields = {"tool_calls": {**JSON_CALLS, "open": "<call>", "close": "</call>"}}
    detected = detect(source_of("qwen3"), {"fields": fields})
    assert detected.format == OutputFormat(
        calls=JsonCalls(open="<call>", close="</call>"), stops=("<|im_end|>",)
    )
    assert detected.found == "JSON calls, as the model's response_template says"


def test_a_response_template_without_calls_leaves_those_of_the_template() -> None:
    fields = {"thinking": {"open": "<t>", "close": "</t>"}, "content": {"close": "<|stop|>"}}
    detected = detect(source_of("hermes"), {"fields": fields})
    assert detected.format == OutputFormat(
        calls=of_family("hermes").format.calls,
        think_open="<t>",
        think_close="</t>",
        calls_end_thoughts=True,
        stops=("<|stop|>",),
    )
    assert detected.found == "JSON calls, found by rendering the template"


def test_a_response_template_for_a_template_without_calls() -> None:
    detected = detect("{{- raise_exception('no') -}}", {"fields": {"content": {}}})
    assert detected.format == OutputFormat()


def test_harmony_in_both() -> None:
    pattern = r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>"
    detected = detect(source_of("gpt_oss"), {"fields": {"tool_calls": {"open_pattern": pattern}}})
    assert detected.format == known.HARMONY
    assert detected.found.endswith("and the template writes them so")


def test_a_response_template_that_cannot_be_read_is_left_out() -> None:
    detected = detect(source_of("hermes"), {"fields": {"tool_calls": {"content": "kv-lines"}}})
    assert detected == of_family("hermes")


def test_the_example_in_the_documentation_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[4] / "docs" / "dialects.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    calls = NamedJsonCalls(open='<call name="', arguments_open='">', close="</call>")
    expected = OutputFormat(calls=calls, think_open="<think>", think_close="</think>", stops=("<|end|>",))
    assert names["found"].format == expected
    printed = capsys.readouterr().out.splitlines()
    said = re.findall(r"^print\(.*?\)(?:  # (.*))?$", code, re.MULTILINE)
    assert [line for line, comment in zip(printed, said, strict=True) if comment] == list(filter(None, said))


def written_calls(source: str, detected: DetectedFormat) -> int:
    """How many calls of an answer a template writes: one or two."""
    both, one = (
        written_answer(source, detected, an_answer(detected, text="", thoughts="", calls=calls))[0]
        for calls in (2, 1)
    )
    return 2 if len(both) > len(one) else 1


def official_templates() -> list[Path]:
    return sorted(Path(OFFICIAL).glob("*.jinja")) if OFFICIAL else []


UNSAYABLE = ("functionary-medium-v3.2",)
"""Templates whose calls no format can say: names without marks before them."""
DEMANDING = ("command-r-plus",)
"""Templates that need more of a tool's schema than the test has."""


@pytest.mark.skipif(not OFFICIAL, reason="SLIPRING_TEST_TEMPLATES names no directory")
@pytest.mark.parametrize("path", official_templates(), ids=lambda path: path.stem)
def test_formats_of_official_templates(path) -> None:
    source = path.read_text()
    detected = detect(source)
    print(f"{path.stem}: {detected}")
    found = msgspec.json.encode(detected).decode()
    assert not [text for text in (NAME, *IDS, *STRINGS, *STRINGS.values()) if text in found]
    if not detected.writes_calls or any(name in path.stem for name in UNSAYABLE):
        return
    assert detected.format.calls is not None or detected.format.is_harmony
    for calls in () if any(name in path.stem for name in DEMANDING) else (1, 2):
        for thoughts in ("", "Let me see."):
            read_answer(source, detected, "", thoughts, min(calls, written_calls(source, detected)))


def test_the_end_of_a_thought_is_no_part_of_the_calls_after_it() -> None:
    """As in vLLM's template of DeepSeek V3.1, which writes blanks between its parts."""
    source = """
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<｜Assistant｜>' }}
        {%- if message.tool_calls %}
            {{- '</think>    <｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls %}
                {{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}
                {{- call.function.arguments | tojson }}
                {{- '<｜tool▁call▁end｜>' }}
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜><｜end｜>' }}
        {%- else %}
            {{- '    </think>' + message.content + '<｜end｜>' }}
        {%- endif %}
    {%- else %}
        {{- '<｜User｜>' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}{% endif %}"""
    calls = detect(source).format.calls
    assert calls is not None
    assert calls.section_open == "<｜tool▁calls▁begin｜>"


def test_marks_around_answers_that_the_source_names_are_ignored() -> None:
    """Hunyuan A13B: the template takes them out of earlier answers."""
    source = source_of("qwen3").replace("{%- if tools", "{#- <answer> </answer> -#}{%- if tools", 1)
    assert {"<answer>", "</answer>"} <= set(detect(source).format.ignored)


def test_an_array_without_marks_begins_an_answer() -> None:
    """xLAM."""
    source = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.tool_calls %}{{ '[' }}{% for call in message.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}' }}
{{- '' if loop.last else ', ' }}{% endfor %}{{ ']' }}{% else %}{{ message.content }}{% endif %}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
    calls = detect(source).format.calls
    assert isinstance(calls, JsonCalls)
    assert (calls.is_array, calls.is_bare, calls.section_open) == (True, True, "")


def test_values_in_cdata_are_read_if_the_source_names_them() -> None:
    found = detect("{#- <![CDATA[ -#}" + source_of("qwen3_coder")).format.calls
    assert isinstance(found, TaggedCalls)
    assert found.has_cdata


@pytest.mark.parametrize(
    ("marks", "format"),
    [
        ("<start_function_call>call:f{}<end_function_call><escape>", known.FUNCTION_GEMMA),
        ("<longcat_tool_call></longcat_tool_call>", known.LONGCAT),
        ("<|action_start|><|plugin|><|action_end|>", known.INTERNLM2),
        ('functools[{"name": [function name]}]', known.PHI4_MINI),
        ("<dots_function_call><invoke name=f><parameter name=k>", known.DOTS),
        ("<functions></functions><function_calls></function_calls>", known.OLMO3),
        ("<｜tool_calls_begin｜><steptml:invoke name=", known.STEP3),
    ],
)
def test_formats_that_a_template_only_names_are_known_by_their_marks(
    marks: str, format: OutputFormat
) -> None:
    source = "{#- " + marks + " -#}{% for message in messages %}{{ message.content }}</s>{% endfor %}"
    assert detect(source).format.calls == format.calls


TAGGED_ARGUMENTS = (
    "{%- for key, value in call.arguments.items() -%}{{- 'KEY' + key + 'VALUE' -}}"
    "{{- value if value is string else value | tojson -}}{{- 'END' -}}{%- endfor -%}"
)


def tagged_template(format: OutputFormat) -> str:
    """A template that writes calls in a format with tagged arguments."""
    layout = format.calls
    assert isinstance(layout, TaggedCalls)
    arguments = TAGGED_ARGUMENTS.replace("KEY", layout.key_open).replace("VALUE", layout.key_close)
    arguments = arguments.replace("END", layout.value_close.replace("\n", "\\n"))
    before = layout.open + layout.name_open
    after = layout.arguments_close + layout.close
    name_close = layout.name_close.replace("\n", "\\n")
    each = f"{{{{- '{before}' + call.name + '{name_close}' -}}}}{arguments}{{{{- '{after}' -}}}}"
    return with_calls(first=layout.section_open, each=each, last=layout.section_close)


@pytest.mark.parametrize("name", ["STEP3", "K2_HORIZON", "HUNYUAN3"])
def test_tagged_calls_in_marks_of_other_kinds(name: str) -> None:
    """Step 3: a word between the mark and the name; K2 Horizon: tags with a bar; Hunyuan: with a suffix."""
    format = known.FORMATS[name]
    found = detect(tagged_template(format)).format.calls
    assert isinstance(format.calls, TaggedCalls)
    assert isinstance(found, TaggedCalls)
    assert found == msgspec.structs.replace(format.calls, between=found.between)


def test_names_and_arguments_in_tags() -> None:
    """PLaMo 3."""
    layout = known.PLAMO3.calls
    assert isinstance(layout, NamedJsonCalls)
    before = f"{{{{- '{layout.open}' + call.name + '{layout.arguments_open}' -}}}}"
    each = before + ARGUMENTS + f"{{{{- '{layout.close}' -}}}}"
    source = with_calls(first=layout.section_open, each=each, last=layout.section_close)
    assert detect(source).format.calls == layout


PYTHON_CALL = (
    "{{- call.name + '(' -}}{%- for key, value in call.arguments.items() -%}"
    "{{- ('' if loop.first else ', ') + key + '=' + (value | tojson) -}}{%- endfor -%}{{- ')' -}}"
)


def test_python_calls_by_lines() -> None:
    """OLMo 3."""
    each = "{{- '' if loop.first else '\\n' -}}" + PYTHON_CALL
    found = detect(with_calls(first="<function_calls>", each=each, last="</function_calls>")).format
    assert found.calls == known.OLMO3.calls
    one = "{%- if loop.first -%}" + PYTHON_CALL + "{%- endif -%}"
    found = detect(with_calls(first="<function_calls>", each=one, last="</function_calls>")).format
    assert found.calls == known.OLMO3.calls


@pytest.mark.parametrize(("first", "between"), [("", "\\n"), ("<calls>", ";")])
def test_python_calls_without_marks_or_white_space_are_text(first: str, between: str) -> None:
    each = "{{- '' if loop.first else '" + between + "' -}}" + PYTHON_CALL
    assert detect(with_calls(first=first, each=each)).format.calls is None
