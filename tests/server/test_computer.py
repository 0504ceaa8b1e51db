"""``computer`` and ``computer_use_preview``: tools that the client runs and answers with screenshots.

The sockets of the harness check every event against the types of the openai package.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.harness import serve
from tests.pictures import PIXEL
from tests.server.hosted_tools.turns import scripted, types

Json = dict[str, Any]
COMPUTER = {"type": "computer"}
PREVIEW = {
    "type": "computer_use_preview",
    "display_width": 1024,
    "display_height": 768,
    "environment": "browser",
}
SCREENSHOT = {"type": "computer_screenshot", "image_url": PIXEL}
AT = {"x": 405, "y": 157}
ACTIONS: list[Json] = [
    {"type": "click", "button": "left", **AT, "keys": None},
    {"type": "double_click", **AT, "keys": ["SHIFT"]},
    {"type": "drag", "path": [AT, {"x": 1, "y": 2}], "keys": None},
    {"type": "keypress", "keys": ["CTRL", "L"]},
    {"type": "move", **AT, "keys": None},
    {"type": "screenshot"},
    {"type": "scroll", **AT, "scroll_x": 0, "scroll_y": -300, "keys": None},
    {"type": "type", "text": "slipring"},
    {"type": "wait"},
]
TOOLS = {"computer": COMPUTER, "computer_use_preview": PREVIEW}
ARGUMENTS: dict[str, Json] = {
    "computer": {"actions": ACTIONS},
    "computer_use_preview": {"action": ACTIONS[0]},
}


def call(kind: str, arguments: Any) -> Json:
    return {"function_call": {"name": kind, "kind": kind, "arguments": arguments}}


def screenshot(made: Json, **fields: Any) -> Json:
    return {"type": "computer_call_output", "call_id": made["call_id"], "output": SCREENSHOT, **fields}


@pytest.mark.parametrize("kind", TOOLS)
async def test_a_call_has_the_actions_and_the_model_sees_the_screenshot(kind: str, tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call(kind, ARGUMENTS[kind])], [{"text": "Done."}])
    async with serve(engine) as server, server.connect() as socket:
        events = await socket.turn(input="search", tools=[TOOLS[kind]])
        assert types(events)[2:-1] == ["output_item.added", "output_item.done"]
        response = events[-1]["response"]
        (made,) = response["output"]
        assert (made["type"], made["status"]) == ("computer_call", "completed")
        assert made["pending_safety_checks"] == []
        assert {name: made[name] for name in ("action", "actions") if name in made} == ARGUMENTS[kind]
        assert response["tools"] == [TOOLS[kind]]
        refused = await socket.error(input="go on", previous_response_id=response["id"], tools=[TOOLS[kind]])
        assert "No tool output found for computer call" in refused["error"]["message"]
        answered = await socket.response(
            input=[screenshot(made)], previous_response_id=response["id"], tools=[TOOLS[kind]]
        )
        assert answered["output"][0]["type"] == "message"
        state = await server.service.store.responses.load("default", answered["id"])
    assert state is not None
    _, called, seen, _ = [item.body() for item in state.context()]
    assert getattr(called, "name", None) == kind
    (image,) = getattr(seen, "output", [None])
    assert getattr(image, "image_url", None) == PIXEL


async def test_a_history_that_is_sent_again_continues_its_context(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [call("computer", ARGUMENTS["computer"])], [{"text": "Done."}])
    async with serve(engine) as server, server.connect() as socket:
        first = await socket.response(input="search", tools=[COMPUTER], store=False)
        (made,) = first["output"]
        check = {"id": "cu_sc_1", "code": None, "message": None}
        history = [
            {"role": "user", "content": "search"},
            made,
            screenshot(made, acknowledged_safety_checks=[check], status="completed"),
        ]
        again = await socket.response(input=history, tools=[COMPUTER], store=False)
    assert again["output"][0]["content"][0]["text"] == "Done."
    assert again["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_calls_and_screenshots_are_listed_as_the_api_has_them(tmp_path: Path) -> None:
    engine = scripted(tmp_path, [{"text": "Done."}])
    made = {"type": "computer_call", "call_id": "c", "actions": [{"type": "wait"}]}
    async with serve(engine) as server, server.connect() as socket:
        response = await socket.response(input=[made, screenshot(made)], tools=[COMPUTER])
        async with server.http.get(f"{server.url}/responses/{response['id']}/input_items") as answer:
            shown, called = (await answer.json())["data"]
    assert (called["type"], called["pending_safety_checks"], called["status"]) == (
        *("computer_call", []),
        "completed",
    )
    assert (shown["type"], shown["output"], shown["status"]) == (
        *("computer_call_output", SCREENSHOT),
        "completed",
    )


@pytest.mark.parametrize("kind", TOOLS)
async def test_arguments_that_are_not_in_the_form_make_a_call_that_needs_no_answer(
    kind: str, tmp_path: Path
) -> None:
    engine = scripted(tmp_path, [call(kind, {"action": {"type": "shout"}})], [{"text": "Done."}])
    async with serve(engine) as server, server.connect() as socket:
        first = await socket.response(input="do it", tools=[TOOLS[kind]])
        assert first["output"][0]["status"] == "incomplete"
        again = await socket.response(input="go on", previous_response_id=first["id"], tools=[TOOLS[kind]])
        assert again["status"] == "completed"


@pytest.mark.parametrize("choice", ["computer", "computer_use", "computer_use_preview"])
async def test_a_choice_by_type_requires_a_call(choice: str) -> None:
    tool = PREVIEW if choice == "computer_use_preview" else COMPUTER
    async with serve("simulated:tokens_per_s=0") as server, server.connect() as socket:
        response = await socket.response(input="do it", tools=[tool], tool_choice={"type": choice})
        made = response["output"][0]
        assert (made["type"], made["status"]) == ("computer_call", "completed")
        other = COMPUTER if tool is PREVIEW else PREVIEW
        refused = await socket.error(input="do it", tools=[other], tool_choice={"type": choice})
    assert refused["error"]["param"] == "tool_choice"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"display_width": 0}, "display_width"),
        ({"display_height": "768"}, "display_height"),
        ({"environment": "toaster"}, "environment"),
    ],
)
async def test_an_invalid_screen_is_refused_by_field(fields: Json, param: str) -> None:
    async with serve() as server, server.connect() as socket:
        refused = await socket.error(input="do it", tools=[{**PREVIEW, **fields}])
    assert refused["error"]["param"] == f"tools[0].{param}"


async def test_an_output_without_an_image_is_refused_by_field() -> None:
    made = {"type": "computer_call", "call_id": "c", "actions": []}
    output = {**screenshot(made), "output": {"type": "computer_screenshot"}}
    async with serve() as server, server.connect() as socket:
        refused = await socket.error(input=[made, output], tools=[COMPUTER])
    assert (refused["error"]["code"], refused["error"]["param"]) == (
        *("missing_required_parameter",),
        "input[1].output.image_url",
    )


async def test_the_model_is_told_the_size_of_the_screen() -> None:
    async with serve() as server, server.connect() as socket:
        response = await socket.response(input="look", tools=[PREVIEW])
        state = await server.service.store.responses.load("default", response["id"])
    assert state is not None
    (tool,) = state.head.tools.callables
    assert "1024 x 768 pixels and shows: browser" in str(tool.definition.description)
