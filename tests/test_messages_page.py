"""Compares `docs/messages.md` with the anthropic package and with the server.

The package's types define what the page must list, and the page's tables define what the server must do: a
row without a sample fails, so every claim on the page is checked.
"""

import re
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from anthropic.types import StopReason
from anthropic.types.beta import (
    BetaContentBlockParam,
    BetaRawContentBlockDelta,
    BetaStopReason,
    BetaToolUnionParam,
    message_create_params,
)
from anthropic.types.beta.beta_thinking_config_param import BetaThinkingConfigParam
from anthropic.types.shared.error_type import ErrorType
from pydantic import BaseModel

from slipring.base.errors import ApiError
from slipring.protocol.messages import answer, errors
from slipring.protocol.messages.requests import MessagesTranslation
from slipring.protocol.requests import CreateRequest
from slipring.protocol.wire import encode

Json = dict[str, Any]
PAGE = (Path(__file__).parent.parent / "docs" / "messages.md").read_text(encoding="utf-8")
STATUSES = {"supported", "accepted", "refused"}
_OLDER = {"temperature", "top_p", "top_k", "output_format", "stream"}
"""Fields that the types of requests lack, and that clients send."""


def table(head: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins with a cell, by their first cell without quotes."""
    lines = PAGE.split(f"\n| {head} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {row[0].replace("`", ""): row[1:] for row in rows}


FIELDS, BLOCKS, TOOLS = table("field"), table("block"), table("tool")
USE: Json = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
MCP_USE: Json = {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}}
SEARCH: Json = {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}}
CODE: Json = {"type": "server_tool_use", "id": "c", "name": "code_execution", "input": {"code": "1"}}
PRINTED: Json = {"type": "code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": []}
TEXT: Json = {"type": "text", "text": "x"}
SCHEMA: Json = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTION: Json = {"name": "f", "input_schema": SCHEMA}
SERVER: Json = {"type": "url", "name": "s", "url": "https://mcp.example"}

FIELD_SAMPLES: Json = {
    "model": "n",
    "messages": [{"role": "user", "content": "y"}],
    "max_tokens": 0,
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, TEXT],
    "tools": [FUNCTION],
    "tool_choice": {"type": "none"},
    "stop_sequences": ["x"],
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "mcp_servers": [SERVER],
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]},
    "metadata": {"user_id": "u"},
    "cache_control": {"type": "ephemeral"},
    "service_tier": "standard_only",
    "inference_geo": "eu",
    "speed": "fast",
    "diagnostics": {"previous_message_id": "msg_1"},
    "user_profile_id": "u",
    "workspace_id": "w",
    "betas": ["x"],
    "fallback_credit_token": "x",
    "container": "c",
    "compaction": {"type": "summarize"},
    "fallbacks": [{"model": "n"}],
    "thread": {"type": "create"},
}
BLOCK_SAMPLES: dict[str, list[Json]] = {
    "text": [TEXT],
    "image": [{"type": "image", "source": {"type": "url", "url": "https://a"}}],
    "document": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}],
    "search_result": [{"type": "search_result", "source": "s", "title": "t", "content": [TEXT]}],
    "thinking": [{"type": "thinking", "thinking": "x", "signature": "y"}],
    "redacted_thinking": [{"type": "redacted_thinking", "data": "ours"}],
    "tool_use": [USE],
    "tool_result": [{"type": "tool_result", "tool_use_id": "t", "is_error": True}],
    "mcp_tool_use": [MCP_USE],
    "mcp_tool_result": [MCP_USE, {"type": "mcp_tool_result", "tool_use_id": "m", "content": "x"}],
    "server_tool_use": [SEARCH],
    "web_search_tool_result": [SEARCH, {"type": "web_search_tool_result", "tool_use_id": "w", "content": []}],
    "code_execution_tool_result": [
        CODE,
        {"type": "code_execution_tool_result", "tool_use_id": "c", "content": PRINTED},
    ],
    "tool_addition": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": FUNCTION}}],
    "tool_removal": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "g"}}],
}
_OF_SYSTEMS = {"tool_addition", "tool_removal"}
_OF_USERS = {"text", "image", "document", "search_result", "tool_result"}
TOOL_SAMPLES: dict[str, Json] = {
    "without type, or custom": FUNCTION,
    "web_search_…": {"type": "web_search_20250305", "name": "web_search"},
    "code_execution_…": {"type": "code_execution_20250825", "name": "code_execution"},
    "mcp_toolset": {"type": "mcp_toolset", "mcp_server_name": "s"},
}


def read(**fields: Any) -> CreateRequest:
    body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x"}], **fields}
    translation = MessagesTranslation("req", lambda signature: signature == "ours")
    create = translation.read(encode(body))
    assert create.items  # valid
    return create


def _names(params: Any) -> set[str]:
    return set(typing_extensions.get_type_hints(params, include_extras=True))


def _members(union: Any) -> Iterable[Any]:
    for member in typing.get_args(union):
        yield from _members(member) if typing.get_origin(member) is typing.Union else (member,)


def _types(union: Any) -> set[str]:
    """The values of ``type`` of the members of a union."""
    found: set[str] = set()
    for member in _members(union):
        if isinstance(member, type) and issubclass(member, BaseModel):
            found |= _literals(member.model_fields["type"].annotation)
        elif isinstance(member, type):
            found |= _literals(typing_extensions.get_type_hints(member).get("type"))
    return found


def _literals(hint: Any) -> set[str]:
    if typing.get_origin(hint) in (typing.Literal, typing_extensions.Literal):
        return set(typing.get_args(hint))
    return {value for each in typing.get_args(hint) for value in _literals(each)}


def test_every_field_of_a_request_is_listed() -> None:
    assert set(FIELDS) == _names(message_create_params.MessageCreateParamsBase) | _OLDER
    assert {row[0] for row in (*FIELDS.values(), *BLOCKS.values(), *TOOLS.values())} <= STATUSES


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_does_what_the_page_says(name: str) -> None:
    status = FIELDS[name][0]
    sample = FIELD_SAMPLES[name]
    if status == "refused":
        with pytest.raises(ApiError) as refusal:
            read(**{name: sample})
        assert refusal.value.param == name
        return
    changed, plain = read(**{name: sample}), read()
    is_same = encode(changed) == encode(plain) and changed.items == plain.items
    assert is_same is (status != "supported")


def test_every_block_is_listed() -> None:
    assert set(BLOCKS) == _types(BetaContentBlockParam)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_read_as_the_page_says(name: str) -> None:
    role = "user" if name in _OF_USERS else "system" if name in _OF_SYSTEMS else "assistant"
    blocks = BLOCK_SAMPLES.get(name, [{"type": name}])
    first = {"role": "assistant", "content": [USE] if name == "tool_result" else "begin"}
    last = {"role": "user", "content": BLOCK_SAMPLES["tool_result"] if name == "tool_use" else "end"}
    messages = [first, {"role": role, "content": blocks}, last]
    if BLOCKS[name][0] == "refused":
        with pytest.raises(ApiError, match=r"messages\.1\.content\.0\.type: "):
            read(messages=messages)
    else:
        tools = [{**FUNCTION, "name": "g"}]
        assert len(read(messages=messages, tools=tools).items) == 3


def test_every_tool_is_listed() -> None:
    listed = {name.split(", or ")[-1].removesuffix("…") for name in TOOLS}
    for kind in _types(BetaToolUnionParam):
        assert any(kind.startswith(prefix) for prefix in listed), kind


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_taken_as_the_page_says(name: str) -> None:
    if TOOLS[name][0] == "refused":
        prefix = name.removesuffix("…")
        kinds = [kind for kind in _types(BetaToolUnionParam) if kind.startswith(prefix)]
        assert kinds, name
        for kind in kinds:
            with pytest.raises(ApiError, match=rf"tools\.0\.type: .*'{kind}'"):
                read(tools=[{"type": kind, "name": "x"}])
    else:
        create = read(tools=[TOOL_SAMPLES[name]], mcp_servers=[SERVER])
        assert create.tools


def test_every_event_and_delta_is_listed() -> None:
    sent = {event.__struct_config__.tag for event in typing.get_args(answer.MessagesEvent)}
    section = PAGE.split("## Events", 1)[1].split("\n|", 1)[0]
    assert set(re.findall(r"`(\w+)`", section)) == sent
    deltas = table("delta")
    assert set(deltas) == _types(typing.get_args(BetaRawContentBlockDelta)[0])
    ours = {delta.__struct_config__.tag for delta in typing.get_args(answer.Delta)}
    assert {name for name, row in deltas.items() if row != ["never"]} == ours


def test_every_stop_reason_is_listed() -> None:
    reasons = table("`stop_reason`")
    assert set(reasons) == set(typing.get_args(StopReason)) | set(typing.get_args(BetaStopReason))
    assert {name for name, row in reasons.items() if row != ["never"]} == set(
        typing.get_args(answer.StopReason)
    )


def test_every_kind_of_thinking_is_listed() -> None:
    listed = set(re.findall(r"\w+", " ".join(table("`thinking` | effort")))) - {"absent", "or"}
    assert listed == _types(BetaThinkingConfigParam)


def test_every_error_is_listed() -> None:
    listed = {row[0].replace("`", "") for row in table("status").values()}
    assert listed == set(typing.get_args(errors.ErrorType))
    assert listed - {"request_too_large"} <= set(typing.get_args(ErrorType))
