"""``slipring bench``: its output, its files and its exit codes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from slipring.commands.bench import results
from slipring.commands.bench.command import Bench
from slipring.commands.bench.measure.modes import MODES
from slipring.commands.bench.workloads.catalogue import CODING_CALLS
from slipring.commands.cli import main
from tests.commands.bench.faulty import Faulty, serving
from tests.commands.bench.process import FAST
from tests.commands.bench.records import one_mode
from tests.commands.bench.stage import recording


def test_bench_with_a_started_server_writes_all_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    arguments = ("--workload", "coding,short", "--repeats", "1", "--lanes", "2", "--json", str(path))
    code = main(["bench", *arguments, *FAST])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    record = results.read(path)
    assert [workload.name for workload in record.workloads] == ["coding", "short"]
    assert [mode.name for mode in record.modes] == list(MODES)
    assert record.skipped == {}
    for loop in record.loops:
        assert loop.faults == []
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
    assert main(["bench", "--from", str(path), *files]) == 0
    assert capsys.readouterr().out == out
    assert again.read_bytes() == path.read_bytes()
    assert "A coding agent" in page.read_text()
    assert "<svg" in figure.read_text()


def test_a_figure_needs_an_engine_for_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "quickjs" else find_spec(name)
    )
    assert main(["bench", "--svg", str(tmp_path / "figure.svg")]) == 2
    assert "(pip install '.[svg]' in a checkout of slipring)" in capsys.readouterr().err


def test_faulty_answers_give_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Faulty("swaps deltas")) as url:
        assert main(["bench", "--url", url, "--workload", "short", "--repeats", "1"]) == 1
    out, err = capsys.readouterr()
    assert "WRONG" in out
    assert "FAILED" not in out
    assert "http-full: turn 1: the deltas of item 0 do not add up" in " ".join(out.split())
    assert "do not add up" in err


def test_failed_repeats_give_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    class Limited(Faulty):
        async def post(self, request: web.Request) -> web.StreamResponse:
            if len(self.requests) == 10 and self.fault != "is over":
                self.fault = "is over"
                return web.json_response({"detail": "Too many requests"}, status=429)
            return await super().post(request)

    with serving(Limited()) as url:
        assert main(["bench", "--url", url, "--workload", "short", "--mode", "http-full"]) == 1
    out, err = capsys.readouterr()
    assert "http-full failed in 1 of 5 repeats: turn 3: 429: Too many requests" in out
    assert "Medians of 4 repeats of 5 requested" in out
    assert "WRONG" not in out
    assert "429: Too many requests" in err


def test_an_unsupported_mode_fails_only_if_it_was_requested(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Faulty("has no websocket")) as url:
        command = ["bench", "--url", url, "--workload", "short", "--repeats", "1"]
        assert main(command) == 0
        reason = "websocket was not measured: the WebSocket upgrade was answered with 404"
        assert reason in capsys.readouterr().out
        assert main([*command, "--mode", "http-full,websocket"]) == 1


def test_replay_and_load_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recording(tmp_path / "loop.jsonl", '{"input": "Hello."}', '{"input": "Again."}')
    assert main(["bench", "--replay", str(path), "--repeats", "1", "--rtt-ms", "2", *FAST]) == 0
    assert "A recorded loop, loop.jsonl" in capsys.readouterr().out
    kept = tmp_path / "load.json"
    arguments = ("--connections", "2", "--ramp-s", "0", "--hold-s", "0.5", "--think-ms", "5")
    drawn = tmp_path / "load.svg"
    files = ("--json", str(kept), "--svg", str(drawn))
    assert main(["bench", "load", *arguments, "--slo-ttft-ms", "60000", *files, *FAST]) == 0
    assert "holds with 2 connections" in capsys.readouterr().out
    (level,) = json.loads(kept.read_text())["levels"]
    assert level["turns"] > 0
    assert "2 loops: a turn takes" in drawn.read_text()


def unread(*arguments: str) -> tuple[int, bytes]:
    """Run a command whose standard output nothing reads; return its exit code and its messages."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "slipring", "bench", *arguments]
    with os.fdopen(writing, "wb") as out:
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    return ended.returncode, ended.stderr


def test_files_are_written_although_the_reader_of_the_tables_has_ended(tmp_path: Path) -> None:
    """As in ``slipring bench --html page.html | head``."""
    path, page, kept = tmp_path / "record.json", tmp_path / "page.html", tmp_path / "load.json"
    results.write(one_mode(), path)
    assert unread("--from", str(path), "--html", str(page)) == (0, b"")
    assert page.read_text().rstrip().endswith("</html>")
    arguments = ("--connections", "1", "--ramp-s", "0", "--hold-s", "0.2", "--think-ms", "5")
    assert unread("load", *arguments, "--slo-ttft-ms", "60000", "--json", str(kept), *FAST)[0] == 0
    assert json.loads(kept.read_text())["levels"]


def test_checking_outputs_leaves_existing_files_unchanged(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("what was there")
    outputs = ("--json", str(tmp_path / "record.json"), "--html", str(tmp_path / "page.html"))
    assert main(["bench", "--from", str(tmp_path / "none.json"), *outputs]) == 2
    assert (tmp_path / "record.json").read_text() == "what was there"
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "arguments", [(), ("--model", "small"), ("--model", "small", "--rtt-ms", "2"), ("load",)]
)
def test_an_unreachable_endpoint_is_reported_in_one_line(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--url", "http://127.0.0.1:9/v1", *arguments]) == 3
    line = "slipring: cannot reach http://127.0.0.1:9/v1: Connection refused\n"
    assert capsys.readouterr() == ("", line)


def test_the_record_is_written_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def run(self: Bench) -> None:
        self.record.loops.append(results.LoopResult(workload="short", mode="http-full", repeat=0))
        raise RuntimeError("an unexpected error")

    monkeypatch.setattr(Bench, "run", run)
    with pytest.raises(RuntimeError, match="an unexpected error"):
        main(["bench", "--workload", "short", "--json", str(tmp_path / "record.json")])
    assert len(results.read(tmp_path / "record.json").loops) == 1
