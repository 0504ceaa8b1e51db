"""Lark grammars converted to grammars of JSON strings.

A converted grammar and the original, both compiled by llguidance, must match the same texts.
"""

import json
import random
from functools import cache
from itertools import product

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from

from slipring.engines.constraints.json_string_grammar import gbnf_rules, llguidance_rules
from slipring.engines.constraints.lark_and_regex_parser import (
    Unsupported,
    is_nullable,
    parse_lark,
    parse_regex,
    without_empty,
)
from slipring.protocol.tools.grammars_and_schemas import Grammar
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
    # The definition, and characters to build texts from.
    "lines": ('start: line+ "end"\nline: "+" /.+/ LF\n%import common.LF', '+a"\\\nend\t'),
    "longest match": ('start: WORD "x"\nWORD: /[a-z"]+/', 'ax"'),
    "adjacent quotes": ('start: A B\nA: /[ab"]*/\nB: /"|\\n/', 'ab"\n'),
    "strings": (
        "start: (ESCAPED_STRING | CNAME)+\n%import common (ESCAPED_STRING, CNAME)",
        '"\\an',
    ),
    "arithmetic": (ARITHMETIC, "1+( )*.e"),
    "line breaks": ('start: "a" (NL "b")*\nNL: /\\r?\\n/\n%ignore /[ \\t]+/', "ab\r\n \t"),
    "ignored line breaks": ('start: x*\nx: "a" | "\\"" "b"\n%ignore /[ \\n]/', 'ab" \n'),
    "counts and ranges": ('start: ("a".."c"~2..3 ["\\t"]){1,3} "END"i?', "abc\teNdD"),
    "negated classes": ('start: /[^\\n"]*/ "\\n" /(?i)[^a]/', 'a\n"A\\'),
    "optional terminals": ('start: A? B? C\nA: /\\n*/\nB: /\\t?/\nC: /["\\n]/', '\n\t"'),
    "classes": (r"start: /\w+\s\W/ /\S/ /\pL|\p{Nd}/ /[\d\-\]x-z]/", 'aZ0 \n"\\-]é'),
    "comments": ("start: (C_COMMENT | SH_COMMENT)+\n%import common (C_COMMENT, SH_COMMENT)", "/*# \n"),
    "numbers": (
        "start: SIGNED_NUMBER -> n\n  | SIGNED_FLOAT // or\n%import common (SIGNED_NUMBER, SIGNED_FLOAT)",
        "+-1.e",
    ),
    "sql": (SQL, 'SELECT a,FROM b;="'),
    "patch": (PATCH, "*\n"),
}
every_grammar = pytest.mark.parametrize("name", GRAMMARS)


@cache
def byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def compiled(grammar: str) -> LLMatcher:
    matcher = LLMatcher(byte_tokenizer(), grammar)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def original(definition: str) -> LLMatcher:
    return compiled(LLMatcher.grammar_from_lark(definition))


def converted(definition: str) -> LLMatcher:
    rules = llguidance_rules(definition, "input")
    assert rules is not None
    return compiled("\n".join(["%llguidance {}", r'start: "\"" input "\""', *rules, ""]))


def accepts(matcher: LLMatcher, text: str) -> bool:
    matcher.reset()
    data = list(text.encode())
    return int(matcher.try_consume_tokens(data)) == len(data) and bool(matcher.is_accepting())


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def walk(matcher: LLMatcher, rng: random.Random) -> str | None:
    """A random text that matches; None if it is not complete within 70 bytes."""
    matcher.reset()
    found = bytearray()
    for _ in range(70):
        allowed = [byte for byte, bias in enumerate(matcher.compute_logit_bias()[:128]) if bias]
        if not allowed or (matcher.is_accepting() and rng.random() < 0.3):
            break
        # Prefer the characters that JSON escapes and grammars delimit with.
        rare = [byte for byte in allowed if chr(byte) in '"\\\n\tn }']
        found.append(rng.choice(rare if rare and rng.random() < 0.5 else allowed))
        assert matcher.consume_tokens([found[-1]])
    return found.decode() if matcher.is_accepting() else None


@every_grammar
def test_a_converted_grammar_matches_the_texts_of_the_original(name: str) -> None:
    definition, characters = GRAMMARS[name]
    plain, in_json = original(definition), converted(definition)
    rng = random.Random(name)
    alphabet = sorted(set(characters))
    texts = ["".join(each) for length in range(4) for each in product(alphabet, repeat=length)][:1500]
    texts += ["".join(rng.choices(alphabet, k=rng.randint(4, 12))) for _ in range(300)]
    found = [text for _ in range(60) if (text := walk(plain, rng)) is not None]
    texts += [text for text in found if not any(ord(each) < 32 and each not in "\b\f\n\r\t" for each in text)]
    ignored = "%ignore" in definition
    for text in texts:
        expected = accepts(plain, text)
        actual = accepts(in_json, quoted(text))
        # A converted grammar does not allow ignored text at the very end.
        assert actual == expected or (ignored and expected and text[-1] in " \t\n"), text


@every_grammar
def test_texts_that_a_converted_grammar_generates_match_the_original(name: str) -> None:
    definition, _ = GRAMMARS[name]
    plain, in_json = original(definition), converted(definition)
    rng = random.Random(name)
    for _ in range(60):
        if (text := walk(in_json, rng)) is not None:
            assert accepts(plain, json.loads(text)), text


@every_grammar
def test_a_gbnf_grammar_matches_at_least_the_texts_of_the_original(name: str) -> None:
    definition, _ = GRAMMARS[name]
    plain = original(definition)
    rules = gbnf_rules(Grammar("lark", definition), "input")
    assert rules is not None
    gbnf = "\n".join([r'root ::= "\"" input "\""', *rules, ""])
    in_json = compiled(grammar_from("gbnf", gbnf))
    rng = random.Random(name)
    for document in filter(None, (walk(in_json, rng) for _ in range(30))):
        json.loads(document)
    if "%ignore" in definition or name in ("lines", "patch"):
        return  # llguidance reads strings in GBNF as terminals, which is stricter than GBNF
    found = [text for _ in range(60) if (text := walk(plain, rng)) is not None]
    for text in found:
        if not any(ord(each) < 32 and each not in "\b\f\n\r\t" for each in text):
            assert accepts(in_json, quoted(text)), text


WRITTEN = [
    (SQL, 'select a_b, c FROM t WHERE c="é\\";', True),
    (SQL, "select a FROM t", False),
    (PATCH, '*** Begin Patch\n*** Update File: a.py\n+x = "\\\\n"\n-\n \té\n*** End Patch', True),
    (PATCH, "*** Begin Patch\n*** Update File: a.py\nx\n*** End Patch", False),
    (ARITHMETIC, "1 + (2.5e3*3) - 4", True),
    (ARITHMETIC, "1 + (2.5e3*3", False),
]


@pytest.mark.parametrize(("definition", "text", "is_match"), WRITTEN)
def test_realistic_texts_match_in_both_forms(definition: str, text: str, is_match: bool) -> None:
    assert accepts(original(definition), text) is is_match
    assert accepts(converted(definition), quoted(text)) is is_match


UNSUPPORTED = [
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


@pytest.mark.parametrize("definition", UNSUPPORTED)
def test_grammars_with_unsupported_features_are_not_converted(definition: str) -> None:
    assert llguidance_rules(definition, "input") is None
    assert gbnf_rules(Grammar("lark", definition), "input") is None


def test_characters_that_json_writes_by_code_are_not_allowed() -> None:
    in_json = converted("start: /[^a]+/")
    assert accepts(in_json, json.dumps("b\n\x7f é", ensure_ascii=False))
    assert not accepts(in_json, r'"b\u0007"')
    assert not accepts(in_json, r'"\u00e9"'), "a character that needs no escape has one spelling"


def test_thousands_of_repetitions_become_few_rules() -> None:
    rules = llguidance_rules('start: ("a" "\\n"){3,5000}', "input")
    assert rules is not None
    assert len(rules) < 300
    in_json = converted('start: ("a" "\\n"){3,50}')
    for count in (2, 3, 50, 51):
        assert accepts(in_json, json.dumps("a\n" * count)) is (3 <= count <= 50)


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
def test_a_grammar_that_would_become_too_large_is_not_converted(kind: str) -> None:
    assert llguidance_rules(TOO_LARGE[kind], "input") is None


@pytest.mark.parametrize(
    ("pattern", "empty"),
    [("a*", True), ("(a|)b?", True), ("a+", False), ("()", True), ("(ab?){0,3}c", False)],
)
def test_patterns_that_match_the_empty_text_are_recognized(pattern: str, empty: bool) -> None:
    tree = parse_regex(pattern)
    assert is_nullable(tree) is empty
    assert not is_nullable(without_empty(tree))


def test_a_grammar_with_an_undefined_name_is_not_converted() -> None:
    with pytest.raises(Unsupported):
        parse_lark("start: MISSING")
    assert llguidance_rules("start: missing", "input") is None


def test_regular_expressions_are_converted_to_gbnf() -> None:
    grammar = Grammar("regex", r'\d{4}-"[^\n]"')
    rules = gbnf_rules(grammar, "input")
    assert rules is not None
    in_json = compiled(grammar_from("gbnf", "\n".join([r'root ::= "\"" input "\""', *rules, ""])))
    for text in ('2024-"x"', '2024-"""', '2024-"\n"', '204-"x"'):
        assert accepts(in_json, quoted(text)) is fits(grammar, text), text
