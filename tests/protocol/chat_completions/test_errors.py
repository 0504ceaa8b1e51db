"""Errors of the core name the fields of the client's own request."""

from typing import Any

import pytest

from slipring.base.errors import ApiError, ContextLengthExceeded, InvalidRequest, ServerError
from slipring.core.chain import input_items
from slipring.protocol import requests
from slipring.protocol.chat_completions.requests import ChatTranslation
from slipring.protocol.events import Error, ErrorAnswer
from slipring.protocol.tools.grammars_and_schemas import Definitions
from slipring.protocol.tools.toolset import Toolset
from tests.protocol.chat_completions.sent import FINGERPRINT, USER, Json, translated

PIXEL = {"type": "image_url", "image_url": {"url": "x"}}
CALLS: Json = {
    "role": "assistant",
    "content": "text",
    "reasoning_content": "hm",
    "tool_calls": [
        {"id": "mine", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        {"id": "b", "type": "custom", "custom": {"name": "run", "input": ""}},
    ],
}
OLD: Json = {"role": "assistant", "function_call": {"name": "look", "arguments": ""}}
MESSAGES = (
    {"role": "user", "content": [{"type": "text", "text": "x"}, PIXEL, {"type": "file", "file": {}}]},
    CALLS,
    {"role": "tool", "tool_call_id": "mine", "content": [PIXEL]},
    {"role": "tool", "tool_call_id": "b", "content": "x"},
    OLD,
)
TOOLS = [
    {"type": "function", "function": {"name": "look"}},
    {"type": "custom", "custom": {"name": "run"}},
]
NAMES = {
    "input": "messages",
    "input[0]": "messages[0]",
    "input[0].content[1]": "messages[0].content[1]",
    "input[0].content[1].image_url": "messages[0].content[1].image_url.url",
    "input[0].content[2].file_data": "messages[0].content[2].file.file_data",
    "input[0].content": "messages[0].content",
    "input[1].content[0].text": "messages[1].reasoning_content",
    "input[2].content": "messages[1].content",
    "input[3].name": "messages[1].tool_calls[0].function.name",
    "input[3].arguments": "messages[1].tool_calls[0].function.arguments",
    "input[3].call_id": "messages[1].tool_calls[0].id",
    "input[3].namespace": "messages[1].tool_calls[0]",
    "input[4].input": "messages[1].tool_calls[1].custom.input",
    "input[5].output[0]": "messages[2].content[0]",
    "input[6].call_id": "messages[3].tool_call_id",
    "input[7].name": "messages[4].function_call.name",
    "input[99]": "messages",
    "tools": "tools",
    "tools[0].parameters": "tools[0].function.parameters",
    "tools[0].parameters.properties": "tools[0].function.parameters.properties",
    "tools[1].format.definition": "tools[1].custom.format.grammar.definition",
    "tools[1].format": "tools[1].custom.format",
    "text.format": "response_format",
    "text.format.type": "response_format.type",
    "text.format.schema": "response_format.json_schema.schema",
    "reasoning.effort": "reasoning_effort",
    "max_output_tokens": "max_tokens",
    "include": "logprobs",
    "temperature": "temperature",
}


def renamed(translation: ChatTranslation, error: ApiError) -> tuple[str, str | None]:
    reply = translation.error(Error.of(error)).body
    assert isinstance(reply, ErrorAnswer)
    translation.rename(error)
    assert (error.message, error.param) == (reply.error.message, reply.error.param)
    return reply.error.message, reply.error.param


@pytest.mark.parametrize("own", NAMES)
def test_every_field_has_the_client_s_name(own: str) -> None:
    translation, _ = translated(*MESSAGES, tools=TOOLS)
    error = InvalidRequest(f"Invalid '{own}': it is wrong.", param=own)
    assert renamed(translation, error) == (f"Invalid '{NAMES[own]}': it is wrong.", NAMES[own])


def test_older_functions_have_their_own_names() -> None:
    translation, _ = translated(USER, functions=[{"name": "f"}], max_completion_tokens=3)
    names = {
        "tools[0].parameters": "functions[0].parameters",
        "tools": "functions",
        "tool_choice": "function_call",
        "max_output_tokens": "max_completion_tokens",
    }
    for own, name in names.items():
        assert renamed(translation, InvalidRequest("x", param=own)) == ("x", name)


def test_an_error_without_a_field_stays_as_it_is() -> None:
    assert renamed(ChatTranslation(FINGERPRINT), ServerError("Gone.")) == ("Gone.", None)


def test_the_error_about_the_context_s_length_speaks_of_messages() -> None:
    message, param = renamed(ChatTranslation(FINGERPRINT), ContextLengthExceeded(11, 10))
    assert param == "messages"
    assert message == (
        "This model's maximum context length is 10 tokens. However, your messages resulted in 11 tokens."
        " Please reduce the length of the messages."
    )


def raised(work: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        work()
    return caught.value


def test_the_core_s_own_errors_are_renamed() -> None:
    translation, request = translated(USER, CALLS)
    error = raised(lambda: input_items.join(input_items.NOTHING, request.items, complete=True))
    assert renamed(translation, error) == ("No tool output found for function call mine.", "messages")

    long = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "", "arguments": "{}"}}]}
    translation, request = translated(USER, long)
    message, param = renamed(translation, raised(lambda: request.items))
    assert param == "messages[1].tool_calls[0].function.name"
    assert f"'{param}'" in message

    bounds = Definitions(max_grammars=1, max_grammar_bytes=10, max_schema_bytes=10)
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": parameters}}
    translation, request = translated(USER, tools=[tool], response_format=schema)
    error = raised(lambda: Toolset.read(request.tools, definitions=bounds))
    assert renamed(translation, error)[1] == "tools[0].function.parameters"
    assert request.text is not None
    format = request.text.format
    error = raised(lambda: requests.read_format(format, definitions=bounds))
    assert renamed(translation, error)[1] == "response_format.json_schema.schema"
