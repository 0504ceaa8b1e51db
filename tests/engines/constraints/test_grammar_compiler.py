"""Checks grammars for clients' requests, and caches compiled ones."""

import pytest

from slipring.base.errors import InvalidRequest
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.protocol.tools.grammars_and_schemas import Compilable, Grammar
from slipring.sandbox.sandbox import InThread

LINES = Grammar("lark", 'start: line+\nline: WORD "\\n"\nWORD: /[a-zäé]+/\n')


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [("regex", "("), ("regex", "(?=a)b"), ("lark", "start: missing"), ("lark", "nothing"), ("lark", '"')],
)
async def test_a_grammar_that_cannot_be_compiled_is_rejected_with_its_field(syntax, definition):
    compilable = Compilable("tools[3].format.definition", Grammar(syntax, definition))
    with pytest.raises(InvalidRequest, match="cannot be compiled") as error:
        await Compiler(InThread()).check("t", [compilable])
    assert error.value.param == "tools[3].format.definition"


async def test_texts_of_one_grammar_are_matched_independently():
    compiler = Compiler(InThread())
    first, second = await compiler.text_matcher("t", LINES), await compiler.text_matcher("t", LINES)
    assert not first.feed("9")
    assert second.feed("ab")
    assert second.is_complete() is False


async def test_more_grammars_than_are_cached_can_be_matched():
    compiler = Compiler(InThread())
    for number in range(40):
        matcher = await compiler.text_matcher("t", Grammar("regex", f"a{number}"))
        assert matcher.feed(f"a{number}")
        assert matcher.is_complete()


async def test_a_grammar_that_was_rejected_is_not_matched():
    matcher = await Compiler(InThread()).text_matcher("t", Grammar("lark", 'start: ("a"?){20000} "a"{20000}'))
    assert matcher.is_complete() is None
