"""Every field of a request that reaches a model is inspected: derived from the type of requests.

A field of a request is refused with the word in it, or the job of the engine has nothing of it. A new field
for which neither holds fails here.
"""

import json
from typing import Any

import pytest
from msgspec import Raw, Struct, structs

from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import Job
from slipring.protocol.requests import CreateRequest, JsonSchemaFormat
from slipring.protocol.tools.toolset import CustomTool, FunctionTool, NamespaceTool, ToolSearchTool
from tests.core.connection import Connection, Json, Server, function
from tests.text_fields import RAW, text_fields

WORD = "zebra"
SPELLED = r"\u007aebra"
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "zebra"'}
ROUTES = {"prompt_cache_key": "cache_key"}
"""Fields by which requests find their caches, and the field of the job. No model reads them."""


def definitions() -> list[tuple[str, Json]]:
    """Requests with the word in a definition."""
    tools = [
        (path, value)
        for kind in (FunctionTool, CustomTool, NamespaceTool, ToolSearchTool)
        for path, value in text_fields(kind, WORD)
    ]
    found = [(f"tools{path}", {"tools": [_valid(tool)]}) for path, tool in tools]
    found.append(("tools, deferred", {"tools": [function(WORD, defer_loading=True), function("f")]}))
    formats = text_fields(JsonSchemaFormat, WORD)
    found += [(f"text.format{path}", {"text": {"format": value}}) for path, value in formats]
    chosen = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": WORD}]}
    found.append(("tool_choice", {"tool_choice": chosen, "tools": [function("f")]}))
    updated = {"type": "configuration_update", "text": {"format": formats[0][1]}}
    found.append(("input, format", {"input": [updated, {"role": "user", "content": "hi"}]}))
    return found


def _valid(tool: Json) -> Json:
    if tool["type"] == "tool_search":
        return {**tool, "execution": "client"}
    if tool["type"] == "custom" and "format" in tool:
        return {**tool, "format": GRAMMAR}
    return {**tool, "tools": list(map(_valid, tool["tools"]))} if tool["type"] == "namespace" else tool


DEFINITIONS = definitions()
SETTINGS = text_fields(CreateRequest, WORD)


def connect() -> Connection:
    server = Server()
    server.policy = Policy((Check("guard", action="block", mode="hold", on_error="closed"),))
    return Connection(server)


def send(connection: Connection, fields: Json, *, spelled: bool) -> list[Json]:
    frame = json.dumps({"type": "response.create", "input": "hi", "store": False, **fields})
    sent = connection.receive(frame.replace(WORD, SPELLED) if spelled else frame)
    if connection.checks:
        sent = connection.check()
    return connection.weigh(1) if connection.weighs else sent


def texts_of(value: Any) -> str:
    """All texts in a value of the core."""
    if isinstance(value, Raw | bytes):
        return bytes(value).decode(errors="replace")
    if isinstance(value, Struct):
        return " ".join(texts_of(each) for each in structs.asdict(value).values())
    if isinstance(value, tuple | list):
        return " ".join(map(texts_of, value))
    return str(value) if isinstance(value, str | dict) else ""


def is_blocked(event: Json) -> bool:
    error = event["error"] if event["type"] == "error" else event["response"]["error"]
    return event["type"] in ("error", "response.failed") and error["code"] == "invalid_prompt"


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize(("path", "fields"), DEFINITIONS, ids=[path for path, _ in DEFINITIONS])
def test_a_word_in_any_definition_is_refused(path: str, fields: Json, spelled: bool):
    connection = connect()
    send(connection, fields, spelled=spelled)
    connection.inspect_all(guard=WORD)
    assert is_blocked(connection.events[-1])
    assert WORD not in json.dumps(connection.events)
    assert SPELLED not in json.dumps(connection.events).replace("\\\\", "\\")


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize(("path", "fields"), SETTINGS, ids=[path for path, _ in SETTINGS])
def test_a_word_in_any_field_of_a_request_is_refused_or_reaches_no_model(
    path: str, fields: Json, spelled: bool
):
    connection = connect()
    send(connection, {"input": "hi", **fields}, spelled=spelled)
    if not connection.starts:
        # The request is not valid with the word, or names something that does not exist.
        assert connection.loads or connection.events[-1]["type"] == "error"
        return
    (start,) = connection.starts.values()
    job: Job = start.job
    connection.inspect_all(guard=WORD)
    if not is_blocked(connection.events[-1]):
        hidden = {ROUTES[name]: None for name in ROUTES if name in path}
        assert WORD not in texts_of(structs.replace(job, **hidden))
    else:
        assert WORD not in json.dumps(connection.events)


def test_fields_that_are_raw_json_have_a_decision():
    raw = {"input", "conversation", "tools", "tool_choice", "format", "context_management"}
    assert raw <= set(RAW)
