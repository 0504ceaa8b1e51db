"""What a check refuses is never sent, stored or read by a model: every item, field and event, over every
transport.

The fields are derived from the types of the protocol. ``CARRIERS`` and ``EVENTS`` decide about each of them:
a new item, field or event without a decision fails a test here.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, Struct

from slipring.config.tables import BuiltinMapping, CheckEntry
from slipring.core.checks.verdicts import Subject
from slipring.core.generation import (
    Accepted,
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Capabilities,
    Delta,
    Emit,
    Finished,
    Job,
    Model,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
    deliver,
)
from slipring.engines.base import Engine, Level
from slipring.protocol import events
from slipring.protocol.items.items import Item
from slipring.protocol.responses import OutputItem
from tests.api import Api
from tests.harness import TERMINAL, Running, read_sse, serve
from tests.mcp.fakes import Behaviour, Exchange, FakeServer, Reply, error, event, result, serving, text
from tests.server.hosted_tools.running import registered
from tests.text_fields import text_fields

Json = dict[str, Any]
WORD = "zebra"
SPELLED = r"\u007aebra"
TRANSPORTS = ("sse", "post", "websocket", "background", "conversation")
HEADERS = {"OpenAI-Beta": "slipring_rollout=v1, slipring_tool_progress=v1"}
MCP = {"type": "mcp", "server_label": "fake", "require_approval": "never"}
BUILTINS = (
    BuiltinMapping("web_search", "fake", "tool", "q"),
    BuiltinMapping("file_search", "fake", "tool", "q"),
    BuiltinMapping("code_interpreter", "fake", "tool", "q"),
)
INCLUDE = ["web_search_call.action.sources", "file_search_call.results", "code_interpreter_call.outputs"]
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
END = Finished("stop", input_tokens=1, cached_tokens=0, output_tokens=1)


def guard() -> Callable[[Subject], bool]:
    """The factory of the check: it refuses the word."""
    return lambda subject: WORD in subject.text


def check(**fields: Any) -> CheckEntry:
    fields = {"action": "block", "mode": "hold", "on_error": "closed", "timeout_s": 60.0, **fields}
    return CheckEntry("guard", f"python:{__name__}:guard", settings='{"thread": false}', **fields)


class Player(Engine):
    """An engine that plays one step after the other, and keeps what it has read."""

    name = "player"
    level = Level.ITEMS

    def __init__(self, *steps: list[Delta]) -> None:
        self._steps = list(steps)
        self.read = b""

    def models(self) -> list[Model]:
        return [Model(name="player", owner="tests", capabilities=Capabilities(), context_tokens=1000)]

    async def count(self, job: Job, enough: int | None = None) -> int:
        return 1

    async def generate(self, job: Job, emit: Emit) -> None:
        self.read += b"".join(item.raw for item in job.context()) + job.head.tools.raw
        await deliver(emit, [Accepted()])
        step = self._steps.pop(0) if self._steps else [Text("ok")]
        for delta in step:
            await deliver(emit, [delta])
        await deliver(emit, [END])


class Carrier(Struct):
    """How the word gets into a response."""

    steps: tuple[list[Delta], ...] = ()
    """What the model writes."""
    fields: Json = {}
    """Of the request."""
    tool: Behaviour | None = None
    """What the tool of the MCP server does."""
    tools: list[Json] = []
    """The tools that the MCP server lists besides."""
    list_error: bool = False
    appends: str | None = None
    """The output that a rollout's client appends."""
    transports: tuple[str, ...] = TRANSPORTS


def called(kind: Any, name: str, arguments: str, namespace: str | None = None) -> Carrier:
    """The model calls a tool that the client runs."""
    return Carrier(([CallStarted(kind, name, namespace), CallArguments(arguments), CallEnded()],))


def arguments(value: Any) -> str:
    """Arguments as a model writes them that wants to hide the word, in pieces of any length."""
    return json.dumps(value).replace(WORD, SPELLED)


def hosted(tool: Behaviour, kind: str = "", **more: Any) -> Carrier:
    """The model calls a tool that the server runs."""
    name, namespace, offered = ("tool", "fake", MCP) if not kind else (kind, None, _builtin(kind))
    written = "{}" if not kind else json.dumps({_argument(kind): "x"})
    call: list[Delta] = [CallStarted("function", name, namespace), CallArguments(written), CallEnded()]
    return Carrier((call,), {"tools": [offered], "include": INCLUDE}, tool, **more)


def asked(kind: str, written: str) -> Carrier:
    """The model calls a hosted tool with arguments that are refused."""
    carrier = hosted(_fine, kind)
    carrier.steps = ([carrier.steps[0][0], *map(CallArguments, written), CallEnded()],)
    return carrier


def _builtin(kind: str) -> Json:
    more: Json = {"file_search": {"vector_store_ids": ["vs"]}, "code_interpreter": {"container": "c"}}
    return {"type": kind, **more.get(kind, {})}


def _argument(kind: str) -> str:
    return "code" if kind == "code_interpreter" else "query"


def returns(*blocks: Json, **fields: Any) -> Behaviour:
    async def tool(exchange: Exchange) -> Reply:
        return {"content": list(blocks), **fields}

    return tool


async def _fine(exchange: Exchange) -> Reply:
    return text("fine")


async def _protocol_error(exchange: Exchange) -> Reply:
    from aiohttp import web

    return web.json_response(error(exchange.id, -32000, f"a {WORD}"))


async def _reports(exchange: Exchange) -> Reply:
    response = await exchange.stream()
    await response.write(event(exchange.progress(0.5, message=f"a {WORD}")))
    await response.write(event(result(exchange.id, text("fine"))))
    return response


def upstream(value: Json, *events_about: tuple[Any, Json]) -> Carrier:
    """The engine's server makes an item."""
    item = Item(value["type"], json.dumps(value).encode(), value["id"])
    blank = {**value, **({"arguments": "", "output": None} if "arguments" in value else {})}
    raw = json.dumps(blank).replace(WORD, "x").replace('"completed"', '"in_progress"')
    began = Item(value["type"], raw.encode(), value["id"])
    about = [UpstreamItemEvent(1, kind, fields) for kind, fields in events_about]
    return Carrier(([UpstreamItemStarted(1, began), *about, UpstreamItemEnded(1, item)],))


SAID = Carrier(([Text("a "), Text("zeb"), Text("ra.")],))
CODE = asked("code_interpreter", arguments({"code": WORD}))
LOGS = hosted(returns({"type": "text", "text": WORD}), "code_interpreter")
PASSAGE = [{"file_id": "f", "filename": "a", "score": 0.5, "text": "t", "attributes": {"k": "v"}}]


def found(**fields: Any) -> Carrier:
    """A search in files finds a passage."""
    passages = json.dumps([{**PASSAGE[0], **fields}]).replace(WORD, SPELLED)
    return hosted(returns({"type": "text", "text": passages}), "file_search")


def failed(*blocks: Json) -> Carrier:
    return hosted(returns(*blocks, isError=True))


def listed(**fields: Any) -> Carrier:
    """The MCP server lists a tool."""
    tool = {"name": "other", "description": "Does.", "inputSchema": {"type": "object"}, **fields}
    return Carrier(([Text("ok")],), {"tools": [MCP]}, tools=[tool])


CITED = {"type": "url_citation", "url": "u", "title": WORD, "start_index": 0, "end_index": 1}
SEALED, ID, LABEL = (
    "made from what has passed, and sealed",
    "an id, which no model reads and checks do not inspect",
    "a word that the client itself has sent, inspected with its request",
)
CARRIERS: dict[str, Carrier | str] = {
    "<message>.id": ID,
    "<message>.content<output_text>.text": SAID,
    "<message>.content<output_text>.annotations": Carrier(
        (
            [
                Text("a"),
                Annotated(Raw(json.dumps(CITED).encode())),
                Text("b"),
            ],
        )
    ),
    "<message>.content<output_text>.logprobs.token": "a token of the text, or an alternative: docs/safety",
    "<message>.content<output_text>.logprobs.top_logprobs.token": "an alternative token: docs/safety",
    "<message>.content<refusal>.refusal": Carrier(([RefusalText("a zebra")],)),
    "<reasoning>.id": ID,
    "<reasoning>.summary<summary_text>.text": Carrier(([ThoughtSummary("a zebra"), Text("b")],)),
    "<reasoning>.content<reasoning_text>.text": Carrier(([Thought("a zebra"), Text("b")],)),
    "<reasoning>.encrypted_content": SEALED,
    "<function_call>.id": ID,
    "<function_call>.call_id": ID,
    "<function_call>.name": called("function", WORD, "{}"),
    "<function_call>.arguments": called("function", "f", arguments({"x": WORD})),
    "<function_call>.namespace": called("function", "f", "{}", WORD),
    "<custom_tool_call>.id": ID,
    "<custom_tool_call>.call_id": ID,
    "<custom_tool_call>.name": called("custom", WORD, ""),
    "<custom_tool_call>.input": called("custom", "f", WORD),
    "<custom_tool_call>.namespace": called("custom", "f", "", WORD),
    "<tool_search_call>.id": ID,
    "<tool_search_call>.call_id": ID,
    "<tool_search_call>.arguments": called("tool_search", "tool_search", arguments({WORD: 1})),
    "<shell_call>.id": ID,
    "<shell_call>.call_id": ID,
    "<shell_call>.action.commands": called("shell", "shell", arguments({"commands": [WORD]})),
    "<local_shell_call>.id": ID,
    "<local_shell_call>.call_id": ID,
    "<local_shell_call>.action<exec>.command": called(
        "local_shell", "local_shell", arguments({"command": [WORD]})
    ),
    "<local_shell_call>.action<exec>.env.*": "always empty: the arguments of the model have no such field",
    "<local_shell_call>.action<exec>.user": "never set: the arguments of the model have no such field",
    "<local_shell_call>.action<exec>.working_directory": called(
        "local_shell", "local_shell", arguments({"command": [], "working_directory": WORD})
    ),
    "<apply_patch_call>.id": ID,
    "<apply_patch_call>.call_id": ID,
    **{
        f"<apply_patch_call>.operation<{operation}>.{field}": called(
            "apply_patch",
            "apply_patch",
            arguments({"type": operation, "path": "p", "diff": "d", field: WORD}),
        )
        for operation, field in [
            ("create_file", "path"),
            ("create_file", "diff"),
            ("update_file", "path"),
            ("update_file", "diff"),
            ("delete_file", "path"),
        ]
    },
    "<computer_call>.id": ID,
    "<computer_call>.call_id": ID,
    **{
        f"<computer_call>.{field}<{action}>.keys": called(
            kind,
            kind,
            arguments(
                {
                    field: [{**_place, "type": action, "keys": [WORD]}]
                    if field == "actions"
                    else {**_place, "type": action, "keys": [WORD]}
                }
            ),
        )
        for _place in [{"x": 1, "y": 1, "scroll_x": 1, "scroll_y": 1, "button": "left", "path": []}]
        for kind, field in [("computer", "actions"), ("computer_use_preview", "action")]
        for action in ("click", "double_click", "drag", "keypress", "move", "scroll")
    },
    "<computer_call>.actions<type>.text": called(
        "computer", "computer", arguments({"actions": [{"type": "type", "text": WORD}]})
    ),
    "<computer_call>.action<type>.text": called(
        "computer_use_preview",
        "computer_use_preview",
        arguments({"action": {"type": "type", "text": WORD}}),
    ),
    "<computer_call>.pending_safety_checks.id": ID,
    **{
        f"<computer_call>.pending_safety_checks.{field}": upstream(
            {
                "type": "computer_call",
                "id": "cu_1",
                "call_id": "call_1",
                "status": "completed",
                "actions": [],
                "pending_safety_checks": [{"id": "sc_1", field: WORD}],
            }
        )
        for field in ("code", "message")
    },
    "<compaction>.id": ID,
    "<compaction>.encrypted_content": Carrier(
        ([Text("A zebra.")],),
        {"input": [{"role": "user", "content": "hello"}, {"type": "compaction_trigger"}]},
    ),
    "<mcp_list_tools>.id": ID,
    "<mcp_list_tools>.server_label": LABEL,
    "<mcp_list_tools>.tools.name": listed(name=WORD),
    "<mcp_list_tools>.tools.description": listed(description=f"a {WORD}"),
    "<mcp_list_tools>.tools.input_schema": listed(
        inputSchema={"type": "object", "properties": {WORD: {"type": "string"}}}
    ),
    "<mcp_list_tools>.error": "written by this server, without a text of the MCP server's",
    "<mcp_call>.id": ID,
    "<mcp_call>.server_label": LABEL,
    "<mcp_call>.name": "the name of a tool that was listed, which was inspected, or else of a function_call",
    "<mcp_call>.arguments": asked("", arguments({"x": WORD})),
    "<mcp_call>.output": hosted(returns({"type": "text", "text": f"a {WORD}"})),
    "<mcp_call>.error<mcp_protocol_error>.message": hosted(_protocol_error),
    "<mcp_call>.error<mcp_tool_execution_error>.content": failed({"type": "text", "text": f"a {WORD}"}),
    "<mcp_call>.error<http_error>.message": "written by this server, without a text of the MCP server's",
    "<mcp_call>.approval_request_id": ID,
    "<mcp_approval_request>.id": ID,
    "<mcp_approval_request>.server_label": LABEL,
    "<mcp_approval_request>.name": "as for mcp_call",
    "<mcp_approval_request>.arguments": Carrier(
        asked("", arguments({"x": WORD})).steps, {"tools": [{**MCP, "require_approval": "always"}]}
    ),
    "<web_search_call>.id": ID,
    "<web_search_call>.action<search>.query": asked("web_search", arguments({"query": WORD})),
    "<web_search_call>.action<search>.queries": asked("web_search", arguments({"query": WORD})),
    "<web_search_call>.action<search>.sources<url>.url": hosted(
        returns({"type": "text", "text": f"https://{WORD}.example"}), "web_search"
    ),
    "<file_search_call>.id": ID,
    "<file_search_call>.queries": asked("file_search", arguments({"query": WORD})),
    "<file_search_call>.results.file_id": found(file_id=WORD),
    "<file_search_call>.results.filename": found(filename=WORD),
    "<file_search_call>.results.text": found(text=WORD),
    "<file_search_call>.results.attributes.*": found(attributes={WORD: "v"}),
    "<code_interpreter_call>.id": ID,
    "<code_interpreter_call>.code": CODE,
    "<code_interpreter_call>.container_id": ID,
    "<code_interpreter_call>.outputs<logs>.logs": LOGS,
}
"""By field of an item that a response can contain: how the word gets there, or why it cannot."""
MORE: dict[str, Carrier] = {
    "structured content": hosted(returns(structuredContent={"x": WORD})),
    "structured content of an error": failed(
        {"type": "resource", "resource": {"uri": "a:b", "text": WORD, "mimeType": "text/plain"}}
    ),
    "a link in an error": failed({"type": "resource_link", "uri": f"https://{WORD}.example", "name": "n"}),
    "an error of a built-in tool": hosted(
        returns({"type": "text", "text": WORD}, isError=True), "code_interpreter"
    ),
    "a result that no item shows": Carrier(
        hosted(_fine, "web_search").steps,
        {"tools": [{"type": "web_search"}]},
        returns({"type": "text", "text": WORD}),
    ),
    "a message of progress": hosted(_reports, transports=("sse", "websocket")),
    "an appended output": Carrier(
        ([CallStarted("function", "f"), CallArguments("{}"), CallEnded()],),
        {"tools": [FUNCTION], "rollout": True},
        appends=f"a {WORD}",
        transports=("websocket",),
    ),
    "structured output": Carrier(
        ([Text('{"x":"\\u'), Text("007"), Text('aebra"}')],), {"text": {"format": {"type": "json_object"}}}
    ),
    "a key of structured output": Carrier(
        ([Text('{"' + SPELLED + '":1}')],),
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
    ),
}
"""Ways of the word that are not fields of items."""
_MCP_CALL = {
    **{"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "n"},
    **{"arguments": "{}", "status": "completed"},
    **dict.fromkeys(("approval_request_id", "error", "output")),
}


def upstream_call(*pieces: str, **fields: Any) -> Carrier:
    """The engine's server calls a tool."""
    written = "".join(pieces)
    deltas = [(events.McpCallArgumentsDelta, {"delta": piece}) for piece in pieces]
    done = (events.McpCallArgumentsDone, {"arguments": written})
    item, begun = {**_MCP_CALL, "arguments": written, **fields}, (events.McpCallInProgress, {})
    return upstream(item, begun, *deltas, done, (events.McpCallCompleted, {}))


UPSTREAM: dict[str, Carrier] = {
    "mcp_call.output": upstream_call("{}", output=WORD),
    "mcp_call.arguments": upstream_call('{"x":"\\u007', 'aebra"}', output="fine"),
    "mcp_list_tools": upstream(
        {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "s",
            "tools": [
                {
                    **{"name": "n", "input_schema": {}, "description": WORD},
                    "annotations": {"read_only": False},
                }
            ],
        },
        (events.McpListToolsInProgress, {}),
        (events.McpListToolsCompleted, {}),
    ),
    "image_generation_call": upstream(
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "status": "completed",
            "result": "",
            "revised_prompt": WORD,
        }
    ),
}
"""Items that an engine's server makes itself."""
ALL: dict[str, Carrier] = {
    **{path: carrier for path, carrier in CARRIERS.items() if isinstance(carrier, Carrier)},
    **MORE,
    **{f"upstream: {name}": carrier for name, carrier in UPSTREAM.items()},
}
SILENT = {
    "item_id": ID,
    "stream_id": "the lane's, which the client has named",
    "response_id": ID,
    "call_id": ID,
}
EVENTS = {
    "response": "the response object: its output has items, its other texts are those of the request",
    "item": "an item of the response",
    "part": "a part of an item",
    "delta": "a piece of an item's text",
    "text": "of an item",
    "refusal": "of an item",
    "arguments": "of an item",
    "input": "of an item; or what a client has sent, returned without content if it is refused",
    "code": "of an item",
    "logprobs": "tokens of an item's text",
    "annotation": "of an item",
    "message": "carried by 'a message of progress'",
    "partial_image_b64": "data of an image",
    "size": "of an image",
    "quality": "of an image",
    "background": "of an image",
    "output_format": "of an image",
    "steer": "ids, and what a client has sent, returned without content if it is refused",
    "required_input": "ids of calls, and the names that their items have",
    "error": "written by this server",
    "timing": "numbers, and names that the operator has chosen",
}
"""What is in the fields of events that have texts."""


def test_every_field_of_every_item_has_a_decision() -> None:
    assert {path for path, _ in text_fields(OutputItem, WORD)} == set(CARRIERS)


def test_every_field_of_every_event_has_a_decision() -> None:
    kinds = [
        each for each in vars(events).values() if isinstance(each, type) and issubclass(each, events.Event)
    ]
    assert len(kinds) > 50
    numbers = {"sequence_number", "output_index", "content_index", "summary_index", "annotation_index"}
    numbers |= {"partial_image_index", "progress", "total", "status", "reason"}
    for kind in kinds:
        assert set(kind.__struct_fields__) <= {*SILENT, *EVENTS, *numbers}, kind


@asynccontextmanager
async def running(
    carrier: Carrier, folder: Path, **fields: Any
) -> AsyncIterator[tuple[Running, Player, str]]:
    """A server whose model, tools and check do what the carrier says; with the request to send."""
    fake = FakeServer(modern=True)
    fake.tools = [{"name": "tool", "inputSchema": {"type": "object"}}, *carrier.tools]
    fake.calls = {"tool": carrier.tool or _fine}
    engine = Player(*carrier.steps)
    async with (
        serving(fake) as served,
        serve(
            engine,
            mcp=(registered(served, headers=()),),
            builtin_tools=BUILTINS,
            checks=(check(**fields),),
            store=f"sqlite:{folder}/store.db",
        ) as server,
    ):
        yield server, engine, served.url


async def received(server: Running, carrier: Carrier, transport: str) -> str:
    """All that a client receives of a response."""
    body: Json = {"input": "hello", "store": True, **carrier.fields}
    api = Api(server)
    if transport == "websocket":
        return await _over_a_socket(server, carrier, body)
    if transport == "sse":
        return await _streamed(server, body)
    if transport == "post":
        return json.dumps(await server.post(**body))
    if transport == "background":
        begun = await api.begin(**body)
        ended = await api.ended(begun["id"])
        followed = await api.events(begun["id"])
        items = await api.call("GET", f"/responses/{begun['id']}/input_items")
        return json.dumps([begun, ended, followed, items])
    _, conversation = await api.call("POST", "/conversations", json={})
    answer = await server.post(conversation=conversation["id"], **body)
    _, page = await api.call("GET", f"/conversations/{conversation['id']}/items")
    assert page["data"] == []
    return json.dumps([answer, page])


async def _streamed(server: Running, body: Json) -> str:
    headers = {"Authorization": "Bearer test-key", **HEADERS}
    url, body = f"{server.url}/responses", {**body, "stream": True}
    async with server.http.post(url, json=body, headers=headers) as answer:
        seen = (await answer.read()).decode()
        return json.dumps(read_sse(seen)) if answer.status == 200 else seen


async def _over_a_socket(server: Running, carrier: Carrier, body: Json) -> str:
    async with server.connect(headers=HEADERS) as socket:
        await socket.create(**body)
        seen = await socket.until(*TERMINAL, "error", "response.done")
        if carrier.appends is not None:
            done = seen[-1]
            output = {
                "type": "function_call_output",
                "call_id": done["required_input"][0]["call_id"],
                "output": carrier.appends,
            }
            await socket.send(type="response.append", response_id=done["response_id"], input=[output])
            seen += await socket.until(*TERMINAL, "error")
        return json.dumps(seen)


def kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("store.db*"))


HIDDEN = ("<compaction>.encrypted_content", "a result that no item shows", "an error of a built-in tool")
"""What a model reads and its client does not see."""
CASES = [(name, transport) for name, carrier in ALL.items() for transport in carrier.transports]


@pytest.mark.parametrize(("name", "transport"), CASES, ids=[" ".join(case) for case in CASES])
async def test_what_is_refused_is_never_sent_stored_or_read(
    tmp_path: Path, name: str, transport: str
) -> None:
    carrier = ALL[name]
    async with running(carrier, tmp_path) as (server, engine, _):
        seen = await received(server, carrier, transport)
        assert "invalid_prompt" in seen, seen
        assert WORD not in seen
        assert SPELLED not in seen.replace("\\\\", "\\")
        assert WORD.encode() not in engine.read
    assert WORD.encode() not in kept(tmp_path)


@pytest.mark.parametrize("name", ALL)
async def test_a_carrier_carries_the_word_if_nothing_refuses_it(tmp_path: Path, name: str) -> None:
    carrier = ALL[name]
    async with running(carrier, tmp_path, action="flag", mode="follow", on_error="open") as (server, *_):
        seen = await received(server, carrier, "websocket")
    assert "invalid_prompt" not in seen
    is_seen = WORD in seen or SPELLED in seen.replace("\\\\", "\\")
    assert is_seen != (name in HIDDEN)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": f"a {WORD}"},
        {"instructions": f"a {WORD}"},
        {"tools": [{**FUNCTION, "description": WORD}]},
        {"text": {"format": {"type": "json_schema", "name": WORD, "schema": {"type": "object"}}}},
    ],
)
async def test_nothing_of_a_refused_background_request_is_stored(tmp_path: Path, fields: Json) -> None:
    carrier = Carrier(fields=fields)
    async with running(carrier, tmp_path) as (server, *_):
        api = Api(server)
        begun = await api.begin(**{"input": "hello", **fields})
        ended = await api.ended(begun["id"])
        followed = await api.events(begun["id"])
        assert "invalid_prompt" in json.dumps(ended)
        assert WORD not in json.dumps([begun, ended, followed])
    assert WORD.encode() not in kept(tmp_path)
