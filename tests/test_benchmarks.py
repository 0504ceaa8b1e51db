"""The page of measurements says what the kept figures say."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

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
    page.figure.write(page.results.read(page.RESULTS / "loops.json"), drawn)
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
