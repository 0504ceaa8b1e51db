"""The blocks of calls that the server has run."""

import json
from typing import Any

import pytest

from slipring.protocol.items.items import Item, read_item
from slipring.protocol.messages import content
from slipring.protocol.wire import encode

Json = dict[str, Any]
CODE: Json = {"type": "code_interpreter_call", "id": "ci", "code": "1", "container_id": "c"}
SEARCH: Json = {"type": "web_search_call", "id": "ws", "action": {"type": "search", "query": "q"}}
CALL: Json = {"type": "mcp_call", "id": "mcp", "server_label": "s", "name": "f", "arguments": '{"a": 1}'}


def item(fields: Json, **more: Any) -> Item:
    return read_item(json.dumps({**fields, **more}).encode(), "")


def shown(fields: Json, **more: Any) -> tuple[Json, Json]:
    found = item(fields, **more)
    use = json.loads(encode(content.hosted_use(found)))
    result = json.loads(encode(content.hosted_result(found)))
    assert use["id"] == result["tool_use_id"] == fields["id"]
    return use, result


def test_code() -> None:
    use, result = shown(CODE, status="completed", outputs=[{"type": "logs", "logs": "2"}])
    assert (use["name"], use["input"]) == ("code_execution", {"code": "1"})
    assert result["content"]["stdout"] == "2"
    assert shown(CODE, status="completed", outputs=[])[1]["content"]["stdout"] == ""
    failed = {"type": "code_execution_tool_result_error", "error_code": "unavailable"}
    assert shown(CODE, status="failed", outputs=None)[1]["content"] == failed


def test_searches() -> None:
    assert shown(SEARCH, status="completed")[1]["content"] == []
    failed = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    assert shown(SEARCH, status="failed")[1]["content"] == failed


@pytest.mark.parametrize(("arguments", "given"), [('{"a": 1}', {"a": 1}), ('{"a": ', {}), ("[]", {})])
def test_calls_of_mcp_servers(arguments: str, given: Json) -> None:
    use, result = shown(CALL, arguments=arguments, status="failed", error="no")
    assert use["input"] == given
    assert (result["is_error"], result["content"]) == (True, [{"type": "text", "text": "no"}])
    use, result = shown(CALL, arguments=arguments, status="completed", output="")
    assert (result["is_error"], result["content"]) == (False, [])
    assert shown(CALL, status="incomplete")[1]["is_error"] is True
