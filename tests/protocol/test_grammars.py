"""Grammars of custom tools: refused where they mean nothing, and held against what was written."""

import pytest
from msgspec import Raw

from slipring.errors import InvalidRequest
from slipring.protocol import grammars
from slipring.protocol.grammars import Grammar, Proof, check_format, complaint, fits, read_grammar

LINES = Grammar("lark", 'start: line+\nline: WORD "\\n"\nWORD: /[a-zäé]+/\n')


@pytest.mark.parametrize("format", [b"null", b'{"type":"text"}', b'{"type":"text","x":1}'])
def test_plain_text_has_no_grammar(format):
    assert read_grammar(Raw(format), "f") is None


def test_a_grammar_is_read():
    raw = Raw(b'{"type":"grammar","syntax":"regex","definition":"a+"}')
    assert read_grammar(raw, "f") == Grammar("regex", "a+")


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [("regex", "("), ("regex", "(?=a)b"), ("lark", "start: missing"), ("lark", "nothing"), ("lark", '"')],
)
def test_what_cannot_be_compiled_is_refused_by_its_field(syntax, definition):
    raw = grammars.wire.raw({"type": "grammar", "syntax": syntax, "definition": definition})
    with pytest.raises(InvalidRequest, match="cannot be compiled") as caught:
        check_format(raw, "tools[3].format")
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


def test_without_the_library_only_regular_expressions_are_looked_at(monkeypatch):
    monkeypatch.setattr(grammars, "_library", lambda: None)
    complaint.cache_clear()
    try:
        assert complaint(Grammar("regex", "(")) is not None
        assert complaint(Grammar("regex", "a+")) is None
        assert complaint(Grammar("lark", "nothing")) is None
        assert fits(Grammar("regex", "a"), "b") is None
    finally:
        complaint.cache_clear()


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
    proof = Proof(LINES)
    assert proof.take("ab")
    assert proof.ends() is False
    assert proof.take("c\n")
    assert proof.ends() is True
    assert not proof.take("9")
