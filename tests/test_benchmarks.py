"""The page of measurements says what the kept figures say."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return importlib.import_module("page")


def test_the_pages_show_the_figures_that_are_kept(page: ModuleType) -> None:
    for path, sections in page.pages().items():
        text = path.read_text()
        for name, table in sections.items():
            assert page.put(text, name, table) == text, f"run benchmarks/page.py: {name} is another"


def test_the_figures_show_them_too(page: ModuleType, tmp_path: Path) -> None:
    assert page.peers_figure() == page.PEERS_FIGURE.read_text(), "run benchmarks/page.py"
    assert page.agents_figure() == page.AGENTS_FIGURE.read_text(), "run benchmarks/page.py"
    assert page.pressure_figure() == page.PRESSURE_FIGURE.read_text(), "run benchmarks/page.py"
    drawn = tmp_path / "loop.svg"
    page.figure.write_bench(page.results.read(page.RESULTS / "loops.json"), drawn)
    assert drawn.read_text() == page.FIGURE.read_text(), "run benchmarks/page.py"


def test_every_budget_has_a_figure(page: ModuleType) -> None:
    assert [each.what for each in page.all_budgets() if each.met is None] == []


def test_every_record_says_when_where_and_how_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    claims = importlib.import_module("claims")
    found = claims.claims()
    assert [f"{claim.name}: {claim.state}" for claim in found if claim.state.startswith("no ")] == []
    for claim in found:
        assert (ROOT / claim.command.split()[0]).exists(), claim.name


def test_every_record_that_a_page_names_is_kept() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for name in re.findall(r"benchmarks/results/([\w/.-]+\.json)", page.read_text()):
            assert (ROOT / "benchmarks" / "results" / name).exists(), f"{page.name}: {name}"


_RIGHT: dict[str, Any] = {
    "turns": 8,
    "tokens": {"tokens": 100, "unlikely": 1, "wrong": [], "answers": 4, "cached = fresh": 4}
    | {"fresh = fresh again": 4, "after": {"sessions": 0}},
    "settings": {"wrong": []},
    "chains": {
        "control: twice without sessions": {"differing": 0, "failed": 0},
        "with sessions against without": {"differing": 0, "failed": 0},
        "sessions": {"opened": 3, "continued": 9},
    },
    "after leaving": {"sessions": 0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0},
    "servers": {
        **{name: {"continued": 16.0} for name in ("first", "second", "first again", "both")},
        "second, at once": {"opened": 0.0},
        "wrong": [],
    },
    "after servers": {"sessions": 0},
    "preemption": {"preemptions": 3.0, "tokens": 0, "wrong": []},
    "restart": {"restarts": 1, "continued after": 4, "wrong": []},
}


@pytest.mark.parametrize(
    ("part", "change", "fault"),
    [
        ("tokens", {"unlikely": 3}, "tokens: 3 of 100 tokens are unlikely"),
        ("tokens", {"wrong": ["no end"]}, "tokens: no end"),
        ("tokens", {"after": {"sessions": 2}}, "tokens: sessions is 2"),
        ("settings", {"wrong": [["seed", 2]]}, "settings: ['seed', 2]"),
        (
            "chains",
            {"with sessions against without": {"differing": 2, "failed": 0}},
            "chains: 2 answers differ with sessions, none without",
        ),
        (
            "chains",
            {
                "control: twice without sessions": {"differing": 2, "failed": 0},
                "with sessions against without": {"differing": 9, "failed": 0},
            },
            "chains: 9 answers differ with sessions, 2 without",
        ),
        (
            "chains",
            {"with sessions against without": {"differing": 0, "failed": 1}},
            "chains: 1 answers have failed",
        ),
        ("chains", {"sessions": {"opened": 3, "continued": 0}}, "chains: no turn went on in a session"),
        ("after leaving", {"num_requests_waiting": 3.0}, "after leaving: num_requests_waiting is 3.0"),
        ("servers", {"second": {"continued": 0.0}}, "servers: no turn went on in a session: second"),
        ("servers", {"wrong": ["refused"]}, "servers: refused"),
        (
            "servers",
            {"second, at once": {"opened": 1.0}},
            "servers: the clients of the first have left room for those of the second",
        ),
        ("after servers", {"sessions": 2}, "after servers: sessions is 2"),
        ("preemption", {"preemptions": 0.0}, "preemption: vLLM has preempted nothing"),
        ("restart", {"restarts": 0}, "restart: the command has failed"),
        ("restart", {"continued after": 0}, "restart: no turn went on in a session afterwards"),
    ],
)
def test_what_a_check_of_sessions_calls_a_fault(
    monkeypatch: pytest.MonkeyPatch, part: str, change: dict[str, Any], fault: str
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    checked = importlib.import_module("session_faults")
    assert checked.faults(_RIGHT) == []
    assert checked.faults({**_RIGHT, part: {**_RIGHT[part], **change}}) == [fault]


@pytest.mark.parametrize(
    ("again", "equal", "wrongs", "is_fault"),
    [(100, 99, 1, True), (97, 90, 10, False), (97, 89, 11, True), (97, 100, 0, False), (97, 99, 2, True)],
)
def test_turns_with_settings_may_differ_as_whole_requests_do_among_themselves(
    monkeypatch: pytest.MonkeyPatch, again: int, equal: int, wrongs: int, is_fault: bool
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    checked = importlib.import_module("session_faults")
    counts = {"turns": 100, "equal": equal, "whole = whole again": again, "wrongs": wrongs}
    told = {**counts, "wrong": [["seed", 2]] * (wrongs > 0)}
    assert checked.faults({**_RIGHT, "settings": told}) == (["settings: ['seed', 2]"] if is_fault else [])
