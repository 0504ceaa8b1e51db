"""Constraints of answers: grammars of the llama engine, schemas and GBNF grammars of other servers.

llguidance matches texts against the grammars, byte by byte.
"""

import asyncio
import json
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from msgspec import Raw

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Job, Settings
from slipring.engines.constraints import llama_grammar, server_constraint
from slipring.engines.constraints.grammar_compiler import IN_THREAD
from slipring.engines.constraints.llama_grammar import constrains_calls
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol.requests import TEXT, TextFormat, read_format
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.core.connection import PLAIN
from tests.prompts.parsing.family_formats import MISTRAL_NEMO, QWEN3_CODER
from tests.prompts.vocabulary import of_format, renderer, small_metadata

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
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
    encoded = {"type": "json_schema", "name": "n", "schema": schema, "strict": strict}
    format = read_format(Raw(json.dumps(encoded).encode()))
    assert format is not None
    return format


def grammar_of(job: Job, writes: TemplateRenderer, *, opens_thought: bool = False) -> str | None:
    return asyncio.run(llama_grammar.grammar_of(job, writes, IN_THREAD, opens_thought=opens_thought))


def constraint_of(job: Job, writes: TemplateRenderer, *, grammars: bool = True) -> Any:
    """The text of a grammar, a decoded schema, or None."""
    constraint = asyncio.run(server_constraint.constraint_of(job, writes, IN_THREAD, grammars=grammars))
    if constraint is None:
        return None
    return constraint.text if constraint.kind == "grammar" else json.loads(constraint.text)


def schema_of(job: Job, writes: TemplateRenderer) -> Any:
    return constraint_of(job, writes, grammars=False)


@cache
def llama3() -> TemplateRenderer:
    return renderer("llama3 in small")


def allows(job: Job, text: str, writes: TemplateRenderer | None = None, *, end: bool = True) -> bool:
    """Whether the grammar of a job allows a text and, if ``end``, allows the model to stop after it."""
    writes = writes or renderer("chatml in smollm2")
    grammar = grammar_of(job, writes)
    assert grammar is not None
    # The tokens of this tokenizer are bytes. Byte 255, which UTF-8 never uses, replaces the stop tokens.
    grammar = grammar.replace(f"stop: <[{','.join(map(str, sorted(writes.stop_ids())))}]>", "stop: <[255]>")
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = [*text.encode(), *([255] if end else [])]
    return int(matcher.try_consume_tokens(ids)) == len(ids)


def test_an_answer_without_requirements_has_no_grammar() -> None:
    assert grammar_of(job_with(), renderer("chatml in smollm2")) is None
    assert grammar_of(job_with(LOOSE, PATCH), renderer("chatml in smollm2")) is None


def test_grammars_constrain_calls_or_documents() -> None:
    document = schema_format(CITY)
    assert constrains_calls(job_with(STRICT))
    assert constrains_calls(job_with(STRICT, required=True, format=document))
    assert not constrains_calls(job_with(STRICT, format=document))


def test_a_required_call_allows_calls_and_nothing_else() -> None:
    job = job_with(STRICT, required=True)
    assert allows(job, CALL)
    assert allows(job, f"{CALL}\n{CALL}")
    assert not allows(job, WRONG)
    assert not allows(job, "Let me see")
    assert not allows(job, "")
    assert not allows(job, f"{CALL} and")


def test_the_number_of_calls_is_limited_and_without_parallel_calls_it_is_one() -> None:
    assert allows(job_with(STRICT, required=True), "\n".join([CALL] * 16))
    assert not allows(job_with(STRICT, required=True), "\n".join([CALL] * 17))
    alone = job_with(STRICT, required=True, parallel=False)
    assert allows(alone, CALL)
    assert not allows(alone, f"{CALL}\n{CALL}")


def test_every_offered_tool_may_be_called_by_its_flat_name() -> None:
    job = job_with(STRICT, PATCH, FILES, required=True)
    assert allows(job, CALL)
    assert allows(job, '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>')
    assert not allows(job, '<tool_call>\n{"name": "patch", "arguments": {"text": "a"}}\n</tool_call>')
    assert allows(job, '<tool_call>\n{"name": "files__öffnen", "arguments": {}}\n</tool_call>')
    assert not allows(job, '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>')


def test_strict_arguments_are_enforced_also_if_no_call_is_required() -> None:
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


def with_marks() -> TemplateRenderer:
    """A renderer whose marks of calls and thoughts are single tokens, as in models trained for both."""
    metadata = small_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    marks = ["</tool_call>", "<think>", "</think>"]
    metadata |= {"tokenizer.ggml.tokens": [*tokens, *marks], "tokenizer.ggml.token_type": [*types, 4, 4, 4]}
    return of_format("chatml", Tokenizer.from_gguf(metadata))


def test_marks_that_are_single_tokens_are_written_as_tokens() -> None:
    writes = with_marks()
    ids = {mark: writes.vocabulary.control(mark) for mark in ("<tool_call>", "</tool_call>", "<think>")}
    for required in (True, False):
        grammar = grammar_of(job_with(STRICT, required=required), writes)
        assert grammar is not None
        assert all(f"<[{id}]>" in grammar for id in ids.values())


PERSON = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 3}},
}


def test_a_text_format_allows_only_documents_of_its_schema() -> None:
    job = job_with(format=schema_format(PERSON))
    assert allows(job, '{"name": "Ann", "age": 4}')
    assert not allows(job, '{"name": "Anna", "age": 4}')
    assert not allows(job, 'Sure: {"name": "Ann", "age": 4}')
    anything = read_format(Raw(b'{"type":"json_object"}'))
    assert anything is not None
    assert allows(job_with(format=anything), '{"a": [1, {"b": null}]}')
    assert not allows(job_with(format=anything), "[1]")


def test_references_within_a_tools_schema_are_resolved_within_it() -> None:
    tool = {"type": "function", "name": "add", "parameters": PERSON, "strict": True}
    job = job_with(STRICT, tool, required=True)
    assert allows(job, '<tool_call>\n{"name": "add", "arguments": {"name": "Ann", "age": 4}}\n</tool_call>')
    assert not allows(
        job, '<tool_call>\n{"name": "add", "arguments": {"name": "Anna", "age": 4}}\n</tool_call>'
    )


def test_addresses_are_enforced_beside_other_patterns() -> None:
    address = {"type": "string", "format": "uri", "pattern": "^https"}
    tag = {"enum": [{"format": "uri"}, "none"]}
    schema = {
        "type": "object",
        "properties": {"url": address, "tag": tag},
        "required": ["url", "tag"],
        "additionalProperties": False,
    }
    job = job_with(format=schema_format(schema))
    assert allows(job, '{"url": "https://a.example/b?c=%20", "tag": {"format": "uri"}}')
    assert not allows(job, '{"url": "http://a.example", "tag": "none"}')
    assert not allows(job, '{"url": "https a", "tag": "none"}')


LOOKAHEAD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}


@pytest.mark.parametrize("schema", [LOOKAHEAD, UNIQUE])
def test_a_strict_schema_that_cannot_be_enforced_is_rejected_with_its_field(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="cannot be enforced") as error:
        grammar_of(job_with(format=schema_format(schema)), renderer("chatml in smollm2"))
    assert error.value.param == "text.format.schema"
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": True}
    with pytest.raises(InvalidRequest, match="cannot be enforced") as error:
        grammar_of(job_with(LOOSE, tool), renderer("chatml in smollm2"))
    assert error.value.param == "tools[1].parameters"


def test_a_schema_that_is_not_strict_is_enforced_as_far_as_it_is_supported() -> None:
    lenient = job_with(format=schema_format(UNIQUE, strict=False))
    assert allows(lenient, '{"a": [1, 1]}')
    assert not allows(lenient, '{"b": 1}')
    unsupported = job_with(format=schema_format(LOOKAHEAD, strict=False))
    assert allows(unsupported, '{"b": 1}')
    assert not allows(unsupported, "no JSON")


def test_servers_without_llguidance_get_one_schema() -> None:
    tool = {"type": "function", "name": "add", "parameters": PERSON}
    schema = schema_of(job_with(STRICT, tool, required=True), llama3())
    assert schema is not None
    added = schema["anyOf"][1]["properties"]
    assert added["name"] == {"const": "add"}
    assert added["parameters"]["properties"]["name"] == {"$ref": "#/anyOf/1/properties/parameters/$defs/name"}
    assert schema_of(job_with(STRICT), llama3()) is None
    assert schema_of(job_with(format=schema_format(PERSON)), llama3()) == PERSON


def test_a_thought_that_the_prompt_opened_is_closed_first() -> None:
    grammar = grammar_of(job_with(STRICT, required=True), renderer("chatml in smollm2"), opens_thought=True)
    assert grammar is not None
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    thought = f"hm <tool_call> maybe</think>\n\n{CALL}"
    assert matcher.try_consume_tokens(list(thought.encode())) == len(thought)


def test_a_list_of_bare_calls_is_not_free_text() -> None:
    assert not allows(job_with(STRICT), '[{"name": "weather", "parameters": {}}]', llama3())


DATE = {"type": "grammar", "syntax": "regex", "definition": r'"\d{4}"(/|\n)x'}
DATED = {"type": "custom", "name": "dated", "format": DATE}


def call_with(text: str, name: str = "dated") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"input": {json.dumps(text)}}}}}\n</tool_call>'


@pytest.mark.parametrize("required", [True, False])
def test_the_input_of_a_custom_tool_matches_its_regular_expression(required: bool) -> None:
    job = job_with(DATED, LOOSE, required=required)
    assert allows(job, call_with('"1234"/x'))
    assert allows(job, call_with('"1234"\nx'))
    assert not allows(job, call_with('"123"/x'))
    assert not allows(job, call_with('"1234"/xy'))
    assert allows(job, '<tool_call>\n{"name": "look", "arguments": {"any": [1]}}\n</tool_call>')


LINES = {"type": "grammar", "syntax": "lark", "definition": 'start: (/[^\\n]+/ "\\n")+'}
LINED = {"type": "custom", "name": "lined", "format": LINES}


@pytest.mark.parametrize("required", [True, False])
def test_the_input_of_a_custom_tool_matches_its_lark_grammar(required: bool) -> None:
    job = job_with(LINED, LOOSE, required=required)
    assert allows(job, call_with('one\ntab\t "two"\\\n', "lined"))
    assert not allows(job, call_with("one", "lined"))
    assert not allows(job, call_with("\n", "lined"))
    assert allows(job, '<tool_call>\n{"name": "look", "arguments": {"any": [1]}}\n</tool_call>')


def test_a_lark_grammar_that_cannot_be_converted_is_not_enforced() -> None:
    unsupported = {"type": "grammar", "syntax": "lark", "definition": 'start[lazy]: "a"'}
    job = job_with({**DATED, "format": unsupported}, required=True)
    assert allows(job, call_with("anything"))
    assert grammar_of(job_with({**DATED, "format": unsupported}), renderer("chatml in smollm2")) is None


def test_servers_get_one_grammar_if_all_tools_are_custom_tools() -> None:
    grammar = constraint_of(job_with(LINED, PATCH, DATED, required=True), renderer("chatml in smollm2"))
    assert isinstance(grammar, str)
    matcher = LLMatcher(LLTokenizer("byte"), grammar_from("gbnf", grammar))
    for name, text, expected in (
        ("lined", "one\n", True),
        ("lined", "one", False),
        ("patch", 'any "text"\n', True),
        ("dated", '"1234"/x', True),
        ("look", "one\n", False),
    ):
        written = list(json.dumps({"name": name, "arguments": {"input": text}}).encode())
        matcher.reset()
        is_match = matcher.try_consume_tokens(written) == len(written) and matcher.is_accepting()
        assert is_match is expected, (name, text)


@pytest.mark.parametrize(
    "tools", [(LINED, LOOSE), (DATED,), ({**LINED, "format": {**LINES, "definition": 'start[lazy]: "a"'}},)]
)
def test_servers_get_a_schema_for_other_tools(tools: tuple[Any, ...]) -> None:
    assert isinstance(constraint_of(job_with(*tools, required=True), renderer("chatml in smollm2")), dict)
    assert constraint_of(job_with(*tools), renderer("chatml in smollm2")) is None


def test_a_schema_contains_the_regular_expression_as_a_pattern() -> None:
    schema = schema_of(job_with(DATED, required=True), renderer("chatml in smollm2"))
    assert schema is not None
    string = schema["anyOf"][0]["properties"]["arguments"]["properties"]["input"]
    assert string["pattern"] == f"^(?:{DATE['definition']})$"


def formatted(output: OutputFormat) -> TemplateRenderer:
    writes = of_format("chatml", renderer("chatml in smollm2").vocabulary)
    writes.output_format = output
    return writes


def test_a_call_cannot_be_required_of_a_model_whose_calls_are_not_known() -> None:
    writes = formatted(OutputFormat())
    with pytest.raises(UnsupportedParameter, match="tool_choice"):
        grammar_of(job_with(DATED, required=True), writes)
    assert grammar_of(job_with(STRICT), writes) is None


def test_servers_without_structural_tags_force_calls_that_are_json() -> None:
    for output in (QWEN3_CODER, MISTRAL_NEMO, OutputFormat()):
        with pytest.raises(UnsupportedParameter, match="tool_choice"):
            constraint_of(job_with(DATED, required=True), formatted(output))
