"""The call format of a model is detected from the markers in its chat template."""

import pytest

from slipring.prompts.parsing.known_formats import BARE_JSON, HERMES, LLAMA3_JSON, detect_call_format
from slipring.prompts.parsing.output_format import OutputFormat
from tests.prompts.template_texts import CHATML


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, HERMES),
        ("{{ '<|python_tag|>' }}", LLAMA3_JSON),
        ('{{ "{\\"parameters\\": 1}" }}', LLAMA3_JSON),
        ("{{ 1 }}", BARE_JSON),
        (
            "{{ '<think>' }}",
            OutputFormat(calls=BARE_JSON.calls, think_open="<think>", think_close="</think>"),
        ),
    ],
)
def test_the_markers_in_a_template_determine_the_call_format(source: str, expected: OutputFormat) -> None:
    assert detect_call_format(source) == expected
