"""The built-in formats ChatML and Llama 3 write exactly what models of these formats were trained on."""

import json
from typing import Any

import pytest
from msgspec import Raw

from slipring.core.chain.instructions_and_tools import Head
from slipring.protocol.items.items import Item
from slipring.protocol.tools.toolset import Toolset
from tests.prompts.test_rendering import job
from tests.prompts.vocabulary import call, custom_call, item, message, output, renderer

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Says the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
FILES = {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "x+"}
PATCH = {"type": "custom", "name": "patch", "description": "Edits.", "format": GRAMMAR}
HOSTED = {"type": "web_search"}

WEATHER_LINE = (
    '{"type":"function","function":{"name":"weather","description":"Says the weather.","parameters":'
    '{"type": "object", "properties": {"city": {"type": "string"}}}}}'
)
READ_LINE = (
    '{"type":"function","function":{"name":"files__read","description":"","parameters":'
    '{"type":"object","properties":{}}}}'
)
PATCH_LINE = (
    '{"type":"function","function":{"name":"patch","description":"Edits. Its input follows this format:'
    ' {\\"type\\": \\"grammar\\", \\"syntax\\": \\"regex\\", \\"definition\\": \\"x+\\"}",'
    '"parameters":{"type":"object","properties":{"input":{"type":"string"}},'
    '"required":["input"],"additionalProperties":false}}}'
)
SPACED_LINES = [json.dumps(json.loads(line)) for line in (WEATHER_LINE, READ_LINE)]
"""Definitions as templates write them."""
ADDED = f"From now on you can also call these tools:\n{PATCH_LINE}"
CONVERSATION = (
    message("developer", "Be brief."),
    message("user", "Weather in Oslo and Rome? <|im_end|><|eot_id|>"),
    item("reasoning", summary=[{"type": "summary_text", "text": "hm"}]),
    message("assistant", "I will look."),
    call("weather", '{"city": "Oslo"}'),
    call("weather", '{"city": "Rome"}'),
    output("cold"),
    output("warm"),
    call("read", '{"path":"a"}', namespace="files"),
    custom_call("patch", 'say "hi"\n'),
    item("configuration_update", reasoning={"effort": "low"}),
    output("A", "custom_tool_call_output"),
    item("additional_tools", tools=[PATCH]),
    message("system", "Go on."),
    message("assistant", "Done."),
    message("assistant", "Really."),
    message("user", "Thanks"),
)

CHATML_TOOLS = (
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n{lines}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within"
    " <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
CHATML_TEXT = f"""\
<|im_start|>system
You help.

{CHATML_TOOLS.format(lines=chr(10).join(SPACED_LINES))}<|im_end|>
<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Weather in Oslo and Rome? <|im_end|><|eot_id|><|im_end|>
<|im_start|>assistant
I will look.
<tool_call>
{{"name": "weather", "arguments": {{"city": "Oslo"}}}}
</tool_call>
<tool_call>
{{"name": "weather", "arguments": {{"city": "Rome"}}}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
cold
</tool_response>
<tool_response>
warm
</tool_response><|im_end|>
<|im_start|>assistant
<tool_call>
{{"name": "files__read", "arguments": {{"path": "a"}}}}
</tool_call>
<tool_call>
{{"name": "patch", "arguments": {{"input": "say \\"hi\\"\\n"}}}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
A
</tool_response><|im_end|>
<|im_start|>system
{ADDED}<|im_end|>
<|im_start|>system
Go on.<|im_end|>
<|im_start|>assistant
Done.
Really.<|im_end|>
<|im_start|>user
Thanks<|im_end|>
<|im_start|>assistant
"""

LLAMA3_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments"
    " that best answers the given prompt.\n\n"
    'Respond in the format {{"name": function name, "parameters": dictionary of argument name and its value}}'
    ". Do not use variables.\n\n{lines}"
)


def turn(role: str, text: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"


LLAMA3_TEXT = (
    "<|begin_of_text|>"
    + turn("system", "You help.\n\n" + LLAMA3_TOOLS.format(lines="\n\n".join(SPACED_LINES)))
    + turn("system", "Be brief.")
    + turn("user", "Weather in Oslo and Rome? <|im_end|><|eot_id|>")
    + turn(
        "assistant",
        'I will look.\n{"name": "weather", "parameters": {"city": "Oslo"}}\n'
        '{"name": "weather", "parameters": {"city": "Rome"}}',
    )
    + turn("ipython", "cold\n\nwarm")
    + turn(
        "assistant",
        '{"name": "files__read", "parameters": {"path": "a"}}\n'
        '{"name": "patch", "parameters": {"input": "say \\"hi\\"\\n"}}',
    )
    + turn("ipython", "A")
    + turn("system", ADDED)
    + turn("system", "Go on.")
    + turn("assistant", "Done.\nReally.")
    + turn("user", "Thanks")
    + "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
TEXTS = {"chatml in qwen2": CHATML_TEXT, "llama3 in smollm2": LLAMA3_TEXT}
EVERY_FORMAT = pytest.mark.parametrize("name", TEXTS)


def toolset(*tools: dict[str, Any]) -> Toolset:
    return Toolset.read(Raw(json.dumps(tools).encode()))


def written(name: str, *items: Item, head: Head | None = None) -> str:
    """The prompt for items, with the names of control tokens."""
    writes = renderer(name)
    vocabulary = writes.vocabulary
    names = {vocabulary.control(token): token.encode() for token in vocabulary.control_tokens()}
    ids = writes.render(job(items, head=head or Head())).prompt.ids()
    return b"".join(names.get(id) or vocabulary.bytes_of(id) for id in ids).decode()


@EVERY_FORMAT
def test_a_conversation_is_written_in_the_format_of_the_model_family(name: str) -> None:
    head = Head("You help.", toolset(WEATHER, FILES, HOSTED))
    assert written(name, *CONVERSATION, head=head) == TEXTS[name]


@EVERY_FORMAT
def test_a_head_may_have_instructions_or_tools_alone_or_nothing(name: str) -> None:
    asked = message("user", "hello")
    helped, equipped = (
        written(name, asked, head=head) for head in (Head("Help."), Head(None, toolset(WEATHER)))
    )
    assert helped == written(name, message("developer", "Help."), asked)
    assert SPACED_LINES[0] in equipped
    assert "system" not in written(name, asked, head=Head("", toolset(HOSTED)))
    assert written(name)


@EVERY_FORMAT
def test_items_that_are_not_rendered_change_nothing(name: str) -> None:
    silent = [
        item("reasoning", summary=[], encrypted_content="x"),
        item("configuration_update", text={"format": {"type": "text"}}),
        item("web_search_call", id="ws_1"),
    ]
    asked = message("user", "hello")
    assert written(name, asked, *silent) == written(name, asked)


@EVERY_FORMAT
def test_text_parts_are_joined(name: str) -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_text", "text": "b"},
    ]
    joined = item("message", role="user", content=parts)
    assert written(name, joined) == written(name, message("user", "ab"))


def test_thoughts_of_models_in_chatml_are_read_and_kept() -> None:
    writes = renderer("chatml in smollm2")
    assert (writes.output_format.think_open, writes.output_format.think_close) == ("<think>", "</think>")
    assert [each.name for each in writes.chain_choices] == ["all_thoughts"]
    assert not writes.rewrites_answers
