"""The files of the live page, without a browser: they refer to each other only, and suit its policy."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

import slipring.server.admin
from slipring.protocol.timing import Mark, StageName

PAGE = Path(slipring.server.admin.__file__).parent / "page"
FILES = sorted(PAGE.iterdir())
MODULES = [path for path in FILES if path.suffix == ".js"]
NAMESPACE = "http://www.w3.org/2000/svg"
EXAMPLE = "http://127.0.0.1:8000/v1"


class Markup(HTMLParser):
    """Collects the elements of a page, and text in scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.fixture
def markup() -> Markup:
    parser = Markup()
    parser.feed((PAGE / "index.html").read_text(encoding="utf-8"))
    return parser


def test_the_page_loads_files_that_exist_and_runs_nothing_inline(markup: Markup) -> None:
    loaded = []
    for tag, attributes in markup.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert "style" not in attributes, tag
        loaded += [attributes[name] for name in ("src", "href") if name in attributes]
    assert {name for name in loaded if name and not name.startswith("#")} == {
        *("colours.css", "page.css", "page.js", "icon.svg")
    }
    assert all(name and (name.startswith("#") or (PAGE / name).is_file()) for name in loaded)
    assert not [text for text in markup.inline if not text.startswith("\n")]


def test_ids_that_scripts_name_exist(markup: Markup) -> None:
    ids = [attributes["id"] for _, attributes in markup.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = re.findall(r'\bat\("([a-z-]+)"\)', (PAGE / "page.js").read_text(encoding="utf-8"))
    assert named
    assert set(named) <= {*ids, "detail-title"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_import_what_others_export(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for names, file in re.findall(r'import \{([^}]+)\} from "\./([a-z_]+\.js)"', text):
        exported = re.findall(
            r"^export (?:async )?(?:function|const|class) (\w+)", (PAGE / file).read_text(), re.M
        )
        for name in names.replace(",", " ").split():
            assert name in exported, f"{file} exports no {name}"
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{name} is not used"
    assert len(re.findall(r"^import\b", text, re.M)) == len(re.findall(r'^import .* from "\./', text, re.M))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_licensed_and_lead_nowhere_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".svg":
        assert "SPDX-License-Identifier: Apache-2.0" in text[:200]
    for url in re.findall(r"(?:https?:)?//[a-z0-9][\w.:/-]+", text, re.I):
        assert url.rstrip("/") in (NAMESPACE, EXAMPLE) or not url.startswith("http"), url
    if path.suffix == ".js":
        forbidden = r"\beval\(|new Function|innerHTML|insertAdjacentHTML|document\.write|import\("
        assert not re.search(forbidden, text)
        assert 'setAttribute("style"' not in text
    if path.suffix == ".css":
        assert "url(" not in text
        assert "@import" not in text


def test_every_stage_and_mark_has_its_words() -> None:
    stages = re.findall(r'^  \["(\w+)", ', (PAGE / "stages.js").read_text(encoding="utf-8"), re.M)
    assert tuple(stages) == get_args(StageName)
    marks = re.findall(r'^  (\w+): "\1', (PAGE / "turns.js").read_text(encoding="utf-8"), re.M)
    assert set(marks) == set(get_args(Mark))


def test_stages_differ_in_colour_or_pattern() -> None:
    text = (PAGE / "stages.js").read_text(encoding="utf-8")
    looks = re.findall(r'^  \["\w+", (null|"#[0-9a-f]{6}"), ("\w+"), ', text, re.M)
    assert len(looks) == len(set(looks)) == len(get_args(StageName))
