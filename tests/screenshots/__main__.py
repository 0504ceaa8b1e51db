"""``python -m tests.screenshots DIRECTORY``: the pictures of the documentation, in light and dark.

``make screenshots`` runs it. The live page shows invented traffic, in the machine's Chromium or in the one
that ``make test-browser`` installs; `slipring top` shows a small busy server, `slipring chat` a scripted one.
"""

import asyncio
import base64
import os
import pty
import re
import sys
import termios
from pathlib import Path

from rich.text import Text

from slipring import __version__
from slipring.commands.top.screen import lines
from slipring.commands.top.state import State
from tests.commands.bench.browser import Tab, chromium, tab
from tests.commands.top.sample import NOW, busy_update, greeting, totals
from tests.harness import PuppetEngine, serve
from tests.screenshots.terminal import PALETTES, Cells, drawing
from tests.server.admin.fake_live import FakeAdmin, serving

_SECONDS_SHOWN = 20
_WIDTH, _HEIGHT = 1280, 800
_SELECT = """
(() => {
  const rows = [...slipringPage.state.rows.values()].filter(row => row.kind === 'connection');
  const turns = rows.flatMap(row => row.lanes.flatMap(lane => lane.ended.map(turn => [row, turn])));
  const [row, turn] = turns.findLast(([, turn]) => turn.report.history_bytes && turn.stages.length > 6);
  slipringPage.select(row, turn);
  return row.key;
})()
"""
_AROUND_LOOPS = """
(() => {
  const loops = document.querySelector('[aria-label="Loops"]');
  const {x, y, width, height} = loops.closest('section, article, li').getBoundingClientRect();
  return {x: x + scrollX - 8, y: y + scrollY - 8, width: width + 16, height: height + 16, scale: 1};
})()
"""
_COLUMNS = 100
_ASKED = "What is a slip ring?"
_ANSWER = """A **slip ring** passes power and signals from a fixed part to one that turns.

- *brushes* slide on rings: `simple`, but they wear
- *wireless* ones have no contact

| where | why |
|---|---|
| wind turbines | power for the blades' motors |
| radar | signals while it turns |
"""


async def live_page(directory: Path, page: Tab) -> None:
    """The whole page, one turn in detail, and the loops of an engine."""
    for palette in PALETTES:
        async with serving(FakeAdmin(30)) as url:
            await page.open(url, width=_WIDTH, height=_HEIGHT, scheme=palette)
            await page.until(f"slipringPage.state.history.length > {2 * _SECONDS_SHOWN}")
            (directory / f"live-overview.{palette}.png").write_bytes(await page.picture(whole=False))
            await page.ask(_SELECT)
            await page.until("document.querySelector('#detail svg') !== null")
            (directory / f"live-turn.{palette}.png").write_bytes(await page.picture(whole=False))
            # High enough that the panel need not scroll.
            await page.open(url, width=_WIDTH, height=3 * _HEIGHT, scheme=palette)
            await page.until("document.querySelector('[aria-label=\"Loops\"]') !== null")
            clip = await page.ask(_AROUND_LOOPS)
            taken = await page.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            (directory / f"live-loops.{palette}.png").write_bytes(base64.b64decode(taken["data"]))


def top(directory: Path) -> None:
    """`slipring top` at a small busy server."""
    watched = State()
    for message in (
        greeting(version=__version__),
        busy_update(now=NOW - 5, totals=totals(1200), cpu_s=11.5),
        busy_update(),
    ):
        watched.fold(message)
    shown = lines(watched.view(), "127.0.0.1:9464", 130, None)
    for palette in PALETTES:
        drawn = drawing("slipring top at a busy server", shown, 130, palette)
        (directory / f"top.{palette}.svg").write_text(drawn, encoding="utf-8")


async def chat(directory: Path) -> None:
    """`slipring chat` on a terminal, with an answer that is Markdown."""
    engine = PuppetEngine()
    descriptor, end = pty.openpty()
    termios.tcsetwinsize(end, (40, _COLUMNS))
    written = bytearray()

    async def until(pattern: bytes) -> None:
        while not re.search(pattern, written):
            written.extend(await asyncio.to_thread(os.read, descriptor, 4096))

    async with serve(engine) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "slipring", "chat", "--url", server.url),
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "INPUTRC": "/dev/null"},
            stdin=end,
            stdout=end,
            stderr=end,
        )
        os.close(end)
        await until(rb"> ")
        os.write(descriptor, f"{_ASKED}\n".encode())
        performance = await engine.next()
        performance.say(_ANSWER)
        performance.finish()
        await until(rb"tokens in[^>]*> ")
        process.terminate()
        await process.wait()
        os.close(descriptor)
    cells = Cells()
    cells.write(
        written.decode().replace(server.url, "http://127.0.0.1:8000/v1").replace("puppet", "qwen3-8b")
    )
    shown = [Text("$ slipring chat", style="bold"), *cells.lines()]
    for palette in PALETTES:
        drawn = drawing("slipring chat in a terminal", shown, _COLUMNS, palette)
        (directory / f"chat.{palette}.svg").write_text(drawn, encoding="utf-8")


async def main(directory: Path) -> None:
    top(directory)
    await chat(directory)
    program = chromium()
    if program is None:
        raise SystemExit("no Chromium: the terminal's pictures are made, those of the live page are not")
    async with tab(program) as page:
        await live_page(directory, page)


if __name__ == "__main__":
    asyncio.run(main(Path(*sys.argv[1:])))
