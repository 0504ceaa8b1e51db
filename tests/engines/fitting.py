"""Matches texts against grammars of custom tools."""

from slipring.engines.constraints.grammar_checks import compile_grammar
from slipring.engines.constraints.grammar_compiler import TextMatcher
from slipring.protocol.tools.grammars_and_schemas import Grammar

STATES = 10_000
"""The default of ``max_grammar_states``."""


def text_matcher(grammar: Grammar) -> TextMatcher:
    return TextMatcher(compile_grammar(grammar, STATES))


def fits(grammar: Grammar, text: str) -> bool | None:
    """Whether the whole text matches the grammar; None if that is unknown."""
    matcher = text_matcher(grammar)
    return matcher.is_complete() if matcher.feed(text) else False
