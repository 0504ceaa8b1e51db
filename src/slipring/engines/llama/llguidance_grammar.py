"""Constraints as grammars: what a model may write is decided token by token, not asked for.

A required call, named tools, strict arguments and formats of answers become a grammar of llguidance, which
llama.cpp enforces while it samples. The engine ignores a schema that it cannot compile, and everybody waits
while it compiles one: so each is compiled in a sandbox first. What cannot be enforced is refused by name,
before the response exists.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from slipring.core.generation import Job
from slipring.engines.constraints import tool_grammars
from slipring.engines.constraints.compiler import Compiler
from slipring.engines.constraints.constraint import ANY_OBJECT, CalledTool, Form, arguments_schema, form_of
from slipring.engines.constraints.lark.strings import string_rules
from slipring.errors import InvalidRequest
from slipring.prompts.rendering import Renderer
from slipring.protocol.definitions import Grammar
from slipring.sandbox.sandbox import TooExpensive

_TOKENS = re.compile(r"<\[[0-9,]*\]>")
"""Tokens of the model. A grammar is tried byte by byte, where one that no text has stands for all of them."""
_MOST_CALLS = 16
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As chat templates write JSON, which is what models have read."""


class _Request(Struct, frozen=True):
    """What a grammar is written from, as data."""

    form: Form
    stop_ids: list[int]
    control_ids: dict[str, int]
    """Of the marks around thoughts and calls, those that are tokens of the model."""
    opens_thought: bool
    """Whether the prompt ends inside a thought, which the model has to end first."""
    most_calls: int
    max_states: int


_request = msgspec.msgpack.Decoder(_Request)


async def grammar_of(
    job: Job, renderer: Renderer, compiler: Compiler, *, opens_thought: bool = False
) -> str | None:
    """The grammar that the answer to a job has to follow, or None where it is free."""
    form = form_of(job, renderer.calls)
    is_free = not form.required and form.document is None
    if is_free and not any(tool.strict or tool.grammar is not None for tool in form.tools):
        return None
    most_calls = min(_MOST_CALLS, job.settings.max_tool_calls or _MOST_CALLS)
    request = _Request(
        form=form,
        stop_ids=sorted(renderer.stop_ids()),
        control_ids=_control_ids(renderer),
        opens_thought=opens_thought,
        most_calls=most_calls if job.settings.parallel_tool_calls else 1,
        max_states=compiler.max_states,
    )
    try:
        grammar: str | None = await compiler.run(job.tenant, "write_grammar", msgspec.msgpack.encode(request))
    except TooExpensive as error:
        raise TooExpensive(error.reason, _param(form)) from None
    return grammar


def constrains_calls(job: Job) -> bool:
    """Whether the grammar of a job, if it has one, keeps calls to their form: one of a document does not."""
    return job.offer.required or job.settings.format.kind == "text"


def _control_ids(renderer: Renderer) -> dict[str, int]:
    calls, vocabulary = renderer.calls, renderer.vocabulary
    marks = (calls.call_open, calls.call_close, calls.think_open, calls.think_close)
    return {mark: vocabulary.control(mark) for mark in marks if mark and vocabulary.has_control(mark)}


def _param(form: Form) -> str:
    """The field of a request that a grammar is made from."""
    return "tools" if form.required or form.document is None else "text.format.schema"


def write_grammar(request: bytes) -> str | None:
    """Write a grammar and try it; None: nothing is to be enforced. A task of the sandbox.

    The engine that is given a grammar compiles it again, where everybody waits for it: one that is expensive
    to follow is refused here.
    """
    asked = _request.decode(request)
    form, writer = asked.form, _Writer(asked)
    if form.required:
        grammar = writer.required_calls(form.tools, asked.most_calls)
    elif form.document is not None:
        grammar = writer.document(form.document, form.strict)
    elif any(tool.strict or writer.is_bound(tool, number) for number, tool in enumerate(form.tools)):
        grammar = writer.text_or_calls(form.tools, asked.most_calls)
    else:
        return None
    complaint = _grammar_complaint(grammar, asked.max_states)
    if complaint is not None:
        param = _param(form)
        raise InvalidRequest(f"Invalid '{param}': this cannot be enforced: {complaint}.", param=param)
    return grammar


class _Writer:
    """Writes grammars for one model."""

    def __init__(self, asked: _Request) -> None:
        self._opens_thought = asked.opens_thought
        self._calls = asked.form.calls
        self._control_ids = asked.control_ids
        self._max_states = asked.max_states
        self._input_rules: dict[int, tuple[str, ...]] = {}
        self._rules = [f"stop: <[{','.join(map(str, asked.stop_ids))}]>"]

    def is_bound(self, tool: CalledTool, number: int) -> bool:
        """Whether its input is kept to a grammar: that holds, as strict arguments do, for every call."""
        grammar = tool.grammar
        if grammar is None or grammar.syntax == "regex":
            return grammar is not None
        return bool(self._rules_of(grammar, number))

    def _rules_of(self, grammar: Grammar, number: int) -> tuple[str, ...]:
        """Rules for an input that follows a Lark grammar, quotes aside; none where it cannot be enforced."""
        if number not in self._input_rules:
            name = f"input_{number}"
            rules = string_rules(grammar.definition, name) or ()
            lead = ["%llguidance {}", f'start: "\\"" {name} "\\""']
            is_valid = _grammar_complaint("\n".join([*lead, *rules, ""]), self._max_states) is None
            self._input_rules[number] = rules if is_valid else ()
        return self._input_rules[number]

    def required_calls(self, tools: list[CalledTool], most: int) -> str:
        """At least one call, and nothing else."""
        self._write_calls(tools)
        return self._finish(f"{self._thought()}one{_more('one', most)}")

    def text_or_calls(self, tools: list[CalledTool], most: int) -> str:
        """Any text; where it becomes a call, a right one, and after it nothing but calls."""
        self._write_calls(tools)
        opening = self._calls.call_open
        if not opening:
            self._rules.append(r"TEXT: /(\s*[^{\[\s][\s\S]*)?/")
            return self._finish(f"{self._thought()}(one{_more('one', most)} | TEXT)")
        self._rules.append(r"TEXT: /[\s\S]*/")
        if opening in self._control_ids:
            return self._finish(f"{self._thought()}TEXT (one{_more('one', most)})?")
        # Text can say the mark like any other word: what follows its first occurrence is a call.
        self._rules.append(rf"lead[lazy]: /[\s\S]*{_escaped(opening)}/")
        return self._finish(f"{self._thought()}(TEXT | lead rest{_more('one', most)})")

    def document(self, schema: bytes, strict: bool) -> str:
        self._rules.append(f"document: %json {self._enforceable(schema, strict, 'text.format.schema')}")
        return self._finish(f"{self._thought()}document")

    def _write_calls(self, tools: list[CalledTool]) -> None:
        """Rules for one call: ``one`` with its marks, ``rest`` without the first."""
        calls = self._calls
        names = []
        for number, tool in enumerate(tools):
            lead = _literal(f'{{"name": {_literal(tool.name)}, "{calls.arguments_key}": ')
            self._rules += [f'call_{number}: {lead} arguments_{number} "}}"', *self._arguments(tool, number)]
            names.append(f"call_{number}")
        if not calls.call_open:
            self._rules.append(f"one: {' | '.join(names)}")
            return
        self._rules.append(f'rest: "\\n" ({" | ".join(names)}) "\\n" {self._mark(calls.call_close)}')
        self._rules.append(f"one: {self._mark(calls.call_open)} rest")

    def _arguments(self, tool: CalledTool, number: int) -> list[str]:
        """Rules for what a call carries."""
        grammar = tool.grammar
        if grammar is not None and grammar.syntax == "lark":
            rules = self._rules_of(grammar, number)
            if rules:
                opening, closing = _literal('{"input": "'), _literal('"}')
                return [f"arguments_{number}: {opening} input_{number} {closing}", *rules]
        # A schema of their own, so that references within it mean what they meant.
        schema = arguments_schema(tool)
        if grammar is not None and _complaint(schema, self._max_states) is not None:
            schema = tool.parameters  # an expression that only makes sense outside of JSON
        enforced = self._enforceable(schema, tool.strict, f"tools[{number}].parameters")
        return [f"arguments_{number}: %json {enforced}"]

    def _thought(self) -> str:
        """What a model that thinks writes before it answers."""
        opening, closing = self._calls.think_open, self._calls.think_close
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
        if token in self._control_ids:
            return f"<[{self._control_ids[token]}]>"
        return _literal(token)

    def _enforceable(self, schema: bytes, strict: bool, param: str) -> str:
        return _enforceable(schema, strict, param, self._max_states)

    def _finish(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start} stop", *self._rules, ""])


def _escaped(text: str) -> str:
    """A text as a regular expression that matches nothing else."""
    return "".join(f"\\{character}" if character in "/\\.[](){}*+?|^$" else character for character in text)


def _literal(text: str) -> str:
    """A text in quotes, as JSON and grammars have it."""
    return json.dumps(text, ensure_ascii=False)


def _more(rule: str, most: int) -> str:
    """Up to ``most`` in all, where one has been written."""
    return f' ("\\n" {rule}){{0,{most - 1}}}' if most > 1 else ""


def _enforceable(schema: bytes, strict: bool, param: str, max_states: int) -> str:
    """A schema as the engine can enforce it. ``strict``: all of it or nothing."""
    complaint = _complaint(schema, max_states)
    if complaint is None:
        return _laid_out(schema)
    if not strict:
        is_possible = _complaint(schema, max_states, lenient=True) is None
        return _laid_out(schema, lenient=True) if is_possible else ANY_OBJECT.decode()
    raise InvalidRequest(f"Invalid '{param}': this schema cannot be enforced: {complaint}", param=param)


def _complaint(schema: bytes, max_states: int, *, lenient: bool = False) -> str | None:
    """What keeps a schema from being compiled and followed, if anything does."""
    laid_out = _laid_out(schema, lenient=lenient)
    said = _grammar_complaint(f"%llguidance {{}}\nstart: %json {laid_out}\n", max_states)
    if said is not None:
        return (said.partition("failed to compile JSON schema: ")[2] or said)[:300]
    # A pattern may stand where a short walk does not lead.
    for pattern in set(_patterns(json.loads(schema))):
        said = tool_grammars.check_grammar("regex", pattern, max_states)
        if said is not None and said.startswith(tool_grammars.TOO_LARGE):
            return said
    return None


def _patterns(schema: Any) -> Iterator[str]:
    """The regular expressions of a schema."""
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


def _grammar_complaint(grammar: str, max_states: int) -> str | None:
    from llguidance import LLMatcher

    failed, complaints = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        return " ".join("".join(complaints[:1]).split("\n   1 |")[0].split())
    return tool_grammars.followed(_TOKENS.sub("<[255]>", grammar), max_states)


def _laid_out(schema: bytes, *, lenient: bool = False) -> str:
    document: dict[str, Any] = json.loads(schema)
    layout: dict[str, Any] = {**_LAYOUT, "lenient": True} if lenient else _LAYOUT
    return json.dumps({**document, "x-guidance": layout}, ensure_ascii=False)
