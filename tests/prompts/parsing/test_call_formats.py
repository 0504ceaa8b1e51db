"""The call format of a model is detected from the markers in its chat template."""

import pytest

from slipring.prompts.parsing.call_formats import HERMES, LLAMA3_JSON, CallFormat, detect_call_format
from tests.prompts.template_texts import CHATML


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, HERMES),
        ("{{ '<|python_tag|>' }}", LLAMA3_JSON),
        ('{{ "{\\"parameters\\": 1}" }}', LLAMA3_JSON),
        ("{{ 1 }}", CallFormat(bare_json=True)),
        ("{{ '<think>' }}", CallFormat(bare_json=True, think_open="<think>", think_close="</think>")),
    ],
)
def test_the_markers_in_a_template_determine_the_call_format(source: str, expected: CallFormat) -> None:
    assert detect_call_format(source) == expected
