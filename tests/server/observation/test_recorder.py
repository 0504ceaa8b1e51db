"""``serve --record``: what is written for each kind of client, and what is not."""

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.base.errors import ServerError, StartupError
from slipring.commands.bench.workloads.replay import read_recording
from slipring.config.tables import HeaderVariable, McpRegistration
from slipring.core.limits import Limits
from slipring.observation.metric_table import RECORDED_TURNS
from tests.harness import WEATHER, PuppetEngine, serve
from tests.observation.snapshot_values import value_of
from tests.server.observation.recordings import files, only, paths, sizes, texts

CALLING = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=1"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "recordings"


def output_for(response: dict[str, Any]) -> dict[str, Any]:
    (call,) = (item for item in response["output"] if item["type"] == "function_call")
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}


async def test_a_chain_on_a_socket(directory: Path) -> None:
    head = {"tools": [WEATHER], "instructions": "Be brief.", "store": False, "temperature": 0.5}
    async with serve(CALLING, record=str(directory)) as running, running.connect() as socket:
        first = await socket.response(input="Weather?", user="someone", metadata={"a": "b"}, **head)
        second = await socket.response(
            **{**head, "temperature": None},
            input=[output_for(first)],
            previous_response_id=first["id"],
        )
    begun, continued = only(directory)
    assert begun["request"] == head
    assert texts(begun) == ["Weather?"]
    assert "continues" not in begun
    assert continued["request"] == {"temperature": None}, "only what differs"
    assert (continued["continues"], texts(continued)) == (0, ["sunny"])
    assert continued["waited_ms"] >= 0
    for turn, response in ((begun, first), (continued, second)):
        assert (turn["transport"], turn["connection"], turn["model"]) == ("websocket", 1, "simulated")
        answer, timing = turn["answer"], turn["timing"]
        assert answer["output"] == response["output"]
        assert answer["usage"] == response["usage"]
        assert answer["status"] == timing["status"] == "completed"
        assert answer["output_bytes"] > 0
        assert timing["response_id"] == response["id"]
        assert 0 < answer["first_token_ms"] <= answer["total_ms"] == timing["total_ms"]
        assert [stage["name"] for stage in timing["stages"]][-1] == "terminal"


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_history_that_is_sent_again_is_recorded_once(directory: Path, transport: str) -> None:
    history: list[dict[str, Any]] = [{"role": "user", "content": "One."}]
    async with serve(record=str(directory)) as running:
        for text in ("Two.", "Three."):
            if transport == "http":
                answer = (await running.post(input=history, store=False))[1]
            else:
                answer = (await running.stream(input=history, store=False))[-1]["response"]
            # Clients drop ids, and reasoning that they cannot send back.
            said = [{"role": "assistant", "content": item["content"]} for item in answer["output"]]
            history += [{"type": "reasoning", "summary": []}, *said, {"role": "user", "content": text}]
        await running.post(input=history, store=False)
    turns = only(directory)
    assert [texts(turn)[-1:] for turn in turns] == [["One."], ["Two."], ["Three."]]
    assert [turn.get("continues") for turn in turns] == [None, 0, 1]
    assert [turn.get("sends_history", False) for turn in turns] == [False, True, True]
    assert [turn["transport"] for turn in turns] == [transport, transport, "http"]
    assert turns[2]["timing"]["request_bytes"] > turns[0]["timing"]["request_bytes"]


async def test_stored_responses_that_are_continued_over_http(directory: Path) -> None:
    async with serve(record=str(directory)) as running:
        _, first = await running.post(input="One.")
        await running.stream(input="Two.", previous_response_id=first["id"], background=True)
        await running.stream(input="Three.", previous_response_id=first["id"])
    turns = only(directory)
    assert {turn["transport"]: turn.get("continues") for turn in turns} == {
        "http": None,
        "background": 0,
        "sse": 0,
    }


async def test_forks_lanes_warmups_and_side_conversations_share_a_file(directory: Path) -> None:
    async with serve(record=str(directory)) as running:
        async with running.connect() as socket:
            warm = await socket.response(input="Rules.", generate=False, store=False)
            trunk = await socket.response(input="Go.", previous_response_id=warm["id"], store=False)
            for lane in ("a", "b"):
                await socket.response(
                    input=lane, previous_response_id=trunk["id"], stream_id=lane, store=False
                )
            await socket.response(input="A title?", prompt_cache_key="run 7", store=False)
        await running.post(input="Later.", prompt_cache_key="run 7")
        await running.post(input="Other.")
    turns, others = files(directory)
    assert [(turn.get("lane"), turn.get("continues")) for turn in turns] == [
        *((None, None), (None, 0), ("a", 1), ("b", 1), (None, None), (None, None)),
    ]
    assert turns[0]["request"]["generate"] is False
    assert "first_token_ms" not in turns[0]["answer"]
    assert "run 7" not in json.dumps(turns), "keys of clients are not recorded"
    assert [texts(turn) for turn in others] == [["Other."]]


async def test_turns_that_end_badly(directory: Path) -> None:
    engine = PuppetEngine()
    async with serve(engine, record=str(directory)) as running, running.connect(abandoned=True) as socket:
        await socket.create(input="Fail.", store=False)
        (await engine.next()).fail(ServerError("Broken."))
        assert (await socket.until("response.failed", "error"))[-1]["type"] == "response.failed"
        await socket.error(input=[{"type": "function_call_output", "call_id": "none", "output": ""}])
        await socket.create(input="Cut off.", store=False)
        performance = await engine.next()
        performance.say("Half")
        await socket.until("response.output_text.delta")
        await socket.ws.close()
        await performance.stopped.wait()
    failed, refused, cancelled = (turn["answer"] for turn in only(directory))
    assert (failed["status"], failed["error"]["message"]) == ("failed", "Broken.")
    assert (refused["status"], "output" in refused) == ("refused", False)
    assert cancelled["status"] == "cancelled"
    assert "usage" not in cancelled


async def test_a_continuation_of_something_that_was_not_recorded(directory: Path) -> None:
    limits = Limits(record_queue_bytes=2_000)
    async with serve(record=str(directory), limits=limits) as running, running.connect() as socket:
        recorder = running.server.recorder
        lost = await socket.response(input="x" * 4_000, store=False)
        follower = await socket.response(input="No file.", previous_response_id=lost["id"], store=False)
        await socket.response(input="A file.", store=False)
        await socket.response(input="More.", previous_response_id=follower["id"], store=False)
    assert recorder.counts.dropped == 2
    begun, detached = only(directory)
    assert "is_detached" not in begun
    assert (texts(detached), detached["is_detached"], detached.get("continues")) == (["More."], True, None)


async def test_only_the_chosen_tenants_and_never_those_who_ask_to_keep_nothing(directory: Path) -> None:
    keys = ("a:key-of-a", "b:key-of-b")
    async with serve(record=str(directory), record_tenant=("a",), api_key=keys) as running:
        await running.post(input="Of a.", key="key-of-a")
        await running.post(input="Of b.", key="key-of-b")
        betas = {"OpenAI-Beta": "slipring_zero_retention=v1"}
        async with running.connect(key="key-of-a", headers=betas) as socket:
            await socket.response(input="Secret.", store=False)
        assert running.server.recorder.counts.dropped == 0
    assert [texts(turn) for turn in only(directory)] == [["Of a."]]


async def test_secrets_are_not_recorded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "configured": "my-own-configured-key",
        "bearer": "abcdef0123456789",
        "openai": "sk-proj-0123456789abcdefghij",
        "tool": "tool-credential-1",
        "header": "tool-credential-2",
        "url": "tool-credential-3",
        "query": "tool-credential-4",
        "metadata": "metadata-value-1",
        "operator": "header-of-the-operator",
    }
    monkeypatch.setenv("FILES_KEY", planted["operator"])
    server = McpRegistration(
        "files", url="http://127.0.0.1:9/mcp", headers=(HeaderVariable("X-Key", "FILES_KEY"),)
    )
    tool = {
        "type": "mcp",
        "server_label": "files",
        "server_url": f"https://me:{planted['url']}@example.com/mcp?token={planted['query']}",
        "authorization": planted["tool"],
        "headers": {"X-Key": planted["header"]},
    }
    printed = (
        f'OPENAI_API_KEY={planted["openai"]}\ncurl -H "Authorization: Bearer {planted["bearer"]}" '
        f"{planted['configured']} {planted['operator']} done"
    )
    # An engine that refuses the tool still has the turn recorded.
    keys = (f"t:{planted['configured']}",)
    async with serve(record=str(directory), api_key=keys, mcp=(server,)) as running:
        headers = {"Authorization": f"Bearer {planted['configured']}"}
        body = {
            "input": [{"role": "user", "content": printed}],
            "instructions": printed,
            "tools": [tool],
            "user": planted["metadata"],
            "client_metadata": {"authorization": planted["bearer"], "x": planted["metadata"]},
        }
        async with running.http.post(f"{running.url}/responses", json=body, headers=headers) as answer:
            await answer.read()
        status, _ = await running.post(
            key=planted["configured"], input=printed, metadata={"key": planted["metadata"]}
        )
        assert status == 200
    turns = [turn for file in files(directory) for turn in file]
    assert len(turns) == 2
    text = json.dumps(turns)
    assert [name for name, secret in planted.items() if secret in text] == []
    assert text.count("[removed]") >= 6
    assert turns[0]["request"]["tools"] == [
        {"type": "mcp", "server_label": "files", "server_url": "https://example.com/mcp"}
    ]


async def test_a_request_with_line_breaks_is_one_line(directory: Path) -> None:
    body = json.dumps({"input": [{"role": "user", "content": "a\nb \u2028 c"}]}, indent=1, ensure_ascii=False)
    async with serve(record=str(directory)) as running:
        headers = {"Authorization": "Bearer k", "Content-Type": "application/json"}
        data = aiohttp.BytesPayload(body.encode())
        async with running.http.post(f"{running.url}/responses", data=data, headers=headers) as answer:
            assert answer.status == 200
    assert [texts(turn) for turn in only(directory)] == [["a\nb \u2028 c"]]


async def test_a_full_file_ends_and_new_conversations_get_another(directory: Path) -> None:
    limits = Limits(record_file_bytes=5_000, record_files=2)
    async with serve(record=str(directory), limits=limits) as running, running.connect() as socket:
        recorder = running.server.recorder
        last = await socket.response(input="x" * 500, store=False)
        for _ in range(4):
            last = await socket.response(input="x" * 500, previous_response_id=last["id"], store=False)
        await socket.response(input="Second file.", store=False)
        await running.post(input="No third file.")
    first, second = files(directory)
    assert 1 <= len(first) < 5
    assert [texts(turn) for turn in second] == [["Second file."]]
    assert (recorder.counts.written, recorder.counts.dropped) == (len(first) + 1, 5 - len(first) + 1)
    assert max(sizes(directory)) <= 5_000


async def test_a_run_against_another_server_is_recorded_in_front_of_it(directory: Path) -> None:
    async with (
        serve(CALLING) as upstream,
        serve(f"responses:{upstream.url}", record=str(directory)) as front,
        front.connect() as socket,
    ):
        first = await socket.response(input="Weather?", tools=[WEATHER], store=False)
        await socket.response(
            input=[output_for(first)], previous_response_id=first["id"], tools=[WEATHER], store=False
        )
    begun, continued = only(directory)
    assert (texts(begun), texts(continued), continued["continues"]) == (["Weather?"], ["sunny"], 0)
    assert begun["answer"]["output"] == first["output"]
    (path,) = paths(directory)
    plan = read_recording(path)
    assert (plan.workload.turns, plan.workload.name) == (2, "replay")


async def test_a_stopped_recorder_counts_and_disturbs_nobody(directory: Path) -> None:
    async with serve(record=str(directory)) as running:
        await running.post(input="One.")
        await running.server.recorder.close()
        await running.server.recorder.close()
        status, _ = await running.post(input="Two.")
        assert status == 200
        snapshot = running.server.metrics.snapshot()
        for result in RECORDED_TURNS.labels[0].values:
            assert value_of(snapshot, RECORDED_TURNS, {"result": result}) == 1
    assert [texts(turn) for turn in only(directory)] == [["One."]]


async def test_a_directory_that_disappears(directory: Path) -> None:
    async with serve(record=str(directory)) as running:
        recorder = running.server.recorder
        shutil.rmtree(directory)
        for _ in range(2):
            status, _ = await running.post(input="One.")
            assert status == 200
    assert (recorder.counts.written, recorder.counts.dropped) == (0, 2)


async def test_only_the_owner_can_read_recordings(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "recordings"
    async with serve(record=str(directory)) as running:
        await running.post(input="One.")
    (file,) = directory.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    with pytest.raises(StartupError, match="chmod 700"):
        async with serve(record=str(shared)):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="--record"):
        async with serve(record=str(tmp_path / "file")):
            pass


async def test_nothing_is_recorded_by_default(tmp_path: Path) -> None:
    async with serve() as running:
        assert running.server.recorder is None
