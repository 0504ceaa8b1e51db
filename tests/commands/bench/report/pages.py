"""Renders and parses reports."""

import json
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from slipring.commands.bench.report import charts, html, terminal
from slipring.commands.bench.results import BenchRecord
from tests.commands.bench.records import RECORDS

SVG = "{http://www.w3.org/2000/svg}"
NAMES = tuple(RECORDS)
_LINE_CHART = Path(__file__).with_name("line_chart.js")


def page(made: BenchRecord) -> ET.Element:
    """The page, parsed as XML, which is stricter than HTML."""
    return ET.fromstring(html.render(made).removeprefix("<!DOCTYPE html>"))


def text(element: ET.Element) -> str:
    return "".join(element.itertext())


def printed(made: BenchRecord, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width).print(terminal.render(made))
    return out.getvalue()


def plots(section: ET.Element) -> dict[str, ET.Element]:
    """The line charts as the script of the page draws them, by kind."""
    return {
        kind.removeprefix("lines "): ET.fromstring(charts.still(_LINE_CHART, data))
        for kind, data in scripted(section).items()
        if kind.startswith("lines ")
    }


def scripted(section: ET.Element) -> dict[str, Any]:
    """What the script draws, by kind."""
    found = {figure.get("class", ""): figure.find("script") for figure in section.iter("figure")}
    return {kind: json.loads(text(data)) for kind, data in found.items() if data is not None}


def sections(parsed: ET.Element) -> list[ET.Element]:
    return [section for section in parsed.iter("section") if section.get("class") == "workload"]
