"""Definitions: reading grammars, and the limits on grammars and schemas."""

import pytest
from msgspec import UNSET, Raw

from slipring.base.errors import InvalidRequest
from slipring.protocol.tools.grammars_and_schemas import Compilable, Definitions, Grammar, read_grammar


@pytest.mark.parametrize("format", [b"null", b'{"type":"text"}', b'{"type":"text","x":1}'])
def test_plain_text_has_no_grammar(format):
    assert read_grammar(Raw(format), "f") is None


def test_a_grammar_is_read():
    raw = Raw(b'{"type":"grammar","syntax":"regex","definition":"a+"}')
    assert read_grammar(raw, "f") == Grammar("regex", "a+")


def definitions() -> Definitions:
    return Definitions(max_grammars=3, max_grammar_bytes=10, max_schema_bytes=8)


def test_grammars_are_collected_with_the_name_of_their_field():
    taken = definitions()
    taken.add_grammar(Grammar("regex", "a"), "tools[0].format")
    assert taken.grammars == [Compilable("tools[0].format.definition", Grammar("regex", "a"))]


def test_a_grammar_is_bounded_in_bytes():
    taken = definitions()
    taken.add_grammar(Grammar("regex", "é" * 5), "f")
    with pytest.raises(InvalidRequest, match="max_grammar_bytes") as caught:
        taken.add_grammar(Grammar("regex", "é" * 5 + "a"), "f")
    assert caught.value.param == "f.definition"


def test_grammars_are_bounded_in_number():
    taken = definitions()
    for number in range(3):
        taken.add_grammar(Grammar("regex", "a"), f"f{number}")
    with pytest.raises(InvalidRequest, match="max_grammars") as caught:
        taken.add_grammar(Grammar("regex", "a"), "f3")
    assert caught.value.param == "f3.definition"


def test_grammars_are_bounded_in_total():
    taken = definitions()
    taken.add_grammar(Grammar("regex", "a" * 10), "f0")
    taken.add_grammar(Grammar("regex", "a" * 10), "f1")
    with pytest.raises(InvalidRequest, match="in total"):
        taken.add_grammar(Grammar("regex", "a"), "f2")


def test_each_schema_is_bounded():
    taken = definitions()
    for schema in (UNSET, Raw(b"null"), Raw(b'{"a": 1}'), Raw(b'{"a": 1}')):
        taken.check_schema(schema, "p")
    with pytest.raises(InvalidRequest, match="max_schema_bytes") as caught:
        taken.check_schema(Raw(b'{"a": 12}'), "p")
    assert caught.value.param == "p"
