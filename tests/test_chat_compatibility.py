"""Compares `docs/chat-completions.md` with the openai package and with the server.

The package's types define what the page must list. The page's tables define what the server must do: every
row of a request is tested with a sample below. A row without a sample fails, so every claim is checked.
"""

import typing
from pathlib import Path
from typing import Any, get_args

import openai
import pytest
from msgspec import structs
from openai.types import chat
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    chat_completion_chunk,
    chat_completion_content_part_param,
    chat_completion_message_param,
    chat_completion_tool_union_param,
    completion_create_params,
)
from pydantic import BaseModel

from slipring.protocol.chat_completions import completion, history, requests
from tests.chat_api import USER, Chat, Json
from tests.harness import serve
from tests.protocol.chat_completions.sent import translated
from tests.test_compatibility import _CODE_SPAN, Refusal, Row, read_tables

pytestmark = pytest.mark.usefixtures("compiled_here")

TEXT = (Path(__file__).parent.parent / "docs" / "chat-completions.md").read_text(encoding="utf-8")
TABLES = read_tables(TEXT)
STATUSES = ("supported", "accepted", "refused")
EXTENSIONS = {"top_k", "enable_thinking", "thinking", "chat_template_kwargs"}
"""Fields of other servers that do something here. Those that do not are in the table of refused ones."""


def listed(heading: str) -> dict[str, Row]:
    """The rows of a table, by the names in the first column."""
    found: dict[str, Row] = {}
    for cells in TABLES[heading]:
        first, second = list(cells)[:2]
        for name in _CODE_SPAN.findall(cells[first]):
            assert name not in found, f"'{heading}': '{name}' is listed twice"
            found[name] = Row(cells[second], cells)
    return found


FIELDS = listed("Request fields")
FUNCTION: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
SAMPLES: dict[str, Json] = {
    "model": {"model": "simulated"},
    "messages": {"messages": [{"role": "user", "content": "other"}]},
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "tools": {"tools": [FUNCTION]},
    "tool_choice": {"tools": [FUNCTION], "tool_choice": "required"},
    "parallel_tool_calls": {"parallel_tool_calls": False},
    "functions": {"functions": [FUNCTION["function"]]},
    "function_call": {"functions": [FUNCTION["function"]], "function_call": {"name": "look"}},
    "response_format": {"response_format": {"type": "json_object"}},
    "max_completion_tokens": {"max_completion_tokens": 3},
    "max_tokens": {"max_tokens": 3},
    "n": {"n": 2},
    "stop": {"stop": "END"},
    "seed": {"seed": 1},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "top_k": {"top_k": 3},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 1},
    "reasoning_effort": {"reasoning_effort": "low"},
    "enable_thinking": {"enable_thinking": False},
    "thinking": {"thinking": {"type": "disabled"}},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "verbosity": {"verbosity": "low"},
    "moderation": {"moderation": {"model": "omni-moderation-latest"}},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "prompt_cache_options": {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "metadata": {"metadata": {"a": "b"}},
    "user": {"user": "u"},
    "safety_identifier": {"safety_identifier": "s"},
    "service_tier": {"service_tier": "flex"},
    "store": {"store": True},
    "prediction": {"prediction": {"type": "content", "content": "x"}},
    "modalities": {"modalities": ["text", "audio"]},
    "audio": {"audio": {"voice": "alloy", "format": "wav"}},
    "web_search_options": {"web_search_options": {}},
    "logit_bias": {"logit_bias": {"1": 1}},
    "min_p": {"min_p": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "min_tokens": {"min_tokens": 1},
    "ignore_eos": {"ignore_eos": True},
    "continue_final_message": {"continue_final_message": True},
    "stop_token_ids": {"stop_token_ids": [1]},
    "bad_words": {"bad_words": ["x"]},
    "chat_template": {"chat_template": "{{ messages }}"},
    "grammar": {"grammar": "root ::= 'x'"},
    "json_schema": {"json_schema": {"type": "object"}},
    "structured_outputs": {"structured_outputs": {"json": {}}},
    "guided_json": {"guided_json": {}},
    "guided_regex": {"guided_regex": "x"},
    "guided_choice": {"guided_choice": ["x"]},
    "guided_grammar": {"guided_grammar": "x"},
}
NEEDS_MORE = {"logit_bias", "logprobs", "top_logprobs", "moderation"}
"""What the simulated engine, or a server without checks, refuses."""


# What the page lists -----------------------------------------------------------------------------


def test_the_page_names_the_version_of_the_tested_package() -> None:
    assert f"version {'.'.join(openai.__version__.split('.')[:2])} of the `openai`" in TEXT


def test_every_field_of_the_package_is_listed() -> None:
    known = set(typing.get_type_hints(completion_create_params.CompletionCreateParamsBase)) | {"stream"}
    assert known - FIELDS.keys() == set()
    own = set(requests.ChatRequest.__struct_fields__) | set(requests._NEUTRAL)
    assert own - FIELDS.keys() == set()
    assert FIELDS.keys() - known - set(requests._NEUTRAL) == EXTENSIONS
    assert SAMPLES.keys() == FIELDS.keys()


def test_every_status_is_known_and_refused_rows_alone_have_an_error() -> None:
    for heading, rows in TABLES.items():
        if "Status" in list(rows[0])[1:]:
            for name, row in listed(heading).items():
                assert row.status in STATUSES, (heading, name)
                if "Refused with" in row.cells:
                    assert (row.refusal is not None) == (row.status == "refused"), (heading, name)


def _members(union: Any) -> list[Any]:
    return [member for member in get_args(union) for member in (get_args(member) or (member,))]


def _literal(kind: Any, field: str) -> str:
    hint = typing.get_type_hints(kind)[field]
    (found,) = get_args(hint)
    return str(found)


def test_every_role_part_and_tool_of_the_package_is_listed() -> None:
    params = _members(chat_completion_message_param.ChatCompletionMessageParam)
    assert {_literal(param, "role") for param in params} == listed("Messages").keys()
    fields = {name for param in params for name in typing.get_type_hints(param)}
    own = set(history.ChatMessage.__struct_fields__)
    assert fields | own == listed("Message fields").keys()
    parts = get_args(chat_completion_content_part_param.ChatCompletionContentPartParam)
    kinds = {_literal(part, "type") for part in parts} | {"refusal"}
    assert kinds == listed("Content parts").keys()
    tools = get_args(chat_completion_tool_union_param.ChatCompletionToolUnionParam)
    assert {_literal(tool, "type") for tool in tools} == listed("Tools").keys()


def _sent(heading: str) -> set[str]:
    return {name for name, row in listed(heading).items() if row.status != "refused"}


@pytest.mark.parametrize(
    ("heading", "model", "own"),
    [
        ("Completions", ChatCompletion, completion.ChatCompletion),
        ("Choices", ChatCompletionMessage, completion.AnswerMessage),
        ("Chunks", ChatCompletionChunk, completion.ChatChunk),
        ("Deltas", chat_completion_chunk.ChoiceDelta, completion.ChunkDelta),
    ],
)
def test_every_field_of_an_answer_is_listed(heading: str, model: type[BaseModel], own: type[Any]) -> None:
    assert set(model.model_fields) - listed(heading).keys() == set()
    assert _sent(heading) == {field.encode_name for field in structs.fields(own)}


def test_every_finish_reason_is_listed() -> None:
    reasons = get_args(chat.chat_completion.Choice.model_fields["finish_reason"].annotation)
    assert {cell.strip("`") for row in TABLES["Finish reasons"] for cell in [row["Finish reason"]]} == set(
        reasons
    )


# What the server does ----------------------------------------------------------------------------


def _translation(fields: Json) -> tuple[Any, ...]:
    """Everything that a request can change."""
    given = dict(fields)
    messages = given.pop("messages", [USER])
    translation, create = translated(*messages, **given)
    return create, create.items, translation.form, translation.streams


@pytest.mark.parametrize("name", [name for name, row in FIELDS.items() if row.status != "refused"])
def test_supported_fields_change_something_and_accepted_ones_nothing(name: str) -> None:
    sample = {"model": "other", **SAMPLES[name]}
    without = {key: value for key, value in sample.items() if key != name} | (
        {"model": "other"} if name == "model" else {}
    )
    changes = _translation(sample) != _translation(without)
    assert changes == (FIELDS[name].status == "supported")


async def test_supported_and_accepted_fields_are_answered() -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=3,tool_calls=1") as server:
        chat = Chat(server)
        for name in SAMPLES.keys() - NEEDS_MORE:
            if FIELDS[name].status == "refused":
                continue
            fields = dict(SAMPLES[name])
            messages = fields.pop("messages", [USER])
            ask = chat.stream if fields.get("stream") else chat.complete
            assert await ask(*messages, **fields), name


async def test_refused_fields_get_the_error_of_the_page() -> None:
    async with serve() as server:
        for name, row in FIELDS.items():
            if row.refusal is not None:
                status, error = await Chat(server).error(**SAMPLES[name])
                assert Refusal.of({"status": status, "error": error}) == row.refusal, name


PARTS: dict[str, Json] = {
    "text": {"type": "text", "text": "x"},
    "image_url": {"type": "image_url", "image_url": {"url": PIXEL}},
    "file": {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk=", "filename": "a.txt"}},
    "refusal": {"type": "refusal", "refusal": "no"},
    "input_audio": {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
}


async def test_parts_and_tools_are_answered_or_refused_as_the_page_says() -> None:
    async with serve() as server:
        chat = Chat(server)
        for name, row in listed("Content parts").items():
            role = "assistant" if name == "refusal" else "user"
            status, body = await chat.post({"role": role, "content": [PARTS[name]]})
            expected = None if row.refusal is None else row.refusal
            found = None if status == 200 else Refusal.of({"status": status, **body})
            assert found == expected, name
        (other,) = [Row(cells["Status"], cells) for cells in TABLES["Tools"] if "`" not in cells["Tool"]]
        status, body = await chat.post(
            tools=[{"type": "mcp", "server_label": "x", "server_url": "https://x"}]
        )
        assert Refusal.of({"status": status, **body}) == other.refusal
