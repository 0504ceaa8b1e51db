"""The judge of `make test-crash` reports what is lost, half-written or done twice."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
import apsw

from slipring.core.limits import Limits
from tests.crash.checks import Findings, Inspector
from tests.crash.clients import Counts
from tests.crash.ledger import Json, Ledger, Turn, plain_wording
from tests.crash.tools import ToolsSite
from tests.crash.unsynced import Disk, Recorder
from tests.harness import FAST, Running, serve


class Stage:
    """A ledger of turns that servers in this process have acknowledged."""

    def __init__(self) -> None:
        self.ledger = Ledger(plain_wording)
        self.findings = Findings()

    async def make_chain(self, running: Running) -> list[Turn]:
        """Three turns, each of which continues the one before."""
        made: list[Turn] = []
        for _ in range(3):
            turn = self.ledger.ask(parent=made[-1] if made else None)
            body: Json = {"input": turn.text, "metadata": {"turn": str(turn.number)}}
            if turn.parent is not None:
                body["previous_response_id"] = turn.parent.id
            status, response = await running.post(**body)
            assert status == 200
            self.ledger.acknowledge(turn, response)
            made.append(turn)
        return made

    async def inspect(self, running: Running, *stored: str) -> Findings:
        """Judge what a server has stored; ``stored``: ids that were read from the database."""
        inspector = Inspector(running.url, self.ledger, self.findings, Random(1), Counts())
        await inspector.inspect(0, everything=True, stored=stored)
        return self.findings


@asynccontextmanager
async def on_file(path: Path) -> AsyncIterator[Running]:
    async with serve(FAST, store=f"sqlite:{path}") as running:
        yield running


async def findings_after_power_failure(tmp_path: Path, *, syncs: bool) -> Findings:
    disk, after, logs = tmp_path / "disk", tmp_path / "after", tmp_path / "logs"
    for directory in (disk, after, logs):
        directory.mkdir()
    stage = Stage()
    recorder = Recorder(logs / "1", syncs=syncs)
    try:
        async with on_file(disk / "slipring.db") as running:
            await stage.make_chain(running)
            Disk(after, logs).lose_power(Random(4))
    finally:
        recorder.close()
    async with on_file(after / "slipring.db") as running:
        return await stage.inspect(running)


async def test_what_was_synced_survives_a_power_failure(tmp_path: Path) -> None:
    findings = await findings_after_power_failure(tmp_path, syncs=True)
    assert (findings.lost, findings.half) == ([], [])


async def test_a_disk_that_only_claims_to_sync_is_found_out(tmp_path: Path) -> None:
    findings = await findings_after_power_failure(tmp_path, syncs=False)
    assert len(findings.lost) >= 3


async def test_a_lost_ancestor_is_found(tmp_path: Path) -> None:
    stage = Stage()
    path = tmp_path / "slipring.db"
    async with on_file(path) as running:
        first, _, last = await stage.make_chain(running)
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM slipring_responses WHERE id = ?", (first.id,))
    connection.close()
    async with on_file(path) as running:
        findings = await stage.inspect(running)
    assert any(f"the input of turn {last.number}" in line for line in findings.lost), "its history is short"
    assert any(line.startswith(f"turn {first.number}:") for line in findings.lost)


async def test_a_response_is_found_that_was_said_to_have_failed(tmp_path: Path) -> None:
    stage = Stage()
    async with on_file(tmp_path / "slipring.db") as running:
        *_, last = await stage.make_chain(running)
        last.response, last.failure = None, "The store cannot be used at the moment."
        findings = await stage.inspect(running)
    assert len(findings.half) == 1
    assert last.failure in findings.half[0]


async def test_a_run_that_ended_before_its_client_heard_of_it_is_not_half_written(tmp_path: Path) -> None:
    stage, store = Stage(), f"sqlite:{tmp_path / 'slipring.db'}"
    turn = stage.ledger.ask(is_background=True)
    body: Json = {"input": turn.text, "metadata": {"turn": str(turn.number)}, "background": True}
    async with serve(
        "simulated:tokens_per_s=0.01", store=store, limits=Limits(drain_timeout_s=0.01)
    ) as running:
        status, response = await running.post(**body)
        assert status == 200
    async with on_file(tmp_path / "slipring.db") as running:
        findings = await stage.inspect(running, response["id"])
    assert turn.response is not None
    assert turn.response["status"] == "failed"
    assert not findings, findings.half


async def test_a_refused_response_is_found(tmp_path: Path) -> None:
    stage = Stage()
    async with on_file(tmp_path / "slipring.db") as running:
        *_, last = await stage.make_chain(running)
        last.response, last.is_forbidden = None, True
        findings = await stage.inspect(running)
    assert len(findings.half) == 1
    assert "a check has to refuse it" in findings.half[0]


async def test_a_call_that_runs_twice_is_found(tmp_path: Path) -> None:
    site, findings = ToolsSite(tmp_path), Findings()
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as http:
        await site.open(stack)
        for request, key in enumerate(("once", "twice", "twice")):
            params = {"name": "note", "arguments": {"key": key}}
            call = {"jsonrpc": "2.0", "id": request, "method": "tools/call", "params": params}
            async with http.post(site.tools.url, json=call) as answer:
                assert answer.status == 200
        await site.inspect("http://127.0.0.1:1", findings, [])
    assert findings.twice == ["the call with twice ran 2 times"]
