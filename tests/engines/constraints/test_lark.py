"""Lark grammars as grammars of JSON strings, held against llguidance's own reading of them, byte by byte."""

import json
import random
from functools import cache
from itertools import product

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from

from slipring.engines.constraints.lark.gbnf_writer import gbnf_rules
from slipring.engines.constraints.lark.lark_parser import parse_lark
from slipring.engines.constraints.lark.llguidance_writer import llguidance_rules
from slipring.engines.constraints.lark.regex_parser import parse_regex
from slipring.engines.constraints.lark.syntax_tree import Unsupported, is_nullable, without_empty
from slipring.protocol.definitions import Grammar
from tests.engines.fitting import fits

ARITHMETIC = r"""
?start: sum
?sum: product | sum "+" product | sum "-" product
?product: atom | product "*" atom
?atom: NUMBER | "(" sum ")"
%import common.NUMBER
%ignore " "
"""
SQL = r"""
start: "SELECT"i _WS columns _WS "FROM"i _WS NAME (_WS "WHERE"i _WS NAME _OP value)? ";"
columns: "*" | NAME ("," " "? NAME)*
value: /[0-9]{1,4}/ | /"[^"\n]{0,12}"/
_OP: /[=<>]/
_WS: " "
NAME: /[a-z_]{1,8}/
"""
PATCH = r"""
start: begin hunk{1,2} end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Update File: " /[a-z.]{1,12}/ LF change{1,3}
change: ("+" | "-" | " ") /[^\n]{0,16}/ LF
%import common.LF
"""

GRAMMARS = {
    # What it says, and characters that matter to it.
    "lines": ('start: line+ "end"\nline: "+" /.+/ LF\n%import common.LF', '+a"\\\nend\t'),
    "as much as can be": ('start: WORD "x"\nWORD: /[a-z"]+/', 'ax"'),
    "where quotes meet": ('start: A B\nA: /[ab"]*/\nB: /"|\\n/', 'ab"\n'),
    "strings": (
        "start: (ESCAPED_STRING | CNAME)+\n%import common (ESCAPED_STRING, CNAME)",
        '"\\an',
    ),
    "arithmetic": (ARITHMETIC, "1+( )*.e"),
    "lines that break": ('start: "a" (NL "b")*\nNL: /\\r?\\n/\n%ignore /[ \\t]+/', "ab\r\n \t"),
    "breaks that mean nothing": ('start: x*\nx: "a" | "\\"" "b"\n%ignore /[ \\n]/', 'ab" \n'),
    "counts and ranges": ('start: ("a".."c"~2..3 ["\\t"]){1,3} "END"i?', "abc\teNdD"),
    "what is not": ('start: /[^\\n"]*/ "\\n" /(?i)[^a]/', 'a\n"A\\'),
    "nothing or more": ('start: A? B? C\nA: /\\n*/\nB: /\\t?/\nC: /["\\n]/', '\n\t"'),
    "classes": (r"start: /\w+\s\W/ /\S/ /\pL|\p{Nd}/ /[\d\-\]x-z]/", 'aZ0 \n"\\-]é'),
    "comments": ("start: (C_COMMENT | SH_COMMENT)+\n%import common (C_COMMENT, SH_COMMENT)", "/*# \n"),
    "numbers": (
        "start: SIGNED_NUMBER -> n\n  | SIGNED_FLOAT // or\n%import common (SIGNED_NUMBER, SIGNED_FLOAT)",
        "+-1.e",
    ),
    "sql": (SQL, 'SELECT a,FROM b;="'),
    "patch": (PATCH, "*\n"),
}
EVERY = pytest.mark.parametrize("name", GRAMMARS)


@cache
def bytewise() -> LLTokenizer:
    return LLTokenizer("byte")


def reading(grammar: str) -> LLMatcher:
    matcher = LLMatcher(bytewise(), grammar)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def in_itself(definition: str) -> LLMatcher:
    return reading(LLMatcher.grammar_from_lark(definition))


def in_a_string(definition: str) -> LLMatcher:
    rules = llguidance_rules(definition, "input")
    assert rules is not None
    return reading("\n".join(["%llguidance {}", r'start: "\"" input "\""', *rules, ""]))


def accepts(matcher: LLMatcher, text: str) -> bool:
    matcher.reset()
    data = list(text.encode())
    return int(matcher.try_consume_tokens(data)) == len(data) and bool(matcher.is_accepting())


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def walk(matcher: LLMatcher, chance: random.Random) -> str | None:
    """A text that a grammar leads to, if it comes to an end soon."""
    matcher.reset()
    found = bytearray()
    for _ in range(70):
        allowed = [byte for byte, bias in enumerate(matcher.compute_logit_bias()[:128]) if bias]
        if not allowed or (matcher.is_accepting() and chance.random() < 0.3):
            break
        # What is rare among all characters is what grammars are about.
        rare = [byte for byte in allowed if chr(byte) in '"\\\n\tn }']
        found.append(chance.choice(rare if rare and chance.random() < 0.5 else allowed))
        assert matcher.consume_tokens([found[-1]])
    return found.decode() if matcher.is_accepting() else None


@EVERY
def test_texts_fit_within_json_as_they_do_outside(name: str) -> None:
    definition, characters = GRAMMARS[name]
    outside, inside = in_itself(definition), in_a_string(definition)
    chance = random.Random(name)
    alphabet = sorted(set(characters))
    texts = ["".join(each) for length in range(4) for each in product(alphabet, repeat=length)][:1500]
    texts += ["".join(chance.choices(alphabet, k=chance.randint(4, 12))) for _ in range(300)]
    found = [text for _ in range(60) if (text := walk(outside, chance)) is not None]
    texts += [text for text in found if not any(ord(each) < 32 and each not in "\b\f\n\r\t" for each in text)]
    ignored = "%ignore" in definition
    for text in texts:
        fit = accepts(outside, text)
        taken = accepts(inside, quoted(text))
        # At the very end, what means nothing is not written.
        assert taken == fit or (ignored and fit and text[-1] in " \t\n"), text


@EVERY
def test_what_a_model_is_led_to_fits(name: str) -> None:
    definition, _ = GRAMMARS[name]
    outside, inside = in_itself(definition), in_a_string(definition)
    chance = random.Random(name)
    for _ in range(60):
        if (text := walk(inside, chance)) is not None:
            assert accepts(outside, json.loads(text)), text


@EVERY
def test_a_grammar_in_gbnf_takes_no_less(name: str) -> None:
    definition, _ = GRAMMARS[name]
    outside = in_itself(definition)
    rules = gbnf_rules(Grammar("lark", definition), "input")
    assert rules is not None
    gbnf = "\n".join([r'root ::= "\"" input "\""', *rules, ""])
    inside = reading(grammar_from("gbnf", gbnf))
    chance = random.Random(name)
    for text in filter(None, (walk(inside, chance) for _ in range(30))):
        json.loads(text)
    if "%ignore" in definition or name in ("lines", "patch"):
        return  # llguidance makes terminals of GBNF's strings, which is more than GBNF says
    found = [text for _ in range(60) if (text := walk(outside, chance)) is not None]
    for text in found:
        if not any(ord(each) < 32 and each not in "\b\f\n\r\t" for each in text):
            assert accepts(inside, quoted(text)), text


WRITTEN = [
    (SQL, 'select a_b, c FROM t WHERE c="é\\";', True),
    (SQL, "select a FROM t", False),
    (PATCH, '*** Begin Patch\n*** Update File: a.py\n+x = "\\\\n"\n-\n \té\n*** End Patch', True),
    (PATCH, "*** Begin Patch\n*** Update File: a.py\nx\n*** End Patch", False),
    (ARITHMETIC, "1 + (2.5e3*3) - 4", True),
    (ARITHMETIC, "1 + (2.5e3*3", False),
]


@pytest.mark.parametrize(("definition", "text", "fit"), WRITTEN)
def test_texts_as_they_are_meant(definition: str, text: str, fit: bool) -> None:
    assert accepts(in_itself(definition), text) is fit
    assert accepts(in_a_string(definition), quoted(text)) is fit


UNKNOWN = [
    'start[lazy]: "a"',
    'start: A\nA: "a" & /./',
    'start: A\nA: ~"a"',
    r"start: /[a-z&&[^b]]/",
    r"start: /[[:alpha:]]/",
    r"start: /\p{Greek}/",
    r"start: /(?x) a/",
    "start: /^a$/",
    "start: <[3]>",
    r'start: "\u0007"',
]


@pytest.mark.parametrize("definition", UNKNOWN)
def test_what_cannot_be_written_is_left_to_be_checked(definition: str) -> None:
    assert llguidance_rules(definition, "input") is None
    assert gbnf_rules(Grammar("lark", definition), "input") is None


def test_characters_that_json_writes_by_number_are_left_out() -> None:
    inside = in_a_string("start: /[^a]+/")
    assert accepts(inside, json.dumps("b\n\x7f é", ensure_ascii=False))
    assert not accepts(inside, r'"b\u0007"')
    assert not accepts(inside, r'"\u00e9"'), "one way of writing is enough"


def test_thousands_of_repetitions_are_few_rules() -> None:
    rules = llguidance_rules('start: ("a" "\\n"){3,5000}', "input")
    assert rules is not None
    assert len(rules) < 300
    inside = in_a_string('start: ("a" "\\n"){3,50}')
    for count in (2, 3, 50, 51):
        assert accepts(inside, json.dumps("a\n" * count)) is (3 <= count <= 50)


TOO_LARGE = {
    "productions": "\n".join(
        ["start: r1"]
        + [
            f"r{number}: "
            + ' "\\n" '.join(f"r{(number * 7 + other) % 490}" for other in range(1, 20))
            + ' | "a"'
            for number in range(490)
        ]
    ),
    "copies": f'A: "{"x" * 30_000}"\nB: {"A " * 500}\nstart: B',
    "beginnings": f"start: A\nA: {'/a?/ ' * 5000}",
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_grammar_that_would_become_too_large_is_left_to_be_checked(kind: str) -> None:
    assert llguidance_rules(TOO_LARGE[kind], "input") is None


@pytest.mark.parametrize(
    ("pattern", "empty"),
    [("a*", True), ("(a|)b?", True), ("a+", False), ("()", True), ("(ab?){0,3}c", False)],
)
def test_patterns_know_whether_they_are_empty(pattern: str, empty: bool) -> None:
    tree = parse_regex(pattern)
    assert is_nullable(tree) is empty
    assert not is_nullable(without_empty(tree))


def test_a_rule_that_is_missing_is_not_guessed() -> None:
    with pytest.raises(Unsupported):
        parse_lark("start: MISSING")
    assert llguidance_rules("start: missing", "input") is None


def test_regular_expressions_are_written_in_gbnf_too() -> None:
    grammar = Grammar("regex", r'\d{4}-"[^\n]"')
    rules = gbnf_rules(grammar, "input")
    assert rules is not None
    inside = reading(grammar_from("gbnf", "\n".join([r'root ::= "\"" input "\""', *rules, ""])))
    for text in ('2024-"x"', '2024-"""', '2024-"\n"', '204-"x"'):
        assert accepts(inside, quoted(text)) is fits(grammar, text), text
