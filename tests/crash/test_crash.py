"""A short storm; `make test-crash` is a long one, on PostgreSQL too."""

from pathlib import Path

from tests.crash.places import SqlitePlace
from tests.crash.storm import Storm


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    said: list[str] = []
    storm = Storm(SqlitePlace(tmp_path), seed=7, say=said.append, by_time=False)
    await storm.rage(rounds=2, most_answers=60)
    assert len(said) == 2
    assert storm.acknowledged > 0
    assert (storm.findings.lost, storm.findings.half) == ([], [])
