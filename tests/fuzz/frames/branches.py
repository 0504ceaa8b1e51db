"""How many branches of the source some arcs are."""

import json
import tempfile
from collections import defaultdict
from pathlib import Path

import coverage

from tests.fuzz.frames.servers import Arcs
from tests.fuzz.frames.traced_server import PACKAGES, ROOT


def count_branches(arcs: Arcs) -> tuple[int, int]:
    """How many branches of the observed packages are among the arcs, and how many there are."""
    by_file: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for path, first, second in arcs:
        by_file[str(ROOT / path)].add((first, second))
    with tempfile.TemporaryDirectory() as directory:
        measured = coverage.Coverage(
            data_file=f"{directory}/data",
            config_file=False,
            branch=True,
            source=[f"{ROOT}/{package}" for package in PACKAGES],
            messages=False,
        )
        measured.get_data().add_arcs(by_file)
        measured.json_report(outfile=f"{directory}/report")
        totals = json.loads(Path(directory, "report").read_bytes())["totals"]
    return totals["covered_branches"], totals["num_branches"]
