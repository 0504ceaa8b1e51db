"""Valid requests of the Messages and Chat Completions APIs, which the fuzzers start from."""

from typing import Any

from tests.pictures import PIXEL

Tree = Any

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_IMAGE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
_TOOL = {
    "name": "weather",
    "description": "d",
    "input_schema": _SCHEMA,
    "strict": True,
    "input_examples": [{"city": "Rome"}],
    "cache_control": {"type": "ephemeral"},
}
_CALLED = [
    {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "slr1.AAAA"},
            {"type": "redacted_thinking", "data": "slr1.AAAA"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome", "n": [1.0, None]}},
            {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t2", "content": "cold", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "21"}, {"type": "image", "source": _IMAGE}],
                "is_error": False,
            },
            {"type": "text", "text": "go on"},
        ],
    },
    {"role": "system", "content": [{"type": "text", "text": "Be quick."}]},
]
_HOSTED = [
    {
        "role": "user",
        "content": [
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                "title": "t",
                "context": "c",
            },
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "x"}]},
            },
            {
                "type": "search_result",
                "source": "s",
                "title": "t",
                "content": [{"type": "text", "text": "x"}],
            },
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "mcp_tool_use", "id": "m", "name": "echo", "server_name": "s", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "x"}]},
            {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "w", "content": [{"url": "https://a.example"}]},
            {"type": "server_tool_use", "id": "c", "name": "code_execution", "input": {"code": "1"}},
            {
                "type": "code_execution_tool_result",
                "tool_use_id": "c",
                "content": {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0},
            },
        ],
    },
    {"role": "user", "content": "and now?"},
]
_USER = [{"role": "user", "content": "hello"}]


def _message(messages: Tree = _USER, **fields: Tree) -> Tree:
    return {"model": "simulated", "max_tokens": 100, "messages": messages, **fields}


MESSAGES: tuple[Tree, ...] = (
    _message(),
    _message(stream=True, system="Be brief.", stop_sequences=["END", "the"], temperature=0.5, top_k=3),
    _message(
        _CALLED,
        tools=[_TOOL],
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;\nYou help."},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        thinking={"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "u"},
        service_tier="auto",
        stream=True,
    ),
    _message(_CALLED, tools=[_TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}),
    _message(tools=[_TOOL], tool_choice={"type": "tool", "name": "weather"}, stream=True, max_tokens=3),
    _message(
        _HOSTED,
        tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}, _TOOL],
        thinking={"type": "adaptive"},
        output_config={"effort": "low"},
        tool_choice={"type": "auto"},
    ),
    _message(output_config={"format": {"type": "json_schema", "schema": _SCHEMA}}, stream=True),
    _message(
        mcp_servers=[
            {
                "type": "url",
                "name": "s",
                "url": "https://a.example/mcp",
                "authorization_token": "x",
                "tool_configuration": {"enabled": True, "allowed_tools": ["echo"]},
            }
        ],
        tools=[
            {
                "type": "mcp_toolset",
                "mcp_server_name": "s",
                "default_config": {"enabled": False},
                "configs": {"echo": {"enabled": False}},
            }
        ],
    ),
    {**_message(), "max_tokens": 0},
    _message([{"role": "user", "content": "a forbidden word"}], stream=True),
)
"""Bodies of ``POST /v1/messages``."""

_FUNCTION = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": _SCHEMA, "strict": True},
}
_CUSTOM = {
    "type": "custom",
    "custom": {
        "name": "free",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-c]{1,8}"}},
    },
}
_CALLS = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            {"type": "file", "file": {"file_data": "data:text/plain;base64,QQ==", "filename": "a.txt"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
            {"id": "b", "type": "custom", "custom": {"name": "free", "input": "abc"}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "ok"}]},
    {"role": "tool", "tool_call_id": "a", "content": "21"},
    {"role": "assistant", "content": [{"type": "text", "text": "21."}], "refusal": None},
    {"role": "developer", "content": "Be quick."},
    {"role": "user", "name": "u", "content": "go on"},
]
_LEGACY = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
    {"role": "function", "name": "weather", "content": "21"},
]


def _chat(messages: Tree = _USER, **fields: Tree) -> Tree:
    return {"model": "simulated", "messages": messages, **fields}


CHAT: tuple[Tree, ...] = (
    _chat(),
    _chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": True}, stop="the"),
    _chat([_CALLS[0], *_CALLS[2:]], tools=[_FUNCTION, _CUSTOM], parallel_tool_calls=True, stream=True),
    _chat(_CALLS, tools=[_FUNCTION], tool_choice="none"),
    _chat(tools=[_FUNCTION], tool_choice={"type": "function", "function": {"name": "weather"}}, stream=True),
    _chat(tools=[_CUSTOM], tool_choice={"type": "custom", "custom": {"name": "free"}}),
    _chat(
        tools=[_FUNCTION, _CUSTOM],
        tool_choice={
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "weather"}}],
            },
        },
    ),
    _chat(n=3, seed=1, temperature=1.5, top_p=0.5, stream=True, stream_options={"include_usage": True}),
    _chat(n=2, max_completion_tokens=3, stop=["END", "a"], metadata={"a": "b"}, user="u", store=True),
    _chat(_LEGACY, functions=[{"name": "weather", "parameters": _SCHEMA}], function_call="auto", stream=True),
    _chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "f", "schema": _SCHEMA, "strict": True},
        },
        reasoning_effort="low",
        chat_template_kwargs={"enable_thinking": False},
    ),
    _chat(response_format={"type": "json_object"}, logprobs=True, top_logprobs=2, verbosity="low"),
    _chat(moderation={"model": "words"}, prompt_cache_key="k", safety_identifier="s", prediction={"a": 1}),
    _chat([{"role": "user", "content": "a forbidden word"}], stream=True),
)
"""Bodies of ``POST /v1/chat/completions``."""

REQUESTS: tuple[tuple[str, str, Tree], ...] = (
    *(("POST", "/v1/messages?beta=true", body) for body in MESSAGES),
    *(
        (
            "POST",
            "/v1/messages/count_tokens",
            {name: value for name, value in body.items() if name not in ("max_tokens", "stream")},
        )
        for body in MESSAGES[2:6]
    ),
    *(("POST", "/v1/chat/completions", body) for body in CHAT),
)
