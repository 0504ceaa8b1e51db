"""Whole answers as one text."""

from collections.abc import Sequence

from slipring.prompts.parsing.answer_writer import Call, answer_pieces
from slipring.prompts.parsing.output_format import OutputFormat


def write_answer(
    format: OutputFormat,
    thoughts: str = "",
    text: str = "",
    calls: Sequence[Call] = (),
    *,
    opened_thought: bool = False,
) -> str:
    """An answer as its model writes it, without the control token that ends it."""
    pieces = answer_pieces(format, thoughts, text, calls, opened_thought=opened_thought)
    return "".join(piece.text for piece in pieces)
