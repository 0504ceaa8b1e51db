"""Writing and reading records."""

from pathlib import Path

import pytest

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench import results
from tests.commands.bench.records import SHORT, record


def test_writing_and_reading_a_record(tmp_path: Path) -> None:
    kept = record([SHORT], repeats=1)
    results.write(kept, tmp_path / "record.json")
    assert results.read(tmp_path / "record.json") == kept


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}'])
def test_files_that_are_no_records(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(UsageError, match=r"record\.json: is not a record of slipring bench: "):
        results.read(tmp_path / "record.json")


def test_a_missing_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"record\.json: cannot be read: No such file or directory$"):
        results.read(tmp_path / "record.json")


def test_records_of_another_format(tmp_path: Path) -> None:
    kept = record([SHORT], repeats=1)
    kept.format = 99
    results.write(kept, tmp_path / "record.json")
    with pytest.raises(UsageError, match="format 99"):
        results.read(tmp_path / "record.json")
