"""``python -m tests.server.admin.picture FILE.png``: a picture of the live page with invented traffic.

Needs a Chromium, as `make test-browser` does. Options as in the browser: width, height, scheme.
"""

import argparse
import asyncio
from pathlib import Path

from tests.commands.bench.browser import chromium, tab
from tests.server.admin.fake_live import FakeAdmin, serving

_SECONDS_SHOWN = 20
_SELECT = """
(() => {
  const rows = [...slipringPage.state.rows.values()].filter(row => row.kind === 'connection');
  const turns = rows.flatMap(row => row.lanes.flatMap(lane => lane.ended.map(turn => [row, turn])));
  const [row, turn] = turns.findLast(([, turn]) => turn.report.history_bytes && turn.stages.length > 6);
  slipringPage.select(row, turn);
  return row.key;
})()
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    options = parser.parse_args()
    program = chromium()
    assert program is not None, "no Chromium"
    async with serving(FakeAdmin(30)) as url, tab(program) as page:
        await page.open(url, width=options.width, height=options.height, scheme=options.scheme)
        await page.until(f"slipringPage.state.history.length > {2 * _SECONDS_SHOWN}")
        await page.ask(_SELECT)
        await page.until("document.querySelector('#detail svg') !== null")
        options.file.write_bytes(await page.picture(whole=False))


if __name__ == "__main__":
    asyncio.run(main())
