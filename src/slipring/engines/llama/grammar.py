"""Constraints as grammars: what a model may write is decided token by token, not asked for.

A required call, named tools, strict arguments and formats of answers become a grammar of llguidance, which
llama.cpp enforces while it samples. The engine ignores a schema that it cannot compile, so each is compiled
here first: what cannot be enforced is refused by name, before the response exists.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from slipring.core.generation import Job
from slipring.engines.constraint import ANY_OBJECT, arguments_schema
from slipring.engines.lark.strings import string_rules
from slipring.errors import InvalidRequest
from slipring.prompts.parser import CallFormat, flat_name
from slipring.prompts.rendering import Renderer
from slipring.prompts.schemas import parameters_of
from slipring.prompts.tokenizer import Vocabulary
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools import CallableTool, FunctionTool

_MOST_CALLS = 16
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As chat templates write JSON, which is what models have read."""


def grammar_of(job: Job, renderer: Renderer, *, opens_thought: bool = False) -> str | None:
    """The grammar that the answer to a job has to follow, or None where it is free.

    ``opens_thought``: the prompt ends inside a thought, which the model has to end first.
    """
    offer, format = job.offer, job.settings.format
    writer = _Writer(renderer.calls, renderer.vocabulary, renderer.stop_ids(), opens_thought=opens_thought)
    most_calls = min(_MOST_CALLS, job.settings.max_tool_calls or _MOST_CALLS)
    if not job.settings.parallel_tool_calls:
        most_calls = 1
    if offer.required:
        return writer.required_calls(offer.tools, most_calls)
    if format.kind != "text":
        return writer.document(format)
    if any(is_strict(tool) or _is_bound(tool, number) for number, tool in enumerate(offer.tools)):
        return writer.text_or_calls(offer.tools, most_calls)
    return None


def constrains_calls(job: Job) -> bool:
    """Whether the grammar of a job, if it has one, keeps calls to their form: one of a document does not."""
    return job.offer.required or job.settings.format.kind == "text"


def is_strict(tool: CallableTool) -> bool:
    return isinstance(tool.definition, FunctionTool) and tool.definition.strict is True


def _is_bound(tool: CallableTool, number: int) -> bool:
    """Whether its input is kept to a grammar: that holds, as strict arguments do, for every call."""
    grammar = tool.grammar
    if grammar is None or grammar.syntax == "regex":
        return grammar is not None
    return bool(_input_rules(grammar.definition, f"input_{number}"))


@lru_cache(maxsize=64)
def _input_rules(definition: str, name: str) -> tuple[str, ...]:
    """Rules for an input that follows a Lark grammar, quotes aside; none where it cannot be enforced."""
    rules = string_rules(definition, name) or ()
    lead = ["%llguidance {}", f'start: "\\"" {name} "\\""']
    return rules if _grammar_complaint("\n".join([*lead, *rules, ""])) is None else ()


class _Writer:
    """Writes grammars for one model."""

    def __init__(
        self, calls: CallFormat, vocabulary: Vocabulary, stop_ids: Iterable[int], *, opens_thought: bool
    ) -> None:
        self._opens_thought = opens_thought
        self._calls = calls
        self._vocabulary = vocabulary
        self._rules = [f"stop: <[{','.join(map(str, sorted(stop_ids)))}]>"]

    def required_calls(self, tools: tuple[CallableTool, ...], most: int) -> str:
        """At least one call, and nothing else."""
        self._write_calls(tools)
        return self._finish(f"{self._thought()}one{_more('one', most)}")

    def text_or_calls(self, tools: tuple[CallableTool, ...], most: int) -> str:
        """Any text; where it becomes a call, a right one, and after it nothing but calls."""
        self._write_calls(tools)
        opening = self._calls.call_open
        if not opening:
            self._rules.append(r"TEXT: /(\s*[^{\[\s][\s\S]*)?/")
            return self._finish(f"{self._thought()}(one{_more('one', most)} | TEXT)")
        self._rules.append(r"TEXT: /[\s\S]*/")
        if self._vocabulary.has_control(opening):
            return self._finish(f"{self._thought()}TEXT (one{_more('one', most)})?")
        # Text can say the mark like any other word: what follows its first occurrence is a call.
        self._rules.append(rf"lead[lazy]: /[\s\S]*{_escaped(opening)}/")
        return self._finish(f"{self._thought()}(TEXT | lead rest{_more('one', most)})")

    def document(self, format: TextFormat) -> str:
        schema = format.schema or ANY_OBJECT
        strict = json.loads(bytes(format.echo)).get("strict") is True
        self._rules.append(f"document: %json {_enforceable(schema, strict, 'text.format.schema')}")
        return self._finish(f"{self._thought()}document")

    def _write_calls(self, tools: tuple[CallableTool, ...]) -> None:
        """Rules for one call: ``one`` with its marks, ``rest`` without the first."""
        calls = self._calls
        names = []
        for number, tool in enumerate(tools):
            lead = _literal(f'{{"name": {_literal(flat_name(tool))}, "{calls.arguments_key}": ')
            self._rules += [f'call_{number}: {lead} arguments_{number} "}}"', *self._arguments(tool, number)]
            names.append(f"call_{number}")
        if not calls.call_open:
            self._rules.append(f"one: {' | '.join(names)}")
            return
        self._rules.append(f'rest: "\\n" ({" | ".join(names)}) "\\n" {self._mark(calls.call_close)}')
        self._rules.append(f"one: {self._mark(calls.call_open)} rest")

    def _arguments(self, tool: CallableTool, number: int) -> list[str]:
        """Rules for what a call carries."""
        grammar = tool.grammar
        if grammar is not None and grammar.syntax == "lark":
            rules = _input_rules(grammar.definition, f"input_{number}")
            if rules:
                opening, closing = _literal('{"input": "'), _literal('"}')
                return [f"arguments_{number}: {opening} input_{number} {closing}", *rules]
        # A schema of their own, so that references within it mean what they meant.
        schema = arguments_schema(tool)
        if grammar is not None and _complaint(schema, False) is not None:
            schema = bytes(parameters_of(tool))  # an expression that only makes sense outside of JSON
        enforced = _enforceable(schema, is_strict(tool), f"tools[{number}].parameters")
        return [f"arguments_{number}: %json {enforced}"]

    def _thought(self) -> str:
        """What a model that thinks writes before it answers."""
        opening, closing = self._calls.think_open, self._calls.think_close
        if self._opens_thought and not self._vocabulary.has_control(closing):
            self._rules += [rf"thought[lazy]: /[\s\S]*{_escaped(closing)}/", r"SPACE: /\s*/"]
            return "thought SPACE "
        if not self._opens_thought and not (opening and self._vocabulary.has_control(opening)):
            return ""
        lead = "" if self._opens_thought else f"{self._mark(opening)} "
        self._rules += [
            rf"thought: {lead}THOUGHT {self._mark(closing)} SPACE",
            r"THOUGHT: /[\s\S]*/",
            r"SPACE: /\s*/",
        ]
        return "thought " if self._opens_thought else "thought? "

    def _mark(self, token: str) -> str:
        if self._vocabulary.has_control(token):
            return f"<[{self._vocabulary.control(token)}]>"
        return _literal(token)

    def _finish(self, start: str) -> str:
        grammar = "\n".join(["%llguidance {}", f"start: {start} stop", *self._rules, ""])
        if (complaint := _grammar_complaint(grammar)) is not None:
            raise RuntimeError(f"a grammar of our own cannot be compiled: {complaint}")
        return grammar


def _escaped(text: str) -> str:
    """A text as a regular expression that matches nothing else."""
    return "".join(f"\\{character}" if character in "/\\.[](){}*+?|^$" else character for character in text)


def _literal(text: str) -> str:
    """A text in quotes, as JSON and grammars have it."""
    return json.dumps(text, ensure_ascii=False)


def _more(rule: str, most: int) -> str:
    """Up to ``most`` in all, where one has been written."""
    return f' ("\\n" {rule}){{0,{most - 1}}}' if most > 1 else ""


def _enforceable(schema: bytes, strict: bool, param: str) -> str:
    """A schema as the engine can enforce it. ``strict``: all of it or nothing."""
    complaint = _complaint(schema, False)
    if complaint is None:
        return _laid_out(schema, False)
    if not strict:
        return _laid_out(schema, True) if _complaint(schema, True) is None else ANY_OBJECT.decode()
    raise InvalidRequest(f"Invalid '{param}': this schema cannot be enforced: {complaint}", param=param)


def _complaint(schema: bytes, lenient: bool) -> str | None:
    """What keeps a schema from being compiled, if anything does."""
    said = _grammar_complaint(f"%llguidance {{}}\nstart: %json {_laid_out(schema, lenient)}\n")
    if said is None:
        return None
    return (said.partition("failed to compile JSON schema: ")[2] or said)[:300]


@lru_cache(maxsize=512)
def _grammar_complaint(grammar: str) -> str | None:
    from llguidance import LLMatcher

    failed, complaints = LLMatcher.validate_grammar_with_warnings(grammar)
    return " ".join("".join(complaints[:1]).split("\n   1 |")[0].split()) if failed else None


def _laid_out(schema: bytes, lenient: bool) -> str:
    document: dict[str, Any] = json.loads(schema)
    layout: dict[str, Any] = {**_LAYOUT, "lenient": True} if lenient else _LAYOUT
    return json.dumps({**document, "x-guidance": layout}, ensure_ascii=False)
