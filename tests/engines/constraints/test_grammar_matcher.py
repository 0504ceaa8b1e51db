"""Grammars of custom tools: refused where they mean nothing, and held against what was written."""

import pytest

from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.grammar_matcher import check_grammar
from slipring.errors import InvalidRequest
from slipring.protocol.definitions import Compilable, Grammar
from slipring.sandbox.sandbox import InThread
from tests.engines.fitting import STATES, fits, proof

LINES = Grammar("lark", 'start: line+\nline: WORD "\\n"\nWORD: /[a-zäé]+/\n')


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [("regex", "("), ("regex", "(?=a)b"), ("lark", "start: missing"), ("lark", "nothing"), ("lark", '"')],
)
async def test_what_cannot_be_compiled_is_refused_by_its_field(syntax, definition):
    found = Compilable("tools[3].format.definition", Grammar(syntax, definition))
    with pytest.raises(InvalidRequest, match="cannot be compiled") as caught:
        await Compiler(InThread()).check("t", [found])
    assert caught.value.param == "tools[3].format.definition"


@pytest.mark.parametrize(
    ("grammar", "text", "is_right"),
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
def test_a_text_fits_as_a_whole_or_not_at_all(grammar, text, is_right):
    assert fits(grammar, text) is is_right


def test_an_expression_that_others_never_finish_takes_no_time():
    assert fits(Grammar("regex", "(a+)+b"), "a" * 5000) is False


def complaint(grammar: Grammar, states: int = STATES) -> str | None:
    return check_grammar(grammar.syntax, grammar.definition, states)


def chain(rules: int, body: str = "r{}") -> str:
    lines = [f"r{n}: {body.format(n + 1)}" for n in range(rules)]
    return "\n".join(["start: r0", *lines, f'r{rules}: "a"'])


def bomb(depth: int) -> str:
    lines = [f"R{n}: R{n + 1} R{n + 1}" for n in range(depth)]
    return "\n".join(["start: R0", *lines, f'R{depth}: "a"'])


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (chain(3000), "more than 500 rules"),
        (bomb(25), "terminals are too large"),
        ("start: A\nA: B\nB: A", "terminals are too large"),
        ('start: %json {"type": "string"}', "directives"),
        ('start: %lark { start: "a" }', "directives"),
        ('%llguidance {}\nstart: "a"', "directives"),
    ],
)
def test_what_the_compiler_could_not_stand_is_not_given_to_it(definition, said):
    """Some of these would end the process."""
    assert said in str(complaint(Grammar("lark", definition)))


def test_what_is_large_but_sound_is_compiled():
    assert complaint(Grammar("lark", chain(400))) is None
    assert complaint(Grammar("lark", bomb(8))) is None


def test_a_text_is_refused_as_soon_as_it_cannot_fit():
    lines = proof(LINES)
    assert lines.take("ab")
    assert lines.ends() is False
    assert lines.take("c\n")
    assert lines.ends() is True
    assert not lines.take("9")


OPTIONAL = "a?" * 500 + "a" * 500
AMBIGUOUS = 'start: ("a"?){20000} "a"{20000}'


@pytest.mark.parametrize("grammar", [Grammar("regex", OPTIONAL), Grammar("lark", AMBIGUOUS)])
def test_what_is_expensive_to_follow_is_refused_by_the_limit_that_says_so(grammar):
    """Both compile in no time."""
    said = complaint(grammar)
    assert said is not None
    assert said.startswith("it is too large: ")
    assert said.endswith("(max_grammar_states)")


def test_how_large_a_grammar_may_be_is_the_operators_choice():
    grammar = Grammar("lark", 'start: ("a"?){20} "a"{20}')
    assert complaint(grammar) is None
    assert "max_grammar_states" in str(complaint(grammar, states=20))


async def test_matchers_are_compiled_once_and_read_texts_apart():
    compiler = Compiler(InThread())
    first, second = await compiler.proof("t", LINES), await compiler.proof("t", LINES)
    assert not first.take("9")
    assert second.take("ab")
    assert second.ends() is False


async def test_more_grammars_than_are_kept_can_be_followed():
    compiler = Compiler(InThread())
    for number in range(40):
        held = await compiler.proof("t", Grammar("regex", f"a{number}"))
        assert held.take(f"a{number}")
        assert held.ends()


async def test_a_grammar_that_was_not_accepted_is_not_followed():
    held = await Compiler(InThread()).proof("t", Grammar("lark", AMBIGUOUS))
    assert held.ends() is None
