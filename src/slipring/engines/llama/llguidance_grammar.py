"""Writes the llguidance grammar that llama.cpp enforces while it samples an answer.

Required calls, named tools, strict arguments and formats of answers become one grammar. llama.cpp ignores a
schema that it cannot compile, and blocks all jobs while it compiles: so each grammar is first compiled in a
sandbox. A request that cannot be enforced is refused, with the field's name, before the response is created.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from slipring.core.generation import Job
from slipring.engines.constraints import grammar_matcher
from slipring.engines.constraints.answer_constraint import (
    ANY_OBJECT,
    CalledTool,
    Form,
    arguments_schema,
    form_of,
)
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.lark.llguidance_writer import llguidance_rules
from slipring.errors import InvalidRequest
from slipring.prompts.parsing.output_format import JsonCalls
from slipring.prompts.rendering import Renderer
from slipring.protocol.definitions import Grammar
from slipring.sandbox.sandbox import TooExpensive

_TOKENS = re.compile(r"<\[[0-9,]*\]>")
"""Token ids in a grammar. It is tried byte by byte: byte 255, which no text contains, replaces them."""
_MAX_CALLS = 16
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as chat templates write it, which is what models were trained on."""


class _GrammarRequest(Struct, frozen=True):
    """The input of ``write_grammar``, which runs in another process."""

    form: Form
    stop_ids: list[int]
    control_ids: dict[str, int]
    """The marks around thoughts and calls that are single tokens of the model."""
    opens_thought: bool
    """Whether the prompt ends inside a thought, which the answer has to close first."""
    max_calls: int
    max_states: int


_decoder = msgspec.msgpack.Decoder(_GrammarRequest)


async def grammar_of(
    job: Job, renderer: Renderer, compiler: Compiler, *, opens_thought: bool = False
) -> str | None:
    """The grammar that the answer to a job must follow; None if it is unconstrained. Raises
    ``InvalidRequest`` if it cannot be enforced, ``TooExpensive`` if compiling takes too long."""
    form = form_of(job, renderer.output_format)
    is_optional = not form.required and form.document is None
    if is_optional and not any(tool.strict or tool.grammar is not None for tool in form.tools):
        return None
    max_calls = min(_MAX_CALLS, job.settings.max_tool_calls or _MAX_CALLS)
    request = _GrammarRequest(
        form=form,
        stop_ids=sorted(renderer.stop_ids()),
        control_ids=_control_ids(form, renderer),
        opens_thought=opens_thought,
        max_calls=max_calls if job.settings.parallel_tool_calls else 1,
        max_states=compiler.max_states,
    )
    try:
        grammar: str | None = await compiler.run(job.tenant, "write_grammar", msgspec.msgpack.encode(request))
    except TooExpensive as error:
        raise TooExpensive(error.reason, _param(form)) from None
    return grammar


def constrains_calls(job: Job) -> bool:
    """Whether the grammar of a job, if it has one, makes calls well-formed. A document's grammar does not."""
    return job.offer.required or job.settings.format.kind == "text"


def _control_ids(form: Form, renderer: Renderer) -> dict[str, int]:
    calls, vocabulary = form.calls or JsonCalls(), renderer.vocabulary
    marks = (calls.open.strip(), calls.close.strip(), form.think_open, form.think_close)
    return {mark: vocabulary.control(mark) for mark in marks if mark and vocabulary.has_control(mark)}


def _param(form: Form) -> str:
    """The field of the client's request that the grammar enforces."""
    return "tools" if form.required or form.document is None else "text.format.schema"


def write_grammar(encoded: bytes) -> str | None:
    """Write a grammar and try it; None if there is nothing to enforce. A task of the sandbox.

    Raises ``InvalidRequest`` if llguidance cannot compile the grammar, or needs more than ``max_states`` for
    it: the engine compiles it again, and would block all jobs meanwhile.
    """
    request = _decoder.decode(encoded)
    form, writer = request.form, _Writer(request)
    if form.required:
        grammar = writer.required_calls(form.tools, request.max_calls)
    elif form.document is not None:
        grammar = writer.document(form.document, form.strict)
    elif any(
        tool.strict or writer.has_enforced_input(tool, number) for number, tool in enumerate(form.tools)
    ):
        grammar = writer.text_or_calls(form.tools, request.max_calls)
    else:
        return None
    error = _grammar_error(grammar, request.max_states)
    if error is not None:
        param = _param(form)
        raise InvalidRequest(f"Invalid '{param}': this cannot be enforced: {error}.", param=param)
    return grammar


class _Writer:
    """Writes grammars for one model."""

    def __init__(self, request: _GrammarRequest) -> None:
        self._opens_thought = request.opens_thought
        self._form = request.form
        self._calls = request.form.calls or JsonCalls()
        self._open, self._close = self._calls.open.strip(), self._calls.close.strip()
        self._control_ids = request.control_ids
        self._max_states = request.max_states
        self._input_rules: dict[int, tuple[str, ...]] = {}
        self._rules = [f"stop: <[{','.join(map(str, request.stop_ids))}]>"]

    def has_enforced_input(self, tool: CalledTool, number: int) -> bool:
        """Whether a grammar constrains the tool's input. Like strict arguments, it holds for every call."""
        grammar = tool.grammar
        if grammar is None or grammar.syntax == "regex":
            return grammar is not None
        return bool(self._lark_rules(grammar, number))

    def _lark_rules(self, grammar: Grammar, number: int) -> tuple[str, ...]:
        """Rules for a JSON string, without its quotes, whose text follows a Lark grammar; empty if that
        cannot be enforced."""
        if number not in self._input_rules:
            name = f"input_{number}"
            rules = llguidance_rules(grammar.definition, name) or ()
            lead = ["%llguidance {}", f'start: "\\"" {name} "\\""']
            is_valid = _grammar_error("\n".join([*lead, *rules, ""]), self._max_states) is None
            self._input_rules[number] = rules if is_valid else ()
        return self._input_rules[number]

    def required_calls(self, tools: list[CalledTool], max_calls: int) -> str:
        """A grammar for one to ``max_calls`` calls and nothing else."""
        self._write_calls(tools)
        return self._finish(f"{self._thought()}one{_repeated('one', max_calls)}")

    def text_or_calls(self, tools: list[CalledTool], max_calls: int) -> str:
        """A grammar for any text, then up to ``max_calls`` well-formed calls and nothing after them."""
        self._write_calls(tools)
        opening = self._open
        if not opening:
            self._rules.append(r"TEXT: /(\s*[^{\[\s][\s\S]*)?/")
            return self._finish(f"{self._thought()}(one{_repeated('one', max_calls)} | TEXT)")
        self._rules.append(r"TEXT: /[\s\S]*/")
        if opening in self._control_ids:
            return self._finish(f"{self._thought()}TEXT (one{_repeated('one', max_calls)})?")
        # The mark is ordinary text: what follows its first occurrence must be a call.
        self._rules.append(rf"lead[lazy]: /[\s\S]*{_escaped(opening)}/")
        return self._finish(f"{self._thought()}(TEXT | lead rest{_repeated('one', max_calls)})")

    def document(self, schema: bytes, strict: bool) -> str:
        """A grammar for a JSON document that fits ``schema``."""
        self._rules.append(f"document: %json {self._enforceable(schema, strict, 'text.format.schema')}")
        return self._finish(f"{self._thought()}document")

    def _write_calls(self, tools: list[CalledTool]) -> None:
        """Add rules for one call: ``one`` with its marks, ``rest`` without the opening one."""
        calls = self._calls
        names = []
        for number, tool in enumerate(tools):
            lead = _literal(f'{{"{calls.name_key}": {_literal(tool.name)}, "{calls.arguments_key}": ')
            self._rules += [f'call_{number}: {lead} arguments_{number} "}}"', *self._arguments(tool, number)]
            names.append(f"call_{number}")
        if not self._open:
            self._rules.append(f"one: {' | '.join(names)}")
            return
        self._rules.append(f'rest: "\\n" ({" | ".join(names)}) "\\n" {self._mark(self._close)}')
        self._rules.append(f"one: {self._mark(self._open)} rest")

    def _arguments(self, tool: CalledTool, number: int) -> list[str]:
        """Rules for the arguments of a call."""
        grammar = tool.grammar
        if grammar is not None and grammar.syntax == "lark":
            rules = self._lark_rules(grammar, number)
            if rules:
                opening, closing = _literal('{"input": "'), _literal('"}')
                return [f"arguments_{number}: {opening} input_{number} {closing}", *rules]
        # Each tool has its own schema, so that references within it stay valid.
        schema = arguments_schema(tool)
        if grammar is not None and _schema_error(schema, self._max_states) is not None:
            schema = tool.parameters  # the regular expression does not work within a JSON string
        enforced = self._enforceable(schema, tool.strict, f"tools[{number}].parameters")
        return [f"arguments_{number}: %json {enforced}"]

    def _thought(self) -> str:
        """The part of the start rule for the thought before an answer; empty if the model does not think.
        Adds the rules that it needs."""
        opening, closing = self._form.think_open, self._form.think_close
        if self._opens_thought and closing not in self._control_ids:
            self._rules += [rf"thought[lazy]: /[\s\S]*{_escaped(closing)}/", r"SPACE: /\s*/"]
            return "thought SPACE "
        if not self._opens_thought and opening not in self._control_ids:
            return ""
        lead = "" if self._opens_thought else f"{self._mark(opening)} "
        self._rules += [
            rf"thought: {lead}THOUGHT {self._mark(closing)} SPACE",
            r"THOUGHT: /[\s\S]*/",
            r"SPACE: /\s*/",
        ]
        return "thought " if self._opens_thought else "thought? "

    def _mark(self, token: str) -> str:
        """A mark as a token id if it is one token, else as text."""
        if token in self._control_ids:
            return f"<[{self._control_ids[token]}]>"
        return _literal(token)

    def _enforceable(self, schema: bytes, strict: bool, param: str) -> str:
        return _enforceable(schema, strict, param, self._max_states)

    def _finish(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start} stop", *self._rules, ""])


def _escaped(text: str) -> str:
    """A regular expression that matches exactly ``text``."""
    return "".join(f"\\{character}" if character in "/\\.[](){}*+?|^$" else character for character in text)


def _literal(text: str) -> str:
    """A text in double quotes, escaped for JSON and for grammars alike."""
    return json.dumps(text, ensure_ascii=False)


def _repeated(rule: str, max_calls: int) -> str:
    """The part of a rule that repeats ``rule`` up to ``max_calls`` times in all, after the first."""
    return f' ("\\n" {rule}){{0,{max_calls - 1}}}' if max_calls > 1 else ""


def _enforceable(schema: bytes, strict: bool, param: str, max_states: int) -> str:
    """The schema to enforce: ``schema`` itself, or as much of it as possible unless ``strict``. Raises
    ``InvalidRequest`` for a strict one that cannot be enforced."""
    error = _schema_error(schema, max_states)
    if error is None:
        return _with_layout(schema)
    if not strict:
        is_possible = _schema_error(schema, max_states, lenient=True) is None
        return _with_layout(schema, lenient=True) if is_possible else ANY_OBJECT.decode()
    raise InvalidRequest(f"Invalid '{param}': this schema cannot be enforced: {error}", param=param)


def _schema_error(schema: bytes, max_states: int, *, lenient: bool = False) -> str | None:
    """Why llguidance cannot enforce a schema; None if it can."""
    document = _with_layout(schema, lenient=lenient)
    error = _grammar_error(f"%llguidance {{}}\nstart: %json {document}\n", max_states)
    if error is not None:
        return (error.partition("failed to compile JSON schema: ")[2] or error)[:300]
    # Trying the grammar reads only a few bytes, and may not reach a pattern that is too large.
    for pattern in set(_patterns(json.loads(schema))):
        error = grammar_matcher.check_grammar("regex", pattern, max_states)
        if error is not None and error.startswith(grammar_matcher.TOO_LARGE):
            return error
    return None


def _patterns(schema: Any) -> Iterator[str]:
    """Every regular expression in a schema."""
    if isinstance(schema, list):
        for each in schema:
            yield from _patterns(each)
    elif isinstance(schema, dict):
        if isinstance(pattern := schema.get("pattern"), str):
            yield pattern
        if isinstance(named := schema.get("patternProperties"), dict):
            yield from named
        for each in schema.values():
            yield from _patterns(each)


def _grammar_error(grammar: str, max_states: int) -> str | None:
    """Why llguidance cannot compile a grammar or match a few bytes with it; None if it can."""
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        return " ".join("".join(messages[:1]).split("\n   1 |")[0].split())
    return grammar_matcher.walk_error(_TOKENS.sub("<[255]>", grammar), max_states)


def _with_layout(schema: bytes, *, lenient: bool = False) -> str:
    """A schema with the options that make llguidance write JSON as in ``_LAYOUT``."""
    document: dict[str, Any] = json.loads(schema)
    layout: dict[str, Any] = {**_LAYOUT, "lenient": True} if lenient else _LAYOUT
    return json.dumps({**document, "x-guidance": layout}, ensure_ascii=False)
