"""The ids that models give to their calls."""

import pytest

from slipring.prompts.parsing.answer_writer import Call
from slipring.prompts.parsing.output_format import (
    NamedJsonCalls,
    OutputFormat,
    has_call_ids,
    written_call_ids,
)
from tests.prompts.parsing import family_formats as known
from tests.prompts.parsing.written_answers import write_answer

SOLAR = OutputFormat(
    calls=NamedJsonCalls(
        section_open="<calls>", id_open="<id>", open="<name>", arguments_open="<args>", close="<end>"
    )
)
WITH_IDS = {
    "nemo": known.MISTRAL_NEMO,
    "small": known.MISTRAL_CALL_ID,
    "cohere": known.COHERE,
    "solar": SOLAR,
}
CALLS = [Call("f", {"id": "x", "text": '[CALL_ID]no[ARGS]"'}, id="abc123def"), Call("g", {}, id="9")]


@pytest.mark.parametrize("name", WITH_IDS)
def test_ids_are_found_in_answers(name: str) -> None:
    format = WITH_IDS[name]
    assert has_call_ids(format)
    assert written_call_ids(format, write_answer(format, calls=CALLS[1:])) == ["9"]
    assert written_call_ids(
        format, write_answer(format, calls=[*CALLS[1:], Call("f", {"a": 1}, id="b")])
    ) == [
        "9",
        "b",
    ]
    assert written_call_ids(format, "Hello.") == []


def test_json_that_is_not_a_list_of_calls_has_no_ids() -> None:
    for text in (
        "[TOOL_CALLS]",
        "[TOOL_CALLS]{}",
        "[TOOL_CALLS][1]",
        "[TOOL_CALLS][",
        "[TOOL_CALLS]" + 9999 * "[",
    ):
        assert written_call_ids(known.MISTRAL_NEMO, text) == []


@pytest.mark.parametrize("format", [known.KIMI_K2, known.MISTRAL, known.HERMES, known.HARMONY, known.QWEN3_5])
def test_other_formats_have_no_ids(format: OutputFormat) -> None:
    assert not has_call_ids(format)
    assert written_call_ids(format, "[CALL_ID]a[ARGS]") == []
