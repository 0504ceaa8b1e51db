"""Grammars and structural tags of calls in the formats of all model families.

The texts are those that the call writer writes for the format. llguidance matches them against the grammars
of the llama engine. Structural tags are checked for the form that xgrammar documents.
"""

import asyncio
import json
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from msgspec import Raw, structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import CallArguments, CallStarted, Job, Settings
from slipring.engines.constraints.grammar_compiler import IN_THREAD
from slipring.engines.constraints.llama_grammar import grammar_of
from slipring.engines.constraints.server_constraint import tag_of
from slipring.prompts.parsing.answer_writer import Call
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol.requests import TEXT, TextFormat, read_format
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.core.connection import PLAIN
from tests.engines.fakes.structural_tags import read_tag, schemas_of
from tests.prompts.parsing import family_formats
from tests.prompts.parsing.answers import parsed
from tests.prompts.parsing.written_answers import write_answer
from tests.prompts.vocabulary import of_format, small_metadata

FORMATS = family_formats.FORMATS
BARE = ("LLAMA3_JSON", "BARE_JSON", "PYTHON_LIST")
UNUSED = [0xC0, 0xC1, *range(0xF5, 0xFF)]
"""Bytes that no text contains. They replace control tokens, because the tokens of the matcher are bytes."""
STOP = 0xFF

PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "area": {"$ref": "#/$defs/area"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {
        "area": {
            "type": "object",
            "properties": {"wide": {"type": "boolean"}, "name": {"type": ["string", "null"]}},
            "required": ["wide", "name"],
            "additionalProperties": False,
        }
    },
}
WEATHER = {"type": "function", "name": "weather", "parameters": PLACE, "strict": True}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch"}
VALID: list[dict[str, Any]] = [
    {"city": "Rome", "days": 3},
    {"city": 'a "b"\n  é💩 {', "days": 0, "unit": "celsius"},
    {"city": "", "days": 12, "unit": "fahrenheit", "exact": True, "tags": ["x", "1"]},
    {"city": "x", "days": 1, "tags": [], "area": {"wide": False, "name": "null"}},
]
INVALID: list[dict[str, Any]] = [
    {"city": "Rome"},
    {"days": 3},
    {"city": "Rome", "days": "three"},
    {"city": "Rome", "days": -1},
    {"city": "Rome", "days": 1, "unit": "kelvin"},
    {"city": "Rome", "days": 1, "exact": "yes"},
    {"city": "Rome", "days": 1, "tags": 3},
    {"city": "Rome", "days": 1, "area": {"wide": True}},
    {"city": "Rome", "days": 1, "other": 1},
]


def job_with(*tools: Any, required: bool = False, format: TextFormat = TEXT, parallel: bool = True) -> Job:
    offer = Offer(Toolset.read(Raw(json.dumps(tools).encode())).callables, required)
    settings = Settings(format=format, parallel_tool_calls=parallel)
    return Job("r", "t", PLAIN, Head(), None, (), offer, settings)


def schema_format(schema: Any, *, strict: bool = True) -> TextFormat:
    encoded = {"type": "json_schema", "name": "n", "schema": schema, "strict": strict}
    format = read_format(Raw(json.dumps(encoded).encode()))
    assert format is not None
    return format


@cache
def writes(name: str, with_controls: bool) -> TemplateRenderer:
    """A renderer of a format. ``with_controls``: the tokens in its marks are control tokens."""
    metadata = small_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    marks = sorted(FORMATS[name].tokens() - set(tokens)) if with_controls else []
    metadata["tokenizer.ggml.tokens"] = [*tokens, *marks]
    metadata["tokenizer.ggml.token_type"] = [*types, *(4 for _ in marks)]
    found = of_format("chatml", Tokenizer.from_gguf(metadata))
    found.output_format = FORMATS[name]
    return found


@cache
def byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


class Grammar:
    """The grammar of a job, for a model whose control tokens are bytes."""

    def __init__(self, job: Job, name: str, *, with_controls: bool = False, opens_thought: bool = False):
        renderer = writes(name, with_controls)
        grammar = asyncio.run(grammar_of(job, renderer, IN_THREAD, opens_thought=opens_thought))
        assert grammar is not None
        stops = ",".join(map(str, sorted(renderer.stop_ids())))
        grammar = grammar.replace(f"stop: <[{stops}]>", f"stop: <[{STOP}]>")
        self._bytes = dict(zip(renderer.control_ids(), UNUSED, strict=False))
        assert len(self._bytes) == len(renderer.control_ids())
        for mark, id in renderer.control_ids().items():
            grammar = grammar.replace(f"<[{id}]>", f"<[{self._bytes[mark]}]>")
        self.text = grammar
        self._matcher = LLMatcher(byte_tokenizer(), grammar)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def allows(self, text: str, *, end: bool = True) -> bool:
        data = text.encode()
        for mark in sorted(self._bytes, key=len, reverse=True):
            data = data.replace(mark.encode(), bytes([self._bytes[mark]]))
        ids = [*data, *([STOP] if end else [])]
        self._matcher.reset()
        return int(self._matcher.try_consume_tokens(ids)) == len(ids)


def answer(name: str, *calls: tuple[str, dict[str, Any]], **fields: Any) -> str:
    written = [Call(tool, arguments, index) for index, (tool, arguments) in enumerate(calls)]
    return write_answer(FORMATS[name], calls=written, **fields)


@pytest.mark.parametrize("with_controls", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_required_calls_are_enforced_in_the_format_of_the_model(name: str, with_controls: bool) -> None:
    grammar = Grammar(job_with(WEATHER, CLOCK, PATCH, required=True), name, with_controls=with_controls)
    for arguments in VALID:
        assert grammar.allows(answer(name, ("weather", arguments))), arguments
    assert grammar.allows(answer(name, ("clock", {})))
    assert grammar.allows(answer(name, ("patch", {"input": "a\nb <c>"})))
    for arguments in INVALID:
        assert not grammar.allows(answer(name, ("weather", arguments))), arguments
    assert not grammar.allows(answer(name, ("weathe", VALID[0])))
    assert not grammar.allows(answer(name, ("weather2", VALID[0])))
    assert not grammar.allows(answer(name, ("patch", {})))
    assert not grammar.allows("")
    assert not grammar.allows("It is sunny.")
    assert not grammar.allows(answer(name, ("weather", VALID[0])) + " More.")
    assert not grammar.allows(answer(name, ("weather", VALID[0]))[:-1])


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "HARMONY"])
def test_several_calls_are_allowed_unless_the_request_forbids_them(name: str) -> None:
    two = answer(name, ("weather", VALID[0]), ("clock", {}))
    job = job_with(WEATHER, CLOCK, required=True)
    assert Grammar(job, name).allows(two)
    grammar = Grammar(job_with(WEATHER, CLOCK, required=True, parallel=False), name)
    assert not grammar.allows(two)
    assert grammar.allows(answer(name, ("clock", {})))


@pytest.mark.parametrize("with_controls", [False, True])
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in BARE])
def test_strict_calls_are_enforced_wherever_a_call_begins(name: str, with_controls: bool) -> None:
    grammar = Grammar(job_with(WEATHER, CLOCK), name, with_controls=with_controls)
    right, wrong = ("weather", VALID[1]), ("weather", {"town": "Rome"})
    for text in ("It is {sunny} <b>.", ""):
        assert grammar.allows(answer(name, text=text) or text) or (name == "HARMONY" and not text)
        assert grammar.allows(answer(name, right, text=text))
        assert not grammar.allows(answer(name, wrong, text=text))
        assert not grammar.allows(answer(name, ("other", {}), text=text))
    assert grammar.allows(answer(name, ("clock", {})))


@pytest.mark.parametrize("name", BARE)
def test_strict_calls_without_marks_are_enforced_from_the_first_character(name: str) -> None:
    grammar = Grammar(job_with(WEATHER, CLOCK), name)
    assert grammar.allows(answer(name, ("weather", VALID[1])))
    assert not grammar.allows(answer(name, ("weather", {"town": "Rome"})))
    assert grammar.allows("It is {sunny} [b].")
    assert grammar.allows("")


THINKING = [name for name in FORMATS if FORMATS[name].think_close or name == "HARMONY"]


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("name", THINKING)
def test_a_thought_precedes_calls(name: str, required: bool) -> None:
    job = job_with(WEATHER, required=required)
    format, calls = FORMATS[name], [Call("weather", VALID[0])]
    for with_controls in (True, False) if required else (True,):
        opened = Grammar(job, name, with_controls=with_controls, opens_thought=True)
        assert opened.allows(write_answer(format, "Hm <b> {", calls=calls, opened_thought=True))
        assert not opened.allows("Hm.")
        assert not opened.allows(write_answer(format, calls=calls))
    may_think = Grammar(job, name, with_controls=True)
    assert may_think.allows(write_answer(format, "Hm <b> {", calls=calls))
    assert may_think.allows(write_answer(format, calls=calls))
    wrong = write_answer(FORMATS[name], "Hm.", calls=[Call("weather", {"town": 1})])
    assert not may_think.allows(wrong)


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_precedes_a_document(name: str) -> None:
    job = job_with(format=schema_format(PLACE))
    document = json.dumps(VALID[0])
    opened = Grammar(job, name, with_controls=True, opens_thought=True)
    assert opened.allows(write_answer(FORMATS[name], "Hm.", document, opened_thought=True))
    assert not opened.allows(write_answer(FORMATS[name], "Hm.", "Sunny.", opened_thought=True))
    assert not opened.allows(write_answer(FORMATS[name], text=document))
    may_think = Grammar(job, name, with_controls=True)
    assert may_think.allows(write_answer(FORMATS[name], "Hm.", document))
    assert may_think.allows(write_answer(FORMATS[name], text=document))
    assert not may_think.allows(write_answer(FORMATS[name], text='{"city": "Rome"}'))


@pytest.mark.parametrize("name", FORMATS)
def test_text_can_have_to_match_a_pattern(name: str) -> None:
    job = job_with()
    job = structs.replace(job, settings=structs.replace(job.settings, pattern=r"(safe|unsafe\nS[0-9])"))
    for with_controls in (False, True):
        grammar = Grammar(job, name, with_controls=with_controls)
        assert grammar.allows(write_answer(FORMATS[name], text="safe"))
        assert grammar.allows(write_answer(FORMATS[name], text="unsafe\nS9"))
        assert not grammar.allows(write_answer(FORMATS[name], text="I am sorry"))
        assert not grammar.allows(write_answer(FORMATS[name], text="unsafe"))
    if name in THINKING:
        opened = Grammar(job, name, with_controls=True, opens_thought=True)
        assert opened.allows(write_answer(FORMATS[name], "Hm.", "safe", opened_thought=True))
        assert not opened.allows(write_answer(FORMATS[name], "Hm.", "sorry", opened_thought=True))
    constraint = asyncio.run(tag_of(job, writes(name, True), IN_THREAD))
    assert constraint is not None
    assert (constraint.kind, constraint.makes_calls_certain) == ("tag", False)
    read_tag(constraint.text)
    assert json.dumps(job.settings.pattern) in constraint.text


@pytest.mark.parametrize("name", FORMATS)
def test_structural_tags_have_the_form_that_xgrammar_documents(name: str) -> None:
    renderer = writes(name, True)
    lines = {"type": "grammar", "syntax": "lark", "definition": 'start: ("a" "\\n")+'}
    tools = (WEATHER, CLOCK, PATCH, {"type": "custom", "name": "lines", "format": lines})
    for job in (
        job_with(*tools, required=True),
        job_with(*tools, required=True, parallel=False),
        job_with(*tools),
        job_with(*tools, parallel=False),
        job_with(format=schema_format(PLACE)),
    ):
        for opens_thought in (False, True) if name in THINKING else (False,):
            constraint = asyncio.run(tag_of(job, renderer, IN_THREAD, opens_thought=opens_thought))
            assert constraint is not None
            is_document = job.settings.format.kind != "text"
            assert constraint.makes_calls_certain == (not is_document)
            if constraint.kind == "schema":
                assert is_document
                assert not opens_thought
                continue
            tag = read_tag(constraint.text)
            assert PLACE in schemas_of(tag) or not is_document
            closing = "<|end|>" if name == "HARMONY" else FORMATS[name].think_close.strip()
            assert closing in json.dumps(tag, ensure_ascii=False)


@pytest.mark.parametrize("name", THINKING)
def test_a_structural_tag_that_begins_after_the_thought_does_not_describe_it(name: str) -> None:
    renderer, job = writes(name, True), job_with(WEATHER, required=True)
    after = asyncio.run(tag_of(job, renderer, IN_THREAD, opens_thought=True, after_thought=True))
    assert after is not None
    tag = read_tag(after.text)
    thoughts = FORMATS[name].think_close.strip() or "analysis"
    assert thoughts not in json.dumps(tag, ensure_ascii=False)


# What layouts that write values without JSON make of schemas.

VALUES = ("QWEN3_CODER", "KIMI_K3", "MINIMAX_M3", "GEMMA4", "LFM2")


def strict_tool(schema: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    """A tool with one argument, ``v``."""
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}
    parameters = {**whole, **({"$defs": definitions} if definitions else {})}
    return {"type": "function", "name": "f", "parameters": parameters, "strict": True}


CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["abd", ""]),
    ({"type": "string", "pattern": "b"}, ["abc", "b"], ["ac"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
    ({"type": "string", "format": "date"}, ["2026-11-16"], ["2026-13-16", "today"]),
    ({"type": ["string", "null"]}, ["a", None], []),
    ({"enum": ["a", "ab", 1, None]}, ["a", "ab", 1, None], ["b", 2, True]),
    ({"const": "only"}, ["only"], ["onl", "other"]),
    ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}, [1, [1, 2]], [["a"]]),
    ({"allOf": [{"type": "integer"}]}, [1], ["a"]),
    ({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}, [[], [[True], []]], [[1]]),
    ({"type": "number", "maximum": 2}, [1.5, -3], [7]),
]


@pytest.mark.parametrize("name", VALUES)
def test_values_are_enforced_by_their_schema(name: str) -> None:
    for schema, right, wrong in CASES:
        grammar = Grammar(job_with(strict_tool(schema), required=True), name)
        for value in right:
            assert grammar.allows(answer(name, ("f", {"v": value}))), (schema, value)
        for value in wrong:
            assert not grammar.allows(answer(name, ("f", {"v": value}))), (schema, value)


@pytest.mark.parametrize("name", VALUES)
def test_recursive_schemas_are_enforced_to_a_limited_depth(name: str) -> None:
    node = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["n", "next"],
        "additionalProperties": False,
    }
    grammar = Grammar(job_with(strict_tool({"$ref": "#/$defs/node"}, node=node), required=True), name)
    two = {"n": 1, "next": {"n": 2, "next": None}}
    assert grammar.allows(answer(name, ("f", {"v": two})))
    assert not grammar.allows(answer(name, ("f", {"v": {"n": 1, "next": {"n": "x", "next": None}}})))


@pytest.mark.parametrize("name", VALUES)
def test_a_strict_schema_that_a_layout_cannot_carry_is_refused(name: str) -> None:
    for schema in ({"type": "object", "minProperties": 1}, {"$ref": "https://example.com/other"}):
        with pytest.raises(InvalidRequest) as error:
            Grammar(job_with(strict_tool(schema)), name)
        assert error.value.param == "tools[0].parameters"


@pytest.mark.parametrize("name", VALUES)
def test_a_schema_that_is_not_strict_allows_what_cannot_be_enforced(name: str) -> None:
    loose = {"type": "function", "name": "g", "parameters": {"type": "object"}}
    grammar = Grammar(job_with(loose, required=True), name)
    for arguments in ({}, {"a": "x"}, {"a": "x", "b": 1, "c": [1, "y"], "d": {"e": True}, "f": None}):
        assert grammar.allows(answer(name, ("g", arguments))), arguments
    unsupported = {**strict_tool({"$ref": "https://example.com/other"}), "strict": False}
    assert Grammar(job_with(unsupported, required=True), name).allows(answer(name, ("f", {"v": "x"})))


def test_xgrammar_is_not_sent_strict_keywords_that_it_ignores() -> None:
    job = job_with(strict_tool({"type": "integer", "multipleOf": 2}), required=True)
    for name in ("HERMES", "QWEN3_CODER"):
        with pytest.raises(InvalidRequest, match="multipleOf"):
            asyncio.run(tag_of(job, writes(name, True), IN_THREAD))


def test_an_enforced_value_may_contain_tags() -> None:
    text = "see\n</function>\n</tool_call>\n<parameter=days>\n1"
    written = answer("QWEN3_CODER", ("weather", {"city": text, "days": 1}))
    assert Grammar(job_with(WEATHER, required=True), "QWEN3_CODER").allows(written)
    offer = job_with(WEATHER).offer
    started, arguments, _ = parsed([written], FORMATS["QWEN3_CODER"], offer, trusted=True)
    assert isinstance(started, CallStarted)
    assert isinstance(arguments, CallArguments)
    assert json.loads(arguments.text) == {"city": text, "days": 1}
