"""The reports in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from slipring.commands.bench.report import figure, html
from tests.commands.bench.browser import NAMES, VARIABLE, Tab, chromium, tab
from tests.commands.bench.records import RECORDS

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
PLOTS = """
[...document.querySelectorAll('figure > svg, figure svg.drawing')].map(svg => ({
  box: [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height],
  shapes: [...svg.querySelectorAll('path.line, .segment rect')].map(shape => {
    const box = shape.getBoundingClientRect();
    return Math.max(box.width, box.height);
  }),
  marks: [...svg.querySelectorAll('path.mark')].map(mark => mark.getBoundingClientRect().width),
}))
"""
COLLISIONS = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll('figure > svg, figure svg.drawing, svg:root')) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    texts.forEach(([text, box], index) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 2)
        found.push('outside: ' + text.textContent);
      for (const [other, place] of texts.slice(index + 1)) {
        const across = Math.min(box.right, place.right) - Math.max(box.left, place.left);
        const down = Math.min(box.bottom, place.bottom) - Math.max(box.top, place.top);
        if (across > 1 && down > 4) found.push(text.textContent + ' | ' + other.textContent);
      }
    });
  }
  return found;
})()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Tab]:
    program = chromium()
    if program is None:
        pytest.skip(f"no Chromium: {VARIABLE} is not set, and none of {', '.join(NAMES)} is on PATH")
    async with tab(program) as opened:
        yield opened


async def test_every_page_is_drawn_and_fits_every_width(browser: Tab, tmp_path: Path) -> None:
    for name, made in RECORDS.items():
        page = tmp_path / f"{name}.html"
        html.write(made(), page)
        for width, scheme in ((390, "light"), (820, "dark"), (1280, "light")):
            where = f"{name} at {width}"
            await browser.open(page.as_uri(), width=width, scheme=scheme)
            assert await browser.ask("document.documentElement.scrollWidth") <= width, where
            plots = await browser.ask(PLOTS)
            assert bool(plots) == (name != "all_wrong"), where
            for plot in plots:
                assert min(plot["box"]) > 40, where
                assert plot["shapes"], where
                assert min(plot["shapes"]) > (0 if name != "one_turn" else -1), where
                assert all(size > 1 for size in plot["marks"]), where
            assert await browser.ask(COLLISIONS) == [], where
        assert browser.complaints == [], name
    assert all(url.startswith("file:") for url in browser.requests)


async def test_scripts_in_texts_are_texts(browser: Tab, tmp_path: Path) -> None:
    page = tmp_path / "hostile.html"
    html.write(RECORDS["hostile"](), page)
    await browser.open(page.as_uri(), width=390)
    kinds = await browser.ask("[...document.scripts].map(script => script.type)")
    assert sorted(kinds) == ["application/json"] * (len(kinds) - 1) + ["module"]
    assert await browser.ask("document.querySelectorAll('[onload], [onclick], b').length") == 0
    assert "<script>alert(1)</script>" in await browser.ask("document.body.textContent")


async def test_the_colours_follow_the_reader(browser: Tab, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    html.write(RECORDS["one_repeat"](), page)
    seen = []
    for scheme in ("light", "dark"):
        await browser.open(page.as_uri(), width=1280, scheme=scheme)
        ground = await browser.ask("getComputedStyle(document.body).backgroundColor")
        line = await browser.ask("getComputedStyle(document.querySelector('figure path.line')).stroke")
        seen.append((ground, line))
    assert seen[0][0] == "rgb(255, 255, 255)"
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


async def test_the_page_prints(browser: Tab, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    html.write(RECORDS["all"](), page)
    await browser.open(page.as_uri(), width=1280, scheme="dark")
    assert (await browser.print()).startswith(b"%PDF")
    await browser.call("Emulation.setEmulatedMedia", media="print")
    assert await browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_figure_is_drawn_without_collisions(browser: Tab, tmp_path: Path, scheme: str) -> None:
    for name, made in RECORDS.items():
        path = tmp_path / f"{name}.svg"
        figure.write_bench(made(), path)
        await browser.open(path.as_uri(), width=900, scheme=scheme)
        lines = await browser.ask("document.querySelectorAll('path.line').length")
        assert bool(lines) == (name != "all_wrong"), name
        assert await browser.ask(COLLISIONS) == [], name
    assert browser.complaints == []
