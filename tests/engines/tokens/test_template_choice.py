"""The built-in templates: which models get them, and what they write."""

import datetime
from typing import Any

import pytest

from slipring.engines.llama.options import LlamaOptions
from slipring.engines.tokens.model_files import ModelInfo
from slipring.engines.tokens.template_choice import (
    NAMES,
    builtin_template,
    find_builtin,
    make_serving_renderer,
)
from slipring.prompts.templates.jinja_engines import ChatTemplate
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.templates.family_templates import source_of
from tests.prompts.vocabulary import small_metadata

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Gets the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
THOUGHTS = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "Look.")
LOOP: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], **THOUGHTS},
    {"role": "tool", "content": "3", "tool_call_id": "a1b2c3d4e", "name": "weather"},
]
THINKING = {"thinking": True, "enable_thinking": True}
LOOPS = {
    "harmony": "<|start|>user<|message|>Weather?<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|>Look.<|end|>"
    '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
    "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>3<|end|><|start|>assistant",
    "deepseek-v3.1": "<｜User｜>Weather?<｜Assistant｜></think><｜tool▁calls▁begin｜>"
    "<｜tool▁call▁begin｜>weather"
    '<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
    "<｜tool▁output▁begin｜>3<｜tool▁output▁end｜>",
    "deepseek-v3.2": "<｜User｜>Weather?<｜Assistant｜><think>Look.</think>\n\n<｜DSML｜function_calls>\n"
    '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>\n\n<function_results>\n<result>3</result>\n"
    "</function_results>\n\n<think>",
    "deepseek-v4": "<｜User｜>Weather?<｜Assistant｜><think>Look.</think>\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>3</tool_result>"
    "<｜Assistant｜><think>",
    "deepseek-v4.1": "<｜User｜>Weather?<｜Assistant｜><think>Look.</think>\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="weather">\n'
    '<｜DSML｜ parameter name="city" string="true">Oslo</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>3</tool_result>"
    "<｜Assistant｜><think>",
    "kimi-k3": '<|open|>message role="user"<|sep|>Weather?<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>Look.<|close|>think<|sep|>'
    '<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="1"'
    '<|sep|><|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    '<|open|>message role="tool" tool="weather" index="1"<|sep|>3<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
}


def written(name: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    template = ChatTemplate(builtin_template(name), bos_token="<BOS>", today=datetime.date(2026, 11, 16))
    return template.render(messages, TOOLS, add_generation_prompt=True, variables=variables)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_written_in_the_familys_form(name: str) -> None:
    assert written(name, LOOP, **THINKING).endswith(LOOPS[name])


@pytest.mark.parametrize("name", NAMES)
def test_instructions_and_tools_are_written(name: str) -> None:
    head = written(name, LOOP[:2])
    assert all(text in head for text in ("Be brief.", "weather", "Gets the weather.", "city"))


def with_controls(*names: str) -> Tokenizer:
    metadata = small_metadata()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *names]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *(3 for _ in names)]
    return Tokenizer.from_gguf(metadata)


def test_models_with_a_lacking_template_or_none_get_a_built_in_one() -> None:
    plain = with_controls()
    assert find_builtin(ModelInfo(source_of("gpt_oss")), plain) == "harmony"
    assert find_builtin(ModelInfo(source_of("qwen3")), plain) is None
    assert find_builtin(ModelInfo(source_of("deepseek_v4")), plain) is None
    assert find_builtin(ModelInfo(family="deepseek_v4"), plain) == "deepseek-v4"
    assert find_builtin(ModelInfo(family="deepseek_v41"), plain) == "deepseek-v4.1"
    assert find_builtin(ModelInfo(family="gpt-oss"), plain) == "harmony"
    assert find_builtin(ModelInfo(), with_controls("<|open|>", "<|sep|>", "<|end_of_msg|>")) == "kimi-k3"
    assert find_builtin(ModelInfo(), with_controls("<|channel|>", "<|message|>", "<|call|>")) == "harmony"
    assert find_builtin(ModelInfo(), plain) is None


def test_no_built_in_template_is_assumed_if_it_is_not_certain() -> None:
    """DeepSeek V3.2, V4 and V4.1 have the same tokens and write calls differently."""
    assert find_builtin(ModelInfo(), with_controls("｜DSML｜")) is None
    for controls in (
        ("｜DSML｜",),
        ("<|open|>", "<|sep|>", "<|end_of_msg|>"),
        ("<|channel|>", "<|message|>", "<|call|>"),
    ):
        assert find_builtin(ModelInfo(family="deepseek_v99"), with_controls(*controls)) is None


def test_serving_a_model_whose_calls_are_not_understood_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    source = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
    for template, is_logged in (("{{ tools | tojson }}" + source, True), (source, False)):
        caplog.clear()
        make_serving_renderer("vllm", LlamaOptions(), ModelInfo(template), with_controls())
        assert ("no format of calls was found for the model" in caplog.text) is is_logged


def test_deepseek_v4_1_writes_efforts_as_numbers_and_later_system_messages() -> None:
    rest = " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    for effort, number in {"low": 50, "high": 75, "max": 100, "other": 75, 60: 60}.items():
        head = written("deepseek-v4.1", LOOP[:2], **THINKING, reasoning_effort=effort)
        assert head.startswith(f"<BOS><｜System｜>Reasoning Effort: {number}{rest}Be brief.\n\n## Tools")
    assert f"Effort: 75{rest}" in written("deepseek-v4.1", LOOP[:2], **THINKING)
    assert "Effort" not in written("deepseek-v4.1", LOOP[:2])
    messages = [*LOOP[:2], {"role": "system", "content": "Now."}, {"role": "user", "content": "Well?"}]
    assert written("deepseek-v4.1", messages).endswith(
        "<｜User｜>Weather?<｜System｜>Now.<｜User｜>Well?<｜Assistant｜></think>"
    )


@pytest.mark.parametrize(("lacks", "expected"), [("tools", "deepseek-v3.1"), ("```json", None)])
def test_deepseek_v3_1_is_told_from_its_predecessors(lacks: str, expected: str | None) -> None:
    template = "{{ thinking }}<｜tool▁calls▁begin｜>" + ("" if lacks == "tools" else "```json")
    assert find_builtin(ModelInfo(template), with_controls()) == expected
