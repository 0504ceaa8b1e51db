"""Turn reports as a header."""

from slipring.protocol.turn_report import Stage, server_timing


def test_stages_are_formatted_as_a_server_timing_header() -> None:
    stages = [Stage("queue", 0.0, 0.25), Stage("generate", 0.25, 1200.0)]
    assert server_timing(stages) == "queue;dur=0.25, generate;dur=1200"


def test_a_report_without_stages_has_an_empty_header() -> None:
    assert server_timing([]) == ""
