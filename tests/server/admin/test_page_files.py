"""The files of the live page, without a browser: they refer to each other only, and suit its policy."""

import re
from html.parser import HTMLParser
from math import dist
from pathlib import Path
from typing import get_args

import pytest

import slipring.server.admin
from slipring.observation.drawing_files import DRAWINGS
from slipring.protocol.turn_report import Mark, StageName

PAGE = Path(slipring.server.admin.__file__).parent / "page"
FILES = sorted((*PAGE.iterdir(), *DRAWINGS.iterdir()))
BY_NAME = {path.name: path for path in FILES}
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
        *("colours.css", "stages.css", "page.css", "page.js", "icon.svg")
    }
    assert all(name and (name.startswith("#") or name in BY_NAME) for name in loaded)
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
            r"^export (?:async )?(?:function|const|class) (\w+)", BY_NAME[file].read_text(), re.M
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
    stages = re.findall(r'^  \["(\w+)", ', (DRAWINGS / "stages.js").read_text(encoding="utf-8"), re.M)
    assert tuple(stages) == get_args(StageName)
    marks = re.findall(r'^  (\w+): "\1', (DRAWINGS / "turns.js").read_text(encoding="utf-8"), re.M)
    assert set(marks) == set(get_args(Mark))


# --- Colours ----------------------------------------------------------------------------------------

PALETTE = re.compile(r"--([a-z-]+): (#[0-9a-f]{3,6});")
NEIGHBOURS = (
    *(("decode", "queue"), ("queue", "resolve"), ("decode", "resolve"), ("resolve", "validate")),
    *(("validate", "render"), ("check", "render"), ("render", "engine_queue"), ("render", "prefill")),
    *(
        ("engine_queue", "prefill"),
        ("engine_queue", "generate"),
        ("check", "prefill"),
        ("compact", "prefill"),
    ),
    *(("prefill", "generate"), ("prefill", "held"), ("held", "generate"), ("generate", "tools")),
    *(("list", "tools"), ("tools", "prefill"), ("generate", "store"), ("rollout", "generate")),
)
"""Stages that often lie side by side."""
VISIONS = {
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "without red": (
        *((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ),
    "without green": (
        *((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ),
    "without blue": (
        *((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    ),
}
"""What is seen of linear red, green and blue (Machado, Oliveira, Fernandes 2009, severity 1)."""
LEAST_CONTRAST = 3.0
"""Of graphics against their ground, as WCAG 1.4.11 wants."""
LEAST_CONTRAST_OF_TEXT = 4.5
LEAST_DIFFERENCE = 0.08
"""In Oklab; 0.02 is about what can be seen side by side."""
Triple = tuple[float, float, float]


def palettes() -> dict[str, dict[str, str]]:
    """The colours by name, light and dark."""
    found: dict[str, dict[str, str]] = {"light": {}, "dark": {}}
    for name in ("colours.css", "stages.css"):
        light, dark = (DRAWINGS / name).read_text(encoding="utf-8").split("@media")
        found["light"] |= dict(PALETTE.findall(light))
        found["dark"] |= dict(PALETTE.findall(dark))
    return found


def linear(colour: str) -> Triple:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    shares = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return red, green, blue


def weighed(weights: tuple[Triple, ...], light: Triple) -> Triple:
    first, second, third = (
        sum(one * other for one, other in zip(row, light, strict=True)) for row in weights
    )
    return first, second, third


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(
        weighed(((0.2126, 0.7152, 0.0722),) * 3, linear(each))[0] for each in (one, other)
    )
    return (lighter + 0.05) / (darker + 0.05)


def oklab(light: Triple) -> Triple:
    to_cones = (
        *((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566)),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
    long, middle, short = (max(0.0, each) ** (1 / 3) for each in weighed(to_cones, light))
    from_cones = (
        *((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099)),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    return weighed(from_cones, (long, middle, short))


def variable(stage: str) -> str:
    return f"stage-{stage.replace('_', '-')}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_stage_has_a_colour_of_its_own_that_stands_out(scheme: str) -> None:
    palette = palettes()[scheme]
    colours = [palette[variable(stage)] for stage in get_args(StageName) if stage != "client"]
    assert len(colours) == len(set(colours))
    for name, colour in palette.items():
        if name.startswith("stage-") or name in ("cached", "fresh", "output", "thought", "sent"):
            assert contrast(colour, palette["paper"]) >= LEAST_CONTRAST, name
            assert contrast(colour, palette["panel"]) >= LEAST_CONTRAST * 0.9, name
    for name in ("failed", "incomplete", "cancelled", "completed", "soft", "ink", "accent"):
        for ground in ("paper", "panel"):
            assert contrast(palette[name], palette[ground]) >= LEAST_CONTRAST_OF_TEXT, (name, ground)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_stages_side_by_side_differ_for_every_kind_of_colour_vision(scheme: str, vision: str) -> None:
    palette = palettes()[scheme]
    for pair in NEIGHBOURS:
        one, other = (oklab(weighed(VISIONS[vision], linear(palette[variable(name)]))) for name in pair)
        assert dist(one, other) >= LEAST_DIFFERENCE, pair


def test_colours_that_files_name_are_defined_for_both_schemes() -> None:
    light, dark = palettes().values()
    assert light.keys() == dark.keys()
    texts = [path.read_text(encoding="utf-8") for path in FILES if path.suffix in (".js", ".css")]
    named = {name for text in texts for name in re.findall(r"var\(--([a-z-]+)\b", text)}
    own = {name for text in texts for name in re.findall(r"--(tone):", text)}
    assert named - own <= light.keys() | {"stage"}
