"""Texts held against grammars."""

from slipring.engines.constraints.grammar_matcher import Proof, matcher
from slipring.protocol.definitions import Grammar

STATES = 10_000
"""As many as a grammar may need by default."""


def proof(grammar: Grammar) -> Proof:
    return Proof(matcher(grammar, STATES))


def fits(grammar: Grammar, text: str) -> bool | None:
    """Whether a text is of the grammar, all of it; None where that cannot be told."""
    held = proof(grammar)
    return held.ends() if held.take(text) else False
