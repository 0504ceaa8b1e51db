"""Compares `docs/decisions.md` with the openai package and with the server."""

import typing
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import decision, decision_create_params

from slipring.protocol import decisions
from tests.harness import serve
from tests.pictures import PIXEL
from tests.server.endpoints.test_decisions import ANGER, LATE, TEAM, Json, Oracle, ask, letters
from tests.test_compatibility import _CODE_SPAN, Row, all_keys, keys, literals, members, read_tables, types_in

TEXT = (Path(__file__).parent.parent / "docs" / "decisions.md").read_text(encoding="utf-8")
TABLES = read_tables(TEXT)


def listed(heading: str) -> dict[str, Row]:
    """The rows of a table, by the names in the first column."""
    first, second = list(TABLES[heading][0])[:2]
    return {
        name: Row(cells[second], cells)
        for cells in TABLES[heading]
        for name in _CODE_SPAN.findall(cells[first])
    }


def named(row: Row) -> set[str]:
    return set(_CODE_SPAN.findall(row.cells["Fields"]))


FIELDS, ITEMS = listed("Request fields"), listed("Input items")
QUESTIONS, ANSWERS = listed("Questions"), listed("Answers")
SAMPLES: dict[str, Json] = {
    "model": {"model": "puppet"},
    "input": {"input": "Other."},
    "questions": {"questions": [ANGER]},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "prompt_cache_options": {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
    "safety_identifier": {"safety_identifier": "user-1"},
}


def test_the_page_names_the_version_of_the_tested_package() -> None:
    assert f"version {'.'.join(openai.__version__.split('.')[:2])} of the `openai`" in TEXT


def test_the_page_lists_every_field() -> None:
    assert keys(decision_create_params.DecisionCreateParams).keys() == FIELDS.keys()
    assert set(decisions.DecisionRequest.__struct_fields__) == FIELDS.keys()


def test_the_page_lists_every_item_and_part() -> None:
    items = members(decision_create_params.InputUnionMember1)
    known = {"message"} | types_in(*(each for each in items if "role" not in keys(each)))
    for item in items:
        for field in ("content", "output"):
            if field in keys(item):
                parts = [each for each in members(keys(item)[field]) if each is not str]
                known |= types_in(*parts)
    assert known == ITEMS.keys()
    assert ITEMS.keys() >= decisions._ITEM_TYPES


def test_the_page_lists_every_question_and_its_fields() -> None:
    known = {next(iter(types_in(each))): each for each in members(decision_create_params.Question)}
    assert known.keys() == QUESTIONS.keys()
    for name, kind in known.items():
        assert all_keys(kind) - {"type"} == named(QUESTIONS[name])
    for ours in typing.get_args(decisions.Asked):
        assert set(ours.__struct_fields__) == named(QUESTIONS[ours.__struct_config__.tag])


def test_the_page_lists_every_answer_and_its_fields() -> None:
    known: dict[str, Any] = {}
    for member in members(decision.Answer):
        known |= dict.fromkeys(literals(keys(member)["type"]), member)
    assert known.keys() == ANSWERS.keys()
    for name, kind in known.items():
        assert keys(kind).keys() - {"type"} == named(ANSWERS[name])
    for ours in typing.get_args(decisions.Answer):
        assert set(ours.__struct_fields__) == named(ANSWERS[ours.__struct_config__.tag])


@pytest.mark.parametrize("name", FIELDS)
async def test_a_field_is_accepted(name: str) -> None:
    assert FIELDS[name].status in ("supported", "accepted")
    async with serve(Oracle(letters)) as server:
        found = await ask(server, *SAMPLES[name].get("questions", [LATE, TEAM]), **_others(SAMPLES[name]))
    assert found["answers"]


def _others(sample: Json) -> Json:
    return {name: value for name, value in sample.items() if name != "questions"}


async def test_the_examples_of_items_are_accepted() -> None:
    history = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {}}],
        },
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "c"}],
        },
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": ""},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "x"},
    ]
    async with serve(Oracle(letters)) as server:
        await ask(server, LATE, input=history)
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}]
        error = (await ask(server, LATE, input=image, status=400))["error"]
        assert error["param"] == "input[0].content[0]", "this model reads text only"
        pictured = {**LATE, "instructions": [{"type": "input_image", "image_url": PIXEL}]}
        error = (await ask(server, LATE, pictured, status=400))["error"]
        assert error["param"] == "questions[1].instructions"
