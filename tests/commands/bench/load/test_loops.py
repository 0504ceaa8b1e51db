"""Loops that begin together: each ends, is checked, and counts; and what is said and drawn of them."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from slipring.commands.argument_parser import CommandFailed, UsageError
from slipring.commands.bench.load import options as load_options
from slipring.commands.bench.load.loops import LoopsAtOnce, LoopsProgress
from slipring.commands.bench.load.loops_table import verdict
from slipring.commands.bench.load.options import LoadOptions
from slipring.commands.bench.load.results import LoopsRecord, LoopsRun
from slipring.commands.bench.report import figure
from slipring.commands.bench.results import ModeDescription
from slipring.commands.cli import build_parser, main
from tests.commands.bench.faulty import Faulty, running, serving
from tests.commands.bench.process import FAST

TURNS = 3


def options(*arguments: str) -> LoadOptions:
    return load_options.from_namespace(build_parser().parse_args(["bench", "load", *arguments]), {})


async def measured(*arguments: str) -> LoopsRecord:
    loops = LoopsAtOnce(options("--turns", str(TURNS), *arguments), LoopsProgress())
    await loops.run()
    return loops.record


def ways(record: LoopsRecord) -> list[tuple[int, str]]:
    return sorted((run.at_once, run.way) for run in record.runs)


# --- What is run -------------------------------------------------------------------------------------


async def test_every_number_of_loops_runs_in_both_modes_to_the_end() -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        record = await measured("--url", url, "--loops", "1,4,4")
    both = ("http-full", "websocket")
    assert ways(record) == sorted([(at_once, way) for at_once in (1, 4, 4) for way in both])
    for run in record.runs:
        assert run.faults == {}
        assert run.history_checked == "digest"
        assert run.turn_ms is not None
        assert run.turn_ms.count == run.at_once * TURNS
        assert run.loop_ms is not None
        assert run.loop_ms.count == run.at_once
        assert run.loop_ms.high <= run.wall_ms
        assert 0 < run.cached_tokens < run.input_tokens
    assert faulty.connections == 1 + 1 + 1 + 4 + 4, "the probe, what is not measured, and each loop"
    assert "4 loops at once until all have ended: " in verdict(record)[0]


async def test_loops_share_no_context() -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        await measured("--url", url, "--loops", "2", "--mode", "http-full")
    firsts = [
        request["instructions"].partition("\n")[0] for request in faulty.requests if request.get("tools")
    ]
    assert len(set(firsts)) == 1 + 2


@pytest.mark.parametrize("fault", ["swaps deltas", "forgets one output"])
async def test_a_way_that_fails_is_not_run_with_more_loops(fault: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured("--url", url, "--loops", "1,2", "--mode", "websocket")
    (run,) = record.runs
    assert run.faults
    assert not record.of("websocket", 1)
    assert "No loops have ended." in verdict(record)
    assert any("1 loops, websocket, 1 ×" in line for line in verdict(record))


async def test_contexts_are_compared_with_those_of_the_full_history() -> None:
    async with running(Faulty("forgets the chain", has_digests=False)) as url:
        record = await measured("--url", url, "--loops", "2")
    faults = {run.way: run.faults for run in record.runs}
    assert faults["http-full"] == {}
    assert sum(faults["websocket"].values()) >= 2


async def test_a_server_without_websocket_is_measured_by_what_it_has() -> None:
    async with running(Faulty("has no websocket")) as url:
        record = await measured("--url", url, "--loops", "2")
        assert ways(record) == [(2, "http-full")]
        assert "404" in record.skipped["websocket"]
        with pytest.raises(CommandFailed, match="404"):
            await measured("--url", url, "--loops", "2", "--mode", "websocket")


async def test_a_server_beside_runs_the_same_loops_with_full_history() -> None:
    engine = Faulty("has no websocket")
    async with running(Faulty()) as url, running(engine) as beside:
        record = await measured("--url", url, "--beside", beside, "--loops", "2")
    assert ways(record) == [(2, "http-full"), (2, "http-full beside"), (2, "websocket")]
    assert all(run.faults == {} for run in record.runs)
    assert sum(bool(request.get("tools")) for request in engine.requests) == 2 + 2 * TURNS
    assert record.ways[0].title == f"HTTP with full history, {beside}"


async def test_a_key_does_not_go_to_the_server_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen: list[str | None] = []

    class Listening(Faulty):
        async def post(self, request: Any) -> Any:
            seen.append(request.headers.get("Authorization"))
            return await super().post(request)

    async with running(Listening()) as url, running(Listening()) as beside:
        given = build_parser().parse_args(
            ["bench", "load", "--turns", "1", "--loops", "1", "--url", url, "--beside", beside]
        )
        await LoopsAtOnce(
            load_options.from_namespace(given, {"OPENAI_API_KEY": "secret"}), LoopsProgress()
        ).run()
    assert set(seen) == {"Bearer secret", None}


async def test_one_turn_has_no_calls() -> None:
    async with running(Faulty(calls=0)) as url:
        loops = LoopsAtOnce(options("--url", url, "--loops", "2", "--turns", "1"), LoopsProgress())
        await loops.run()
    assert loops.is_right
    assert {run.turn_ms.count for run in loops.record.runs if run.turn_ms} == {2}


# --- The command -------------------------------------------------------------------------------------


def test_the_command_writes_a_record_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, drawn = tmp_path / "loops.json", tmp_path / "loops.svg"
    arguments = (
        "--loops",
        "1,3",
        "--turns",
        "2",
        "--think-ms",
        "2",
        "--json",
        str(kept),
        "--svg",
        str(drawn),
    )
    assert main(["bench", "load", *arguments, *FAST]) == 0
    assert "3 loops at once until all have ended" in capsys.readouterr().out
    record = json.loads(kept.read_text())
    assert {(run["way"], run["at_once"]) for run in record["runs"]} == {
        (way, at_once) for way in ("http-full", "websocket") for at_once in (1, 3)
    }
    assert all(run["server_cores"] > 0 for run in record["runs"])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn.read_text())
    assert "Time until all loops of 2 turns have ended" in texts


def test_wrong_answers_are_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Faulty("swaps deltas")) as url:
        assert main(["bench", "load", "--url", url, "--loops", "1", "--turns", "2"]) == 1
    assert "do not add up" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "flags",
    [
        ("--connections", "4"),
        ("--idle", "1"),
        ("--bare",),
        ("--flood", "3"),
        ("--hold-s", "3"),
        ("--processes", "2"),
        ("--slo-errors", "0.5"),
    ],
)
def test_flags_of_users_are_refused_with_loops(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"{flags[0]} cannot be used with --loops"):
        options("--loops", "4", *flags)


@pytest.mark.parametrize("flags", [("--turns", "4"), ("--beside", "http://127.0.0.1:9/v1")])
def test_flags_of_loops_need_loops(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"{flags[0]} needs --loops"):
        options(*flags)


@pytest.mark.parametrize("text", ["", "0", "1,", "4;8", "1,-2", "many"])
def test_numbers_of_loops(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--loops", text)
    assert "--loops: must be a whole number, at least 1" in capsys.readouterr().err


def test_a_server_beside_needs_an_address() -> None:
    with pytest.raises(UsageError, match="--beside nowhere: not a URL"):
        options("--loops", "1", "--beside", "nowhere")


def test_defaults_of_loops() -> None:
    given = options("--loops", "1,64")
    assert (given.think_ms, given.target.timeout_s, given.turns) == (0.0, 300.0, 20)
    assert given.modes == ("http-full", "websocket")
    assert given.most_connections == 64
    assert options("--loops", "1", "--api", "chat").modes == ("http-full",)
    with pytest.raises(UsageError, match="--mode websocket cannot be used with --api chat"):
        options("--loops", "1", "--api", "chat", "--mode", "websocket")


# --- The figure --------------------------------------------------------------------------------------


def record_of(*runs: LoopsRun) -> LoopsRecord:
    made = LoopsAtOnce(options("--url", "http://127.0.0.1:9/v1", "--loops", "1"), LoopsProgress()).record
    made.endpoint.model = "mine"
    made.ways = [
        ModeDescription(name="http-full", title="Whole", about=""),
        ModeDescription(name="websocket", title="New items", about=""),
    ]
    made.runs = list(runs)
    return made


def run_of(way: str, at_once: int, wall_ms: float, **fields: Any) -> LoopsRun:
    return LoopsRun(way=way, at_once=at_once, wall_ms=wall_ms, **fields)


def texts_of(record: LoopsRecord) -> list[str]:
    drawn = figure.render_loops(record)
    ElementTree.fromstring(drawn)
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn.replace("\xa0", " "))


def test_each_way_is_a_line_with_the_median_at_its_end() -> None:
    record = record_of(
        *(run_of("http-full", at_once, at_once * 1000.0) for at_once in (1, 16)),
        *(run_of("websocket", 1, 900.0), run_of("websocket", 16, 2000.0)),
        *(run_of("websocket", 16, 3000.0), run_of("websocket", 16, 9000.0)),
    )
    texts = texts_of(record)
    assert {"1", "16", "Whole", "New items", "16.0 s", "3.00 s"} <= set(texts)
    assert "16 loops at once until all have ended: New items 3.00 s, Whole 16.0 s." in texts
    assert figure.render_loops(record).count('class="band ') == 1


def test_a_line_ends_where_its_way_failed() -> None:
    texts = texts_of(
        record_of(
            *(run_of("http-full", 1, 1000.0), run_of("http-full", 4, 50.0, faults={"429": 3})),
            *(run_of("websocket", 1, 900.0), run_of("websocket", 4, 1200.0)),
        )
    )
    assert "1.00 s" in texts
    assert "50.0 ms" not in texts
    assert any(text.endswith("Failed with more: Whole") for text in texts)


def test_a_way_that_never_ended_has_no_line() -> None:
    texts = texts_of(
        record_of(run_of("http-full", 1, 50.0, faults={"429": 1}), run_of("websocket", 1, 900.0))
    )
    assert "Whole" not in texts
    assert "New items" in texts


def test_without_loops_that_ended_there_is_nothing_to_draw() -> None:
    assert any(
        "No loops have ended." in text
        for text in texts_of(record_of(run_of("websocket", 1, 9.0, faults={"x": 1})))
    )
