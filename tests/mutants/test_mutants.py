"""The mutants fit the source as it is. Whether machines find them is shown by ``make test-mutants``."""

import shutil
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, SRC, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_can_be_planted(mutant: Mutant, tmp_path: Path) -> None:
    for file in {change.file for change in mutant.changes}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SRC / file, tmp_path / file)
    mutant.plant(tmp_path)
    for file in {change.file for change in mutant.changes}:
        compile((tmp_path / file).read_text(), file, "exec")
        assert (tmp_path / file).read_text() != (SRC / file).read_text()
