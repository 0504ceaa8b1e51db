"""A short crash storm on SQLite. `make test-crash` runs a long one, on PostgreSQL too."""

from pathlib import Path

from tests.crash.databases import SqliteFile
from tests.crash.storm import Storm


async def test_acknowledged_responses_survive_kill_9(tmp_path: Path) -> None:
    reports: list[str] = []
    storm = Storm(SqliteFile(tmp_path), seed=7, report=reports.append, by_time=False)
    await storm.run_rounds(rounds=2, most_answers=60)
    assert len(reports) == 2
    assert storm.acknowledged > 0
    assert (storm.findings.lost, storm.findings.half) == ([], [])
