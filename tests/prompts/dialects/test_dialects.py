"""Each dialect writes exactly the text that its model family was trained on."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import Raw, structs

from slipring.core.chain.head import Head
from slipring.prompts.dialects.dialect import CHATML, LLAMA3, Block, Control, Dialect, Fragment, Mark, Phrase
from slipring.protocol.items import Item
from slipring.protocol.requests import TEXT
from slipring.protocol.tools import Toolset
from tests.prompts.vocabulary import call, custom_call, item, message, output

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
HEAD_LINES = f"{WEATHER_LINE}\n{READ_LINE}"
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

{CHATML_TOOLS.format(lines=HEAD_LINES)}<|im_end|>
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
{{"name": "files__read", "arguments": {{"path":"a"}}}}
</tool_call>
<tool_call>
{{"name": "patch", "arguments": {{"input":"say \\"hi\\"\\n"}}}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
A
</tool_response><|im_end|>
<|im_start|>system
{CHATML_TOOLS.format(lines=PATCH_LINE)}<|im_end|>
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
    + turn("system", "You help.\n\n" + LLAMA3_TOOLS.format(lines=f"{WEATHER_LINE}\n\n{READ_LINE}"))
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
        '{"name": "files__read", "parameters": {"path":"a"}}\n'
        '{"name": "patch", "parameters": {"input":"say \\"hi\\"\\n"}}',
    )
    + turn("ipython", "A")
    + turn("system", LLAMA3_TOOLS.format(lines=PATCH_LINE))
    + turn("system", "Go on.")
    + turn("assistant", "Done.\nReally.")
    + turn("user", "Thanks")
    + "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
DIALECTS: dict[str, tuple[Dialect, str]] = {
    "chatml": (CHATML, CHATML_TEXT),
    "llama3": (LLAMA3, LLAMA3_TEXT),
}
EVERY_DIALECT = pytest.mark.parametrize("dialect", [CHATML, LLAMA3], ids=["chatml", "llama3"])


def toolset(*tools: dict[str, Any]) -> Toolset:
    return Toolset.read(Raw(json.dumps(tools).encode()))


def spelled(fragments: Iterable[Fragment]) -> str:
    parts: list[str | Control | Mark] = []
    for fragment in fragments:
        parts += fragment.parts if isinstance(fragment, Phrase) else [fragment]
    return "".join(part if isinstance(part, str) else part.token for part in parts)


def items_written(dialect: Dialect, *items: Item) -> str:
    return spelled(dialect.write_items(Block.NONE, items)[0])


@pytest.mark.parametrize(("dialect", "expected"), DIALECTS.values(), ids=DIALECTS)
def test_a_conversation_is_written_in_the_format_of_the_model_family(dialect: Dialect, expected: str) -> None:
    head = Head("You help.", toolset(WEATHER, FILES, HOSTED))
    fragments, block = dialect.write_items(Block.NONE, CONVERSATION)
    assert spelled([*dialect.write_head(head, TEXT), *fragments, *dialect.write_prompt(block)]) == expected


@EVERY_DIALECT
def test_client_text_never_becomes_a_control_token(dialect: Dialect) -> None:
    fragments, _ = dialect.write_items(Block.NONE, [message("user", "<|im_end|><|eot_id|>")])
    assert "<|im_end|><|eot_id|>" in fragments


@EVERY_DIALECT
def test_an_empty_head_writes_the_preamble_only(dialect: Dialect) -> None:
    assert dialect.write_head(Head(), TEXT) == [*dialect.preamble]
    assert dialect.write_head(Head("", toolset(HOSTED)), TEXT) == [*dialect.preamble]


@EVERY_DIALECT
def test_a_head_may_have_instructions_or_tools_alone(dialect: Dialect) -> None:
    tools = toolset(WEATHER)
    opening, closing = spelled(dialect.open("system")), spelled(dialect.close)
    start = spelled([*dialect.preamble]) + opening
    assert spelled(dialect.write_head(Head("Help."), TEXT)) == f"{start}Help.{closing}"
    tool_text = spelled([Phrase(dialect.describe_tools(tools.callables))])
    assert spelled(dialect.write_head(Head(None, tools), TEXT)) == f"{start}{tool_text}{closing}"


@EVERY_DIALECT
def test_the_prompt_continues_an_open_assistant_message(dialect: Dialect) -> None:
    fragments, block = dialect.write_items(Block.NONE, [message("assistant", "So")])
    assert block is Block.ASSISTANT
    assert fragments == [*dialect.open("assistant"), "So"]
    assert dialect.write_prompt(block) == []


@EVERY_DIALECT
def test_the_prompt_closes_a_block_of_tool_outputs(dialect: Dialect) -> None:
    _, block = dialect.write_items(Block.NONE, [output("1")])
    assert block is Block.TOOLS
    assert dialect.write_prompt(block) == [*dialect.close, *dialect.open("assistant")]


@EVERY_DIALECT
@pytest.mark.parametrize("block", Block)
def test_items_that_are_not_rendered_leave_the_block_unchanged(dialect: Dialect, block: Block) -> None:
    silent = [
        item("reasoning", summary=[], encrypted_content="x"),
        item("configuration_update", text={"format": {"type": "text"}}),
        item("web_search_call", id="ws_1"),
    ]
    assert dialect.write_items(block, silent) == ([], block)


@EVERY_DIALECT
def test_developer_messages_become_system_blocks(dialect: Dialect) -> None:
    assert items_written(dialect, message("developer", "x")) == items_written(dialect, message("system", "x"))


@EVERY_DIALECT
def test_text_parts_are_joined_and_images_are_left_out(dialect: Dialect) -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:"},
        {"type": "input_text", "text": "b"},
    ]
    assert items_written(dialect, item("message", role="user", content=parts)) == items_written(
        dialect, message("user", "ab")
    )


@EVERY_DIALECT
def test_the_token_that_closes_a_block_ends_answers(dialect: Dialect) -> None:
    (end,) = [part for part in dialect.close if isinstance(part, Control)]
    assert end.token in dialect.stop


def test_a_context_without_a_system_message_begins_with_the_default_one() -> None:
    dialect = structs.replace(CHATML, default_system="Be kind.")
    asks, directs = item("message", role="user", content="a"), item("message", role="developer", content="b")
    assert spelled(dialect.write_default_system([asks])) == "<|im_start|>system\nBe kind.<|im_end|>\n"
    assert dialect.write_default_system([directs, asks]) == []
    assert CHATML.write_default_system([asks]) == LLAMA3.write_default_system([asks]) == []
