"""Any HTTP request gets an answer that the OpenAPI document describes, and never an internal error.

Those of Messages and Chat Completions are also valid by the types of these APIs' packages.

Bodies are any JSON, valid bodies with one change, and bytes that are not JSON; ids are real ones and others.
`make fuzz` does the same at length, with requests generated from the document itself.
"""

import asyncio
import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientSession, TCPConnector
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from slipring.commands.openapi import OPERATIONS, Operation
from slipring.config.tables import CheckEntry
from tests import api_answers
from tests.described import check_answer
from tests.harness import WEATHER, Running, serve
from tests.protocol.items.test_items import GOOD
from tests.server.raw import until

EXAMPLES = 600
Request = tuple[Operation, dict[str, str], dict[str, str], bytes | None]
WEIGHTED = [operation for operation in OPERATIONS for _ in range(4 if operation.body else 1)]
MESSAGES: dict[str, Any] = {
    "model": "simulated",
    "max_tokens": 1000,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hello"},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                {
                    "type": "search_result",
                    "source": "s",
                    "title": "t",
                    "content": [{"type": "text", "text": "x"}],
                },
            ],
        },
        {"role": "system", "content": "Be quick."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}},
                {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "x"}]},
                {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "w", "content": [{"url": "https://a"}]},
                {"type": "server_tool_use", "id": "c", "name": "code_execution", "input": {"code": "1"}},
                {
                    "type": "code_execution_tool_result",
                    "tool_use_id": "c",
                    "content": {"type": "code_execution_result", "stdout": "1", "stderr": ""},
                },
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "done"}],
                    "is_error": True,
                },
                {"type": "text", "text": "go on"},
            ],
        },
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": {"type": "object"}, "input_examples": [{}]},
        {"type": "web_search_20250305", "name": "web_search"},
        {
            "type": "mcp_toolset",
            "mcp_server_name": "s",
            "default_config": {"enabled": False},
            "configs": {"f": {"enabled": False}},
        },
    ],
    "mcp_servers": [
        {"type": "url", "name": "s", "url": "https://a", "tool_configuration": {"enabled": False}}
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "stop_sequences": ["END"],
    "metadata": {"user_id": "u"},
    "temperature": 1,
    "top_k": 1,
}
SERVED: dict[str, list[Any]] = {
    "MessagesRequest": [
        MESSAGES,
        {**MESSAGES, "stream": True},
        {"model": "simulated", "max_tokens": 0, "messages": [{"role": "user", "content": "hello"}]},
    ],
    "CountRequest": [MESSAGES],
    "CreateRequest": [
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
            "model": "simulated",
            "instructions": "Be brief.",
            "tools": [
                WEATHER,
                {"type": "custom", "name": "c", "format": {"type": "text"}},
                {"type": "namespace", "name": "n", "tools": [{**WEATHER, "name": "inner"}]},
                {"type": "web_search"},
            ],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "custom", "name": "c"}],
            },
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
            "metadata": {"a": "b"},
            "include": ["reasoning.encrypted_content"],
            "context_management": [{"type": "compaction", "compact_threshold": 1000}],
            "max_output_tokens": 10,
            "temperature": 1,
            "seed": 1,
            "store": False,
        },
        {"input": "hello", "stream": True},
        {"input": "hello", "background": True},
        {"input": "hello", "background": True, "stream": True},
        {"input": "hello", "conversation": "CONVERSATION"},
        {"input": "hello", "previous_response_id": "RESPONSE"},
        {"input": "hello", "generate": False},
        *({"input": [item, {"role": "user", "content": "go on"}]} for item in GOOD),
    ],
    "DecisionRequest": [
        {
            "model": "simulated",
            "input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": [1]}}]}],
            "questions": [
                {"type": "predicate", "name": "p", "instructions": "It is so."},
                {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": True}]},
                {
                    "type": "score",
                    "instructions": [{"type": "input_text", "text": "?"}],
                    "levels": [{"label": "a"}, {"label": "b", "description": "c"}],
                },
            ],
        },
    ],
    "ChatRequest": [
        {
            "model": "simulated",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "hello"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "b", "type": "custom", "custom": {"name": "c", "input": "x"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": "done"},
                {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "done"}]},
            ],
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
                {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}},
            ],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"type": "object"}},
            },
            "stop": ["END"],
            "stream_options": {"include_usage": True, "include_obfuscation": True},
            "chat_template_kwargs": {"enable_thinking": False},
            "metadata": {"a": "b"},
            "logit_bias": {},
            "max_completion_tokens": 10,
            "temperature": 1,
            "seed": 1,
        },
        {"messages": [{"role": "user", "content": "hello"}], "stream": True},
        {"messages": [{"role": "user", "content": "hello"}], "n": 2},
        {"messages": [{"role": "user", "content": "hello"}], "n": 2, "stream": True, "seed": 1},
        {
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "done"},
            ],
            "functions": [{"name": "f", "parameters": {"type": "object"}}],
            "function_call": "auto",
        },
    ],
    "CompactRequest": [{"model": "simulated", "input": [item]} for item in GOOD],
    "CreateConversation": [{"items": [item], "metadata": {"a": "b"}} for item in GOOD],
    "UpdateConversation": [{"metadata": {"a": "b"}}, {"metadata": None}],
    "AddItems": [{"items": [item]} for item in GOOD],
    "ModerationRequest": [
        {"input": "hello", "model": "words"},
        {"input": ["hello", "AKIA"]},
        {"input": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}]},
    ],
}

REAL = {"response_id": "RESPONSE", "conversation_id": "CONVERSATION", "item_id": "ITEM", "model": "simulated"}
"""Placeholder for an id in a request, replaced when it is sent."""

texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "\x00", "\ud800", "é" * 300, "..", "%00", "a/b", "RESPONSE", "CONVERSATION", "ITEM"]
    ),
)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from([2**63, -(2**64), 10**400, 1e308, -0.0]),
        texts,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(texts, st.sampled_from(["type", "id", "role", "content"])), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values within a value."""
    found = [path]
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(inner, (*path, key))
    return found


@st.composite
def changed(draw: st.DrawFn, bodies: list[Any]) -> Any:
    """A valid body with one value changed, added or removed; or no body."""
    body = json.loads(json.dumps(draw(st.sampled_from(bodies))))
    path = draw(st.sampled_from(places(body)))
    if not path:
        return {**body, draw(texts): draw(values)} if draw(st.booleans()) else body
    parent = body
    for key in path[:-1]:
        parent = parent[key]
    if draw(st.booleans()):
        parent[path[-1]] = draw(values)
    else:
        del parent[path[-1]]
    return body


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """An operation, the ids in its path, its query and its body."""
    operation = draw(st.sampled_from(WEIGHTED))
    ids = {name: draw(st.just(REAL[name]) | texts) for name in re.findall(r"{(\w+)}", operation.path)}
    query = {
        name: draw(texts | st.integers().map(str)) for name in operation.query if not draw(st.integers(0, 3))
    }
    if operation.body is None:
        return operation, ids, query, None
    if draw(st.integers(0, 4)):
        return operation, ids, query, draw(changed(SERVED[operation.body.__name__]).map(dumped))
    return operation, ids, query, draw(values.map(dumped) | st.binary(max_size=20))


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


class Client:
    """One connection, which has to stay usable, and the ids of objects for its requests."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._http = ClientSession(connector=TCPConnector(limit=1))
        self._ids: dict[str, str] = {}

    async def prepare(self) -> None:
        _, response = await self._server.post(input="hello")
        async with self._http.post(f"{self._server.url}/conversations", json={"items": GOOD[:1]}) as answer:
            conversation = (await answer.json())["id"]
        self._ids = {"RESPONSE": response["id"], "CONVERSATION": conversation, "ITEM": GOOD[0]["id"]}

    async def send(self, request: Request) -> None:
        operation, ids, query, body = request
        named = {
            name: quote(self._meant(text.encode("utf-8", "replace")), safe="") for name, text in ids.items()
        }
        path = operation.path.format(**{name: text or "x" for name, text in named.items()})
        url = URL(self._server.url.removesuffix("/v1") + path, encoded=True)  # not even dots are resolved
        parameters = {name: text.encode("utf-8", "replace").decode() for name, text in query.items()}
        data = None if body is None else self._meant(body)
        async with self._http.request(operation.method, url, params=parameters, data=data) as answer:
            content = await answer.read()
            assert answer.status < 500, content
            check_answer(operation, answer.status, answer.content_type, content)
            if api_answers.is_translated(operation.path):
                api_answers.check(operation.path, answer.status, answer.content_type, content)
        if operation.method == "DELETE" and answer.status == 200:
            await self.prepare()

    def _meant(self, text: bytes) -> bytes:
        for name, value in self._ids.items():
            text = text.replace(name.encode(), value.encode())
        return text

    async def close(self) -> None:
        await self._http.close()


async def opened(server: Running) -> Client:
    client = Client(server)
    await client.prepare()
    return client


def test_any_request_is_answered_as_described(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        words = CheckEntry("words", "patterns", '{"secrets":true}')
        serving = serve("simulated:tokens_per_s=0,output_tokens=3", checks=(words,))
        server = runner.run(serving.__aenter__())
        client = runner.run(opened(server))

        @settings(max_examples=EXAMPLES)
        @given(request=requests())
        def check(request: Request) -> None:
            runner.run(client.send(request))

        try:
            check()
            # The last request may have begun a response in the background.
            runner.run(until(lambda: not server.service.clients))
        finally:
            runner.run(client.close())
            runner.run(serving.__aexit__(None, None, None))
    assert not caplog.records
