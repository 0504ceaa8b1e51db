"""Scripted answers of the simulated engine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.engines.catalog import open_engine
from tests.harness import TERMINAL, Running, Socket, serve

Json = dict[str, Any]
Write = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """Returns a function that writes answers (steps or raw lines) to a script, and returns its engine."""

    def write(*answers: list[Json] | str) -> str:
        lines = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
        path = tmp_path / "script.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        return f"simulated:tokens_per_s=0,script={path}"

    return write


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


async def play(engine: str, count: int = 1) -> list[Json]:
    async with serve(engine) as server, server.connect() as socket:
        return [await socket.response(input="go") for _ in range(count)]


async def test_answers_are_played_in_order(script: Write) -> None:
    responses = await play(script([{"text": "First."}], [{"text": "Second."}]), 2)
    texts = [response["output"][0]["content"][0]["text"] for response in responses]
    assert texts == ["First.", "Second."]


@pytest.mark.parametrize(
    "text",
    [
        "one",
        "Some words, and  more\tof them. ",
        "  leading",
        "\n\n",
        "a\n",
        "line\u2028separators\x85and\x0bsuch\x1c",
        "日本語 text",
        "😀",
    ],
)
async def test_the_deltas_of_a_text_add_up_to_it(script: Write, text: str) -> None:
    line = json.dumps([{"text": text}], ensure_ascii=False)
    async with serve(script(line)) as server, server.connect() as socket:
        events = await socket.turn(input="go")
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == text
        assert events[-1]["response"]["usage"]["output_tokens"] == len(deltas)


async def test_every_kind_of_step_is_played(script: Write) -> None:
    engine = script(
        [
            {"reasoning_summary": "A summary."},
            {"reasoning": "Three words of"},
            {"text": "Let me see."},
            {"refusal": "Rather not."},
            {"stall_s": 0},
            {"function_call": {"name": "f", "arguments": {"a": [1, 2]}, "namespace": "n"}},
            {"function_call": {"name": "g", "arguments": "not json"}},
            {"function_call": {"name": "h"}},
            {"custom_tool_call": {"name": "shell", "input": "ls -l", "namespace": "n"}},
            {"custom_tool_call": {"name": "shell"}},
        ]
    )
    (response,) = await play(engine)
    reasoning, message, f, g, h, shell, empty = response["output"]
    assert reasoning["summary"][0]["text"] == "A summary."
    assert reasoning["content"][0]["text"] == "Three words of"
    assert [part["type"] for part in message["content"]] == ["output_text", "refusal"]
    assert (f["name"], f["arguments"], f["namespace"]) == ("f", '{"a":[1,2]}', "n")
    assert (g["arguments"], h["arguments"]) == ("not json", "{}")
    assert (shell["type"], shell["input"], shell["namespace"]) == ("custom_tool_call", "ls -l", "n")
    assert empty["input"] == ""
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 5


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({}, "server_error", "This error is scripted."),
        ({"message": "Out of order."}, "server_error", "Out of order."),
        ({"message": "Slow down.", "status": 429}, "rate_limit_exceeded", "Slow down."),
    ],
)
async def test_an_error_fails_the_response_after_the_steps_before_it(
    script: Write, error: Json, code: str, message: str
) -> None:
    failed, after = await play(script([{"text": "So far"}, {"error": error}], [{"text": "so good."}]), 2)
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": code, "message": message}
    assert failed["output"][0]["content"][0]["text"] == "So far"
    assert after["status"] == "completed"


async def test_an_empty_answer_is_an_empty_response(script: Write) -> None:
    (response,) = await play(script([]))
    assert (response["status"], response["output"]) == ("completed", [])


async def test_empty_lines_are_skipped(script: Write) -> None:
    responses = await play(script("", [{"text": "First."}], "  ", [{"text": "Second."}], "", ""), 2)
    assert [kinds(response) for response in responses] == [["message"], ["message"]]


async def test_creates_after_the_last_answer_fail(script: Write) -> None:
    first, second, third = await play(script([{"text": "Only this."}]), 3)
    assert first["status"] == "completed"
    for response in (second, third):
        assert response["status"] == "failed"
        assert response["error"]["message"] == "The script has ended: it holds 1 answers."


async def test_an_empty_script_fails_the_first_create(script: Write) -> None:
    (response,) = await play(script())
    assert response["error"]["message"] == "The script has ended: it holds 0 answers."


async def test_a_warmup_does_not_advance_the_script(script: Write) -> None:
    async with serve(script([{"text": "First."}])) as server, server.connect() as socket:
        warm = await socket.response(input="go", generate=False)
        response = await socket.response(input=[], previous_response_id=warm["id"])
        assert response["output"][0]["content"][0]["text"] == "First."


async def test_connections_share_the_position_in_the_script(script: Write) -> None:
    async with serve(script([{"text": "First."}], [{"text": "Second."}])) as server:

        async def ask(server: Running) -> str:
            async with server.connect() as socket:
                text: str = (await socket.response(input="go"))["output"][0]["content"][0]["text"]
                return text

        assert [await ask(server), await ask(server)] == ["First.", "Second."]


async def test_max_output_tokens_truncates_a_scripted_answer(script: Write) -> None:
    async with serve(script([{"text": "One two three four"}])) as server, server.connect() as socket:
        response = await socket.response(input="go", max_output_tokens=2)
        assert response["status"] == "incomplete"
        assert response["output"][0]["content"][0]["text"] == "One two"


async def test_a_stalled_answer_does_not_block_other_connections(script: Write) -> None:
    async with serve(script([{"stall_s": 1e6}], [{"text": "On."}])) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="go")
            await socket.until("response.in_progress")
        async with server.connect() as socket:
            assert (await socket.response(input="go"))["status"] == "completed"


async def assert_history_costs_the_same(socket: Socket, output: list[Json], previous: str) -> None:
    """Check that a history costs the same whether it is sent again or continued by id."""
    new = [{"role": "user", "content": "and?"}]
    by_id = await socket.response(input=new, previous_response_id=previous, generate=False)
    resent = await socket.response(input=[{"role": "user", "content": "go"}, *output, *new], generate=False)
    assert by_id["usage"]["input_tokens"] == resent["usage"]["input_tokens"]
    assert resent["usage"]["input_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    "steps",
    [
        [{"text": "An answer."}],
        [{"reasoning": "Hm, let me think."}, {"text": "An answer."}],
        [{"reasoning_summary": "Thought."}, {"text": "An answer."}],
        [{"text": "One."}, {"reasoning": "Hm."}, {"text": "Two."}],
        [{"text": "I could,"}, {"refusal": " but will not."}],
    ],
)
async def test_a_scripted_answer_that_is_sent_again_is_the_same_context(
    script: Write, steps: list[Json]
) -> None:
    async with serve(script(steps)) as server, server.connect() as socket:
        first = await socket.response(input="go")
        await assert_history_costs_the_same(socket, first["output"], first["id"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "JSON is malformed"),
        ('{"text": "x"}', "Expected `array`, got `object`"),
        ('["x"]', "Expected `object`, got `str`"),
        ('[{"txt": "x"}]', "unknown field `txt`"),
        ('[{"text": 5}]', "got `int` - at `$[0].text`"),
        ('[{"text": "x", "stall_s": 1}]', "a step has exactly one key, this one has 2"),
        ("[{}]", "a step has exactly one key, this one has 0"),
        ('[{"function_call": {"arguments": {}}}]', "missing required field `name`"),
    ],
)
def test_a_mistake_is_reported_with_its_line(script: Write, line: str, complaint: str) -> None:
    engine = script([{"text": "fine"}], "", line)
    options = engine.removeprefix("simulated:")
    with pytest.raises(StartupError) as refused:
        open_engine(f"simulated:{options}")
    message = str(refused.value)
    assert f"{options.rpartition('=')[2]}, line 3: " in message
    assert complaint in message
    assert "\n" not in message


def test_a_script_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    for path, complaint in [(tmp_path / "none", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(StartupError, match=complaint):
            open_engine(f"simulated:script={path}")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(StartupError, match="is not UTF-8 text"):
        open_engine(f"simulated:script={binary}")


async def test_the_output_of_a_scripted_call_gets_the_next_answer(script: Write) -> None:
    engine = script([{"function_call": {"name": "f"}}], [{"text": "Thanks."}])
    async with serve(engine) as server, server.connect() as socket:
        first = await socket.response(input="go", store=False)
        output = {
            "type": "function_call_output",
            "call_id": first["output"][0]["call_id"],
            "output": "42",
        }
        events = await socket.turn(input=[output], previous_response_id=first["id"], store=False)
        assert events[-1]["type"] in TERMINAL
        assert kinds(events[-1]["response"]) == ["message"]
