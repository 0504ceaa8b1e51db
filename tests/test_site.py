"""What ``make site`` makes of the pages before the generator reads them."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DRAWN = "<svg><style>a{}@media screen and (prefers-color-scheme: dark) {b{}}</style></svg>"


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_out_of_the_pages_lead_to_the_source(build: ModuleType) -> None:
    text = "[a](../README.md) [b](../../benchmarks/results/x.json) [c](../keys.md#limits) [d](http://h/)"
    made = build.with_links_to_source(text, Path("engines/llama.md"), "https://source")
    assert made == (
        "[a](../README.md) [b](https://source/benchmarks/results/x.json) [c](../keys.md#limits) [d](http://h/)"
    )
    assert build.with_links_to_source("[a](../README.md)", Path("a.md"), "https://source") == (
        "[a](https://source/README.md)"
    )


def test_a_drawing_has_a_version_for_each_palette(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.svg").write_text(DRAWN)
    (tmp_path / "figures" / "plain.svg").write_text("<svg/>")
    text = build.with_both_palettes("![An a](figures/a.svg) ![](figures/plain.svg)", tmp_path / "p.md")
    pair = "![An a](figures/a.light.svg#only-light)\n![An a](figures/a.dark.svg#only-dark)"
    assert text == f"{pair} ![](figures/plain.svg)"
    assert "@media not all {b{}}" in (tmp_path / "figures" / "a.light.svg").read_text()
    assert "@media all {b{}}" in (tmp_path / "figures" / "a.dark.svg").read_text()


def test_a_picture_of_two_is_chosen_by_the_palette(build: ModuleType, tmp_path: Path) -> None:
    text = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="f/x.dark.png">\n'
        '  <img alt="An x" src="f/x.light.png">\n</picture>'
    )
    made = build.with_both_palettes(text, tmp_path / "p.md")
    assert made == "![An x](f/x.light.png#only-light)\n![An x](f/x.dark.png#only-dark)"


def test_every_picture_of_the_pages_is_one_that_the_site_understands(build: ModuleType) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        pictures = build._PICTURE.findall(text)
        assert text.count("<picture>") == len(pictures), page
        for dark, alt, light in pictures:
            assert alt
            assert (page.parent / dark).exists(), "run make screenshots"
            assert (page.parent / light).exists(), "run make screenshots"


def test_versions_are_listed_with_the_newest_first(build: ModuleType, tmp_path: Path) -> None:
    for name in ("0.9.0", "1.0.0rc1", "1.0.0", "1.0.0rc2", "0.10.0", "assets"):
        (tmp_path / name).mkdir()
    assert build.list_versions(tmp_path) == ["1.0.0", "1.0.0rc2", "1.0.0rc1", "0.10.0", "0.9.0"]
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [each["version"] for each in listed if each["aliases"] == ["latest"]] == ["1.0.0"]
    assert 'url=1.0.0/"' in (tmp_path / "index.html").read_text()
