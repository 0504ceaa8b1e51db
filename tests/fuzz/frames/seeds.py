"""Valid events and requests of every kind, which the fuzzer starts from, and the words of the API."""

from collections.abc import Iterator
from typing import Any

from slipring.commands.openapi import document
from tests.fuzz.frames import api_seeds
from tests.pictures import PIXEL

Tree = Any
"""A JSON value as Python has it. A ``msgspec.Raw`` in it is written as it is."""

BETAS = ", ".join(
    (
        "slipring_timing=v1",
        "slipring_rollout=v1",
        "responses_multi_agent=v1",
        "slipring_tool_output=v1",
        "slipring_tool_progress=v1",
        "slipring_short_events=v1",
    )
)
LATEST, EARLIER = "@response0@", "@response1@"
CALL, EARLIER_CALL = "@call0@", "@call1@"
ITEM = "@item0@"
CONVERSATION = "@conversation0@"

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_WEATHER = {"type": "function", "name": "weather", "description": "", "parameters": _SCHEMA, "strict": True}
_PLAIN = {"type": "function", "name": "plain", "parameters": {}}
_FREE = {"type": "custom", "name": "free", "description": "any text"}
_REGEX = {
    "type": "custom",
    "name": "regex",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{1,8}"},
}
_LARK = {
    "type": "custom",
    "name": "lark",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a" WORD\nWORD: /[a-z]+/'},
}
_MCP = {"type": "mcp", "server_label": "tools", "require_approval": "never"}
_MCP_ASKING = {"type": "mcp", "server_label": "tools", "require_approval": "always"}
_SPACE = {"type": "namespace", "name": "space", "description": "d", "tools": [_PLAIN, _FREE]}
_SEARCH = {"type": "tool_search", "execution": "client"}
_DEFERRED = {**_PLAIN, "name": "late", "defer_loading": True}
_FORMAT = {"type": "json_schema", "name": "f", "schema": _SCHEMA, "strict": True}
_USER = {"type": "message", "role": "user", "content": "hello"}
_PARTS = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "what"},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
        {"type": "input_file", "file_data": "data:text/plain;base64,QQ==", "filename": "a.txt"},
    ],
}
_ASSISTANT = {"role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]}
_OUTPUT = {"type": "function_call_output", "call_id": CALL, "output": "sunny"}
_CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": CALL, "output": "ok"}
_HISTORY = [
    _USER,
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "id": "rs_1"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome","days":1}'},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "21"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "free", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "y"},
    _ASSISTANT,
]
_CLIENT_HISTORY = [
    _USER,
    {"type": "shell_call", "call_id": "s1", "action": {"commands": ["ls"], "timeout_ms": 1}},
    {
        "type": "shell_call_output",
        "call_id": "s1",
        "output": [{"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    {"type": "local_shell_call", "call_id": "l1", "action": {"type": "exec", "command": ["a"], "env": {}}},
    {"type": "local_shell_call_output", "call_id": "l1", "output": "b"},
    {
        "type": "apply_patch_call",
        "call_id": "p1",
        "operation": {"type": "create_file", "path": "a", "diff": "+b"},
    },
    {"type": "apply_patch_call_output", "call_id": "p1", "status": "completed"},
    {"type": "tool_search_call", "call_id": "t1", "execution": "client", "arguments": {"query": "a"}},
    {"type": "tool_search_output", "call_id": "t1", "execution": "client", "tools": [_PLAIN]},
]
_HOSTED_HISTORY = [
    _USER,
    {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "tools",
        "tools": [{"name": "echo", "input_schema": {"type": "object"}}],
    },
    {"type": "mcp_call", "id": "mcp_1", "server_label": "tools", "name": "echo", "arguments": "{}"},
    {"type": "mcp_approval_request", "id": "a_1", "server_label": "tools", "name": "echo", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "a_1", "approve": True},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a"]},
    {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "1", "container_id": "c"},
    {"type": "computer_call", "call_id": "cc", "id": "x"},
    {"type": "image_generation_call", "id": "ig"},
]
_UPDATES = [
    {"type": "additional_tools", "tools": [_PLAIN]},
    {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
    {"type": "item_reference", "id": ITEM},
    {"type": "compaction", "encrypted_content": "slr1.AAAA"},
    _USER,
]
_REJECTION = {"type": "mcp_approval_response", "approval_request_id": ITEM, "approve": False}
_ASKS = {"tools": [_MCP_ASKING], "tool_choice": "required"}


def _create(input_: Tree = "hello", **fields: Tree) -> Tree:
    return {"type": "response.create", "input": input_, **fields}


def _choice(name: str) -> Tree:
    return {"type": "function", "name": name}


SETTLE, BEGIN = "answered", "begun"
"""In a sequence: wait until the latest create has been answered, or until its response has begun; but not for
long."""

SEQUENCES: tuple[list[Tree], ...] = (
    [_create(), SETTLE, _create("more", previous_response_id=LATEST), SETTLE],
    [_create(instructions="be short", metadata={"a": "b"}, user="u", prompt_cache_key="k", store=False)],
    [_create([_USER, _PARTS, _ASSISTANT, _USER], temperature=0.5, top_p=1, seed=1, top_logprobs=2)],
    [
        _create(
            max_output_tokens=2,
            truncation="auto",
            service_tier="default",
            include=["message.output_text.logprobs"],
        )
    ],
    [_create(_HISTORY, tools=[_WEATHER, _FREE], parallel_tool_calls=True, max_tool_calls=2)],
    [_create(_CLIENT_HISTORY, tools=[{"type": "shell"}, {"type": "local_shell"}, {"type": "apply_patch"}])],
    [_create(_HOSTED_HISTORY, store=True)],
    [_create(), SETTLE, _create(_UPDATES, previous_response_id=LATEST)],
    [_create(tools=[_WEATHER]), SETTLE, _create([_OUTPUT], previous_response_id=LATEST), SETTLE],
    [
        _create(tools=[_WEATHER, _PLAIN], tool_choice=_choice("plain"), stream_id="a"),
        SETTLE,
        _create([_OUTPUT, _USER], previous_response_id=LATEST, tool_choice="none", stream_id="b"),
        _create([_OUTPUT], previous_response_id=LATEST, tool_choice="auto", stream_id="c"),
    ],
    [
        _create(tools=[_FREE], tool_choice="required"),
        SETTLE,
        _create([_CUSTOM_OUTPUT], previous_response_id=LATEST),
    ],
    [_create(tools=[_REGEX], tool_choice={"type": "custom", "name": "regex"})],
    [_create(tools=[_LARK, _SPACE], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": []})],
    [_create(tools=[_SEARCH, _DEFERRED], tool_choice="auto")],
    [_create(tools=[{"type": "shell", "environment": {"type": "local"}}], tool_choice="required")],
    [_create(tools=[{"type": "apply_patch"}], tool_choice={"type": "apply_patch"})],
    [_create(text={"format": _FORMAT, "verbosity": "low"})],
    [_create(text={"format": {"type": "json_object"}}, reasoning={"effort": "high", "summary": "auto"})],
    [
        _create(generate=False),
        SETTLE,
        _create(previous_response_id=LATEST, prompt_cache_options={"mode": "explicit"}),
    ],
    [_create(context_management=[{"type": "compaction", "compact_threshold": 1}])],
    [
        _create(),
        SETTLE,
        _create([_USER, {"type": "compaction_trigger"}], previous_response_id=LATEST),
        SETTLE,
    ],
    [_create(stream_id="a"), _create(stream_id="b"), _create(stream_id="a", previous_response_id=LATEST)],
    [_create(stream_id=f"lane-{index}", store=index % 2 == 0) for index in range(6)],
    [
        _create("x" * 200, stream_id="s"),
        BEGIN,
        {"type": "response.steer", "previous_response_id": LATEST, "input": "turn left"},
        {"type": "response.steer", "previous_response_id": LATEST, "input": [_USER]},
        SETTLE,
        {"type": "response.steer", "previous_response_id": EARLIER, "input": "late"},
    ],
    [
        _create(tools=[_WEATHER, _FREE], tool_choice="required", rollout=True),
        BEGIN,
        {"type": "response.steer", "previous_response_id": LATEST, "input": "stop"},
        {"type": "response.append", "response_id": LATEST, "input": [_OUTPUT]},
        _create([_OUTPUT], previous_response_id=LATEST),
        SETTLE,
        {"type": "response.append", "response_id": LATEST, "input": [_OUTPUT, _CUSTOM_OUTPUT]},
    ],
    [
        _create(tools=[_WEATHER], tool_choice="required", rollout=True),
        SETTLE,
        {"type": "response.append", "response_id": LATEST, "input": [_OUTPUT]},
        SETTLE,
        {"type": "response.append", "response_id": LATEST, "input": [_OUTPUT]},
        {"type": "response.append", "response_id": LATEST, "input": [_OUTPUT, _USER]},
    ],
    [
        _create(tools=[_WEATHER], tool_choice="required", multi_agent={"enabled": True}),
        SETTLE,
        {"type": "response.inject", "response_id": LATEST, "input": [_OUTPUT]},
    ],
    [
        _create(tools=[_WEATHER], tool_choice="required"),
        SETTLE,
        {"type": "response.tool_output.delta", "response_id": LATEST, "call_id": CALL, "delta": "sun"},
        {"type": "response.tool_output.delta", "response_id": LATEST, "call_id": CALL, "delta": "ny"},
        {"type": "response.tool_output.done", "response_id": LATEST, "call_id": CALL},
        _create([_OUTPUT], previous_response_id=LATEST),
    ],
    [_create(tools=[_MCP], tool_choice={"type": "mcp", "server_label": "tools", "name": "echo"}), SETTLE],
    [_create(**_ASKS), SETTLE, _create([_REJECTION], previous_response_id=LATEST, tools=[_MCP_ASKING])],
    [_create(tools=[{"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}])],
    [
        _create(
            tools=[
                {"type": "file_search", "vector_store_ids": ["v"]},
                {"type": "code_interpreter", "container": "c"},
            ]
        )
    ],
    [
        _create(
            moderation={"model": "words", "policy": {"input": {"mode": "block"}, "output": {"mode": "score"}}}
        )
    ],
    [_create("a forbidden word"), _create("sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH")],
    [_create(model="other"), _create(model="simulated"), _create(background=True), _create(stream=False)],
    [_create(conversation=CONVERSATION), _create(conversation={"id": "conv_0"}, previous_response_id=LATEST)],
    [_create(prompt={"id": "p", "variables": {}}), _create(client_metadata={"a": {"b": [1]}})],
    [
        _create(stream_options={"include_obfuscation": True}),
        _create(safety_identifier="s", image={"context_compression": "auto"}),
    ],
    [
        {"type": "response.processed"},
        {"type": "session.update"},
        {"type": "response.cancel", "response_id": LATEST},
    ],
)
"""What clients of a WebSocket send, one after the other."""

REQUESTS: tuple[tuple[str, str, Tree], ...] = (
    ("POST", "/v1/responses", {"input": "hello"}),
    ("POST", "/v1/responses", {"input": "hello", "stream": True, "store": False}),
    ("POST", "/v1/responses", {"input": "hello", "background": True}),
    ("POST", "/v1/responses", {"input": _HISTORY, "tools": [_WEATHER], "previous_response_id": LATEST}),
    ("POST", "/v1/responses", {"input": "hello", "conversation": CONVERSATION, "text": {"format": _FORMAT}}),
    ("POST", "/v1/responses", {"input": "hello", "tools": [_REGEX, _MCP], "tool_choice": "required"}),
    ("POST", "/v1/responses/compact", {"model": "simulated", "previous_response_id": LATEST}),
    ("POST", "/v1/responses/compact", {"model": "simulated", "input": _HISTORY}),
    ("POST", "/v1/responses/input_tokens", {"model": "simulated", "input": _HISTORY, "tools": [_WEATHER]}),
    ("POST", f"/v1/responses/{LATEST}/cancel", {}),
    ("GET", f"/v1/responses/{LATEST}?stream=true&starting_after=1&include[]=a", None),
    ("GET", f"/v1/responses/{LATEST}/input_items?limit=2&order=asc&after={ITEM}", None),
    ("DELETE", f"/v1/responses/{EARLIER}", None),
    ("POST", "/v1/conversations", {"metadata": {"a": "b"}, "items": [_USER, _PARTS]}),
    ("POST", f"/v1/conversations/{CONVERSATION}", {"metadata": {"a": "c"}}),
    ("POST", f"/v1/conversations/{CONVERSATION}/items", {"items": _HISTORY}),
    ("GET", f"/v1/conversations/{CONVERSATION}/items?limit=3&order=desc&after={ITEM}", None),
    ("GET", f"/v1/conversations/{CONVERSATION}/items/{ITEM}", None),
    ("DELETE", f"/v1/conversations/{CONVERSATION}/items/{ITEM}", None),
    ("DELETE", f"/v1/conversations/{CONVERSATION}", None),
    ("POST", "/v1/moderations", {"input": ["hello", "a forbidden word"], "model": "words"}),
    ("POST", "/v1/moderations", {"input": [{"type": "text", "text": "hello"}]}),
    ("GET", "/v1/models/simulated", None),
    ("GET", "/v1/slipring/turns", None),
    *api_seeds.REQUESTS,
)
"""What clients of the HTTP endpoints send."""


def _strings(schema: Tree) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (value for value in schema.get("enum", ()) if isinstance(value, str))
        if isinstance(schema.get("const"), str):
            yield schema["const"]
        for value in schema.values():
            yield from _strings(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _strings(value)


WORDS: tuple[str, ...] = tuple(sorted(set(_strings(document()["components"]["schemas"]))))
"""Every name of a field and every constant of the API, as the OpenAPI document has them."""
