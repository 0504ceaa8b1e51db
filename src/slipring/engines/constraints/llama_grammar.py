"""Writes the llguidance grammar that llama.cpp enforces while it samples an answer.

Required calls, named tools, strict arguments and formats of answers become one grammar. llama.cpp ignores a
schema that it cannot compile, and blocks all jobs while it compiles: so each grammar is first compiled in a
sandbox. A request that cannot be enforced is refused, with the field's name, before the response is created.
"""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from slipring.base.errors import InvalidRequest, TooExpensive
from slipring.engines.constraints import grammar_checks
from slipring.engines.constraints.json_string_grammar import llguidance_rules
from slipring.engines.constraints.required_answer_shapes import (
    ANY_OBJECT,
    Form,
    answer_shape,
    form_of,
    param_of,
)
from slipring.engines.constraints.shape import (
    Choice,
    FreeText,
    Input,
    Json,
    Mark,
    Optional,
    Pattern,
    Repeated,
    Sequence,
    Shape,
    TextOrCalls,
    TextUntil,
    TextWithCalls,
)
from slipring.protocol.tools.grammars_and_schemas import Grammar

if TYPE_CHECKING:
    from slipring.core.generation import Job
    from slipring.engines.constraints.grammar_compiler import Compiler
    from slipring.prompts.rendering import Renderer

_TOKENS = re.compile(r"<\[[0-9,]*\]>")
"""Token ids in a grammar. It is tried byte by byte: byte 255, which no text contains, replaces them."""
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as chat templates write it, which is what models were trained on."""
_ANY_TEXT = r"/[\s\S]*/"
_IN_STRING = r'([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*'
"""The text of any JSON string, between its quotes."""
_URI = r"^[A-Za-z][A-Za-z0-9+.\-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=\-]|%[0-9A-Fa-f]{2})*$"
_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)


class _GrammarRequest(Struct, frozen=True):
    """The input of ``write_grammar``, which runs in another process."""

    form: Form
    stop_ids: list[int]
    control_ids: dict[str, int]
    """The marks of the model's output format, and parts of them, that are single tokens of the model."""
    max_states: int


_decoder = msgspec.msgpack.Decoder(_GrammarRequest)


async def grammar_of(
    job: "Job", renderer: "Renderer", compiler: "Compiler", *, opens_thought: bool = False
) -> str | None:
    """The grammar that the answer to a job must follow; None if it is unconstrained. Raises
    ``InvalidRequest`` if it cannot be enforced, ``TooExpensive`` if compiling takes too long."""
    form = form_of(job, renderer, opens_thought=opens_thought)
    if not form.required and form.is_free_text and not form.limits_calls:
        return None
    request = _GrammarRequest(
        form=form,
        stop_ids=sorted(renderer.stop_ids()),
        control_ids=renderer.control_ids(),
        max_states=compiler.max_states,
    )
    try:
        grammar: str | None = await compiler.run(job.tenant, "write_grammar", msgspec.msgpack.encode(request))
    except TooExpensive as error:
        raise TooExpensive(error.reason, param_of(form)) from None
    return grammar


def constrains_calls(job: "Job") -> bool:
    """Whether the grammar of a job, if it has one, makes calls well-formed. A document's grammar does not."""
    settings = job.settings
    return job.offer.required or (settings.format.kind == "text" and settings.pattern is None)


def write_grammar(encoded: bytes) -> str | None:
    """Write a grammar and try it; None if there is nothing to enforce. A task of the sandbox.

    Raises ``InvalidRequest`` if llguidance cannot compile the grammar, or needs more than ``max_states`` for
    it: the engine compiles it again, and would block all jobs meanwhile.
    """
    request = _decoder.decode(encoded)
    form, writer = request.form, _Writer(request)
    if form.limits_calls and not any(
        tool.strict or (tool.grammar is not None and writer.enforces(tool.grammar)) for tool in form.tools
    ):
        return None
    grammar = writer.grammar(answer_shape(form, loops=False))
    error = _grammar_error(grammar, request.max_states)
    if error is not None:
        param = param_of(form)
        raise InvalidRequest.at(param, f"this cannot be enforced: {error}")
    return grammar


class _Writer:
    """Writes the shape of an answer as rules, for one model."""

    def __init__(self, request: _GrammarRequest) -> None:
        self._control_ids = request.control_ids
        names = sorted(request.control_ids, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._max_states = request.max_states
        self._stop_ids = request.stop_ids
        self._rules: list[str] = []
        self._names: dict[object, str] = {}
        self._inputs: dict[Grammar, tuple[str, tuple[str, ...]]] = {}

    def grammar(self, shape: Shape) -> str:
        """The whole grammar."""
        start = f"start: ({self._expression(shape)}) stop"
        stop = f"stop: <[{','.join(map(str, self._stop_ids))}]>"
        return "\n".join(["%llguidance {}", start, stop, *self._rules, ""])

    def enforces(self, grammar: Grammar) -> bool:
        """Whether the grammar of a custom tool constrains its input."""
        return grammar.syntax == "regex" or bool(self._input(grammar)[1])

    def _input(self, grammar: Grammar) -> tuple[str, tuple[str, ...]]:
        """The name of a rule for a JSON string, without its quotes, whose text follows a Lark grammar, and
        all rules for it; without rules if that cannot be enforced."""
        if grammar not in self._inputs:
            name = f"input_{len(self._inputs)}"
            rules = llguidance_rules(grammar.definition, name) or ()
            lead = ["%llguidance {}", f'start: "\\"" {name} "\\""']
            is_valid = _grammar_error("\n".join([*lead, *rules, ""]), self._max_states) is None
            self._inputs[grammar] = name, rules if is_valid else ()
            if is_valid:
                self._rules += rules
        return self._inputs[grammar]

    def _expression(self, shape: Shape) -> str:
        """The right side of a rule for a shape."""
        match shape:
            case Sequence(parts):
                return " ".join(map(self._named, parts)) or '""'
            case Choice(options):
                return " | ".join(map(self._named, options))
            case Optional(inner):
                return f"({self._named(inner)})?"
            case Repeated(inner, separator, most):
                name, count = self._named(inner), "*" if most is None else f"{{0,{most - 1}}}"
                return f"{name} ({self._mark(separator)} {name}){count}"
            case TextWithCalls():
                return self._text_with_calls(shape)
            case TextOrCalls(calls):
                return rf"{self._named(calls)} | /(\s*[^{{\[\s][\s\S]*)?/"
            case _:
                return self._leaf(shape)

    def _leaf(self, shape: Mark | Pattern | TextUntil | FreeText | Json | Input) -> str:
        """The right side of a rule for a shape that has no parts."""
        match shape:
            case Mark(text):
                return self._mark(text)
            case Pattern(regex):
                return _regex(regex)
            case TextUntil(mark, regex):
                return self._text_until(mark, regex)
            case FreeText():
                return _ANY_TEXT
            case Json():
                return f"%json {_enforceable(shape, self._max_states)}"
            case Input(grammar):
                name, rules = self._input(grammar)
                return name if rules else _regex(_IN_STRING)

    def _named(self, shape: Shape) -> str:
        """The name of a rule for a shape; a mark is short enough to be written where it is needed."""
        if isinstance(shape, Mark):
            return self._mark(shape.text)
        # Equal schemas are tried once.
        key = (shape.schema, shape.strict, shape.param) if isinstance(shape, Json) else id(shape)
        if key not in self._names:
            expression = self._expression(shape)
            name = self._names[key] = f"r{len(self._names)}"
            self._rules.append(f"{name}: {expression}")
        return self._names[key]

    def _text_until(self, mark: str, regex: str) -> str:
        """Text and the mark that ends it. The lexer matches as much as it can, so both are one terminal, up
        to the first control token of the mark."""
        text, *rest = self._pieces(mark)
        lead = "" if text in self._control_ids else _escaped(text)
        before = f"(?:{regex})" if regex else r"[\s\S]*"
        if not rest and lead:
            name = f"t{len(self._rules)}"
            self._rules.append(f"{name}[lazy]: {_regex(before + lead)}")
            return name
        following = rest if lead else [text, *rest]
        return " ".join([_regex(before + lead), *map(self._mark, following)])

    def _text_with_calls(self, shape: TextWithCalls) -> str:
        options = [_ANY_TEXT]
        for mark, following in shape.triggers:
            options.append(f"{self._text_until(mark, '')} {self._named(following)}")
        ignored = [self._mark(mark) for mark in map(str.strip, shape.ignored) if self._controls.search(mark)]
        lead = f"({_ANY_TEXT} ({' | '.join(ignored)}))* " if ignored else ""
        return f"{lead}({' | '.join(options)})"

    def _mark(self, text: str) -> str:
        """A mark, with token ids for its parts that are control tokens."""
        return " ".join(
            f"<[{self._control_ids[piece]}]>" if piece in self._control_ids else _literal(piece)
            for piece in self._pieces(text)
        )

    def _pieces(self, text: str) -> list[str]:
        """A text cut at its control tokens."""
        pieces, at = [], 0
        for found in self._controls.finditer(text):
            pieces += [text[at : found.start()], found.group()]
            at = found.end()
        return [piece for piece in [*pieces, text[at:]] if piece]


def _regex(source: str) -> str:
    """A regular expression between slashes."""
    escapes = {"/": r"\/", "\n": r"\n"}
    return f"/{_SLASH.sub(lambda found: escapes.get(found.group(), found.group()), source)}/"


def _escaped(text: str) -> str:
    """A regular expression that matches exactly ``text``."""
    return "".join(f"\\{character}" if character in "/\\.[](){}*+?|^$" else character for character in text)


def _literal(text: str) -> str:
    """A text in double quotes, escaped for JSON and for grammars alike."""
    return json.dumps(text, ensure_ascii=False)


def _enforceable(shape: Json, max_states: int) -> str:
    """The schema to enforce: as much of it as possible unless it is strict. Raises ``InvalidRequest`` for a
    strict one that cannot be enforced."""
    error = _schema_error(shape.schema, max_states)
    if error is None:
        return _with_layout(shape.schema)
    if not shape.strict:
        is_possible = not shape.fallback and _schema_error(shape.schema, max_states, lenient=True) is None
        return (
            _with_layout(shape.schema, lenient=True)
            if is_possible
            else (shape.fallback or ANY_OBJECT).decode()
        )
    param = shape.param
    raise InvalidRequest(f"Invalid '{param}': this schema cannot be enforced: {error}", param=param)


def _schema_error(schema: bytes, max_states: int, *, lenient: bool = False) -> str | None:
    """Why llguidance cannot enforce a schema; None if it can."""
    document = _with_layout(schema, lenient=lenient)
    error = _grammar_error(f"%llguidance {{}}\nstart: %json {document}\n", max_states)
    if error is not None:
        return (error.partition("failed to compile JSON schema: ")[2] or error)[:300]
    # Trying the grammar reads only a few bytes, and may not reach a pattern that is too large.
    for pattern in set(_patterns(json.loads(schema))):
        error = grammar_checks.check_grammar("regex", pattern, max_states)
        if error is not None and error.startswith(grammar_checks.TOO_LARGE):
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
    return grammar_checks.walk_error(_TOKENS.sub("<[255]>", grammar), max_states)


def _with_layout(schema: bytes, *, lenient: bool = False) -> str:
    """A schema with the options that make llguidance write JSON as in ``_LAYOUT``."""
    document: dict[str, Any] = _without_uri_format(json.loads(schema))
    layout: dict[str, Any] = {**_LAYOUT, "lenient": True} if lenient else _LAYOUT
    return json.dumps({**document, "x-guidance": layout}, ensure_ascii=False)


def _without_uri_format(schema: Any) -> Any:
    """A schema with a pattern for each ``"format": "uri"``: llama.cpp's llguidance cannot compile its own
    pattern for it, and would leave the whole answer unconstrained."""
    if isinstance(schema, list):
        return [_without_uri_format(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    written = {
        key: each if key in ("const", "enum") else _without_uri_format(each)
        for key, each in schema.items()
        if (key, each) != ("format", "uri")
    }
    if len(written) < len(schema):
        written["allOf"] = [*written.get("allOf", ()), {"pattern": _URI}]
    return written
