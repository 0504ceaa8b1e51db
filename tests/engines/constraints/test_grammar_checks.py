"""Grammars of custom tools: which ones are rejected, and which texts match them."""

import pytest

from slipring.engines.constraints.grammar_checks import check_grammar
from slipring.protocol.tools.grammars_and_schemas import Grammar
from tests.engines.fitting import STATES, fits, text_matcher

LINES = Grammar("lark", 'start: line+\nline: WORD "\\n"\nWORD: /[a-zäé]+/\n')


@pytest.mark.parametrize(
    ("grammar", "text", "is_match"),
    [
        (Grammar("regex", "a+b"), "aab", True),
        (Grammar("regex", "a+b"), "aabc", False),
        (Grammar("regex", "a+b"), "xaab", False),
        (Grammar("regex", "^a|ab$"), "ab", True),
        (Grammar("regex", "a*"), "", True),
        (Grammar("regex", "a+"), "", False),
        (Grammar("regex", "x/y"), "x/y", True),
        (LINES, "äé\nb\n", True),
        (LINES, "äé\nb", False),
        (LINES, "", False),
        (LINES, "\ud800", False),
    ],
)
def test_the_whole_text_has_to_match(grammar, text, is_match):
    assert fits(grammar, text) is is_match


def test_an_expression_that_backtracking_matchers_never_finish_is_matched():
    assert fits(Grammar("regex", "(a+)+b"), "a" * 5000) is False


def problem(grammar: Grammar, states: int = STATES) -> str | None:
    return check_grammar(grammar.syntax, grammar.definition, states)


def chain(rules: int, body: str = "r{}") -> str:
    lines = [f"r{n}: {body.format(n + 1)}" for n in range(rules)]
    return "\n".join(["start: r0", *lines, f'r{rules}: "a"'])


def bomb(depth: int) -> str:
    lines = [f"R{n}: R{n + 1} R{n + 1}" for n in range(depth)]
    return "\n".join(["start: R0", *lines, f'R{depth}: "a"'])


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (chain(3000), "more than 500 rules"),
        (bomb(25), "terminals are too large"),
        ("start: A\nA: B\nB: A", "terminals are too large"),
        ('start: %json {"type": "string"}', "directives"),
        ('start: %lark { start: "a" }', "directives"),
        ('%llguidance {}\nstart: "a"', "directives"),
    ],
)
def test_grammars_that_crash_the_compiler_are_rejected_before_compiling(definition, message):
    """Some of these would overflow the stack of the process."""
    assert message in str(problem(Grammar("lark", definition)))


def test_large_grammars_within_the_limits_are_compiled():
    assert problem(Grammar("lark", chain(400))) is None
    assert problem(Grammar("lark", bomb(8))) is None


def test_a_text_is_rejected_as_soon_as_no_continuation_can_match():
    lines = text_matcher(LINES)
    assert lines.feed("ab")
    assert lines.is_complete() is False
    assert lines.feed("c\n")
    assert lines.is_complete() is True
    assert not lines.feed("9")


OPTIONAL = "a?" * 500 + "a" * 500
AMBIGUOUS = 'start: ("a"?){20000} "a"{20000}'


@pytest.mark.parametrize("grammar", [Grammar("regex", OPTIONAL), Grammar("lark", AMBIGUOUS)])
def test_grammars_that_are_expensive_to_match_are_rejected_with_the_name_of_the_limit(grammar):
    """Both compile at once: only matching is expensive."""
    message = problem(grammar)
    assert message is not None
    assert message.startswith("it is too large: ")
    assert message.endswith("(max_grammar_states)")


def test_the_size_limit_is_configurable():
    grammar = Grammar("lark", 'start: ("a"?){20} "a"{20}')
    assert problem(grammar) is None
    assert "max_grammar_states" in str(problem(grammar, states=20))
