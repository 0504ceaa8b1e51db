"""The examples, run from their first line to the last."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.relay import RelayedSocket, Served
from tests.snippets import run_snippet

pytestmark = pytest.mark.usefixtures("compiled_here")

EXAMPLES = Path(__file__).parents[2] / "examples"
ANSWER = "This is a simulated answer"


Run = Callable[[str, str], Awaitable[str]]


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example with a server; returns its output."""

    async def run(name: str, url: str) -> str:
        for variable, value in {"BASE_URL": url, "API_KEY": "any", "MODEL": "simulated"}.items():
            monkeypatch.setenv(f"OPENAI_{variable}", value)
        printed = await run_snippet((EXAMPLES / name).read_text(encoding="utf-8"))
        assert capsys.readouterr().err == ""
        return printed

    return run


def test_every_example_has_a_test() -> None:
    programs = {"two_turns.py", "tool_loop.py", "lanes.py", "streamed_tool.py", "hosted_tools.py"}
    run_elsewhere = {"streamed_tool.mjs", "injection_check.py"}  # by make clients, by the tests of safety
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == programs | run_elsewhere


async def test_two_turns_sends_only_new_items(run_example: Run, served: Served) -> None:
    with served() as relay:
        printed = await run_example("two_turns.py", relay.url)
        assert printed.count(ANSWER) == 2
        assert "from the cache" in printed
        second = relay.socket.sent[1]
        assert second["previous_response_id"] == relay.socket.responses[0]["id"]
        assert second["input"] == "And then?"


@pytest.mark.parametrize("name", ["two_turns.py", "tool_loop.py", "lanes.py"])
async def test_an_example_ends_although_the_model_would_not(
    run_example: Run, served: Served, name: str
) -> None:
    with served("simulated:tokens_per_s=0,output_tokens=5000,tool_calls=1000") as relay:
        await run_example(name, relay.url)
        assert len(relay.socket.sent) <= 9
        assert all(response["usage"]["output_tokens"] <= 80 for response in relay.socket.responses)


async def test_tool_loop_calls_tools_until_the_final_answer(run_example: Run, served: Served) -> None:
    with served("simulated:tokens_per_s=0,output_tokens=5,tool_calls=3") as relay:
        printed = await run_example("tool_loop.py", relay.url)
        assert printed.count("get_weather(") == 3
        assert printed.endswith(f"{ANSWER}\n")
        first, *later = relay.socket.sent
        assert first["tool_choice"] == "required"
        for frame in later:
            assert [item["type"] for item in frame["input"]] == ["function_call_output"]
            assert "tool_choice" not in frame


async def test_lanes_forks_one_parent_twice(run_example: Run, served: Served) -> None:
    with served() as relay:
        printed = await run_example("lanes.py", relay.url)
        assert printed.endswith(f"happy: {ANSWER}\nsad: {ANSWER}\n")
        parent, *children = relay.socket.responses
        assert {child["previous_response_id"] for child in children} == {parent["id"]}
        assert [frame["stream_id"] for frame in relay.socket.sent] == ["main", "happy", "sad"]


def require_streamed(socket: RelayedSocket, calls: int) -> None:
    """Require that every output was sent in pieces while its call was open, then as an item."""
    creates = [frame for frame in socket.sent if frame["type"] == "response.create"]
    assert len(creates) == calls + 1
    outputs = [item for frame in creates[1:] for item in frame["input"]]
    assert len(outputs) == calls
    for response, output in zip(socket.responses, outputs, strict=False):
        call = {"response_id": response["id"], "call_id": output["call_id"]}
        *pieces, last = [frame for frame in socket.sent if frame.items() >= call.items()]
        assert {piece["type"] for piece in pieces} == {"response.tool_output.delta"}
        assert output["output"].startswith("".join(piece["delta"] for piece in pieces))
        assert last["type"] == "response.tool_output.done"
    assert not [event for event in socket.received if event["type"] == "response.tool_output.failed"]


async def test_streamed_tool_sends_the_output_while_the_tool_runs(run_example: Run, served: Served) -> None:
    with served("simulated:tokens_per_s=0,output_tokens=5,tool_calls=1") as relay:
        printed = await run_example("streamed_tool.py", relay.url)
        require_streamed(relay.socket, calls=1)
    assert "check 19:" in printed
    assert "tokens were left to read" in printed
    assert printed.endswith(f"{ANSWER}\n")


async def test_streamed_tool_ends_although_the_model_would_not(
    run_example: Run, served: Served, scripted: Callable[..., str]
) -> None:
    asked = {"function_call": {"name": "shell", "arguments": {"command": "list_files"}}}
    with served(scripted(*[[asked]] * 20)) as relay:
        await run_example("streamed_tool.py", relay.url)
        assert len(relay.socket.responses) == 9


CLOCK = """
import json, sys
TOOL = {"name": "get_current_time", "inputSchema": {"type": "object"}}
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "clock"}
    },
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "It is noon."}]},
}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    known = request["method"] in ANSWERS
    answer = {"result": ANSWERS[request["method"]]} if known else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


async def test_hosted_tools_starts_a_server_that_calls_a_tool(
    run_example: Run, scripted: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "clock.py"
    clock.write_text(CLOCK)
    call = {"name": "get_current_time", "namespace": "clock", "arguments": {"timezone": "Europe/Oslo"}}
    monkeypatch.setenv("MCP_COMMAND", f"{sys.executable} {clock}")
    monkeypatch.setenv("ENGINE", scripted([{"function_call": call}], [{"text": "Noon."}]))
    printed = await run_example("hosted_tools.py", "")
    assert printed.splitlines() == [
        "tools: get_current_time",
        'call: get_current_time({"timezone":"Europe/Oslo"})',
        "result: It is noon.",
        "Noon.",
    ]
