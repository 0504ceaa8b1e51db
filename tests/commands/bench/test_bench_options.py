"""Command-line flags of ``slipring bench`` and environment variables."""

import pytest

from slipring.commands.bench.options import from_namespace
from slipring.commands.bench.subject.endpoint import Target
from slipring.commands.cli import build_parser, main


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--workload", "coding,knitting"], "unknown workload 'knitting'"),
        (["--mode", "pigeon"], "unknown mode 'pigeon'"),
        (["--repeats", "0"], "must be a whole number, at least 1"),
        (["--tokens-per-s", "-1"], "must be a number, at least 0"),
        (["--rtt-ms", "nan"], "must be a number, at least 0"),
        (["--deep", "20"], "must be numbers of tokens, at least 1k"),
        (["--workload", "replay"], "--workload replay needs --replay FILE"),
        (["--replay", "/nowhere/loop.jsonl"], "cannot read"),
        (["--from", "/nowhere/record.json"], "/nowhere/record.json"),
        (["--json", "/nowhere/record.json"], "there is no directory /nowhere"),
        (["--json", "/proc/record.json"], "cannot write /proc/record.json"),
        (["--html", "/"], "cannot write /"),
        (["--url", "http://bob:hunter2@host/v1"], "user names and passwords are not supported"),
        (["--url", "http://host/v1?api-version=2"], "query and fragment are not supported"),
        (["--api-key", "hunter2"], "--api-key-env"),
        (["--api-key=hunter2"], "--api-key-env"),
        (["--token", "hunter2", "--repeats", "1"], "--api-key-env"),
        (["load", "--api-key", "hunter2"], "--api-key-env"),
        (["--engine", "simulated:tokens_per_s=abc"], "tokens_per_s=abc is not a valid speed"),
        (["--engine", "simulated:tokens_per_s=-1"], "tokens_per_s=-1 is not a valid speed"),
        (["--url", "ftp://host"], "not a URL like http://host/v1"),
        (
            ["--url", "http://host/v1", "--engine", "llama"],
            "--engine applies to the server that the bench starts",
        ),
        (["--url", "https://host/v1", "--rtt-ms", "5"], "--rtt-ms works with http:// only"),
        (["--server-pid", "1"], "--server-pid needs --url"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
        (["load", "--hold-s", "0"], "must be a number, at least 0.1"),
        (["load", "--mode", "websocket-lanes"], "invalid choice"),
        (["load", "--json", "/nowhere/load.json"], "there is no directory /nowhere"),
        (["loud"], "unknown command 'loud': did you mean load?"),
    ],
)
def test_invalid_flags_are_reported_in_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        raise SystemExit(main(["bench", *arguments]))  # argparse exits by itself
    out, err = capsys.readouterr()
    assert (exit.value.code, out) == (2, "")
    assert reason in err
    assert "hunter2" not in err
    assert len(err.splitlines()) == 1


def test_keys_come_from_the_environment_and_are_not_in_the_repr() -> None:
    def target(*arguments: str, **environ: str) -> Target:
        return from_namespace(build_parser().parse_args(["bench", *arguments]), environ).target

    assert target().key == ""
    assert target(OPENAI_API_KEY="one", SLIPRING_API_KEY="two").key == "one"
    assert target(SLIPRING_API_KEY="two").key == "two"
    named = target("--api-key-env", "MINE", OPENAI_API_KEY="one", MINE="secret-three")
    assert named.key == "secret-three"
    assert "secret" not in repr(named)


def test_the_server_is_named_as_for_other_clients() -> None:
    def target(*arguments: str) -> Target:
        environ = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
        return from_namespace(build_parser().parse_args(["bench", *arguments]), environ).target

    assert (target().url, target().url_variable) == ("http://127.0.0.1:9/v1", "OPENAI_BASE_URL")
    flag = target("--url", "http://127.0.0.1:8/v1")
    assert (flag.url, flag.url_variable) == ("http://127.0.0.1:8/v1", None)
    assert target("--engine", "simulated").url is None
    assert target("--serve-flags", "--workers 2").url is None


def test_which_server_a_variable_names_is_printed_before_it_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    for command in (["bench"], ["bench", "load"]):
        assert main(command) == 3
        told, failure = capsys.readouterr().err.splitlines()
        assert told == "slipring: measuring http://127.0.0.1:9/v1, which OPENAI_BASE_URL names"
        assert failure == "slipring: cannot reach http://127.0.0.1:9/v1: Connection refused"
    monkeypatch.setenv("OPENAI_BASE_URL", "nowhere")
    assert main(["bench"]) == 2
    assert "OPENAI_BASE_URL nowhere: not a URL" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "chat", "launch"])
def test_a_key_in_place_of_its_variable_is_not_repeated(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, *(["pi"] if command == "launch" else []), "--api-key-env", "sk-slip-0.secret"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "must be the name of a variable that holds the key, not the key" in err
    assert "secret" not in err


def test_deep_and_replay_imply_their_workload() -> None:
    def workloads(*arguments: str) -> tuple[str, ...]:
        return from_namespace(build_parser().parse_args(["bench", *arguments]), {}).workloads

    assert workloads() == ("coding",)
    assert workloads("--deep", "20k,75k") == ("deep",)
    assert workloads("--replay", "x.jsonl") == ("replay",)
    assert workloads("--workload", "coding", "--deep", "20k") == ("coding", "deep")
