"""Prompts, deltas and parsed answers equal those that independent implementations were recorded with.

The recordings (``*.json``) are made by ``make test-oracles WRITE=1``. ``differences`` lists what differs on
purpose, and why.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from slipring.engines.tokens.template_choice import builtin_template
from tests.prompts.oracles.comparison import Comparison, family_renderer, family_vocabulary, own_template
from tests.prompts.oracles.differences import CHOICES, reason_for
from tests.prompts.oracles.families import FAMILIES
from tests.prompts.vocabulary import small_metadata

FOLDER = Path(__file__).parent


def recording_of(name: str) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return recording


def test_every_family_has_a_recording_that_is_small() -> None:
    paths = sorted(FOLDER.glob("*.json"))
    assert [path.stem for path in paths] == sorted(FAMILIES)
    assert sum(path.stat().st_size for path in paths) < 300_000


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_written_and_read_as_others_do(name: str) -> None:
    family, recording = FAMILIES[name], recording_of(name)
    template = builtin_template(family.builtin) if family.builtin else own_template(family)
    vocabulary = family_vocabulary(small_metadata(), family)
    as_template, keeping = (
        Comparison(
            family,
            family_renderer(family, template, vocabulary, keeps_thoughts=keeps),
            recording,
            has_ids=False,
            has_tools=family.has_tools("builtin" if family.builtin else "own"),
        )
        for keeps in (False, True)
    )
    found = {each.case: each for each in (*as_template.differences(), *keeping.kept_thoughts())}
    assert [each for case, each in found.items() if case not in recording["differs"]] == []
    assert found.keys() == recording["differs"].keys(), "these no longer differ"


@pytest.mark.parametrize("name", FAMILIES)
def test_what_differs_has_a_reason(name: str) -> None:
    source = "builtin" if FAMILIES[name].builtin else "own"
    differs = recording_of(name)["differs"]
    assert differs == {case: reason_for(name, source, case) for case in differs}


def test_reasons_name_families_that_are_compared() -> None:
    assert {name for choice in CHOICES for name in choice.families.split()} <= FAMILIES.keys()
