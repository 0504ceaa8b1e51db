"""Shells and patches: built-in tools that the client runs, over real sockets."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness import serve
from tests.server.hosted_tools.turns import scripted, types

Json = dict[str, Any]
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
LOCAL = {"type": "local_shell"}
EXITED = {"stdout": "a\n", "stderr": "careful", "outcome": {"type": "exit", "exit_code": 3}}


def call(kind: str, arguments: Any) -> Json:
    return {"function_call": {"name": kind, "kind": kind, "arguments": arguments}}


CASES: dict[str, tuple[Json, Json, Json, Json, str]] = {
    "shell": (
        SHELL,
        {"commands": ["ls"], "timeout_ms": None},
        {"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        {"type": "shell_call_output", "output": [EXITED]},
        "a\n[stderr]\ncareful\n[exit code: 3]",
    ),
    "apply_patch": (
        PATCH,
        {"type": "create_file", "path": "a.txt", "diff": "+a"},
        {"operation": {"type": "create_file", "path": "a.txt", "diff": "+a"}},
        {"type": "apply_patch_call_output", "status": "failed", "output": "It exists."},
        "The patch could not be applied.\nIt exists.",
    ),
    "local_shell": (
        LOCAL,
        {"command": ["ls", "-l"], "working_directory": "/", "timeout_ms": None},
        {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": "/"}},
        {"type": "local_shell_call_output", "output": "a"},
        "a",
    ),
}


@pytest.mark.parametrize("kind", CASES)
async def test_a_call_is_made_in_its_own_form_and_its_output_is_read(kind: str, tmp_path: Path) -> None:
    tool, arguments, form, output, text = CASES[kind]
    engine = scripted(tmp_path, [call(kind, arguments)], [{"text": "Done."}])
    async with serve(engine) as server, server.connect() as socket:
        events = await socket.turn(input="do it", tools=[tool])
        response = events[-1]["response"]
        assert types(events)[2:-1] == ["output_item.added", "output_item.done"]
        (made,) = response["output"]
        assert made["type"] == f"{kind}_call"
        assert made["status"] == "completed"
        for name, value in form.items():
            assert {key: made[name].get(key) for key in value} == value
        assert response["tools"] == [tool]
        named = "id" if kind == "local_shell" else "call_id"
        refused = await socket.error(input="go on", previous_response_id=response["id"], tools=[tool])
        assert "No tool output found" in refused["error"]["message"]
        answered = await socket.response(
            input=[{**output, named: made["call_id"]}], previous_response_id=response["id"], tools=[tool]
        )
        assert answered["output"][0]["type"] == "message"
        state = await server.service.store.responses.load("default", answered["id"])
    assert state is not None
    _, called, read, _ = [item.body() for item in state.context()]
    assert getattr(called, "name", None) == kind
    assert getattr(read, "output", None) == text


@pytest.mark.parametrize("kind", CASES)
async def test_arguments_that_are_not_in_the_form_make_a_call_that_needs_no_answer(
    kind: str, tmp_path: Path
) -> None:
    tool = CASES[kind][0]
    engine = scripted(tmp_path, [call(kind, {"cmd": "ls"})], [{"text": "Done."}])
    async with serve(engine) as server, server.connect() as socket:
        first = await socket.response(input="do it", tools=[tool])
        assert first["output"][0]["status"] == ("in_progress" if kind == "apply_patch" else "incomplete")
        again = await socket.response(input="go on", previous_response_id=first["id"], tools=[tool])
        assert again["status"] == "completed"


@pytest.mark.parametrize("kind", CASES)
async def test_a_planned_call_has_arguments_in_the_form_of_its_tool(kind: str) -> None:
    tool = CASES[kind][0]
    async with serve("simulated:tokens_per_s=0") as server, server.connect() as socket:
        choice = "required" if kind == "local_shell" else {"type": kind}
        response = await socket.response(input="do it", tools=[tool], tool_choice=choice)
        made = response["output"][0]
        assert (made["type"], made["status"]) == (f"{kind}_call", "completed")


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "shell", "environment": {"type": "container_auto"}}, "tools[0].environment.type"),
        ({"type": "shell", "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers"),
        ({"type": "programmatic_tool_calling"}, "tools[0].type"),
    ],
)
async def test_what_this_server_cannot_do_is_refused_by_name(tool: Json, param: str) -> None:
    async with serve() as server, server.connect() as socket:
        refused = await socket.error(input="do it", tools=[tool])
    assert (refused["error"]["code"], refused["error"]["param"]) == ("unsupported_parameter", param)


async def test_skills_of_the_client_are_described_to_the_model() -> None:
    skill = {"name": "charts", "description": "Draws charts.", "path": "skills/charts"}
    tool = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    async with serve() as server, server.connect() as socket:
        response = await socket.response(input="draw", tools=[tool])
        state = await server.service.store.responses.load("default", response["id"])
    assert state is not None
    (shell,) = state.head.tools.callables
    assert "charts (skills/charts): Draws charts." in str(shell.definition.description)
