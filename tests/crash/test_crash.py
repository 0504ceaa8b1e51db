"""A short crash storm on SQLite. `make test-crash` runs long ones, with much more that breaks."""

from pathlib import Path

from tests.crash.sites import SqliteSite
from tests.crash.storm import Storm


async def test_acknowledged_responses_survive_kill_9(tmp_path: Path) -> None:
    reports: list[str] = []
    storm = Storm(SqliteSite(tmp_path), seed=7, report=reports.append)
    await storm.run_rounds(rounds=1, most_answers=40)
    assert len(reports) == 1
    assert storm.acknowledged > 0
    assert (storm.findings.lost, storm.findings.half) == ([], [])
