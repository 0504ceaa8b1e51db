"""Grammars, played through by llguidance itself, byte by byte."""

import asyncio
import json
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from msgspec import Raw, structs

from slipring.core.chain.head import Head
from slipring.core.generation import Job, Settings
from slipring.engines.constraints import constraint
from slipring.engines.constraints.compiler import IN_THREAD
from slipring.engines.llama import llguidance_grammar as llama_grammar
from slipring.engines.llama.llguidance_grammar import constrains_calls
from slipring.errors import InvalidRequest
from slipring.prompts.dialects.chatml import ChatMl
from slipring.prompts.dialects.dialect_renderer import FoldingRenderer
from slipring.prompts.dialects.llama3 import Llama3
from slipring.prompts.parsing.parser import CallFormat
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol.requests import TEXT, TextFormat, read_format
from slipring.protocol.tools import Offer, Toolset
from tests.core.connection import PLAIN
from tests.prompts.vocabulary import renderer, small_metadata

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CITY["additionalProperties"] = False
STRICT = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
LOOSE = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
PATCH = {"type": "custom", "name": "patch"}
FILES = {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "öffnen"}]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'


def job_with(*tools: Any, required: bool = False, format: TextFormat = TEXT, parallel: bool = True) -> Job:
    offer = Offer(Toolset.read(Raw(json.dumps(tools).encode())).callables, required)
    settings = Settings(format=format, parallel_tool_calls=parallel)
    return Job("r", "t", PLAIN, Head(), None, (), offer, settings)


def schema_format(schema: Any, *, strict: bool = True) -> TextFormat:
    asked = {"type": "json_schema", "name": "n", "schema": schema, "strict": strict}
    format = read_format(Raw(json.dumps(asked).encode()))
    assert format is not None
    return format


def grammar_of(job: Job, writes: FoldingRenderer, *, opens_thought: bool = False) -> str | None:
    return asyncio.run(llama_grammar.grammar_of(job, writes, IN_THREAD, opens_thought=opens_thought))


def constraint_of(job: Job, calls: CallFormat, *, grammars: bool = True) -> Any:
    """A grammar, a schema, or nothing."""
    made = asyncio.run(constraint.constraint_of(job, calls, IN_THREAD, grammars=grammars))
    if made is None:
        return None
    return made.text if made.kind == "grammar" else json.loads(made.text)


def schema_of(job: Job, calls: CallFormat) -> Any:
    return constraint_of(job, calls, grammars=False)


@cache
def llama3() -> FoldingRenderer:
    return renderer("llama3 in small")


def allows(job: Job, text: str, writes: FoldingRenderer | None = None, *, end: bool = True) -> bool:
    """Whether the grammar lets a model write this, and stop there."""
    writes = writes or renderer("chatml in smollm2")
    grammar = grammar_of(job, writes)
    assert grammar is not None
    # Bytes are this tokenizer's tokens; one that no text here uses stands for the end.
    grammar = grammar.replace(f"stop: <[{','.join(map(str, sorted(writes.stop_ids())))}]>", "stop: <[255]>")
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = [*text.encode(), *([255] if end else [])]
    return int(matcher.try_consume_tokens(ids)) == len(ids)


def test_an_answer_is_free_where_nothing_constrains_it() -> None:
    assert grammar_of(job_with(), renderer("chatml in smollm2")) is None
    assert grammar_of(job_with(LOOSE, PATCH), renderer("chatml in smollm2")) is None


def test_grammars_constrain_calls_or_documents() -> None:
    document = schema_format(CITY)
    assert constrains_calls(job_with(STRICT))
    assert constrains_calls(job_with(STRICT, required=True, format=document))
    assert not constrains_calls(job_with(STRICT, format=document))


def test_a_required_call_is_a_call_and_nothing_else() -> None:
    job = job_with(STRICT, required=True)
    assert allows(job, CALL)
    assert allows(job, f"{CALL}\n{CALL}")
    assert not allows(job, WRONG)
    assert not allows(job, "Let me see")
    assert not allows(job, "")
    assert not allows(job, f"{CALL} and")


def test_calls_are_bounded_and_may_be_one_at_a_time() -> None:
    assert allows(job_with(STRICT, required=True), "\n".join([CALL] * 16))
    assert not allows(job_with(STRICT, required=True), "\n".join([CALL] * 17))
    alone = job_with(STRICT, required=True, parallel=False)
    assert allows(alone, CALL)
    assert not allows(alone, f"{CALL}\n{CALL}")


def test_any_tool_on_offer_may_be_called_by_the_name_that_models_know() -> None:
    job = job_with(STRICT, PATCH, FILES, required=True)
    assert allows(job, CALL)
    assert allows(job, '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>')
    assert not allows(job, '<tool_call>\n{"name": "patch", "arguments": {"text": "a"}}\n</tool_call>')
    assert allows(job, '<tool_call>\n{"name": "files__öffnen", "arguments": {}}\n</tool_call>')
    assert not allows(job, '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>')


def test_strict_arguments_hold_though_no_call_is_required() -> None:
    job = job_with(STRICT, LOOSE)
    for text in ("", "Hello.", "a < b <tool", f"I will look.\n{CALL}", f"{CALL}\n{CALL}"):
        assert allows(job, text), text
    assert allows(job, '<tool_call>\n{"name": "look", "arguments": {"any": [1]}}\n</tool_call>')
    assert not allows(job, WRONG, end=False)
    assert not allows(job, "Hm <tool_call>garbage", end=False)
    assert not allows(job, f"{CALL}\nafterwards", end=False)


def test_bare_json_calls_are_constrained_from_their_first_brace() -> None:
    job = job_with(STRICT)
    call = '{"name": "weather", "parameters": {"city": "Rome"}}'
    assert allows(job, call, llama3())
    assert allows(job, "", llama3())
    assert allows(job, "It is {warm}.", llama3())
    assert allows(job, "\n It is {warm}.", llama3())
    for lead in ("", " ", "\n\n"):
        assert not allows(job, f'{lead}{{"name": "weather", "parameters": {{"town": 1}}}}', llama3())
    assert not allows(job_with(STRICT, required=True), "It is warm.", llama3())


def with_marks() -> FoldingRenderer:
    """A vocabulary whose marks are tokens, as those of models that were trained to think and call."""
    metadata = small_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    marks = ["</tool_call>", "<think>", "</think>"]
    metadata |= {"tokenizer.ggml.tokens": [*tokens, *marks], "tokenizer.ggml.token_type": [*types, 4, 4, 4]}
    return FoldingRenderer(ChatMl(), Tokenizer.from_gguf(metadata))


def test_marks_that_are_tokens_are_asked_for_as_tokens() -> None:
    writes = with_marks()
    ids = {mark: writes.vocabulary.control(mark) for mark in ("<tool_call>", "</tool_call>", "<think>")}
    for required in (True, False):
        grammar = grammar_of(job_with(STRICT, required=required), writes)
        assert grammar is not None
        assert all(f"<[{id}]>" in grammar for id in ids.values())
        assert "start: thought? " in grammar
    document = grammar_of(job_with(format=schema_format({"type": "object"})), writes)
    assert document is not None
    assert "start: thought? document stop" in document


PERSON = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 3}},
}


def test_a_format_is_a_document() -> None:
    job = job_with(format=schema_format(PERSON))
    assert allows(job, '{"name": "Ann", "age": 4}')
    assert not allows(job, '{"name": "Anna", "age": 4}')
    assert not allows(job, 'Sure: {"name": "Ann", "age": 4}')
    anything = read_format(Raw(b'{"type":"json_object"}'))
    assert anything is not None
    assert allows(job_with(format=anything), '{"a": [1, {"b": null}]}')
    assert not allows(job_with(format=anything), "[1]")


def test_references_within_a_tools_schema_mean_what_they_meant() -> None:
    tool = {"type": "function", "name": "add", "parameters": PERSON, "strict": True}
    job = job_with(STRICT, tool, required=True)
    assert allows(job, '<tool_call>\n{"name": "add", "arguments": {"name": "Ann", "age": 4}}\n</tool_call>')
    assert not allows(
        job, '<tool_call>\n{"name": "add", "arguments": {"name": "Anna", "age": 4}}\n</tool_call>'
    )


LOOKAHEAD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}


@pytest.mark.parametrize("schema", [LOOKAHEAD, UNIQUE])
def test_a_strict_schema_that_cannot_be_enforced_is_refused_by_name(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="cannot be enforced") as refused:
        grammar_of(job_with(format=schema_format(schema)), renderer("chatml in smollm2"))
    assert refused.value.param == "text.format.schema"
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": True}
    with pytest.raises(InvalidRequest, match="cannot be enforced") as refused:
        grammar_of(job_with(LOOSE, tool), renderer("chatml in smollm2"))
    assert refused.value.param == "tools[1].parameters"


def test_a_schema_that_is_not_strict_is_followed_as_far_as_it_can_be() -> None:
    lenient = job_with(format=schema_format(UNIQUE, strict=False))
    assert allows(lenient, '{"a": [1, 1]}')
    assert not allows(lenient, '{"b": 1}')
    hopeless = job_with(format=schema_format(LOOKAHEAD, strict=False))
    assert allows(hopeless, '{"b": 1}')
    assert not allows(hopeless, "no JSON")


def test_engines_without_llguidance_get_one_schema() -> None:
    calls = Llama3().calls
    tool = {"type": "function", "name": "add", "parameters": PERSON}
    schema = schema_of(job_with(STRICT, tool, required=True), calls)
    assert schema is not None
    added = schema["anyOf"][1]["properties"]
    assert added["name"] == {"const": "add"}
    assert added["parameters"]["properties"]["name"] == {"$ref": "#/anyOf/1/properties/parameters/$defs/name"}
    assert schema_of(job_with(STRICT), calls) is None
    assert schema_of(job_with(format=schema_format(PERSON)), calls) == PERSON


def test_a_thought_that_the_prompt_opened_is_ended_first() -> None:
    grammar = grammar_of(job_with(STRICT, required=True), renderer("chatml in smollm2"), opens_thought=True)
    assert grammar is not None
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    thought = f"hm <tool_call> maybe</think>\n\n{CALL}"
    assert matcher.try_consume_tokens(list(thought.encode())) == len(thought)
    assert "start: thought one" in (
        grammar_of(job_with(STRICT, required=True), with_marks(), opens_thought=True) or ""
    )


def test_a_list_of_bare_calls_is_not_free_text() -> None:
    assert not allows(job_with(STRICT), '[{"name": "weather", "parameters": {}}]', llama3())


DATE = {"type": "grammar", "syntax": "regex", "definition": r'"\d{4}"(/|\n)x'}
DATED = {"type": "custom", "name": "dated", "format": DATE}


def dated(text: str, name: str = "dated") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"input": {json.dumps(text)}}}}}\n</tool_call>'


@pytest.mark.parametrize("required", [True, False])
def test_the_input_of_a_custom_tool_follows_its_expression(required: bool) -> None:
    job = job_with(DATED, LOOSE, required=required)
    assert allows(job, dated('"1234"/x'))
    assert allows(job, dated('"1234"\nx'))
    assert not allows(job, dated('"123"/x'))
    assert not allows(job, dated('"1234"/xy'))
    assert allows(job, '<tool_call>\n{"name": "look", "arguments": {"any": [1]}}\n</tool_call>')


LINES = {"type": "grammar", "syntax": "lark", "definition": 'start: (/[^\\n]+/ "\\n")+'}
LINED = {"type": "custom", "name": "lined", "format": LINES}


@pytest.mark.parametrize("required", [True, False])
def test_the_input_of_a_custom_tool_follows_its_lark_grammar(required: bool) -> None:
    job = job_with(LINED, LOOSE, required=required)
    assert allows(job, dated('one\ntab\t "two"\\\n', "lined"))
    assert not allows(job, dated("one", "lined"))
    assert not allows(job, dated("\n", "lined"))
    assert allows(job, '<tool_call>\n{"name": "look", "arguments": {"any": [1]}}\n</tool_call>')


def test_a_lark_grammar_that_has_no_counterpart_within_json_is_not_enforced() -> None:
    foreign = {"type": "grammar", "syntax": "lark", "definition": 'start[lazy]: "a"'}
    job = job_with({**DATED, "format": foreign}, required=True)
    assert allows(job, dated("anything"))
    assert grammar_of(job_with({**DATED, "format": foreign}), renderer("chatml in smollm2")) is None


def test_servers_get_one_grammar_where_every_tool_takes_a_text() -> None:
    calls = ChatMl().calls
    grammar = constraint_of(job_with(LINED, PATCH, DATED, required=True), calls)
    assert isinstance(grammar, str)
    reads = LLMatcher(LLTokenizer("byte"), grammar_from("gbnf", grammar))
    for name, text, fit in (
        ("lined", "one\n", True),
        ("lined", "one", False),
        ("patch", 'any "text"\n', True),
        ("dated", '"1234"/x', True),
        ("look", "one\n", False),
    ):
        written = list(json.dumps({"name": name, "arguments": {"input": text}}).encode())
        reads.reset()
        taken = reads.try_consume_tokens(written) == len(written) and reads.is_accepting()
        assert taken is fit, (name, text)


@pytest.mark.parametrize(
    "tools", [(LINED, LOOSE), (DATED,), ({**LINED, "format": {**LINES, "definition": 'start[lazy]: "a"'}},)]
)
def test_servers_get_a_schema_otherwise(tools: tuple[Any, ...]) -> None:
    assert isinstance(constraint_of(job_with(*tools, required=True), ChatMl().calls), dict)
    assert constraint_of(job_with(*tools), ChatMl().calls) is None


def test_a_schema_holds_the_expression_too() -> None:
    schema = schema_of(job_with(DATED, required=True), ChatMl().calls)
    assert schema is not None
    string = schema["anyOf"][0]["properties"]["arguments"]["properties"]["input"]
    assert string["pattern"] == f"^(?:{DATE['definition']})$"


def test_no_more_calls_than_asked_for() -> None:
    job = job_with(STRICT, required=True)
    job = structs.replace(job, settings=structs.replace(job.settings, max_tool_calls=2))
    assert allows(job, f"{CALL}\n{CALL}")
    assert not allows(job, f"{CALL}\n{CALL}\n{CALL}", end=False)
