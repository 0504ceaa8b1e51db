"""``slipring bench`` as people run it: a process that starts a server, and its files and exit codes."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from aiohttp import web

from slipring.bench import results
from slipring.bench.modes import MODES
from slipring.bench.options import Target, from_namespace
from slipring.bench.workloads.catalogue import CODING_CALLS, coding, deep, long, short
from slipring.cli import build_parser, main
from tests.bench.faulty import Faulty, running
from tests.bench.stage import recording

COMMAND = (sys.executable, "-m", "slipring", "bench")
FAST = ("--engine", "simulated:tokens_per_s=0,output_tokens=4,digest=true")


async def run(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    """Run it to its end: exit code, standard output and standard error."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, env={**clean, **variables}, stdout=-1, stderr=-1
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode, out.decode(), err.decode()


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_whole_bench_against_a_server_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    arguments = ("--workload", "coding,short", "--repeats", "1", "--lanes", "2", "--json", str(path))
    code, out, err = await run(*arguments, *FAST)
    assert code == 0, out + err
    record = results.read(path)
    assert [workload.name for workload in record.workloads] == ["coding", "short"]
    assert [mode.name for mode in record.modes] == list(MODES)
    assert record.skipped == {}
    for loop in record.loops:
        assert loop.wrongs == []
        assert len(loop.turns) == (CODING_CALLS + 1 if loop.workload == "coding" else 6)
        assert loop.wall_ms == pytest.approx(sum(turn.total_ms for turn in loop.turns))
        assert all(turn.stages_ms["generate"] >= 0 for turn in loop.turns)
        assert sum(turn.input_tokens for turn in loop.turns) > 0
        if sys.platform == "linux":
            assert loop.cpu_ms is not None
            assert loop.cpu_ms > 0
    sent = {mode: sum(turn.sent_bytes for turn in record.of("coding", mode)[0].turns) for mode in MODES}
    assert sent["http-full"] > 3 * sent["websocket"] > 6 * sent["rollout"]
    for mode in MODES:
        assert mode in out
    assert "A coding agent" in out

    again = tmp_path / "again.json"
    page, figure = tmp_path / "page.html", tmp_path / "figure.svg"
    files = ("--json", str(again), "--html", str(page), "--svg", str(figure))
    code, shown, _ = await run("--from", str(path), *files)
    assert (code, shown) == (0, out)
    assert again.read_bytes() == path.read_bytes()
    assert "A coding agent" in page.read_text()
    assert "<svg" in figure.read_text()


async def test_a_server_that_is_wrong_is_told_by_the_exit_code(tmp_path: Path) -> None:
    async with running(Faulty("swaps deltas")) as url:
        code, out, err = await run("--url", url, "--workload", "short", "--repeats", "1")
    assert code == 1
    assert "WRONG" in out
    assert "FAILED" not in out
    assert "http-full: turn 1: the deltas of item 0 do not add up" in " ".join(out.split())
    assert "do not add up" in err


async def test_what_fails_is_told_as_such_and_by_the_exit_code(tmp_path: Path) -> None:
    class Limited(Faulty):
        async def post(self, request: web.Request) -> web.StreamResponse:
            if len(self.requests) == 10 and self.fault != "is over":
                self.fault = "is over"
                return web.json_response({"detail": "Too many requests"}, status=429)
            return await super().post(request)

    async with running(Limited()) as url:
        code, out, err = await run("--url", url, *("--workload", "short", "--mode", "http-full"))
    assert code == 1
    assert "http-full failed in 1 of 5 repeats: turn 3: 429: Too many requests" in out
    assert "Medians of 4 repeats of 5 that were asked for" in out
    assert "WRONG" not in out
    assert "429: Too many requests" in err


async def test_a_mode_that_was_asked_for_must_not_be_missing() -> None:
    async with running(Faulty("has no websocket")) as url:
        arguments = ("--url", url, "--workload", "short", "--repeats", "1")
        code, out, _ = await run(*arguments)
        assert code == 0
        assert "websocket was not measured: the upgrade to a WebSocket was answered with 404" in out
        code, _, _ = await run(*arguments, "--mode", "http-full,websocket")
        assert code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_with_what_there_is(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "record.json"
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *FAST, *("--repeats", "100000", "--json", str(path)), stdout=-1, stderr=-1
    )
    assert process.stderr is not None
    assert (await asyncio.wait_for(process.stderr.readline(), 60)).startswith(b"coding: 100000 ")
    children = children_of(process.pid)
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err
    assert results.read(path).endpoint.engine == FAST[1]
    assert not any(is_running(child) for child in children)


async def test_a_recording_and_a_load_from_the_command_line(tmp_path: Path) -> None:
    path = recording(tmp_path / "loop.jsonl", '{"input": "Hello."}', '{"input": "Again."}')
    code, out, err = await run("--replay", str(path), "--repeats", "1", "--rtt-ms", "2", *FAST)
    assert code == 0, out + err
    assert "A recorded loop, loop.jsonl" in out
    kept = tmp_path / "load.json"
    arguments = ("--connections", "2", "--ramp-s", "0", "--hold-s", "0.5", "--think-ms", "5")
    code, out, err = await run("load", *arguments, "--slo-ttft-ms", "60000", "--json", str(kept), *FAST)
    assert code == 0, out + err
    assert "holds with 2 connections" in out
    (level,) = json.loads(kept.read_text())["levels"]
    assert level["turns"] > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workload", "coding,knitting"], "there is no workload 'knitting'"),
        (["--mode", "pigeon"], "there is no mode 'pigeon'"),
        (["--repeats", "0"], "must be a whole number from 1 on"),
        (["--tokens-per-s", "-1"], "must be a number from 0 on"),
        (["--rtt-ms", "nan"], "must be a number from 0 on"),
        (["--deep", "20"], "must be numbers of tokens from 1k on"),
        (["--workload", "replay"], "--workload replay needs --replay FILE"),
        (["--replay", "/nowhere/loop.jsonl"], "cannot read"),
        (["--from", "/nowhere/record.json"], "/nowhere/record.json"),
        (["--json", "/nowhere/record.json"], "there is no directory /nowhere"),
        (["--json", "/proc/record.json"], "cannot write /proc/record.json"),
        (["--html", "/"], "cannot write /"),
        (["--url", "http://bob:hunter2@host/v1"], "names and passwords in a URL are not sent"),
        (["--url", "http://host/v1?api-version=2"], "what follows ? or # cannot be kept"),
        (["--api-key", "hunter2"], "--api-key-env"),
        (["--api-key=hunter2"], "--api-key-env"),
        (["--token", "hunter2", "--repeats", "1"], "--api-key-env"),
        (["load", "--api-key", "hunter2"], "--api-key-env"),
        (["--engine", "simulated:tokens_per_s=abc"], "tokens_per_s=abc is not a speed"),
        (["--engine", "simulated:tokens_per_s=-1"], "tokens_per_s=-1 is not a speed"),
        (["--url", "ftp://host"], "not a URL as in http://host/v1"),
        (["--url", "http://host/v1", "--engine", "llama"], "--engine is for the server that is started"),
        (["--url", "https://host/v1", "--rtt-ms", "5"], "--rtt-ms works with http:// only"),
        (["--server-pid", "1"], "--server-pid is for a server that is named with --url"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
        (["load", "--hold-s", "0"], "must be a number from 0.1 on"),
        (["load", "--mode", "websocket-lanes"], "invalid choice"),
        (["load", "--json", "/nowhere/load.json"], "there is no directory /nowhere"),
        (["loud"], "unknown command 'loud': did you mean load?"),
    ],
)
def test_what_does_not_go_together_is_told_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        raise SystemExit(main(["bench", *arguments]))  # as the command does; the parser does it by itself
    out, err = capsys.readouterr()
    assert (exit.value.code, out) == (2, "")
    assert complaint in err
    assert "hunter2" not in err
    assert len(err.splitlines()) == 1


def test_a_file_that_could_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("what was there")
    outputs = ("--json", str(tmp_path / "record.json"), "--html", str(tmp_path / "page.html"))
    assert main(["bench", "--from", str(tmp_path / "none.json"), *outputs]) == 2
    assert (tmp_path / "record.json").read_text() == "what was there"
    assert not (tmp_path / "page.html").exists()


async def test_an_endpoint_that_is_not_there() -> None:
    code, _, err = await run("--url", "http://127.0.0.1:9/v1")
    assert code == 3
    assert err.startswith("slipring: cannot reach http://127.0.0.1:9/v1")
    assert len(err.splitlines()) == 1


def test_keys_come_from_the_environment_and_are_not_shown() -> None:
    def target(*arguments: str, **environ: str) -> Target:
        return from_namespace(build_parser().parse_args(["bench", *arguments]), environ).target

    assert target().key == ""
    assert target(OPENAI_API_KEY="one", SLIPRING_API_KEY="two").key == "one"
    assert target(SLIPRING_API_KEY="two").key == "two"
    named = target("--api-key-env", "MINE", OPENAI_API_KEY="one", MINE="secret-three")
    assert named.key == "secret-three"
    assert "secret" not in repr(named)


def test_workloads_are_the_same_in_every_run_and_repeat_nothing() -> None:
    assert coding() == coding()
    texts = [text for step in coding().steps for text in step.outputs]
    assert {len(text) for text in texts} == {3500}
    assert len({text[:200] for text in texts}) == len(texts) == CODING_CALLS
    assert (coding().workload.turns, long().workload.turns, short().workload.turns) == (26, 100, 6)
    assert 3_900 < len(coding().instructions.encode()) < 4_200
    assert len(coding().tools) == 10
    plan = deep(20_000)
    assert plan.uncounted == 1
    assert plan.calls == plan.workload.turns == 5
    assert plan.outputs_before == sum(
        item.get("type") == "function_call_output" for item in plan.steps[0].messages
    )


def test_other_flags_imply_their_workload() -> None:
    def workloads(*arguments: str) -> tuple[str, ...]:
        return from_namespace(build_parser().parse_args(["bench", *arguments]), {}).workloads

    assert workloads() == ("coding",)
    assert workloads("--deep", "20k,75k") == ("deep",)
    assert workloads("--replay", "x.jsonl") == ("replay",)
    assert workloads("--workload", "coding", "--deep", "20k") == ("coding", "deep")
