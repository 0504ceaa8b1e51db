"""The SVG figure."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from slipring.commands.bench.report import figure
from tests.commands.bench.records import RECORDS
from tests.commands.bench.report.pages import NAMES, SVG


@pytest.mark.parametrize("name", NAMES)
def test_the_figure_is_self_contained(name: str, tmp_path: Path) -> None:
    made = RECORDS[name]()
    figure.write_bench(made, tmp_path / "figure.svg")
    written = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    parsed = ET.fromstring(written)
    assert parsed.tag == f"{SVG}svg"
    assert (parsed.get("width"), parsed.get("height")) == ("880", "360")
    assert "prefers-color-scheme" in written
    assert "href" not in written
    assert "url(" not in written
    assert not list(parsed.iter(f"{SVG}script"))
    assert not re.search(r"\b(nan|None|inf)\b", written)
