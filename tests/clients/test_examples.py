"""The examples run as their readers would run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.relay import Served

EXAMPLES = Path(__file__).parents[2] / "examples"
ANSWER = "This is a simulated answer"


def run_example(name: str, url: str) -> str:
    """Run an example; return its output."""
    environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any", "OPENAI_MODEL": "simulated"}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_every_example_has_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"two_turns.py", "tool_loop.py", "lanes.py"}


def test_two_turns_sends_only_new_items(served: Served) -> None:
    with served() as relay:
        printed = run_example("two_turns.py", relay.url)
        assert printed.count(ANSWER) == 2
        assert "from the cache" in printed
        second = relay.socket.sent[1]
        assert second["previous_response_id"] == relay.socket.responses[0]["id"]
        assert second["input"] == "And then?"


@pytest.mark.parametrize("name", ["two_turns.py", "tool_loop.py", "lanes.py"])
def test_an_example_ends_although_the_model_would_not(served: Served, name: str) -> None:
    with served("simulated:tokens_per_s=0,output_tokens=5000,tool_calls=1000") as relay:
        run_example(name, relay.url)
        assert len(relay.socket.sent) <= 9
        assert all(response["usage"]["output_tokens"] <= 80 for response in relay.socket.responses)


def test_tool_loop_calls_tools_until_the_final_answer(served: Served) -> None:
    with served("simulated:tokens_per_s=0,output_tokens=5,tool_calls=3") as relay:
        printed = run_example("tool_loop.py", relay.url)
        assert printed.count("get_weather(") == 3
        assert printed.endswith(f"{ANSWER}\n")
        for frame in relay.socket.sent[1:]:
            assert [item["type"] for item in frame["input"]] == ["function_call_output"]


def test_lanes_forks_one_parent_twice(served: Served) -> None:
    with served() as relay:
        printed = run_example("lanes.py", relay.url)
        assert printed.endswith(f"happy: {ANSWER}\nsad: {ANSWER}\n")
        parent, *children = relay.socket.responses
        assert {child["previous_response_id"] for child in children} == {parent["id"]}
        assert [frame["stream_id"] for frame in relay.socket.sent] == ["main", "happy", "sad"]
