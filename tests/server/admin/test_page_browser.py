"""The live page in a real browser."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.commands.bench.browser import NAMES, VARIABLE, Tab, chromium, tab
from tests.harness import PuppetEngine, serve
from tests.server.admin.fake_live import FakeAdmin, serving
from tests.server.admin.watching import ANY_PORT, admin_url

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
LIVE = "document.getElementById('status').className === 'status live'"
ROWS = "document.querySelectorAll('.row').length"
HOSTED = """
[...slipringPage.state.rows.values()].flatMap(row => row.lanes).flatMap(lane => lane.ended)
  .find(turn => turn.report.hosted_calls)?.id
"""
KEEP_LOST = """
globalThis.lost = [];  // the page connects again after less than a second
new MutationObserver(() => lost.push(document.querySelector('.status.lost')?.textContent ?? ''))
  .observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true});
"""
HAS_ROWS = f"{LIVE} && {ROWS} > 0 && document.querySelectorAll('.total').length === 8"
INKED = """
(() => {
  const canvas = document.querySelector('canvas.lanes');
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4)
    if (data[at + 3] === 255) colours.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
  const style = getComputedStyle(document.documentElement);
  const valueOf = name => parseInt(style.getPropertyValue(name).trim().slice(1), 16);
  return ['--stage-generate', '--stage-prefill'].every(name => colours.has(valueOf(name)));
})()
"""
FOCUS = "(() => { const {className} = document.activeElement; return className; })()"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Tab]:
    program = chromium()
    if program is None:
        pytest.skip(f"no Chromium: {VARIABLE} is not set, and none of {', '.join(NAMES)} is on PATH")
    async with tab(program) as opened:
        yield opened


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _fresh(browser: Tab) -> None:
    """Leave the page of the test before: its server has ended, and it tries again and again to connect."""
    await browser.open("about:blank", width=1000)
    browser.complaints.clear()
    browser.requests.clear()


async def test_it_is_drawn_at_every_width_and_asks_nobody_else(browser: Tab) -> None:
    async with serving(FakeAdmin(30)) as url:
        for width, scheme in ((360, "dark"), (820, "light"), (1400, "dark")):
            await browser.open(url, width=width, scheme=scheme)
            await browser.until(HAS_ROWS)
            await browser.until(INKED)
            assert await browser.ask("document.documentElement.scrollWidth") <= width
        assert all(request.startswith(url) for request in browser.requests)
    assert browser.complaints == []


async def test_keys_alone_lead_to_turns_and_back(browser: Tab) -> None:
    async with serving(FakeAdmin(30)) as url:
        await browser.open(url, width=1400)
        await browser.until(HAS_ROWS)
        await browser.ask("document.querySelector('.row [tabindex=\"0\"]').focus()")
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "End"):
            await browser.press(key)
        for _ in range(20):  # the first rows may have had no turn in the last seconds
            if await browser.ask(FOCUS) == "turn":
                break
            await browser.press("ArrowDown")
            await browser.press("End")
        assert await browser.ask(FOCUS) == "turn"
        words = await browser.ask("document.activeElement.getAttribute('aria-label')")
        assert "Response resp_" in words
        await browser.press("Enter", "\r")
        await browser.until("document.querySelector('#detail:not([hidden]) svg .segment') !== null")
        assert await browser.ask("document.activeElement.id") == "detail-title"
        assert await browser.ask("document.querySelectorAll('#detail tbody tr').length") > 3
        await browser.press("Escape")
        assert await browser.ask("document.getElementById('detail').hidden")
        assert await browser.ask(FOCUS) == "turn"
        await browser.press("Home")
        assert await browser.ask(FOCUS) == "label"
        await browser.press("Enter", "\r")
        await browser.until("document.querySelectorAll('#detail [role=treeitem] .solid').length > 0")
        await browser.press("Escape")
        assert await browser.ask(FOCUS) == "label"
    assert browser.complaints == []


async def test_hosted_calls_are_shown_with_their_stages_and_steps(browser: Tab) -> None:
    async with serving(FakeAdmin(30)) as url:
        await browser.open(url, width=1400)
        await browser.until(HAS_ROWS)
        chosen = await browser.until(HOSTED)
        await browser.ask(f"slipringPage.follow({json.dumps(chosen)})")
        shown = await browser.until("document.querySelector('#detail:not([hidden])')?.textContent")
        for words in (
            "Calls of hosted tools",
            "tokens read → generated",
            "hosted tools run",
            "list their tools",
        ):
            assert words in shown
        texts = (
            "[...document.querySelectorAll('#waterfall-title ~ g text.name')].map(text => text.textContent)"
        )
        assert {"list", "tools"} <= set(await browser.ask(texts))
    assert browser.complaints == []


async def test_an_empty_server_says_how_to_begin(browser: Tab) -> None:
    async with serving(FakeAdmin(0)) as url:
        await browser.open(url, width=390)
        text = await browser.until("!document.getElementById('empty').hidden && document.body.innerText")
        assert "curl http://127.0.0.1:8000/v1/responses" in text
        assert 'OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="any")' in text
        assert await browser.ask("document.documentElement.scrollWidth") <= 390
    assert browser.complaints == []


async def test_the_sample_of_a_server_with_keys_asks_for_one(browser: Tab) -> None:
    fake = FakeAdmin(0)
    fake.simulations[0].needs_key = True
    async with serving(fake) as url:
        await browser.open(url, width=1000)
        text = await browser.until("!document.getElementById('empty').hidden && document.body.innerText")
        assert "Bearer YOUR_KEY" in text
        assert 'api_key="YOUR_KEY"' in text
        assert "any" not in text.split()
    assert browser.complaints == []


async def test_rates_of_workers_are_right_from_the_beginning(browser: Tab) -> None:
    async with serving(FakeAdmin(30, workers=3)) as url:
        await browser.open(url, width=1400)
        await browser.until(f"{HAS_ROWS} && slipringPage.state.history.length > 2")
        turns, seconds, rates = await browser.ask(
            "[slipringPage.state.totals().turns, 120, slipringPage.state.history.rates('turns')]"
        )
        usual = turns / seconds  # so many seconds were invented before the stream began
        assert 0 <= max(rates) < 8 * usual < turns
        shown = await browser.until(
            "(text => text !== '–' && text)(document.querySelector('.total .value').textContent)"
        )
        assert float(shown) < 8 * usual
    assert browser.complaints == []


async def test_workers_are_shown_in_their_order_whoever_reports_first(browser: Tab) -> None:
    fake = FakeAdmin(9, workers=3)
    fake.simulations.reverse()
    async with serving(fake) as url:
        await browser.open(url, width=1400)
        await browser.until(f"{HAS_ROWS} && slipringPage.state.processes.size === 3")
        words = await browser.until(
            "(texts => texts.length === 3 && texts)([...document.querySelectorAll('.engine:first-child"
            " .load .worker')].map(each => each.textContent))"
        )
        assert words == ["worker 0", "worker 1", "worker 2"]
    assert browser.complaints == []


async def test_only_failures_look_like_failures(browser: Tab) -> None:
    async with serving(FakeAdmin(30)) as url:
        await browser.open(url, width=1400)
        await browser.until(HAS_ROWS)
        for status, tone in (
            ("incomplete", "--incomplete"),
            ("cancelled", "--cancelled"),
            ("failed", "--failed"),
        ):
            chosen = await browser.until(
                "[...slipringPage.state.rows.values()].flatMap(row => row.lanes).flatMap(lane => lane.ended)"
                f".find(turn => turn.status === '{status}')?.id"
            )
            await browser.ask(f"slipringPage.follow({json.dumps(chosen)})")
            same = await browser.until(
                "(badge => badge && [badge.textContent, ...[[badge, '--tone'], [document.documentElement,"
                f" '{tone}']].map(([element, name]) => getComputedStyle(element).getPropertyValue(name))])"
                "(document.querySelector('#detail-title .badge'))"
            )
            assert same[0] == status
            assert same[1].strip() == same[2].strip()
            assert await browser.ask("document.querySelector('#detail .notice.wrong') !== null") == (
                status == "failed"
            )
    assert browser.complaints == []


async def test_the_detail_leads_from_turn_to_turn(browser: Tab) -> None:
    async with serving(FakeAdmin(30)) as url:
        await browser.open(url, width=1400)
        await browser.until(HAS_ROWS)
        ids = await browser.until(
            "[...slipringPage.state.rows.values()].flatMap(row => row.lanes)"
            ".map(lane => lane.ended.map(turn => turn.id)).find(ids => ids.length > 3)"
        )
        await browser.ask(f"slipringPage.follow({json.dumps(ids[1])})")
        shown = "document.querySelector('#detail .facts code').textContent"
        for key, expected in (("before", ids[0]), ("after", ids[1]), ("after", ids[2])):
            side = "first" if key == "before" else "last"
            await browser.ask(
                f"(button => {{ button.focus(); button.click(); }})"
                f"(document.querySelector('.neighbours button:{side}-child'))"
            )
            await browser.until(f"{shown} === {json.dumps(expected)}")
            assert await browser.ask(
                f"document.activeElement.matches('.neighbours button:{side}-child')"
            ) == (expected != ids[0]), "the focus stays while the button leads further"
        assert await browser.ask("document.querySelectorAll('#detail .takers li').length") > 0
        assert await browser.ask("document.querySelectorAll('#detail .tiles dd').length") > 0
    assert browser.complaints == []


async def test_it_asks_for_the_key(browser: Tab) -> None:
    async with serving(FakeAdmin(2, key="right")) as url:
        await browser.open(url, width=390)
        for key in ("wrong", "right"):
            await browser.until("document.getElementById('lock').open")
            await browser.ask(f"document.getElementById('key').value = '{key}'")
            await browser.ask("document.querySelector('#unlock button').click()")
            if key == "wrong":
                await browser.until("document.body.innerText.includes('not accepted')")
        await browser.until(HAS_ROWS)
        await browser.ask("sessionStorage.clear()")
    assert {text for text in browser.complaints if "401" not in text} == set()


async def test_a_lost_stream_is_shown_and_counters_never_fall(browser: Tab) -> None:
    fake = FakeAdmin(10, workers=2)
    async with serving(fake) as url:
        await browser.open(url, width=1000)
        await browser.until(HAS_ROWS)
        turns = await browser.ask("slipringPage.state.totals().turns")
        assert turns > 0
        await browser.ask(KEEP_LOST)
        fake.cut()
        text = await browser.until("lost.find(text => text.includes('data is'))")
        assert "the server ended the stream" in text
        await browser.until(LIVE)
        assert await browser.ask("slipringPage.state.totals().turns") >= turns
        departed = (
            "{turns: {completed: 7000000}, tokens: {}, request_bytes: 0, history_bytes: 0, fallbacks: {}}"
        )
        # In one script: the next update of the stream has rows of that process again.
        left = await browser.ask(
            f"slipringPage.state.apply({{type: 'process_gone', process: 1, departed: {departed}}});"
            "[slipringPage.state.totals().turns >= 7000000,"
            " [...slipringPage.state.rows.values()].every(row => row.process !== 1)]"
        )
        assert left == [True, True]
        assert fake.started == 2
    assert browser.complaints == []


async def test_nothing_is_read_while_nobody_looks(browser: Tab) -> None:
    fake = FakeAdmin(1)
    async with serving(fake) as url:
        await browser.open(url, width=1000)
        await browser.until(HAS_ROWS)
        for is_hidden in ("true", "false"):
            await browser.ask(
                f"Object.defineProperty(document, 'hidden', {{value: {is_hidden}, configurable: true}});"
                "document.dispatchEvent(new Event('visibilitychange'))"
            )
            async with asyncio.timeout(300):
                await fake.counts(0 if is_hidden == "true" else 1)
        await browser.until(LIVE)


async def test_a_thousand_connections_need_few_elements(browser: Tab) -> None:
    async with serving(FakeAdmin(1000, history_s=5)) as url:
        await browser.open(url, width=1400)
        await browser.until(f"{HAS_ROWS} && slipringPage.state.rows.size >= 1000")
        assert await browser.ask(ROWS) < 40
        await browser.ask("document.getElementById('rows').scrollTop = 1e9")
        await browser.until("document.querySelector('[aria-rowindex=\"1000\"]') !== null")
        assert await browser.ask(ROWS) < 40
    assert browser.complaints == []


async def test_turns_are_bounded(browser: Tab) -> None:
    async with serving(FakeAdmin(100, history_s=5)) as url:
        await browser.open(url, width=1400)
        await browser.until(HAS_ROWS)
        kept = await browser.ask("""
        (() => {
          const {state} = slipringPage;
          const report = {status: 'completed', request_bytes: 1, stages: [], total_ms: 1};
          for (let at = 0; at < 50000; at += 1)
            for (const process of [0])
              state.end({start: state.now(), end: state.now(), stages: [], phase: null, status: 'completed',
                id: `r${at}`, previous: null, process, connection: at % 100 + 1, lane: null,
                transport: 'websocket', tenant: 'a', report});
          state.prune();
          const lanes = [...state.rows.values()].flatMap(row => row.lanes);
          return [state.turnCount, lanes.reduce((sum, lane) => sum + lane.ended.length, 0)];
        })()""")
        assert kept[0] == kept[1] <= 20_000


async def test_a_recording_is_drawn_without_a_request(browser: Tab, tmp_path: Path) -> None:
    header = {
        **{"slipring_recording": 1, "notice": "content", "begun_at": "2026-11-15T12:00:00.000Z"},
        **{"server": "slipring/0.1.0", "engines": ["simulated"], "tenant": "acme"},
    }
    timing = {
        **{"status": "completed", "request_bytes": 300, "total_ms": 900, "history_bytes": 5000},
        "stages": [
            {"name": "prefill", "start_ms": 0, "duration_ms": 200},
            {"name": "generate", "start_ms": 200, "duration_ms": 700},
        ],
    }
    turns = [
        {
            **{"turn": number, "continues": number - 1 if number else None, "at_ms": number * 2000},
            **{"connection": 1, "transport": "websocket", "request": {}, "input": ["<b>secret</b>"]},
            **({"timing": timing} if number else {}),
            "answer": {"status": "completed", "total_ms": 900, "first_token_ms": 200},
        }
        for number in range(3)
    ]
    path = tmp_path / "loop.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *turns)))
    (tmp_path / "other.txt").write_text("{}\n")
    fake = FakeAdmin(1)
    async with serving(fake) as url:
        await browser.open(url, width=1000)
        await browser.until(HAS_ROWS)
        await choose(browser, tmp_path / "other.txt")
        await browser.until("document.getElementById('recorded').textContent.includes('no recording')")
        await choose(browser, path)
        await browser.until("/3\\sturns/.test(document.querySelector('.row')?.innerText)")
        await browser.until(INKED)
        assert await browser.ask("/3\\sturns of acme/.test(document.getElementById('recorded').textContent)")
        assert "secret" not in await browser.ask("document.body.innerText")
        await browser.ask("document.querySelector('.row .label').click()")
        await browser.until("document.querySelectorAll('#detail [role=treeitem]').length === 3")
        await browser.ask("document.getElementById('back').click()")
        await browser.until(HAS_ROWS)
        assert fake.started == 2
    assert browser.complaints == []


async def choose(browser: Tab, path: Path) -> None:
    root = (await browser.call("DOM.getDocument"))["root"]["nodeId"]
    node = (await browser.call("DOM.querySelector", nodeId=root, selector="#file"))["nodeId"]
    await browser.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)


async def test_it_shows_a_real_server(browser: Tab) -> None:
    engine = PuppetEngine()
    async with serve(engine, admin=ANY_PORT) as server:
        url = admin_url(server)
        await browser.open(url, width=1200)
        await browser.until("!document.getElementById('empty').hidden")
        assert server.url in await browser.ask("document.body.innerText")
        async with server.connect() as socket:
            await socket.create(input="Hello", store=False)
            performance = await engine.next()
            row = "[...slipringPage.state.rows.values()].find(row => row.kind === 'connection')"
            await browser.until(f"{row}?.lanes[0]?.running.length === 1")
            performance.say("Hi")
            performance.finish()
            await socket.until("response.completed")
            await browser.until(f"{row}.lanes[0].ended.length === 1 && {row}.lanes[0].running.length === 0")
            await browser.until("document.querySelector('.row .label') !== null")
            await browser.ask("document.querySelector('.row .label').click()")
            await browser.until("document.querySelectorAll('#detail [role=treeitem] .solid').length === 1")
        assert all(request.startswith(url) for request in browser.requests)
    assert browser.complaints == []


async def test_a_recording_that_the_server_made_is_drawn(browser: Tab, tmp_path: Path) -> None:
    directory = tmp_path / "recordings"
    async with serve(admin=ANY_PORT, record=str(directory)) as server:
        async with server.connect() as socket:
            first = await socket.response(input="secret", store=False)
            second = await socket.response(input="secret", store=False, previous_response_id=first["id"])
            await socket.response(
                input="secret", store=False, previous_response_id=second["id"], generate=False
            )
        await browser.open(admin_url(server), width=1000)
        recorder = server.server.recorder
        assert recorder is not None
        await recorder.close()
        (path,) = directory.iterdir()
        assert "secret" in path.read_text()
        await browser.until(LIVE)
        await choose(browser, path)
        await browser.until("/3\\sturns of default/.test(document.getElementById('recorded').textContent)")
        await browser.until("document.querySelector('.row .label') !== null")
        await browser.ask("document.querySelector('.row .label').click()")
        await browser.until("document.querySelectorAll('#detail [role=treeitem]').length === 3")
        assert "secret" not in await browser.ask("document.body.innerText")
    assert browser.complaints == []
