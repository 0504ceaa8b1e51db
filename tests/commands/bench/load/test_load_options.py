"""Flags before and after ``load``: each is used or refused, none is ignored."""

import argparse
from pathlib import Path

import pytest

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench import options as bench_options
from slipring.commands.bench.load import options as load_options
from slipring.commands.bench.load.options import LoadOptions
from slipring.commands.cli import build_parser, main

HEEDED: dict[str, str] = {
    "--url": "http://127.0.0.1:9/v1",
    "--model": "small",
    "--api": "chat",
    "--api-key-env": "MINE",
    "--engine": "llama",
    "--tokens-per-s": "1000",
    "--serve-flags": "--workers 2",
    "--max-output-tokens": "7",
    "--server-pid": "1",
    "--timeout-s": "300",
    "--json": "load.json",
    "--svg": "load.svg",
}
REFUSED: dict[str, str] = {
    "--workload": "coding",
    "--mode": "websocket",
    "--repeats": "5",
    "--lanes": "4",
    "--deep": "20k",
    "--replay": "loop.jsonl",
    "--replay-pauses": "",
    "--tool-ms": "0",
    "--rtt-ms": "0",
    "--tool-choice": "auto",
    "--short-events": "",
    "--html": "page.html",
    "--from": "record.json",
}


def load(*arguments: str) -> LoadOptions:
    namespace = build_parser().parse_args(["bench", *arguments])
    assert namespace.bench_command == "load"
    return load_options.from_namespace(namespace, {"MINE": "secret"})


def test_every_flag_of_bench_is_accepted_or_refused() -> None:
    parser = argparse.ArgumentParser()
    bench_options.add_flags(parser)
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    flags = {option for action in shown for option in action.option_strings}
    assert flags - {"-h", "--help"} == HEEDED.keys() | REFUSED.keys()


@pytest.mark.parametrize("flag", HEEDED)
def test_flags_work_before_and_after_load(flag: str) -> None:
    given = [flag, HEEDED[flag]]
    if flag == "--server-pid":
        given += ["--url", HEEDED["--url"]]
    before = load(*given, "load")
    assert before == load("load", *given)
    assert before != load("load")


def test_the_last_value_wins() -> None:
    assert load("--model", "small", "load", "--model", "large").target.model == "large"


@pytest.mark.parametrize("flag", REFUSED)
def test_flags_of_loops_are_refused_before_load(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [flag, REFUSED[flag]] if REFUSED[flag] else [flag]
    with pytest.raises(UsageError, match=flag):
        load(*given, "load")
    assert main(["bench", *given, "load"]) == 2
    line = f"slipring: {flag} cannot be used with load (see slipring bench load --help)\n"
    assert capsys.readouterr() == ("", line)


def test_load_has_its_own_defaults() -> None:
    target = load("load").target
    assert (target.tokens_per_s, target.timeout_s) == (50.0, 30.0)
    target = bench_options.from_namespace(build_parser().parse_args(["bench"]), {}).target
    assert (target.tokens_per_s, target.timeout_s) == (1000.0, 300.0)


@pytest.mark.parametrize("share", ["1.5", "5", "-0.1", "nan", "1%"])
def test_the_share_of_errors_is_between_0_and_1(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load("load", f"--slo-errors={share}")
    assert "must be between 0 and 1" in capsys.readouterr().err
    assert load("load", "--slo-errors=1").service_level.errors == 1.0


def test_json_before_load(tmp_path: Path) -> None:
    assert load("--json", str(tmp_path / "load.json"), "load").json == tmp_path / "load.json"
