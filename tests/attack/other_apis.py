"""Attacks through Messages and Chat Completions: what their translations read before a turn begins."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.attack.compiling import OPTIONAL_REGEX
from tests.attack.limits import LARGE_EVENT_MS, MIB
from tests.attack.parsing import filled
from tests.attack.sockets import Json
from tests.attack.stage import Registry, Stage

attack = Registry("other-apis")
_MESSAGES, _COUNT, _CHAT = "/messages", "/messages/count_tokens", "/chat/completions"
_USER = {"role": "user", "content": "go"}
_HEAD = b'{"model":"simulated","max_tokens":4,'
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def _body(**fields: Any) -> Json:
    """A request of either API."""
    return {"model": "simulated", "max_tokens": 4, "messages": [_USER], **fields}


async def _everywhere(stage: Stage, body: bytes, *, refused: bool = True, param: str = "") -> None:
    """Send a body to both APIs and to the counter of tokens, one after the other."""
    for path in (_MESSAGES, _COUNT, _CHAT):
        answer = await stage.post(body, path)
        if refused:
            stage.refused(answer, (400, 413, 429), param=param)
        else:
            stage.answered(answer)


async def _around(stage: Stage, path: str, bound: int, make: Callable[[int], Json], param: str) -> None:
    """Require that a request of this size is accepted, and one that is larger by one is refused."""
    served, refused = await asyncio.gather(stage.post(make(bound), path), stage.post(make(bound + 1), path))
    body = served and served.body[:300]
    stage.check(served is not None and served.status == 200, f"{path}: {param} at {bound}: {body!r}")
    stage.refused(refused, (400,), param=param)


@attack(quick=True)
async def bounds(stage: Stage) -> None:
    """Messages, stop sequences, choices and metadata are accepted at their limits and refused beyond them."""
    for path, stop in ((_MESSAGES, "stop_sequences"), (_CHAT, "stop")):
        await _around(stage, path, 20_000, lambda n: _body(messages=[_USER] * n), "messages")
        await _around(stage, path, 16, lambda n, stop=stop: _body(**{stop: ["x"] * n}), stop)  # type: ignore[misc]
        await _around(stage, path, 256, lambda n, stop=stop: _body(**{stop: ["x" * n]}), stop)  # type: ignore[misc]
    await _around(stage, _CHAT, 8, lambda n: _body(n=n), "n")
    await _around(stage, _CHAT, 16, lambda n: _body(metadata={f"k{i}": "v" for i in range(n)}), "metadata")
    await _around(stage, _MESSAGES, 4096, lambda n: _body(metadata={"user_id": "u" * n}), "metadata")


@attack(event_ms=LARGE_EVENT_MS)
async def tiny_messages(stage: Stage) -> None:
    """500,000 messages of one letter in one body are refused by their field."""
    await _everywhere(
        stage, filled(_HEAD + b'"messages":[', b'{"role":"user","content":"a"}', b"]}"), param="messages"
    )


@attack(event_ms=LARGE_EVENT_MS)
async def tiny_blocks(stage: Stage) -> None:
    """400,000 texts within a message, a result, a document, a search result and the system are refused or
    answered."""
    text = b'{"type":"text","text":"a"}'
    for start, end in (
        (b'"messages":[{"role":"user","content":[', b"]}]}"),
        (b'"messages":[{"role":"assistant","content":[', b']},{"role":"user","content":"a"}]}'),
        (
            b'"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[',
            b"]}]}]}",
        ),
        (
            b'"messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[',
            b"]}}]}]}",
        ),
        (
            b'"messages":[{"role":"user","content":[{"type":"search_result","source":"","title":"",'
            b'"content":[',
            b"]}]}]}",
        ),
        (b'"messages":[{"role":"user","content":"a"}],"system":[', b"]}"),
    ):
        await _everywhere(stage, filled(_HEAD + start, text, end, 8 * MIB), refused=False)


@attack()
async def many_tools(stage: Stage) -> None:
    """100,000 tools, functions, servers and toolsets in one body are refused by their field, or answered."""
    for field, tool in (
        (b"tools", b'{"name":"t%d","input_schema":{"type":"object"}}'),
        (b"tools", b'{"type":"mcp_toolset","mcp_server_name":"s%d"}'),
        (b"tools", b'{"type":"function","function":{"name":"t%d","parameters":{"type":"object"}}}'),
        (b"functions", b'{"name":"t%d","parameters":{"type":"object"}}'),
        (b"mcp_servers", b'{"type":"url","name":"s%d","url":"https://a.example"}'),
    ):
        tools = b",".join(tool % number for number in range(100_000))
        body = _HEAD + b'"messages":[{"role":"user","content":"a"}],"' + field + b'":[' + tools + b"]}"
        await _everywhere(stage, body, refused=False)


@attack(quick=True)
async def deep_json(stage: Stage) -> None:
    """Nesting in fields that are kept undecoded, each deeper than the last, is refused or answered."""
    called = b'"messages":[{"role":"user","content":"a"},{"role":"assistant","content":['
    fields = (
        (b'"messages":[{"role":"user","content":"a"}],"tools":[{"name":"t","input_schema":{"x":', b"}}]}"),
        (
            b'"messages":[{"role":"user","content":"a"}],"tools":[{"name":"t","input_schema":{},'
            b'"input_examples":[{"x":',
            b"}]}]}",
        ),
        (called + b'{"type":"tool_use","id":"t","name":"t","input":{"x":', b"}}]}]}"),
        (
            called + b'{"type":"server_tool_use","id":"t","name":"web_search","input":{}},'
            b'{"type":"web_search_tool_result","tool_use_id":"t","content":',
            b'}]},{"role":"user","content":"a"}]}',
        ),
        (b'"messages":[{"role":"user","content":"a"}],"logit_bias":', b"}"),
        (b'"messages":[{"role":"user","content":"a"}],"prediction":', b"}"),
        (b'"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":', b"}}"),
        (b'"messages":[{"role":"user","content":"a"}],"context_management":', b"}"),
        (b'"messages":[{"role":"user","content":"a"}],"container":', b"}"),
        (b'"messages":', b"}"),
    )
    for depth in (500, 5000, 1_000_000):
        nested = b"[" * depth + b"]" * depth
        for start, end in fields:
            await _everywhere(stage, _HEAD + start + nested + end, refused=False)


@attack(quick=True)
async def wrong_types(stage: Stage) -> None:
    """Every field of both APIs with a value of another type is refused by its field, and nothing breaks."""
    shared = ("model", "messages", "tools", "tool_choice", "stream", "temperature", "top_p", "top_k")
    own = {
        _MESSAGES: ("system", "max_tokens", "thinking", "output_config", "mcp_servers", "stop_sequences"),
        _COUNT: ("system", "thinking", "output_config", "output_format", "context_management", "metadata"),
        _CHAT: ("n", "stop", "seed", "response_format", "logprobs", "stream_options", "functions", "user"),
    }
    for path, fields in own.items():
        for field in (*shared, *fields):
            for value in (0.5, {"a": [1]}, [[]], "\u0000" * 10_000, -1):
                answer = await stage.post(_body(**{field: value}), path)
                stage.answered(answer)
                if answer is not None and answer.status >= 500:
                    stage.check(False, f"{path} {field}: {str(value)[:20]} is answered {answer.status}")


@attack(quick=True)
async def hostile_definitions(stage: Stage) -> None:
    """A grammar of a custom tool and schemas of tools and answers that take too long to compile are refused
    by their field in both APIs."""
    enum = {"type": "object", "properties": {"a": {"enum": [f"{n:06}" for n in range(20_000)]}}}
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a?){3000}a{3000}"}}}
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": OPTIONAL_REGEX}}
    custom = {"type": "custom", "custom": {"name": "t", "format": grammar}}
    await _refuse(stage, _CHAT, _body(tools=[custom], tool_choice="required"), "tools")
    for schema in (enum, pattern):
        function = {"name": "t", "strict": True, "parameters": schema}
        tool = {"name": "t", "strict": True, "input_schema": schema}
        form = {"name": "f", "strict": True, "schema": schema}
        await _served_or_refused(stage, _CHAT, tools=[{"type": "function", "function": function}])
        await _served_or_refused(stage, _CHAT, response_format={"type": "json_schema", "json_schema": form})
        await _served_or_refused(stage, _MESSAGES, tools=[tool], tool_choice={"type": "any"})
        await _served_or_refused(
            stage, _MESSAGES, output_config={"format": {"type": "json_schema", "schema": schema}}
        )


async def _refuse(stage: Stage, path: str, body: Json, param: str) -> None:
    for streams in (False, True):
        stage.refused(await stage.post({**body, "stream": streams}, path), (400,), param=param)


async def _served_or_refused(stage: Stage, path: str, **fields: Any) -> None:
    for streams in (False, True):
        stage.answered(await stage.post(_body(stream=streams, **fields), path))


@attack(event_ms=LARGE_EVENT_MS)
async def foreign_signatures(stage: Stage) -> None:
    """15,000 thoughts with signatures that are not the server's, and one of 8 MiB, are answered."""
    thought = '{"type":"thinking","thinking":"a","signature":"slr1.%s"}'
    many = ",".join(thought % f"{number:0600}" for number in range(15_000))
    for blocks in (many, thought % ("A" * 8 * MIB)):
        messages = f'[{json.dumps(_USER)},{{"role":"assistant","content":[{blocks}]}},{json.dumps(_USER)}]'
        body = f'{{"model":"simulated","max_tokens":4,"messages":{messages}}}'.encode()
        for path in (_MESSAGES, _COUNT):
            stage.answered(await stage.post(body, path))


@attack(event_ms=LARGE_EVENT_MS)
async def many_calls(stage: Stage) -> None:
    """10,000 calls with one id, and their results, are answered, or refused by their field."""
    uses = [{"type": "tool_use", "id": "t", "name": "t", "input": {}}] * 10_000
    results = [{"type": "tool_result", "tool_use_id": "t", "content": "a"}] * 10_000
    called = [_USER, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    stage.answered(await stage.post(_body(messages=called), _MESSAGES))
    calls = [{"id": "t", "type": "function", "function": {"name": "t", "arguments": "{}"}}] * 10_000
    outputs = [{"role": "tool", "tool_call_id": "t", "content": "a"}] * 9_000
    messages = [_USER, {"role": "assistant", "tool_calls": calls}, *outputs]
    stage.answered(await stage.post(_body(messages=messages), _CHAT))


@attack()
async def many_choices(stage: Stage) -> None:
    """Forty completions of eight choices at once are answered or refused, while others are served."""
    body = _body(n=8, max_tokens=30)
    for answer in await asyncio.gather(*(stage.post(body, _CHAT) for _ in range(40))):
        stage.answered(answer)


@attack(event_ms=LARGE_EVENT_MS)
async def resent_histories(stage: Stage) -> None:
    """A history of 4 MiB is sent thirty times with another beginning each time: nothing of it is recognised,
    and memory is released."""
    filler = [{"role": "user", "content": "a b " * 256}] * 4000
    for path in (_MESSAGES, _CHAT):
        for number in range(15):
            first = {"role": "user", "content": f"{number}"}
            stage.answered(await stage.post(_body(messages=[first, *filler]), path))


@attack(engine="tokens")
async def long_texts(stage: Stage) -> None:
    """5 MiB of digits as a message and as the system are refused by their size in bytes, also by the
    counter."""
    digits = "0123456789" * (5 * MIB // 10)
    long = [{"role": "user", "content": digits}]
    for path in (_MESSAGES, _COUNT, _CHAT):
        stage.refused(await stage.post(_body(messages=long), path), (400,))
    for path in (_MESSAGES, _COUNT):
        stage.refused(await stage.post(_body(system=digits), path), (400,))
