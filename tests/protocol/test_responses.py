"""The response object."""

import pytest

from slipring.protocol.responses import IncompleteDetails


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("max_output_tokens", "max_output_tokens"), ("steered", "steered"), ("broken_off", None)],
)
def test_only_reasons_that_the_api_names_are_shown(reason: str, shown: str | None) -> None:
    assert IncompleteDetails.of(reason).reason == shown
